// mul_mat Q4_1 x f32, one token, family fused.
// Generated from specs/formats/q4_1.toml and templates/fused.cu.j2;
// edit those, then run: qgen build
//
// format      Q4_1: 32 elements in 20 bytes
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  float32, quantised to q8_g32 by every CTA; at most 8192 columns
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g32_u32_s32: block b of a row belongs to slice b mod 32; a slice takes its blocks in
//             increasing order, in them units of 32 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sum(q*a), +m*sum(a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 60960
//
#include "qgen_held.cuh"
#include "qgen_mma.cuh"
#include "qgen_quantize.cuh"
#include "qgen_single.cuh"

namespace {

constexpr int kTileBytes = 320;   // bytes of a tile: sixteen rows of a block
constexpr int kSplit = 8;        // the blocks of a bundle lie so many apart
constexpr int kBundle = 4;       // blocks of a bundle
constexpr int kBlock = 32;       // columns of a block
constexpr int kCodeWords = 2;    // code words of a thread, row and block
constexpr int kScales = 4;       // activation scales of a bundle
constexpr int kUnits = 4;        // float steps of a bundle
constexpr int kBlockUnits = kUnits / kBundle;  // float steps of a block
constexpr int kRecordBytes = 176; // activation record of a bundle, in shared memory: codes, scales, starts, sums
constexpr int kWarps = 16;       // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 8;  // neighbouring slots that share a scale
constexpr int kSumSlots = 8;    // those that share a sum
constexpr int kNone = 65535;    // no column, no word
// Column e of a slot's word, in elements from the bundle's first one.
__device__ __forceinline__ int column_of(int slot, int e) {
    constexpr int behind[4] = {0, 1, 2, 3};
    return 4 * (slot & 7) + 256 * (slot >> 3) + behind[e];
}

// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kWordPlaces[32 * kOwn] = {
0, 16, 32, 48, 4, 20, 36, 52, 8, 24, 40, 56, 12, 28, 44, 60,
64, 80, 96, 112, 68, 84, 100, 116, 72, 88, 104, 120, 76, 92, 108, 124,
};

// The columns of a thread's words of the bundle that starts at x; 0 for those from `there` on.
__device__ __forceinline__ void load_columns(float (&v)[kOwn][4], const float* x, int lane, int there) {
#pragma unroll
    for (int i = 0; i < 4 * kOwn; ++i) {
        const int column = column_of(i / 4 * 32 + lane, i % 4);
        v[i / 4][i % 4] = column < there ? qgen_load_f32(x + column) : 0.0f;
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
        const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
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
        return bundle / kSplit * (kSplit * kBundle) + bundle % kSplit;
    }

    // The columns of a bundle; of one behind the last none.
    __device__ __forceinline__ void load(float (&v)[kOwn][4], int lane, int bundle) const {
        const int first = first_block(bundle);
        if (first < blocks) load_columns(v, x + (int64_t)first * kBlock, lane, min((blocks - first) * kBlock, kNone));
        else
#pragma unroll
            for (int i = 0; i < 4 * kOwn; ++i) v[i / 4][i % 4] = 0.0f;
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
            qgen_store_u32(record + 128 + s * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 4) {
            qgen_store_u32(record + 144 + g * 4, __float_as_uint(__int2float_rn(sums[i])));
        }
    }

    }
};

// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 4 * row);

    uint32_t w[1];
    qgen_words4<1>(w + 0, qgen_shared + skip, from0 + 0 + half * 128);
    q[0] = ((w[0] & 0x0f0f0f0fu));
    q[1] = ((w[0] >> 4 & 0x0f0f0f0fu));
}

// The float factor of the row that f0_0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 4 * row);

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from1 + 256 + half * 32));
}

// The float factor of the row that f0_1 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_1(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 4 * row);

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from1 + 258 + half * 32));
}

constexpr int kColumns = 8;                             // blocks whose sums one instruction keeps apart
constexpr int kRows = 32 / kColumns;                      // warps of a CTA: column c of warp w is slice w + kRows * c

// Where what belongs to one block and the CTA's token lies in the records: codes of thread t, and the rest.
struct BlockRecord {
    int codes, scales, sums;

    __device__ __forceinline__ BlockRecord(int records, int block, int t) {
        const int j = block / kSplit % kBundle, unit = j * kBlockUnits;
        const int record = records + (block / (kSplit * kBundle) * kSplit + block % kSplit) * kRecordBytes;
        codes = qgen_keep(record + j * kCodeWords / 4 * 64 + t * 16 + j * kCodeWords % 4 * 4);
        scales = qgen_keep(record + 128 + unit * kScales / kUnits * 4);
        sums = qgen_keep(record + 144 + unit * 4);
    }
};
// Every thread keeps the slices of rows g and g + 8 in blocks 2t and 2t + 1 of its warp's eight.
struct SingleWork {
    using Activation = int;
    static constexpr int stage_blocks = kRows * kColumns;

    const int t, row, warp;
    // Column g is this thread's for codes; columns 2t and 2t + 1 are for all the rest.
    const int first[3];
    const BlockRecord own, sides[2];
    uint32_t mine[kColumns];  // all ones for the thread's own column
    float sum[2][2];          // [block 2t or 2t + 1][row g or g + 8]
    uint32_t x[(kCodeWords + 3) / 4 * 4];
    float dx[kBlockUnits][2];
    float sums[kBlockUnits][2];
    __device__ __forceinline__ SingleWork(int records, int blocks, int token, int warp, int t, int row)
        : t(t), row(row), warp(warp), first{warp + kRows * row, warp + kRows * (2 * t), warp + kRows * (2 * t + 1)},
          own(records, first[0], t), sides{BlockRecord(records, first[1], t), BlockRecord(records, first[2], t)} {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) mine[c] = (uint32_t)qgen_keep(row == c ? -1 : 0);
    }

    __device__ __forceinline__ void begin() { sum[0][0] = sum[0][1] = sum[1][0] = sum[1][1] = 0.0f; }

    __device__ __forceinline__ void load(int stage, int left) {
        const int skip = stage * (stage_blocks / kBundle) * kRecordBytes;
#pragma unroll
        for (uint32_t& word : x) word = 0;
        if (first[0] < left) qgen_load_codes<kCodeWords, 64>(x, own.codes + skip);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const bool here = first[1 + side] < left;
#pragma unroll
            for (int u = 0; u < kBlockUnits; ++u) {
                dx[u][side] = here ? __uint_as_float(qgen_load_u32(sides[side].scales + skip + u * kScales / kUnits * 4)) : 0.0f;
                sums[u][side] = here ? __uint_as_float(qgen_load_u32(sides[side].sums + skip + 4 * u)) : 0.0f;
            }
        }
    }

    __device__ __forceinline__ void add(int slot, int left) {
        int total[kBlockUnits][4];
#pragma unroll
        for (int u = 0; u < kBlockUnits; ++u)
#pragma unroll
            for (int i = 0; i < 4; ++i) total[u][i] = 0;
        add_columns<0>(slot + warp * kTileBytes, total);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (first[1 + side] >= left) continue;
            const int place = slot + first[1 + side] * kTileBytes;
#pragma unroll
            for (int h = 0; h < 2; ++h)
                sum[side][h] = __fmaf_rn(__fmul_rn(h ? factor_0_0<1>(place, row, t) : factor_0_0<0>(place, row, t), dx[0][side]), __int2float_rn(total[0][2 * h + side]), sum[side][h]);
#pragma unroll
            for (int h = 0; h < 2; ++h)
                sum[side][h] = __fmaf_rn(__fmul_rn(h ? factor_0_1<1>(place, row, t) : factor_0_1<0>(place, row, t), dx[0][side]), sums[0][side], sum[side][h]);
        }
    }

    // total += the products of columns c .. 7, whose blocks lie from byte `slot` on. A compile-time c makes the way from one
    // block to the next a part of the load's address.
    template <int c>
    __device__ __forceinline__ void add_columns(int slot, int (&total)[kBlockUnits][4]) const {
        if constexpr (c < kColumns) {
            uint32_t q[2][kCodeWords];
            block_codes<0, c * kRows * kTileBytes>(slot, row, t, q[0]);
            block_codes<1, c * kRows * kTileBytes>(slot, row, t, q[1]);
            qgen_mma_k32(total[0], q[0][0], q[1][0], q[0][1], q[1][1], x[0] & mine[c], x[1] & mine[c]);
            add_columns<c + 1>(slot, total);
        }
    }

    __device__ __forceinline__ void store(float* terms) {
        // Slice w + kRows * c takes the one half of the columns further on, then a quarter, then an eighth.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                sum[side][h] = __fadd_rn(sum[side][h], __shfl_xor_sync(0xffffffffu, sum[side][h], 2));
                sum[side][h] = __fadd_rn(sum[side][h], __shfl_xor_sync(0xffffffffu, sum[side][h], 1));
            }
            if (t == 0) terms[row + 8 * h] = __fadd_rn(sum[0][h], sum[1][h]);
        }
    }
};

}  // namespace

// 4 teams of 4 warps, a row tile each; 32 blocks of K a stage, 3 stages; 135424 bytes of shared memory
// y[row] for all columns of x, both float32 in one piece, the weight as in the header; with any grid, at best a CTA for each
// multiprocessor, or for each sixteen rows where those are fewer
extern "C" __global__ void __launch_bounds__(512, 1)
mul_mat_q4_1_q8_g32_t1__fused_tiled_w4(const uint8_t* __restrict__ weight, int rows, int blocks, const float* __restrict__ x, float* __restrict__ y) {
    qgen_single<SingleWork, 4, 4, 3, kTileBytes>(weight, rows, blocks, 124160, y, 0, HeldInputs{x, blocks, 124160});
}
