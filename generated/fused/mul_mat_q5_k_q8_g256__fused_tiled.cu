// mul_mat Q5_K x f32, one token, family fused.
// Generated from specs/formats/q5_k.toml and templates/fused.cu.j2;
// edit those, then run: qgen build
//
// format      Q5_K: 256 elements in 176 bytes
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  float32, quantised to q8_g256 by every CTA; at most 8192 columns
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g256_u256_s16: block b of a row belongs to slice b mod 16; a slice takes its blocks in
//             increasing order, in them units of 256 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sc*sum(q*a), -dmin*mn*sum(a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 63495936
//
#include "qgen_held.cuh"
#include "qgen_mma.cuh"
#include "qgen_quantize.cuh"
#include "qgen_single.cuh"

namespace {

constexpr int kTileBytes = 2816;   // bytes of a tile: sixteen rows of a block
constexpr int kSlices = 16;       // slices of K in the canonical order
constexpr int kSplit = 8;        // the blocks of a bundle lie so many apart
constexpr int kBundle = 1;       // blocks of a bundle
constexpr int kBlock = 256;       // columns of a block
constexpr int kCodeWords = 16;    // code words of a thread, row and block
constexpr int kChunks = 4;       // 16-byte pieces of activation codes of a thread and bundle
constexpr int kScales = 1;       // activation scales of a bundle
constexpr int kRecordBytes = 304; // activation record of a bundle, in shared memory: codes, scales, starts, sums
constexpr int kWarps = 16;       // warps of a CTA
constexpr int kOwn = 2;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 64;  // neighbouring slots that share a scale
constexpr int kSumSlots = 8;    // those that share a sum
// Column e of a slot's word, in elements from the bundle's first one.
__device__ __forceinline__ int column_of(int slot, int e) {
    constexpr int behind[4] = {0, 1, 2, 3};
    return 4 * slot + behind[e];
}

// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kWordPlaces[32 * kOwn] = {
0, 4, 16, 20, 32, 36, 48, 52, 8, 12, 24, 28, 40, 44, 56, 60,
64, 68, 80, 84, 96, 100, 112, 116, 72, 76, 88, 92, 104, 108, 120, 124,
128, 132, 144, 148, 160, 164, 176, 180, 136, 140, 152, 156, 168, 172, 184, 188,
192, 196, 208, 212, 224, 228, 240, 244, 200, 204, 216, 220, 232, 236, 248, 252,
};

// The columns of a thread's words of the bundle that starts at x.
__device__ __forceinline__ void load_columns(float (&v)[kOwn][4], const float* x, int lane) {
#pragma unroll
    for (int i = 0; i < 4 * kOwn; ++i) {
        const int column = column_of(i / 4 * 32 + lane, i % 4);
        v[i / 4][i % 4] = qgen_load_f32(x + column);
    }
}

// The CTA's own quantised x: records from byte `records` of shared memory on, those of blocks that only fill up too. A warp
// quantises every kWarps-th bundle, and asks for the columns of its next one before it does.
struct HeldInputs {
    static constexpr bool held = true;

    const float* x;
    int blocks, records;

    template <class More>
    __device__ __forceinline__ void get(More more) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int bundles = blocks;
        // Where a thread's words go: constants come while the kernel before this one ends.
        int places[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) places[i] = qgen_keep((int)kWordPlaces[32 * i + lane]);
        float next[kOwn][4];
        qgen_wait_for_inputs();
        load(next, lane, warp);
        more();
#pragma unroll 1
        for (int bundle = warp; bundle < bundles; bundle += kWarps) {
            float v[kOwn][4];
#pragma unroll
            for (int i = 0; i < 4 * kOwn; ++i) v[i / 4][i % 4] = next[i / 4][i % 4];
            load(next, lane, bundle + kWarps);
            write(v, places, lane, records + bundle * kRecordBytes);
        }
        __syncthreads();
    }

private:
    static __device__ __forceinline__ int first_block(int bundle) {
        return bundle;
    }

    // The columns of a bundle; of one behind the last none.
    __device__ __forceinline__ void load(float (&v)[kOwn][4], int lane, int bundle) const {
        const int first = first_block(bundle);
        if (first < blocks) load_columns(v, x + (int64_t)first * kBlock, lane);
    }

    static __device__ __forceinline__ void write(const float (&v)[kOwn][4], const int (&places)[kOwn], int lane, int record) {
    uint32_t words[kOwn];
    float scale[kOwn];
    qgen_quantize_words<kOwn, kScaleSlots>(v, words, scale);
    int sums[kOwn];
    qgen_sum_words<kOwn, kSumSlots>(words, sums);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int slot = 32 * i + lane;
        qgen_store_u32(record + places[i], words[i]);
        if (slot % kScaleSlots == 0 && slot / kScaleSlots < kScales) {
            const int s = slot / kScaleSlots;
            qgen_store_u32(record + 256 + s * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 8) {
            // Four sums a word, as low and high parts that fit int8: sum = low + 128 * high.
            const int high = (sums[i] + 64) >> 7, low = sums[i] - 128 * high;
            qgen_store_u8(record + 264 + (g / 4) * 8 + g % 4, (uint8_t)low);
            qgen_store_u8(record + 268 + (g / 4) * 8 + g % 4, (uint8_t)high);
        }
    }
    // Instructions over sums take sixteen groups.
    if (lane >= 8 && lane < 16) {
        qgen_store_u8(record + 264 + (lane / 4) * 8 + lane % 4, 0);
        qgen_store_u8(record + 268 + (lane / 4) * 8 + lane % 4, 0);
    }

    }
};

// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    uint32_t w[10];
    qgen_words16<4>(w + 0, qgen_shared + skip, from0 + 256 + half * 512);
    qgen_words16<4>(w + 4, qgen_shared + skip, from0 + 1280 + half * 512);
    qgen_words8<2>(w + 8, qgen_shared + skip, from1 + 2304 + half * 256);
    q[0] = ((w[2] & 0x0f0f0f0fu) | (w[0] << 4 & 0x10101010u));
    q[2] = ((w[2] >> 4 & 0x0f0f0f0fu) | (w[0] << 3 & 0x10101010u));
    q[1] = ((w[3] & 0x0f0f0f0fu) | (w[1] << 4 & 0x10101010u));
    q[3] = ((w[3] >> 4 & 0x0f0f0f0fu) | (w[1] << 3 & 0x10101010u));
    q[4] = ((w[4] & 0x0f0f0f0fu) | (w[0] << 2 & 0x10101010u));
    q[6] = ((w[4] >> 4 & 0x0f0f0f0fu) | (w[0] << 1 & 0x10101010u));
    q[5] = ((w[5] & 0x0f0f0f0fu) | (w[1] << 2 & 0x10101010u));
    q[7] = ((w[5] >> 4 & 0x0f0f0f0fu) | (w[1] << 1 & 0x10101010u));
    q[8] = ((w[6] & 0x0f0f0f0fu) | (w[0] & 0x10101010u));
    q[10] = ((w[6] >> 4 & 0x0f0f0f0fu) | (w[0] >> 1 & 0x10101010u));
    q[9] = ((w[7] & 0x0f0f0f0fu) | (w[1] & 0x10101010u));
    q[11] = ((w[7] >> 4 & 0x0f0f0f0fu) | (w[1] >> 1 & 0x10101010u));
    q[12] = ((w[8] & 0x0f0f0f0fu) | (w[0] >> 2 & 0x10101010u));
    q[14] = ((w[8] >> 4 & 0x0f0f0f0fu) | (w[0] >> 3 & 0x10101010u));
    q[13] = ((w[9] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x10101010u));
    q[15] = ((w[9] >> 4 & 0x0f0f0f0fu) | (w[1] >> 3 & 0x10101010u));
}

// Four integer scales sc of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_sc(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared + skip, from3 + 4 + half * 128) >> 0 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared + skip, from2 + 4 + half * 128) >> lane0 & 0x03030303u) << 4;
}

// Four integer scales mn of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_mn(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared + skip, from4 + 8 + half * 128) >> lane1 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared + skip, from2 + 8 + half * 128) >> lane0 & 0x03030303u) << 4;
}

// The float factor of the row that f0_0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from2 + 0 + half * 128));
}

// The float factor of the row that f0_1 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_1(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from2 + 2 + half * 128));
}

// What a thread needs of one activation record: codes of token g, the rest of tokens 2t and 2t + 1.
struct Record {
    uint32_t x[4 * kChunks];
    float dx[2 * kScales];
    uint2 a;
    // Where this thread's codes, and its part of the rest, begin in a record of bundle and column tile 0.
    struct From {
        int codes, scales, sums;
    };

    // What there is of one token alone, where all columns are that token; `from` points to what is its own.
    __device__ __forceinline__ void load_one(const From& from, int skip) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            const uint4 v = qgen_load_u32x4(from.codes + skip + 64 * c);
            x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
        }
#pragma unroll
        for (int s = 0; s < kScales; ++s) dx[2 * s] = dx[2 * s + 1] = __uint_as_float(qgen_load_u32(from.scales + skip + 4 * s));
        a = qgen_load_u32x2(from.sums + skip);
    }
};

// Adds a bundle of `row_tiles` times 16 rows times the tokens of `column_tiles` tiles to the slice sums of this thread:
// rows g and g + 8 of every row tile, tokens 2t and 2t + 1 of every column tile; of two row tiles only the first unless
// `whole`.
// place: where in shared memory each row tile's first block starts, less skip_tiles bytes
// left: tokens from the CTA's first on; inside: blocks of the bundle that there are
// skip: bytes from `from` to the bundle's record of the first column tile; those of the next come tile_bytes later
template <int column_tiles, int row_tiles, int skip_tiles = 0>
__device__ __forceinline__ void add_bundle(const int (&place)[row_tiles], int row, int lane, int t, int left, int inside, bool whole,
                                           const Record::From& from, int64_t skip, int64_t tile_bytes, const Record* first,
                                           float (*sum)[column_tiles][row_tiles][4]) {
    const Record& r = *first;
    uint32_t q[row_tiles][2][kBundle * kCodeWords];
#pragma unroll
    for (int m = 0; m < row_tiles; ++m)
#pragma unroll
        for (int j = 0; j < kBundle; ++j)
            if (m < 1 || whole) {
                block_codes<0, skip_tiles>(place[m] + j * (kSplit * kTileBytes), row, t, q[m][0] + j * kCodeWords);
                block_codes<1, skip_tiles>(place[m] + j * (kSplit * kTileBytes), row, t, q[m][1] + j * kCodeWords);
            }
    uint32_t own_sc[row_tiles][2], sc[row_tiles][2][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        own_sc[m / 2][m % 2] = m % 2 ? scale_word_sc<1, skip_tiles>(place[m / 2], row, t) : scale_word_sc<0, skip_tiles>(place[m / 2], row, t);
#pragma unroll
        for (int i = 0; i < 2; ++i)
            sc[m / 2][m % 2][i] = __shfl_sync(0xffffffffu, own_sc[m / 2][m % 2], (lane & 28) + i);
    }
    uint32_t own_mn[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        own_mn[m / 2][m % 2] = m % 2 ? scale_word_mn<1, skip_tiles>(place[m / 2], row, t) : scale_word_mn<0, skip_tiles>(place[m / 2], row, t);
    }
    float f0_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m / 2];
        f0_0[m / 2][m % 2] = m % 2 ? factor_0_0<1, skip_tiles>(at, row, t) : factor_0_0<0, skip_tiles>(at, row, t);
    }
    float f0_1[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m / 2];
        f0_1[m / 2][m % 2] = m % 2 ? factor_0_1<1, skip_tiles>(at, row, t) : factor_0_1<0, skip_tiles>(at, row, t);
    }
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        if (n && 8 * n >= left) break;
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
            if (m && !whole) break;
            {
                int total[4] = {0, 0, 0, 0};
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][0], q[m][1][0], q[m][0][1], q[m][1][1], r.x[0], r.x[1]);

                    const int s0 = qgen_unsigned_byte<0>(sc[m][0][0]);
                    const int s1 = qgen_unsigned_byte<0>(sc[m][1][0]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][2], q[m][1][2], q[m][0][3], q[m][1][3], r.x[2], r.x[3]);

                    const int s0 = qgen_unsigned_byte<1>(sc[m][0][0]);
                    const int s1 = qgen_unsigned_byte<1>(sc[m][1][0]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][4], q[m][1][4], q[m][0][5], q[m][1][5], r.x[4], r.x[5]);

                    const int s0 = qgen_unsigned_byte<2>(sc[m][0][0]);
                    const int s1 = qgen_unsigned_byte<2>(sc[m][1][0]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][6], q[m][1][6], q[m][0][7], q[m][1][7], r.x[6], r.x[7]);

                    const int s0 = qgen_unsigned_byte<3>(sc[m][0][0]);
                    const int s1 = qgen_unsigned_byte<3>(sc[m][1][0]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][8], q[m][1][8], q[m][0][9], q[m][1][9], r.x[8], r.x[9]);

                    const int s0 = qgen_unsigned_byte<0>(sc[m][0][1]);
                    const int s1 = qgen_unsigned_byte<0>(sc[m][1][1]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][10], q[m][1][10], q[m][0][11], q[m][1][11], r.x[10], r.x[11]);

                    const int s0 = qgen_unsigned_byte<1>(sc[m][0][1]);
                    const int s1 = qgen_unsigned_byte<1>(sc[m][1][1]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][12], q[m][1][12], q[m][0][13], q[m][1][13], r.x[12], r.x[13]);

                    const int s0 = qgen_unsigned_byte<2>(sc[m][0][1]);
                    const int s1 = qgen_unsigned_byte<2>(sc[m][1][1]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }
                {
                    int d[4] = {0, 0, 0, 0};
                qgen_mma_k32(d, q[m][0][14], q[m][1][14], q[m][0][15], q[m][1][15], r.x[14], r.x[15]);

                    const int s0 = qgen_unsigned_byte<3>(sc[m][0][1]);
                    const int s1 = qgen_unsigned_byte<3>(sc[m][1][1]);
                    total[0] += s0 * d[0], total[1] += s0 * d[1], total[2] += s1 * d[2], total[3] += s1 * d[3];
                }

                // sum over groups of mn * (sum of activations), which is low + 128 * high
                int low_mn[4] = {0, 0, 0, 0}, high_mn[4] = {0, 0, 0, 0};
                qgen_mma_k16_unsigned(low_mn, own_mn[m][0], own_mn[m][1], r.a.x);
                qgen_mma_k16_unsigned(high_mn, own_mn[m][0], own_mn[m][1], r.a.y);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = sum[0][n][m][i];
                    v = __fmaf_rn(__fmul_rn(f0_0[m][i / 2], r.dx[0 + i % 2]), __int2float_rn(total[i]), v);
                    v = __fmaf_rn(-__fmul_rn(f0_1[m][i / 2], r.dx[0 + i % 2]), __int2float_rn(low_mn[i] + 128 * high_mn[i]), v);
                    sum[0][n][m][i] = v;
                }
            }
        }
    }
}

// All threads of a quad keep the same sums of rows g and g + 8, by slice of their warp. Those of odd columns, which
// add_bundle would make too, are used by nobody, so that the compiler leaves them out.
template <int warps, int warp_blocks>
struct TokenWork {
    using Activation = int;
    static constexpr int stage_blocks = warps * warp_blocks, slices = kSlices / warps;

    const int t, row, warp;
    const Record::From from;  // of the warp's first block
    Record next;  // of the block to be added next
    float sum[slices][1][1][4];

    __device__ __forceinline__ TokenWork(int records, int blocks, int token, int warp, int t, int row)
        : t(t), row(row), warp(warp), from(from_of(records + warp * kRecordBytes, t)) {}

    static __device__ __forceinline__ Record::From from_of(int record, int t) {
        return {qgen_keep(record + t * 16), qgen_keep(record + 256), qgen_keep(record + t * 8 + 264)};
    }
    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int s = 0; s < slices; ++s) sum[s][0][0][0] = sum[s][0][0][1] = sum[s][0][0][2] = sum[s][0][0][3] = 0.0f;
    }

    __device__ __forceinline__ void load(int stage, int left) {
        at = stage * stage_blocks * kRecordBytes;
        if (warp < left) next.load_one(from, at);
    }

    __device__ __forceinline__ void add(int slot, int left) {
        slot += warp * kTileBytes;
        if (left >= stage_blocks || warp_blocks == 1) {
            if (warp_blocks > 1 || warp < left) add_all<0>(slot);
            qgen_turn_slices<warp_blocks>(sum);
            return;
        }
#pragma unroll 1
        for (int i = 0; i < warp_blocks; ++i) {
            if (warp + i * warps < left) {
                next.load_one(from, at + i * (warps * kRecordBytes));
                const int place[1] = {slot + i * (warps * kTileBytes)};
                add_bundle<1, 1>(place, row, 4 * row + t, t, 8, 1, false, from, 0, 0, &next, sum);
            }
            qgen_turn_slices<1>(sum);
        }
    }

    // The warp's blocks of a whole stage from number i on; before each is added, the record of the next is asked for. No
    // branch lies between them: where branches meet again, records would be copied from register to register.
    template <int i>
    __device__ __forceinline__ void add_all(int slot) {
        if constexpr (i < warp_blocks) {
            const Record own = next;
            if constexpr (i + 1 < warp_blocks) next.load_one(from, at + (i + 1) * (warps * kRecordBytes));
            const int place[1] = {slot};
            add_bundle<1, 1, i * warps * kTileBytes>(place, row, 4 * row + t, t, 8, 1, false, from, 0, 0, &own, sum + i % slices);
            add_all<i + 1>(slot);
        }
    }

    __device__ __forceinline__ void store(float* terms) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float own[slices];
#pragma unroll
            for (int s = 0; s < slices; ++s) own[s] = sum[s][0][0][2 * h];
            const float total = qgen_halving_sum<slices>(own);
            if (t == 0) terms[row + 8 * h] = total;
        }
    }

private:
    int at;  // bytes from the first stage's records to the stage's
};

}  // namespace

// 4 teams of 4 warps, a row tile each; 4 blocks of K a stage, 3 stages; 146176 bytes of shared memory
// y[row] for all columns of x, both float32 in one piece, the weight as in the header; with any grid, at best a CTA for each
// multiprocessor, or for each sixteen rows where those are fewer
extern "C" __global__ void __launch_bounds__(512, 1)
mul_mat_q5_k_q8_g256_t1__fused_tiled_w4(const uint8_t* __restrict__ weight, int rows, int blocks, const float* __restrict__ x, float* __restrict__ y) {
    qgen_single<TokenWork<4, 1>, 4, 4, 3, kTileBytes>(weight, rows, blocks, 136448, y, 0, HeldInputs{x, blocks, 136448});
}
// 2 teams of 8 warps, a row tile each; 8 blocks of K a stage, 3 stages; 146048 bytes of shared memory
// y[row] for all columns of x, both float32 in one piece, the weight as in the header; with any grid, at best a CTA for each
// multiprocessor, or for each sixteen rows where those are fewer
extern "C" __global__ void __launch_bounds__(512, 1)
mul_mat_q5_k_q8_g256_t1__fused_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, const float* __restrict__ x, float* __restrict__ y) {
    qgen_single<TokenWork<8, 1>, 8, 2, 3, kTileBytes>(weight, rows, blocks, 136320, y, 0, HeldInputs{x, blocks, 136320});
}
