// mul_mat Q1_0 x bf16, many tokens, family wgmma.
// Generated from specs/formats/q1_0.toml and templates/wgmma_float.cu.j2;
// edit those, then run: qgen build
//
// target      sm_90a: for sm_90 it is refused, and compiled for others its instructions do nothing
// launch      weight and activation aligned to 16 bytes, y_stride in floats; threads and dynamic shared memory
//             as said at each kernel; the grid's y is the tokens over a kernel's capacity, rounded up, no more
//             and no less; its x any number of CTAs, which share the rows: at best so many that all are there
//             at once, one a multiprocessor
// format      Q1_0: 128 elements in 18 bytes (18 in weight)
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  bf16 in the layout bf16_q1_0_matrices, from quantize_activation
// traffic     every packed byte is requested once for the tokens of a CTA (read factor 1.00)
// contract    bf16_g128_s8: x is rounded to bf16; codes are exact in it. S of 128 weights that
//             share all scales starts at +0 and takes steps of 16 products, an m64nNk16 each, as the layout
//             orders them; X, the sum of their x, is added by halving. Block b of a row belongs to slice b mod
//             8; a slice takes blocks, groups and terms in order, each as
//             fma(factors * integer scale, S or X, slice), terms +d*S;
//             slices are added by halving: slice s < h takes s + h, h = 4 .. 1
// rounding    inside an instruction it is the hardware's; no column depends on another or on T
//
#include "qgen_held.cuh"
#include "qgen_slices.cuh"
#include "qgen_wgmma_float.cuh"

namespace {

using Class = qgen_bf16;
constexpr int kTileBytes = 288;   // bytes of a tile: sixteen rows of a block
constexpr int kSlices = 8;       // slices of K in the canonical order
constexpr int kBundle = 1;       // blocks a warp takes at once, neighbours in a slice
constexpr int kCodeWords = 8;    // code words of a thread, row and block
constexpr int kRecordBytes = 2048; // activation record of a bundle and eight tokens, to whole lines of 128; those of a bundle lie side by side
// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 2 * row);

    uint32_t w[1];
    qgen_words4<1>(w + 0, qgen_shared + skip, from0 + 0 + half * 128);
    q[0] = ((w[0] & 0x01010101u));
    q[1] = ((w[0] >> 1 & 0x01010101u));
    q[2] = ((w[0] >> 2 & 0x01010101u));
    q[3] = ((w[0] >> 3 & 0x01010101u));
    q[4] = ((w[0] >> 4 & 0x01010101u));
    q[5] = ((w[0] >> 5 & 0x01010101u));
    q[6] = ((w[0] >> 6 & 0x01010101u));
    q[7] = ((w[0] >> 7 & 0x01010101u));
}

// The float factor of the row that f0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_f0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 16 * row + 4 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 2 * row);

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from1 + 256 + half * 16));
}

__device__ __forceinline__ void operand(uint32_t codes, uint32_t& low, uint32_t& high) {
    const uint2 wide = qgen_widen<Class>(codes);
    low = wide.x, high = wide.y;
    low = Class::fma(low, 0x3f803f80u, 0xc300c300u), high = Class::fma(high, 0x3f803f80u, 0xc300c300u);
    low = Class::fma(low, 0x40004000u, 0xbf80bf80u), high = Class::fma(high, 0x40004000u, 0xbf80bf80u);
}

// A batch that is on its way until the next one is decoded: its sums, of `width` groups, and the coefficients by row
// that they are taken with.
template <int column_tiles, int width>
struct OnWay {
    float d[width][4 * column_tiles];
    float c0[width][2];
    // Adds its sums, which are there, one after the other.
    __device__ __forceinline__ void add_to(float (&sum)[4 * column_tiles]) {
#pragma unroll
        for (int w = 0; w < width; ++w) {
            qgen_wgmma_keep(d[w]);
#pragma unroll
            for (int n = 0; n < column_tiles; ++n) {
#pragma unroll
                for (int i = 4 * n; i < 4 * n + 4; ++i) {
                    sum[i] = __fmaf_rn(c0[w][i % 4 / 2], d[w][i], sum[i]);
                }
            }
        }
    }
};

// Asks for the products of sixteen rows of a bundle and the tokens of `column_tiles` tiles: rows g and g + 8, tokens 2t and
// 2t + 1 of every column tile. What was on its way before is added to this thread's sums; the bundle's last batch stays
// on its way. 2 code words of a row are asked for together.
// place: where in shared memory the row tile's first block starts; record: where the first column tile's record does
// first: whether nothing is on its way; done: what to do once the bundle before this one is all added
template <int column_tiles, class Done>
__device__ __forceinline__ void add_bundle_1_1(int place, int row, int lane, int t, int record, bool first,
                                             OnWay<column_tiles, 1>& way, float (&sum)[4 * column_tiles], Done done) {
    [[maybe_unused]] constexpr int rows = 2;
    uint32_t q[2][kBundle * kCodeWords];
    block_codes<0>(place, row, t, q[0]);
    block_codes<1>(place, row, t, q[1]);
    const qgen_matrices<kRecordBytes> matrices(record);
    uint32_t a0[4];
    operand(q[0][0], a0[0], a0[2]), operand(q[1][0], a0[1], a0[3]);
    uint32_t a1[4];
    operand(q[0][1], a1[0], a1[2]), operand(q[1][1], a1[1], a1[3]);
    qgen_wgmma_wait<0>();
    if (!first) {
        way.add_to(sum);
        done();
    }
    qgen_wgmma_begin();
    qgen_wgmma_k16<Class, column_tiles, true>(way.d[0], a0, matrices, 0);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a1, matrices, 256);
    qgen_wgmma_commit();
    uint32_t a2[4];
    operand(q[0][2], a2[0], a2[2]), operand(q[1][2], a2[1], a2[3]);
    uint32_t a3[4];
    operand(q[0][3], a3[0], a3[2]), operand(q[1][3], a3[1], a3[3]);
    qgen_wgmma_begin();
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a2, matrices, 512);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a3, matrices, 768);
    qgen_wgmma_commit();
    qgen_wgmma_wait<1>();
    uint32_t a4[4];
    operand(q[0][4], a4[0], a4[2]), operand(q[1][4], a4[1], a4[3]);
    uint32_t a5[4];
    operand(q[0][5], a5[0], a5[2]), operand(q[1][5], a5[1], a5[3]);
    qgen_wgmma_begin();
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a4, matrices, 1024);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a5, matrices, 1280);
    qgen_wgmma_commit();
    qgen_wgmma_wait<1>();
    uint32_t a6[4];
    operand(q[0][6], a6[0], a6[2]), operand(q[1][6], a6[1], a6[3]);
    uint32_t a7[4];
    operand(q[0][7], a7[0], a7[2]), operand(q[1][7], a7[1], a7[3]);
    qgen_wgmma_begin();
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a6, matrices, 1536);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a7, matrices, 1792);
    qgen_wgmma_commit();
    qgen_wgmma_wait<1>();
    const float f0_0[2] = {factor_f0<0>(place, row, t), factor_f0<1>(place, row, t)};
    way.c0[0][0] = f0_0[0], way.c0[0][1] = f0_0[1];
}

// Asks for the products of sixteen rows of a bundle and the tokens of `column_tiles` tiles: rows g and g + 8, tokens 2t and
// 2t + 1 of every column tile. What was on its way before is added to this thread's sums; the bundle's last batch stays
// on its way. 4 code words of a row are asked for together.
// place: where in shared memory the row tile's first block starts; record: where the first column tile's record does
// first: whether nothing is on its way; done: what to do once the bundle before this one is all added
template <int column_tiles, class Done>
__device__ __forceinline__ void add_bundle_2_1(int place, int row, int lane, int t, int record, bool first,
                                             OnWay<column_tiles, 1>& way, float (&sum)[4 * column_tiles], Done done) {
    [[maybe_unused]] constexpr int rows = 2;
    uint32_t q[2][kBundle * kCodeWords];
    block_codes<0>(place, row, t, q[0]);
    block_codes<1>(place, row, t, q[1]);
    const qgen_matrices<kRecordBytes> matrices(record);
    uint32_t a0[4];
    operand(q[0][0], a0[0], a0[2]), operand(q[1][0], a0[1], a0[3]);
    uint32_t a1[4];
    operand(q[0][1], a1[0], a1[2]), operand(q[1][1], a1[1], a1[3]);
    uint32_t a2[4];
    operand(q[0][2], a2[0], a2[2]), operand(q[1][2], a2[1], a2[3]);
    uint32_t a3[4];
    operand(q[0][3], a3[0], a3[2]), operand(q[1][3], a3[1], a3[3]);
    qgen_wgmma_wait<0>();
    if (!first) {
        way.add_to(sum);
        done();
    }
    qgen_wgmma_begin();
    qgen_wgmma_k16<Class, column_tiles, true>(way.d[0], a0, matrices, 0);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a1, matrices, 256);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a2, matrices, 512);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a3, matrices, 768);
    qgen_wgmma_commit();
    uint32_t a4[4];
    operand(q[0][4], a4[0], a4[2]), operand(q[1][4], a4[1], a4[3]);
    uint32_t a5[4];
    operand(q[0][5], a5[0], a5[2]), operand(q[1][5], a5[1], a5[3]);
    uint32_t a6[4];
    operand(q[0][6], a6[0], a6[2]), operand(q[1][6], a6[1], a6[3]);
    uint32_t a7[4];
    operand(q[0][7], a7[0], a7[2]), operand(q[1][7], a7[1], a7[3]);
    qgen_wgmma_begin();
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a4, matrices, 1024);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a5, matrices, 1280);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a6, matrices, 1536);
    qgen_wgmma_k16<Class, column_tiles, false>(way.d[0], a7, matrices, 1792);
    qgen_wgmma_commit();
    qgen_wgmma_wait<1>();
    const float f0_0[2] = {factor_f0<0>(place, row, t), factor_f0<1>(place, row, t)};
    way.c0[0][0] = f0_0[0], way.c0[0][1] = f0_0[1];
}

// How a CTA's work lies on its warps and in its shared memory. `split` warpgroups share rows, each with its part of the
// slices; behind them comes a warpgroup whose warps fetch, dealt to the parts. `kept` as in qgen_pending.
template <int column_tiles_, int row_groups, int split_, int stages_, bool kept>
struct Shape {
    static constexpr int column_tiles = column_tiles_, split = split_, stages = stages_;
    static constexpr int row_tiles = 4 * row_groups, warps = row_tiles * split;  // of a CTA
    static constexpr int fetchers = 4 / split;  // of a part
    static constexpr int registers = warps > 8 ? 104 : 232, few_registers = 40;  // of a thread that multiplies; that fetches
    // A stage has a bundle's activation records and then that bundle of every row tile.
    static constexpr int records_bytes = column_tiles * kRecordBytes, slot_bytes = kBundle * kTileBytes;
    static constexpr int stage_bytes = records_bytes + row_tiles * slot_bytes;
    using Pending = qgen_pending<column_tiles, warps, kSlices / split, split, kept>;
    static constexpr int pending_at = split * stages * stage_bytes, barriers_at = pending_at + Pending::bytes;
    using Walk = qgen_walk<split, kSlices>;
};

// What one of a part's fetching warps does: it has every S::fetchers-th row tile. Stages are filled in the order of their use.
// apart: bytes between the bundles' records; there: those of a bundle that are this CTA's
template <class S>
__device__ __forceinline__ void fetch(const uint8_t* weight, int rows, int blocks, int bundles, const uint8_t* records, int apart, int there,
                                      qgen_share share, int part, int fetcher, uint64_t* full, uint64_t* empty, int lane) {
    const int row_tiles = (rows + 15) / 16, at = part * S::stages * S::stage_bytes;
    const int64_t row_bytes = (int64_t)blocks * kTileBytes;  // of a row tile
    auto ask_weights = [&](const typename S::Walk& next, int stage) {
        const int first_tile = next.group * S::row_tiles, tiles = min(row_tiles - first_tile, S::row_tiles);
        if (lane == 0) {
            qgen_barrier_expect(full + stage, max(tiles - fetcher + S::fetchers - 1, 0) / S::fetchers * kTileBytes);
#pragma unroll 1
            for (int tile = fetcher; tile < tiles; tile += S::fetchers)
                qgen_copy_bulk(qgen_shared + at + stage * S::stage_bytes + S::records_bytes + tile * kTileBytes,
                               weight + (first_tile + tile) * row_bytes + (int64_t)next.bundle * kTileBytes, kTileBytes, full + stage);
        }
    };
    auto ask_records = [&](const typename S::Walk& next, int stage) {
        if (fetcher == 0 && lane == 0) {
            qgen_barrier_expect(full + stage, there);
            qgen_copy_bulk(qgen_shared + at + stage * S::stage_bytes, records + (int64_t)next.bundle * apart, there, full + stage);
        }
    };
    // The weights are there before the activation is.
    typename S::Walk early(part, share.begin, share.end, bundles);
    for (int stage = 0; stage < S::stages && early.group < share.end; ++stage, early.step(share.end, bundles)) ask_weights(early, stage);
    qgen_wait_for_inputs();
    int stage = 0;
    uint32_t round = 0;
#pragma unroll 1
    for (typename S::Walk next(part, share.begin, share.end, bundles); next.group < share.end; next.step(share.end, bundles)) {
        if (round > 0) {
            qgen_barrier_wait(empty + stage, (round + 1) & 1);
            // Lanes without a part in the phase to come would miss it, and the next one looks like the last one.
            __syncwarp();
            ask_weights(next, stage);
        }
        ask_records(next, stage);
        if (++stage == S::stages) stage = 0, ++round;
    }
}

// y[token][row] for this CTA's share of the rows, and of the tokens up to its columns.
template <class S, int depth, int width>
__device__ __forceinline__ void multiply(const uint8_t* weight, int rows, int blocks, int tokens, const uint8_t* activation,
                                         float* y, int64_t y_stride) {
    const int lane = qgen_keep((int)threadIdx.x % 32), t = qgen_keep(lane % 4), row = qgen_keep(lane / 4);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // so that the compiler sees a branch on it as one
    const bool fetches = warp >= S::warps;
    const int part = fetches ? (warp - S::warps) / S::fetchers : warp / S::row_tiles, fetcher = (warp - S::warps) % S::fetchers;
    uint64_t *exchange = (uint64_t*)(qgen_shared + S::barriers_at), *full = exchange + 1 + part * (2 * S::stages), *empty = full + S::stages;
    if (fetches && fetcher == 0 && lane < S::stages) {
        qgen_barrier_init(full + lane, S::fetchers + 1);
        qgen_barrier_init(empty + lane, 32 * S::row_tiles);
        if (lane == 0 && part == 0) qgen_barrier_init(exchange, 32 * S::warps);
        qgen_barrier_publish();
    }
    __syncthreads();
    qgen_let_next_begin();

    const int bundles = blocks;
    const qgen_share share(((rows + 15) / 16 + S::row_tiles - 1) / S::row_tiles);
    // The CTAs' column tiles, as equal as eight tokens allow.
    const int all_tiles = (tokens + 7) / 8, column_share = (all_tiles + (int)gridDim.y - 1) / (int)gridDim.y;
    const int column = blockIdx.y * (8 * column_share), left = min(tokens - column, 8 * column_share);
    if (fetches) {
        qgen_fewer_registers<S::few_registers>();
        fetch<S>(weight, rows, blocks, bundles, activation + blockIdx.y * column_share * kRecordBytes, all_tiles * kRecordBytes, (left + 7) / 8 * kRecordBytes, share, part, fetcher, full, empty, lane);
        return;
    }
    qgen_more_registers<S::registers>();
    const int own_tile = warp % S::row_tiles;
    const int first_stage = part * S::stages * S::stage_bytes, place_at = S::records_bytes + own_tile * S::slot_bytes;
    typename S::Pending pending(S::pending_at, exchange);
    qgen_wait_for_inputs();
    int stage = 0;
    uint32_t round = 0;
    for (int group = share.begin; group < share.end; ++group) {
        float sum[4 * S::column_tiles] = {};
        OnWay<S::column_tiles, width> way;
        bool first = true;  // nothing is on its way
        int slice = 0, before = 0;  // whose sums these are; the stage of what is on its way
        auto close_slices = [&](int next) {  // those before slice number `next`
#pragma unroll 1
            while (slice < next) {
                pending.add(sum, slice);
                if (++slice == S::Walk::parts) break;
#pragma unroll
                for (int j = 0; j < 4 * S::column_tiles; ++j) sum[j] = 0.0f;
            }
        };
#pragma unroll 1
        for (int i = 0; i < S::Walk::parts; ++i) {
#pragma unroll 1
            for (int bundle = S::Walk::slice_of(i) + part; bundle < bundles; bundle += kSlices) {
                qgen_barrier_wait(full + stage, round & 1);
                const int from = first_stage + stage * S::stage_bytes;
                auto done = [&]() {
                    qgen_barrier_arrive(empty + before);
                    close_slices(i);
                };
                if constexpr (depth == 1 && width == 1) add_bundle_1_1<S::column_tiles>(from + place_at, row, lane, t, from, first, way, sum, done);
                else add_bundle_2_1<S::column_tiles>(from + place_at, row, lane, t, from, first, way, sum, done);
                first = false, before = stage;
                if (++stage == S::stages) stage = 0, ++round;
            }
        }
        qgen_wgmma_wait<0>();
        if (!first) {
            way.add_to(sum);
            qgen_barrier_arrive(empty + before);
        }
        close_slices(S::Walk::parts);
        pending.add_parts(sum, part);
        if (S::split == 1 || part == 0) {
            const int first = 16 * (group * S::row_tiles + own_tile) + row;
            // From column to column: addresses made of each one's number would hold registers through all of K.
            float* to = y + (column + 2 * t) * y_stride + first;
#pragma unroll
            for (int n = 0; n < S::column_tiles; ++n, to += 8 * y_stride)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int token = 8 * n + 2 * t + j % 2, down = j / 2 * 8;
                    if (token < left && first + down < rows) qgen_store_f32(to + j % 2 * y_stride + down, sum[4 * n + j]);
                }
        }
    }
}

}  // namespace

// capacity 16 tokens, 128 rows a CTA; 640 threads: 16 warps and four that fetch; 6 stages; 118784 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q1_0_bf16_t16__wgmma_tiled_g2s2(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<2, 2, 2, 6, false>, 1, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 16 tokens, 64 rows a CTA; 640 threads: 16 warps and four that fetch; 6 stages; 142728 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q1_0_bf16_t16__wgmma_tiled_g1s4(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<2, 1, 4, 6, false>, 1, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 32 tokens, 128 rows a CTA; 640 threads: 16 warps and four that fetch; 6 stages; 191688 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q1_0_bf16_t32__wgmma_tiled_g2s2(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<4, 2, 2, 6, false>, 1, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 32 tokens, 64 rows a CTA; 640 threads: 16 warps and four that fetch; 5 stages; 219976 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q1_0_bf16_t32__wgmma_tiled_g1s4(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<4, 1, 4, 5, false>, 1, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 48 tokens, 128 rows a CTA; 384 threads: 8 warps and four that fetch; 6 stages; 161384 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(384, 1)
mul_mat_q1_0_bf16_t48__wgmma_tiled_g2s1(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<6, 2, 1, 6, false>, 2, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 64 tokens, 128 rows a CTA; 384 threads: 8 warps and four that fetch; 6 stages; 210536 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(384, 1)
mul_mat_q1_0_bf16_t64__wgmma_tiled_g2s1(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<8, 2, 1, 6, false>, 2, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
