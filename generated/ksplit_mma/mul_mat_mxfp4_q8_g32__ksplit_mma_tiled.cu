// mul_mat MXFP4 x q8_g32, family ksplit_mma.
// Generated from specs/formats/mxfp4.toml and templates/ksplit_tiled.cu.j2;
// edit those, then run: qgen build
//
// format      MXFP4: 32 elements in 17 bytes
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  q8_g32 in the layout q8_g32_mxfp4_fragments, from quantize_activation
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g32_u32_s32: block b of a row belongs to slice b mod 32; a slice takes its blocks in
//             increasing order, in them units of 32 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sum(q*a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 48768
//
#include "qgen_mma.cuh"
#include "qgen_single.cuh"
#include "qgen_split.cuh"
#include "qgen_tiles.cuh"

namespace {

constexpr int kTileBytes = 272;   // bytes of a tile: sixteen rows of a block
constexpr int kSlices = 32;       // slices of K in the canonical order
constexpr int kSplit = 8;        // warps that share rows, the blocks of K dealt to them in turn
constexpr int kBundle = 4;       // blocks a warp takes at once, kSplit apart
constexpr int kCodeWords = 2;    // code words of a thread, row and block
constexpr int kChunks = 2;       // 16-byte pieces of activation codes of a thread, token and bundle
constexpr int kScales = 4;       // activation scales of a token and bundle
constexpr int kUnits = 4;        // float steps of a bundle
constexpr int kBlockUnits = kUnits / kBundle;  // float steps of a block
constexpr int kRecordBytes = 1152; // activation record of a bundle and column tile: codes, scales, starts, sums
// Other architectures' compilers want more registers for this text: one row tile a warp there, and one CTA at a time.
constexpr bool kRoomy = __CUDA_ARCH__ == 900;
constexpr uint32_t kTable0 = 0x03020100u;
constexpr uint32_t kTable1 = 0x0c080604u;
constexpr uint32_t kTable2 = 0xfdfeff00u;
constexpr uint32_t kTable3 = 0xf4f8fafcu;
constexpr uint32_t kHalf0 = 0x04030200u;
constexpr uint32_t kHalf1 = 0x0d090705u;
constexpr uint32_t kHalf2 = 0xfdfeff00u;
constexpr uint32_t kHalf3 = 0xf4f8fafcu;
// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, bool halved, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q, uint32_t* h, uint2 table) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 1 * row);

    uint32_t w[1];
    qgen_words4<1>(w + 0, qgen_shared + skip, from0 + 0 + half * 128);
    if constexpr (halved) {
        q[0] = qgen_table_low(w[0], table.x, kHalf1), h[0] = qgen_table_high(w[0], table.y, kHalf3);
        q[1] = qgen_table_low(w[0] >> 16, table.x, kHalf1), h[1] = qgen_table_high(w[0] >> 16, table.y, kHalf3);
    } else {
        q[0] = qgen_table16(w[0], kTable0, kTable1, kTable2, kTable3);
        q[1] = qgen_table16(w[0] >> 16, kTable0, kTable1, kTable2, kTable3);
    }
}

// The float factor of the row that f0_0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 1 * row);

    return qgen_e8m0_half_to_f32(*(const uint8_t*)(qgen_shared + skip + from1 + 256 + half * 8));
}

constexpr int kColumns = 8;                             // blocks whose sums one instruction keeps apart
constexpr int kRows = 32 / kColumns;                      // warps of a CTA: column c of warp w is slice w + kRows * c

// Where what belongs to one block and the CTA's token lies in the records: codes of thread t, and the rest.
struct BlockRecord {
    const uint8_t *codes, *scales;

    __device__ __forceinline__ BlockRecord(const uint8_t* records, int block, int token, int t) {
        const int j = block / kSplit % kBundle, unit = j * kBlockUnits, pair = token % 8 / 2;
        const uint8_t* record = records + (block / (kSplit * kBundle) * kSplit + block % kSplit) * kRecordBytes;
        codes = qgen_keep(record + j * kCodeWords / 4 * 512 + token % 8 * 64 + t * 16 + j * kCodeWords % 4 * 4);
        scales = qgen_keep(record + 1024 + (pair * kScales + unit * kScales / kUnits) * 8 + token % 2 * 4);
    }
};

// The records of the column tile that `token` is in.
__device__ __forceinline__ const uint8_t* records_of(const uint8_t* activation, int blocks, int token) {
    const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
    return activation + token / 8 * ((int64_t)bundles * kRecordBytes);
}
// Every thread keeps the slices of rows g and g + 8 in blocks 2t and 2t + 1 of its warp's eight.
struct SingleWork {
    using Activation = const uint8_t*;
    static constexpr int stage_blocks = kRows * kColumns;

    const int t, row, warp;
    const uint2 table = qgen_table_starts(kHalf0, kHalf2);
    // Column g is this thread's for codes; columns 2t and 2t + 1 are for all the rest.
    const int first[3];
    const BlockRecord own, sides[2];
    uint32_t mine[kColumns];  // all ones for the thread's own column
    float sum[2][2];          // [block 2t or 2t + 1][row g or g + 8]
    uint32_t x[(kCodeWords + 3) / 4 * 4];
    float dx[kBlockUnits][2];
    __device__ __forceinline__ SingleWork(const uint8_t* activation, int blocks, int token, int warp, int t, int row)
        : t(t), row(row), warp(warp), first{warp + kRows * row, warp + kRows * (2 * t), warp + kRows * (2 * t + 1)},
          own(records_of(activation, blocks, token), first[0], token, t),
          sides{BlockRecord(records_of(activation, blocks, token), first[1], token, t), BlockRecord(records_of(activation, blocks, token), first[2], token, t)} {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) mine[c] = (uint32_t)qgen_keep(row == c ? -1 : 0);
    }

    __device__ __forceinline__ void begin() { sum[0][0] = sum[0][1] = sum[1][0] = sum[1][1] = 0.0f; }

    __device__ __forceinline__ void load(int stage, int left) {
        const int64_t skip = (int64_t)(stage * (stage_blocks / kBundle)) * kRecordBytes;
#pragma unroll
        for (uint32_t& word : x) word = 0;
        if (first[0] < left) qgen_load_codes<kCodeWords, 512>(x, own.codes + skip);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const bool here = first[1 + side] < left;
#pragma unroll
            for (int u = 0; u < kBlockUnits; ++u) {
                dx[u][side] = here ? __uint_as_float(qgen_load_u32(sides[side].scales + skip + u * kScales / kUnits * 8)) : 0.0f;
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
        }
    }

    // total += the products of columns c .. 7, whose blocks lie from byte `slot` on. A compile-time c makes the way from one
    // block to the next a part of the load's address.
    template <int c>
    __device__ __forceinline__ void add_columns(int slot, int (&total)[kBlockUnits][4]) const {
        if constexpr (c < kColumns) {
            uint32_t q[2][kCodeWords], h[2][kCodeWords];
            block_codes<0, true, c * kRows * kTileBytes>(slot, row, t, q[0], h[0], table);
            block_codes<1, true, c * kRows * kTileBytes>(slot, row, t, q[1], h[1], table);
            qgen_mma_k32(total[0], q[0][0], q[1][0], q[0][1], q[1][1], x[0] & mine[c], x[1] & mine[c]);
            qgen_mma_k32(total[0], h[0][0], h[1][0], h[0][1], h[1][1], x[0] & mine[c], x[1] & mine[c]);
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

// What a thread needs of one activation record: codes of token g, the rest of tokens 2t and 2t + 1.
struct Record {
    uint32_t x[4 * kChunks];
    float dx[2 * kScales];
    // Where this thread's codes, and its part of the rest, begin in a record of bundle and column tile 0.
    struct From {
        const uint8_t *codes, *scales;
    };

    __device__ __forceinline__ void load(const From& from, int64_t skip) {
        const uint8_t* p = from.codes + skip;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            const uint4 v = qgen_load_u32x4(p + 512 * c);
            x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
        }
        qgen_load_floats<2 * kScales>(dx, from.scales + skip);
    }
};

// Adds a bundle of `row_tiles` times 16 rows times the tokens of `column_tiles` tiles to the slice sums of this thread:
// rows g and g + 8 of every row tile, tokens 2t and 2t + 1 of every column tile; of two row tiles only the first unless
// `whole`.
// place: where in shared memory each row tile's first block starts
// left: tokens from the CTA's first on; inside: blocks of the bundle that there are
// skip: bytes from `from` to the bundle's record of the first column tile; those of the next come tile_bytes later
template <int column_tiles, int row_tiles>
__device__ __forceinline__ void add_bundle(const int (&place)[row_tiles], int row, int lane, int t, int left, int inside, bool whole,
                                           const Record::From& from, int64_t skip, int64_t tile_bytes, const Record* first,
                                           float (*sum)[column_tiles][row_tiles][4], uint2 table) {
    Record r;
    if (first) r = *first;
    else r.load(from, skip);
    // Many columns need the registers that a second fragment takes.
    constexpr bool halved = column_tiles == 1;
    [[maybe_unused]] uint32_t h[row_tiles][2][kBundle * kCodeWords];
    uint32_t q[row_tiles][2][kBundle * kCodeWords];
#pragma unroll
    for (int m = 0; m < row_tiles; ++m)
#pragma unroll
        for (int j = 0; j < kBundle; ++j)
            if (m < 1 || whole) {
                block_codes<0, halved>(place[m] + j * (kSplit * kTileBytes), row, t, q[m][0] + j * kCodeWords, h[m][0] + j * kCodeWords, table);
                block_codes<1, halved>(place[m] + j * (kSplit * kTileBytes), row, t, q[m][1] + j * kCodeWords, h[m][1] + j * kCodeWords, table);
            }
    float f0_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m / 2];
        f0_0[m / 2][m % 2] = m % 2 ? factor_0_0<1>(at, row, t) : factor_0_0<0>(at, row, t);
    }
    float f1_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m / 2] + 1 * (kSplit * kTileBytes);
        f1_0[m / 2][m % 2] = inside <= 1 ? 0.0f : m % 2 ? factor_0_0<1>(at, row, t) : factor_0_0<0>(at, row, t);
    }
    float f2_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m / 2] + 2 * (kSplit * kTileBytes);
        f2_0[m / 2][m % 2] = inside <= 2 ? 0.0f : m % 2 ? factor_0_0<1>(at, row, t) : factor_0_0<0>(at, row, t);
    }
    float f3_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m / 2] + 3 * (kSplit * kTileBytes);
        f3_0[m / 2][m % 2] = inside <= 3 ? 0.0f : m % 2 ? factor_0_0<1>(at, row, t) : factor_0_0<0>(at, row, t);
    }
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        if (n && 8 * n >= left) break;
        if (n) r.load(from, skip + n * tile_bytes);
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
            if (m && !whole) break;
            {
                int total[4] = {0, 0, 0, 0};
                qgen_mma_k32(total, q[m][0][0], q[m][1][0], q[m][0][1], q[m][1][1], r.x[0], r.x[1]);
                if constexpr (halved) qgen_mma_k32(total, h[m][0][0], h[m][1][0], h[m][0][1], h[m][1][1], r.x[0], r.x[1]);

#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = sum[0][n][m][i];
                    v = __fmaf_rn(__fmul_rn(f0_0[m][i / 2], r.dx[0 + i % 2]), __int2float_rn(total[i]), v);
                    sum[0][n][m][i] = v;
                }
            }
            {
                int total[4] = {0, 0, 0, 0};
                qgen_mma_k32(total, q[m][0][2], q[m][1][2], q[m][0][3], q[m][1][3], r.x[2], r.x[3]);
                if constexpr (halved) qgen_mma_k32(total, h[m][0][2], h[m][1][2], h[m][0][3], h[m][1][3], r.x[2], r.x[3]);

#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = sum[1][n][m][i];
                    v = __fmaf_rn(__fmul_rn(f1_0[m][i / 2], r.dx[2 + i % 2]), __int2float_rn(total[i]), v);
                    sum[1][n][m][i] = v;
                }
            }
            {
                int total[4] = {0, 0, 0, 0};
                qgen_mma_k32(total, q[m][0][4], q[m][1][4], q[m][0][5], q[m][1][5], r.x[4], r.x[5]);
                if constexpr (halved) qgen_mma_k32(total, h[m][0][4], h[m][1][4], h[m][0][5], h[m][1][5], r.x[4], r.x[5]);

#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = sum[2][n][m][i];
                    v = __fmaf_rn(__fmul_rn(f2_0[m][i / 2], r.dx[4 + i % 2]), __int2float_rn(total[i]), v);
                    sum[2][n][m][i] = v;
                }
            }
            {
                int total[4] = {0, 0, 0, 0};
                qgen_mma_k32(total, q[m][0][6], q[m][1][6], q[m][0][7], q[m][1][7], r.x[6], r.x[7]);
                if constexpr (halved) qgen_mma_k32(total, h[m][0][6], h[m][1][6], h[m][0][7], h[m][1][7], r.x[6], r.x[7]);

#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float v = sum[3][n][m][i];
                    v = __fmaf_rn(__fmul_rn(f3_0[m][i / 2], r.dx[6 + i % 2]), __int2float_rn(total[i]), v);
                    sum[3][n][m][i] = v;
                }
            }
        }
    }
}

// y[token][row] for this CTA's share of the rows, and of the tokens up to 8 * column_tiles.
template <int column_tiles, int row_tiles, int warp_bundles, int stages>
__device__ __forceinline__ void ksplit(const uint8_t* weight, int rows, int blocks, int tokens, const uint8_t* activation,
                                       float* y, int64_t y_stride) {
    constexpr int cta_rows = 16 * row_tiles, columns = 8 * column_tiles, units = row_tiles * column_tiles;
    constexpr int warp_blocks = kBundle * warp_bundles, stage_blocks = kSplit * warp_blocks;
    constexpr int slot_bytes = stage_blocks * kTileBytes;  // of a row tile
    constexpr bool early = column_tiles == 1;  // records are asked for before the wait for weights
    using Ring = qgen_tile_ring<kSplit, stages, row_tiles * slot_bytes>;

    const int lane = qgen_keep((int)threadIdx.x % 32), t = qgen_keep(lane % 4), row = qgen_keep(lane / 4);
    const uint2 table = qgen_table_starts(kHalf0, kHalf2);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // so that the compiler sees a branch on it as one
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    float* partial = (float*)(qgen_shared + Ring::bytes);
    uint64_t* barriers = (uint64_t*)(partial + kSplit * columns * qgen_column_stride<row_tiles>);
    Ring ring(barriers, 0, threadIdx.x);
    const qgen_handover<kSplit, units < kSplit ? units : kSplit> handover(barriers + 2 * stages, true, warp, lane);
    __syncthreads();

    const qgen_share share((rows + 15) / 16);
    // Where CTAs take one turn each, the next kernel's CTAs may pile up on the multiprocessors that are left first: they
    // come later then. For which tokens that is worth it was measured.
    const bool late = share.end - share.begin <= row_tiles && (column_tiles <= 2 ? tokens > 1 : blocks > stages * stage_blocks);
    if (!late) qgen_let_next_begin();
    const int64_t row_bytes = (int64_t)blocks * kTileBytes;  // of a row tile
    int ahead_tile = share.begin, ahead_stage = 0, turn = 0;  // turn: of the warp that makes the next request
    auto request = [&]() {
        if (turn == warp && ahead_tile < share.end)
            ring.template fill<row_tiles>(weight + ahead_tile * row_bytes + (int64_t)ahead_stage * slot_bytes, row_bytes,
                                          min(share.end - ahead_tile, row_tiles), min(blocks - ahead_stage * stage_blocks, stage_blocks) * kTileBytes, lane);
        ring.ask();
        if (++turn == kSplit) turn = 0;
        if (++ahead_stage == stage_count) ahead_stage = 0, ahead_tile += row_tiles;
    };
#pragma unroll 1
    for (int i = 0; i < Ring::ahead; ++i) request();

    // The CTAs' column tiles, as equal as eight tokens allow: one with few columns would wait for one with many.
    const int column_share = column_tiles <= 2 ? columns : ((tokens + 7) / 8 + (int)gridDim.y - 1) / (int)gridDim.y * 8;
    const int column = blockIdx.y * column_share, left = min(tokens - column, column_share);
    const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
    const int64_t tile_bytes = (int64_t)bundles * kRecordBytes;
    const uint8_t* records = activation + column / 8 * tile_bytes + warp * kRecordBytes;
    // Threads whose token is not there take another's codes: what they make of them is not stored, and less is read.
    const int token = column_tiles == 1 ? min(row, left - 1) : row;
    const Record::From from = {qgen_keep(records + (token * 4 + t) * 16), qgen_keep(records + t * (8 * kScales) + 1024)};
    const int row_end = min(rows, share.end * 16);
    auto finish = [&](int number, int tile) {
        qgen_add_partials<kSplit, column_tiles, row_tiles>(partial, handover, number, warp, lane, tile, row_end, column, left, y, y_stride);
    };
    qgen_wait_for_inputs();
    int number = 0;
    for (int tile = share.begin * 16; tile < row_end; tile += cta_rows) {
        float sum[kSlices / kSplit][column_tiles][row_tiles][4] = {};
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            const int64_t skip = (int64_t)(stage * (warp_bundles * kSplit)) * kRecordBytes;
            Record first;
            if (early && stage * stage_blocks + warp < blocks) first.load(from, skip);
            const int slot = ring.wait() + warp * kTileBytes;
            request();
            int place[row_tiles];
#pragma unroll
            for (int m = 0; m < row_tiles; ++m) place[m] = slot + m * slot_bytes;
#pragma unroll
            for (int i = 0; i < warp_bundles; ++i) {
                const int block = stage * stage_blocks + i * (kSplit * kBundle) + warp;
                if (block < blocks)
                    add_bundle<column_tiles, row_tiles>(place, row, lane, t, left, (blocks - block + kSplit - 1) / kSplit, row_end - tile > 16,
                                                        from, skip + i * (kSplit * kRecordBytes), tile_bytes, early && i == 0 ? &first : nullptr, sum + i * kBundle % (kSlices / kSplit), table);
#pragma unroll
                for (int m = 0; m < row_tiles; ++m) place[m] += kSplit * kBundle * kTileBytes;
            }
            ring.release();
            qgen_turn_slices<warp_blocks>(sum);
            if (stage == 0 && number > 0) finish(number - 1, tile - cta_rows);
        }
        if (late) qgen_let_next_begin();
        handover.before_write(number);
        qgen_write_partial(partial, sum, warp, row, t);
        handover.after_write();
        ++number;
    }
    if (number > 0) finish(number - 1, share.begin * 16 + (number - 1) * cta_rows);
}

}  // namespace

// capacity 1 tokens, 16 rows a CTA, 4 warps, 32 blocks of K a stage, 4 stages; 35152 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, kRoomy ? 5 : 1)
mul_mat_mxfp4_q8_g32_t1__ksplit_mma_tiled_w4(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    qgen_single<SingleWork, 4, 1, 4, kTileBytes>(weight, rows, blocks, activation, y, y_stride, qgen_quantised());
}
// capacity 8 tokens, 16 rows a CTA, 8 warps, 64 blocks of K a stage, 4 stages; 74832 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_mxfp4_q8_g32_t8__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<1, 1, 2, 4>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 16 tokens, 16 rows a CTA, 8 warps, 64 blocks of K a stage, 3 stages; 62528 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_mxfp4_q8_g32_t16__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<2, 1, 2, 3>(weight, rows, blocks, tokens, activation, y, y_stride);
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
// capacity 24 tokens, 16 rows a CTA, 8 warps, 64 blocks of K a stage, 3 stages; 67648 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_mxfp4_q8_g32_t24__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<3, 1, 2, 3>(weight, rows, blocks, tokens, activation, y, y_stride);
}
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1200
// capacity 32 tokens, 16 rows a CTA, 8 warps, 64 blocks of K a stage, 3 stages; 72768 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_mxfp4_q8_g32_t32__ksplit_mma_tiled_r1w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<4, 1, 2, 3>(weight, rows, blocks, tokens, activation, y, y_stride);
}
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
// capacity 32 tokens, 32 rows a CTA, 8 warps, 64 blocks of K a stage, 3 stages; 141376 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_mxfp4_q8_g32_t32__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<4, kRoomy ? 2 : 1, 2, 3>(weight, rows, blocks, tokens, activation, y, y_stride);
}
#endif
