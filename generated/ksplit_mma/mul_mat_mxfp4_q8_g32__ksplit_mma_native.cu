// mul_mat MXFP4 x q8_g32, family ksplit_mma.
// Generated from specs/formats/mxfp4.toml and templates/ksplit.cu.j2;
// edit those, then run: qgen build
//
// format      MXFP4: 32 elements in 17 bytes
// storage     native: blocks as in the file, aligned to 1, rows row_stride bytes apart
// activation  q8_g32 in the layout q8_g32_mxfp4_fragments, from quantize_activation
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g32_u32_s32: block b of a row belongs to slice b mod 32; a slice takes its blocks in
//             increasing order, in them units of 32 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sum(q*a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 48768
//
#include "qgen_mma.cuh"
#include "qgen_ring.cuh"
#include "qgen_split.cuh"

namespace {

constexpr int kBlockBytes = 17;    // packed bytes of a block
constexpr int kSlices = 32;       // slices of K in the canonical order
constexpr int kSplit = 8;        // warps that share rows, the blocks of K dealt to them in turn
constexpr int kBundle = 4;       // blocks a warp takes at once, kSplit apart
constexpr int kCodeWords = 2;    // code words of a thread, row and block
constexpr int kChunks = 2;       // 16-byte pieces of activation codes of a thread, token and bundle
constexpr int kScales = 4;       // activation scales of a token and bundle
constexpr int kRecordBytes = 1152; // activation record of a bundle and column tile: codes, scales, starts, sums
// Other architectures' compilers want more registers for this text: one row tile a warp there, and one CTA at a time.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900
constexpr bool kRoomy = true;
#else
constexpr bool kRoomy = false;
#endif
constexpr uint32_t kTable0 = 0x03020100u;
constexpr uint32_t kTable1 = 0x0c080604u;
constexpr uint32_t kTable2 = 0xfdfeff00u;
constexpr uint32_t kTable3 = 0xf4f8fafcu;
constexpr uint32_t kHalf0 = 0x04030200u;
constexpr uint32_t kHalf1 = 0x0d090705u;
constexpr uint32_t kHalf2 = 0xfdfeff00u;
constexpr uint32_t kHalf3 = 0xf4f8fafcu;
// The code words of thread t for one block of one row, which starts at byte b of shared memory.
template <bool halved>
__device__ __forceinline__ void block_codes(int b, int t, uint32_t* q, uint32_t* h, uint2 table) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 4 * t);

    uint32_t w[1];
    qgen_words1<1>(w + 0, qgen_shared, from0 + 1);
    if constexpr (halved) {
        q[0] = qgen_table_low(w[0], table.x, kHalf1), h[0] = qgen_table_high(w[0], table.y, kHalf3);
        q[1] = qgen_table_low(w[0] >> 16, table.x, kHalf1), h[1] = qgen_table_high(w[0] >> 16, table.y, kHalf3);
    } else {
        q[0] = qgen_table16(w[0], kTable0, kTable1, kTable2, kTable3);
        q[1] = qgen_table16(w[0] >> 16, kTable0, kTable1, kTable2, kTable3);
    }
}

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
// place: where in shared memory each row's first block starts
// left: tokens from the CTA's first on; inside: blocks of the bundle that there are
// skip: bytes from `from` to the bundle's record of the first column tile; those of the next come tile_bytes later
template <int column_tiles, int row_tiles>
__device__ __forceinline__ void add_bundle(const int (&place)[2 * row_tiles], int lane, int t, int left, int inside, bool whole,
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
    for (int m = 0; m < 2 * row_tiles; ++m)
#pragma unroll
        for (int j = 0; j < kBundle; ++j)
            if (m < 2 || whole) block_codes<halved>(place[m] + j * (kSplit * kBlockBytes), t, q[m / 2][m % 2] + j * kCodeWords, h[m / 2][m % 2] + j * kCodeWords, table);
    float f0_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m];
        f0_0[m / 2][m % 2] = qgen_e8m0_half_to_f32(*(const uint8_t*)(qgen_shared + at + 0));
    }
    float f1_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m] + 1 * (kSplit * kBlockBytes);
        f1_0[m / 2][m % 2] = inside <= 1 ? 0.0f : qgen_e8m0_half_to_f32(*(const uint8_t*)(qgen_shared + at + 0));
    }
    float f2_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m] + 2 * (kSplit * kBlockBytes);
        f2_0[m / 2][m % 2] = inside <= 2 ? 0.0f : qgen_e8m0_half_to_f32(*(const uint8_t*)(qgen_shared + at + 0));
    }
    float f3_0[row_tiles][2];
#pragma unroll
    for (int m = 0; m < 2 * row_tiles; ++m) {
        const int at = place[m] + 3 * (kSplit * kBlockBytes);
        f3_0[m / 2][m % 2] = inside <= 3 ? 0.0f : qgen_e8m0_half_to_f32(*(const uint8_t*)(qgen_shared + at + 0));
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
template <int column_tiles, int row_tiles, int warp_bundles, int stages, int pieces, int slot_bytes>
__device__ __forceinline__ void ksplit(const uint8_t* weight, int64_t row_stride, int rows, int blocks, int tokens,
                                       const uint8_t* activation, float* y, int64_t y_stride) {
    constexpr int cta_rows = 16 * row_tiles, columns = 8 * column_tiles;
    constexpr int warp_blocks = kBundle * warp_bundles, stage_blocks = kSplit * warp_blocks;
    constexpr int substeps = kSlices / kSplit;
    constexpr int units = row_tiles * column_tiles;  // of 16 rows and 8 columns, added up by a warp each
    constexpr bool early = column_tiles == 1;  // records are asked for before the wait for weights
    using Ring = qgen_ring<kSplit, cta_rows, pieces, slot_bytes, stages>;

    // Kept, or they would be worked out again wherever they are used.
    const int lane = qgen_keep((int)threadIdx.x % 32), warp = qgen_keep((int)threadIdx.x / 32), t = qgen_keep(lane % 4);
    const int row = qgen_keep(lane / 4);
    const uint2 table = qgen_table_starts(kHalf0, kHalf2);
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    // The CTAs' column tiles, as equal as eight tokens allow: one with few columns would wait for one with many.
    const int share = column_tiles <= 2 ? columns : ((tokens + 7) / 8 + (int)gridDim.y - 1) / (int)gridDim.y * 8;
    const int column = blockIdx.y * share, left = min(tokens - column, share);
    float* partial = (float*)(qgen_shared + Ring::bytes);
    uint64_t* barriers = (uint64_t*)(partial + kSplit * columns * qgen_column_stride<row_tiles>);
    const uint32_t last_bytes = (uint32_t)(blocks - (stage_count - 1) * stage_blocks) * kBlockBytes;
    const bool aligned = (((uint32_t)(uint64_t)weight | (uint32_t)row_stride | stage_blocks * kBlockBytes | last_bytes) & 15u) == 0;
    Ring ring(barriers, aligned, warp, lane);
    const qgen_handover<kSplit, units < kSplit ? units : kSplit> handover(barriers + 2 * stages, ring.bulk, warp, lane);
    __syncthreads();

    // The CTA's share of the row tiles, as equal as 16 rows allow.
    const int fragments = (rows + 15) / 16;
    const int row_begin = (int)((int64_t)blockIdx.x * fragments / gridDim.x) * 16;
    const int row_end = min(rows, (int)((int64_t)(blockIdx.x + 1) * fragments / gridDim.x) * 16);
    // The next kernel's CTAs would pile up on the multiprocessors that a short kernel leaves first: they come later then.
    const bool brief = row_end - row_begin <= cta_rows;
    if (!brief) qgen_let_next_begin();
    int ahead_row = row_begin, ahead_stage = 0;
    auto request = [&]() {
        ring.request(weight + ahead_row * row_stride + (int64_t)ahead_stage * (stage_blocks * kBlockBytes), row_stride,
                     min(row_end - ahead_row, cta_rows), min(blocks - ahead_stage * stage_blocks, stage_blocks) * kBlockBytes);
        if (++ahead_stage == stage_count) {
            ahead_stage = 0;
            ahead_row += cta_rows;
        }
    };
#pragma unroll 1
    for (int i = 0; i < Ring::ahead; ++i) request();

    const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
    const int64_t tile_bytes = (int64_t)bundles * kRecordBytes;
    const uint8_t* records = activation + column / 8 * tile_bytes + warp * kRecordBytes;
    const Record::From from = {qgen_keep(records + lane * 16), qgen_keep(records + t * (8 * kScales) + 1024)};
    qgen_wait_for_inputs();
    auto finish = [&](int number, int tile) {
        qgen_add_partials<kSplit, column_tiles, row_tiles>(partial, handover, number, warp, lane, tile, row_end, column, left, y, y_stride);
    };
    int number = 0;
    for (int tile = row_begin; tile < row_end; tile += cta_rows) {
        float sum[substeps][column_tiles][row_tiles][4] = {};
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            const int64_t skip = (int64_t)(stage * (warp_bundles * kSplit)) * kRecordBytes;
            Record first;
            const bool any = stage * stage_blocks + warp < blocks;
            if (early && any) first.load(from, skip);
            const int slot = ring.wait() + row * slot_bytes;
            request();
            // Where a row's first byte of the stage lies in its 16-byte piece; the low bits of an address suffice.
            const uint32_t start = (uint32_t)(uint64_t)weight + (uint32_t)(stage * (stage_blocks * kBlockBytes)) +
                                   (uint32_t)(tile + row) * (uint32_t)row_stride;
            int place[2 * row_tiles];
#pragma unroll
            for (int m = 0; m < 2 * row_tiles; ++m)
                place[m] = qgen_keep(slot + 8 * m * slot_bytes + (int)((start + 8u * m * (uint32_t)row_stride) & 15u) + warp * kBlockBytes);
#pragma unroll
            for (int i = 0; i < warp_bundles; ++i) {
                const int block = stage * stage_blocks + i * (kSplit * kBundle) + warp;
                if (block < blocks)
                    add_bundle<column_tiles, row_tiles>(place, lane, t, left, (blocks - block + kSplit - 1) / kSplit, row_end - tile > 16, from,
                                                        skip + i * (kSplit * kRecordBytes), tile_bytes, early && i == 0 ? &first : nullptr, sum + i * kBundle, table);
#pragma unroll
                for (int m = 0; m < 2 * row_tiles; ++m) place[m] += kSplit * kBundle * kBlockBytes;
            }
            ring.release();
            qgen_turn_slices<warp_blocks>(sum);
            if (stage == 0 && number > 0) finish(number - 1, tile - cta_rows);
        }
        if (brief) qgen_let_next_begin();
        handover.before_write(number);
        qgen_write_partial(partial, sum, warp, row, t);
        handover.after_write();
        ++number;
    }
    if (!ring.bulk) __syncthreads();
    if (number > 0) finish(number - 1, row_begin + (number - 1) * cta_rows);
}

}  // namespace

// capacity 8 tokens, 16 rows a CTA, 8 warps, 32 blocks of K a stage, 4 stages; 47184 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_mxfp4_q8_g32_t8__ksplit_mma_native_w8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<1, 1, 1, 4, 35, 656>(
        weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 16 tokens, 16 rows a CTA, 8 warps, 32 blocks of K a stage, 4 stages; 52304 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_mxfp4_q8_g32_t16__ksplit_mma_native_w8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<2, 1, 1, 4, 35, 656>(
        weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 32 tokens, 32 rows a CTA, 8 warps, 32 blocks of K a stage, 3 stages; 99904 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_mxfp4_q8_g32_t32__ksplit_mma_native_w8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<4, kRoomy ? 2 : 1, 1, 3, 35, 656>(
        weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
