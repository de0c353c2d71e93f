// mul_mat Q4_K x f16, family ksplit_mma.
// Generated from specs/formats/q4_k.toml and templates/ksplit_float_tiled.cu.j2;
// edit those, then run: qgen build
//
// format      Q4_K: 256 elements in 144 bytes (144 in weight)
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  f16 in the layout f16_q4_k_fragments, from quantize_activation
// traffic     every packed byte is requested once a column tile (read factor 1.00)
// contract    f16_g32_s8_folded: x is rounded to f16; codes times integer scales are exact in it. S of a
//             block starts at +0 and takes steps of 16 products (code * scale) * x, an m16n8k16 each, as the
//             layout orders them, groups of 32 weights in order.
//             X, the sum of 32 x, is added by halving; high = bf16(X), low = bf16(X - high). M
//             starts at +0 and takes an m16n8k16 in bf16 for each eight groups in turn: integer scales
//             times high, then times low.
//             Block b of a row belongs to slice b mod 8; a slice takes blocks and terms in order,
//             each as fma(float factors, S or M, slice), terms +d*S, -dmin*M;
//             slices are added by halving: slice s < h takes s + h, h = 4 .. 1
// rounding    inside an instruction it is the hardware's; no column depends on another or on T
//
#include "qgen_fold.cuh"
#include "qgen_split.cuh"
#include "qgen_tiles.cuh"

namespace {

using Class = qgen_f16;
constexpr int kTileBytes = 2304;   // bytes of a tile: sixteen rows of a block
constexpr int kSplit = 8;        // warps that share rows: a slice of K each, its blocks dealt to them in turn
constexpr int kCodeWords = 16;    // code words of a thread, row and block
constexpr int kValueBytes = 4096;   // activation values of a block and column tile
constexpr int kSumBytes = 256;    // activation sums of a block and column tile
// Other architectures' compilers want more registers for this text: one CTA at a time there.
constexpr bool kRoomy = __CUDA_ARCH__ == 900;
// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    uint32_t w[8];
    qgen_words16<4>(w + 0, qgen_shared + skip, from0 + 256 + half * 512);
    qgen_words16<4>(w + 4, qgen_shared + skip, from0 + 1280 + half * 512);
    q[0] = ((w[0] & 0x0f0f0f0fu));
    q[2] = ((w[0] >> 4 & 0x0f0f0f0fu));
    q[1] = ((w[1] & 0x0f0f0f0fu));
    q[3] = ((w[1] >> 4 & 0x0f0f0f0fu));
    q[4] = ((w[2] & 0x0f0f0f0fu));
    q[6] = ((w[2] >> 4 & 0x0f0f0f0fu));
    q[5] = ((w[3] & 0x0f0f0f0fu));
    q[7] = ((w[3] >> 4 & 0x0f0f0f0fu));
    q[8] = ((w[4] & 0x0f0f0f0fu));
    q[10] = ((w[4] >> 4 & 0x0f0f0f0fu));
    q[9] = ((w[5] & 0x0f0f0f0fu));
    q[11] = ((w[5] >> 4 & 0x0f0f0f0fu));
    q[12] = ((w[6] & 0x0f0f0f0fu));
    q[14] = ((w[6] >> 4 & 0x0f0f0f0fu));
    q[13] = ((w[7] & 0x0f0f0f0fu));
    q[15] = ((w[7] >> 4 & 0x0f0f0f0fu));
}

// Four integer scales sc of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_sc(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared + skip, from1 + 4 + half * 128) >> 0 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared + skip, from2 + 4 + half * 128) >> lane0 & 0x03030303u) << 4;
}

// Four integer scales mn of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_mn(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared + skip, from3 + 8 + half * 128) >> lane1 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared + skip, from2 + 8 + half * 128) >> lane0 & 0x03030303u) << 4;
}

// The float factor of the row that f0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_f0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from2 + 0 + half * 128));
}

// The float factor of the row that f1 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_f1(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from2 + 2 + half * 128));
}

// Byte number `byte` of a scale word as `operand` takes it: x is a pair of the scale, y what a widened code's product with
// it is off the code's.
template <int byte>
__device__ __forceinline__ uint2 code_scale(uint32_t scales) {
    uint32_t scale = qgen_widen_both<Class, byte>(scales);
    scale = Class::fma(scale, 0x3c003c00u, 0xe400e400u);
    return make_uint2(scale, Class::fma(scale, 0xe400e400u, 0u));
}

__device__ __forceinline__ void operand(uint32_t codes, uint2 scale, uint32_t& low, uint32_t& high) {
    const uint2 wide = qgen_widen<Class>(codes);
    low = wide.x, high = wide.y;
    low = Class::fma(low, scale.x, scale.y), high = Class::fma(high, scale.x, scale.y);
}

// x of one piece, two code words: `values` is this thread's part of the first tile's, the next tile's is `stride` further.
template <int column_tiles>
__device__ __forceinline__ void load_piece(uint4 (&x)[column_tiles], const uint8_t* values, int64_t stride, int left, int g) {
#pragma unroll
    for (int n = 0; n < column_tiles; ++n)
        x[n] = 8 * n + g < left ? qgen_load_u32x4(values + n * stride) : make_uint4(0, 0, 0, 0);
}

// One step of the contract for every row and column tile: d += the 16 products of one code word, whose x is in half
// `half` of the piece. Codes are taken times `scale`, by row.
template <int half, int row_tiles, int column_tiles>
__device__ __forceinline__ void multiply(float (&d)[row_tiles][column_tiles][4], const uint32_t (&q)[2 * row_tiles][kCodeWords],
                                         int word, const uint2 (&scale)[2 * row_tiles], const uint4 (&x)[column_tiles]) {
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
        uint32_t a[4];
        operand(q[2 * r][word], scale[2 * r], a[0], a[2]);
        operand(q[2 * r + 1][word], scale[2 * r + 1], a[1], a[3]);
#pragma unroll
        for (int n = 0; n < column_tiles; ++n)
            Class::mma(d[r][n], a, half == 0 ? x[n].x : x[n].z, half == 0 ? x[n].y : x[n].w);
    }
}

// sum = coefficient * d + sum for the block's sums d; coefficients by row.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void fold(float (&sum)[4 * row_tiles * column_tiles], const float (&c)[2 * row_tiles],
                                     const float (&d)[row_tiles][column_tiles][4]) {
#pragma unroll
    for (int i = 0; i < 4 * row_tiles * column_tiles; ++i)
        sum[i] = __fmaf_rn(c[i / (4 * column_tiles) * 2 + i % 4 / 2], d[i / (4 * column_tiles)][i / 4 % column_tiles][i % 4], sum[i]);
}

// d += integer scales times sums of x, of eight groups: `pairs` are the scales of two groups by row, `sums` points to this
// thread's pieces of the same groups' sums.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void multiply_sums(float (&d)[row_tiles][column_tiles][4], const uint32_t (&pairs)[2 * row_tiles],
                                              const uint8_t* sums, int64_t stride, int left) {
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        const uint2 x = 8 * n < left ? qgen_load_u32x2(sums + n * stride) : make_uint2(0, 0);
#pragma unroll
        for (int r = 0; r < row_tiles; ++r) {
            // The first eight products have the high pieces, the other eight the same scales and the low ones.
            const uint32_t a[4] = {pairs[2 * r], pairs[2 * r + 1], pairs[2 * r], pairs[2 * r + 1]};
            qgen_mma_bf16(d[r][n], a, x.x, x.y);
        }
    }
}

// Adds one block of sixteen rows, the tile at byte `place` of shared memory, times the tokens of `column_tiles` tiles to one
// slice: rows g and g + 8, tokens 2t and 2t + 1 of every column tile. `left` tokens are left from the first of the CTA on;
// values and sums point to this thread's part of the block's activations.
template <int column_tiles>
__device__ __forceinline__ void add_block(int place, int g, int t, int lane, int blocks, int left, const uint8_t* values,
                                          const uint8_t* sums, float (&sum)[4 * column_tiles]) {
    constexpr int row_tiles = 1, rows = 2;
    const int64_t stride = (int64_t)blocks * kValueBytes;
    const int64_t sum_stride = (int64_t)blocks * kSumBytes;
    uint32_t q[rows][kCodeWords];
    block_codes<0>(place, g, t, q[0]);
    block_codes<1>(place, g, t, q[1]);
    uint32_t sc[rows][2];
#pragma unroll
    for (int h = 0; h < rows; ++h) {
        const uint32_t own = h ? scale_word_sc<1>(place, g, t) : scale_word_sc<0>(place, g, t);
#pragma unroll
        for (int i = 0; i < 2; ++i) sc[h][i] = __shfl_sync(0xffffffffu, own, (lane & 28) + i);
    }
    uint32_t pairs[1][rows];  // scales of groups 8i + 2t and 8i + 2t + 1
#pragma unroll
    for (int h = 0; h < rows; ++h) {
        const uint32_t own = h ? scale_word_mn<1>(place, g, t) : scale_word_mn<0>(place, g, t);
#pragma unroll
        for (int i = 0; i < 1; ++i)
            pairs[i][h] = qgen_scale_pair(__shfl_sync(0xffffffffu, own, (lane & 28) + 2 * i + t / 2), t % 2);
    }
    const float f0[rows] = {factor_f0<0>(place, g, t), factor_f0<1>(place, g, t)};
    const float f1[rows] = {factor_f1<0>(place, g, t), factor_f1<1>(place, g, t)};
    float d[row_tiles][column_tiles][4] = {};
    uint4 x0[column_tiles];
    load_piece<column_tiles>(x0, values + 0 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<0>(sc[h][0]);
        multiply<0, row_tiles, column_tiles>(d, q, 0, scale, x0);
        multiply<1, row_tiles, column_tiles>(d, q, 1, scale, x0);
    }
    uint4 x1[column_tiles];
    load_piece<column_tiles>(x1, values + 1 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<1>(sc[h][0]);
        multiply<0, row_tiles, column_tiles>(d, q, 2, scale, x1);
        multiply<1, row_tiles, column_tiles>(d, q, 3, scale, x1);
    }
    uint4 x2[column_tiles];
    load_piece<column_tiles>(x2, values + 2 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<2>(sc[h][0]);
        multiply<0, row_tiles, column_tiles>(d, q, 4, scale, x2);
        multiply<1, row_tiles, column_tiles>(d, q, 5, scale, x2);
    }
    uint4 x3[column_tiles];
    load_piece<column_tiles>(x3, values + 3 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<3>(sc[h][0]);
        multiply<0, row_tiles, column_tiles>(d, q, 6, scale, x3);
        multiply<1, row_tiles, column_tiles>(d, q, 7, scale, x3);
    }
    uint4 x4[column_tiles];
    load_piece<column_tiles>(x4, values + 4 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<0>(sc[h][1]);
        multiply<0, row_tiles, column_tiles>(d, q, 8, scale, x4);
        multiply<1, row_tiles, column_tiles>(d, q, 9, scale, x4);
    }
    uint4 x5[column_tiles];
    load_piece<column_tiles>(x5, values + 5 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<1>(sc[h][1]);
        multiply<0, row_tiles, column_tiles>(d, q, 10, scale, x5);
        multiply<1, row_tiles, column_tiles>(d, q, 11, scale, x5);
    }
    uint4 x6[column_tiles];
    load_piece<column_tiles>(x6, values + 6 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<2>(sc[h][1]);
        multiply<0, row_tiles, column_tiles>(d, q, 12, scale, x6);
        multiply<1, row_tiles, column_tiles>(d, q, 13, scale, x6);
    }
    uint4 x7[column_tiles];
    load_piece<column_tiles>(x7, values + 7 * 512, stride, left, g);
    {
        uint2 scale[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) scale[h] = code_scale<3>(sc[h][1]);
        multiply<0, row_tiles, column_tiles>(d, q, 14, scale, x7);
        multiply<1, row_tiles, column_tiles>(d, q, 15, scale, x7);
    }
    {
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = f0[h];
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    {
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = -f1[h];
        float m[row_tiles][column_tiles][4] = {};
#pragma unroll
        for (int i = 0; i < 1; ++i)
            multiply_sums<row_tiles, column_tiles>(m, pairs[i], sums + i * 256, sum_stride, left);
        fold<row_tiles, column_tiles>(sum, c, m);
    }
}

// y[token][row] for this CTA's share of the rows, and of the tokens up to 8 * column_tiles.
template <int column_tiles, int warp_blocks, int stages>
__device__ __forceinline__ void ksplit(const uint8_t* weight, int rows, int blocks, int tokens, const uint8_t* activation,
                                       float* y, int64_t y_stride) {
    constexpr int columns = 8 * column_tiles, stage_blocks = kSplit * warp_blocks, slot_bytes = stage_blocks * kTileBytes;
    using Ring = qgen_tile_ring<kSplit, stages, slot_bytes>;

    const int lane = qgen_keep((int)threadIdx.x % 32), t = qgen_keep(lane % 4), g = qgen_keep(lane / 4);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // so that the compiler sees a branch on it as one
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    float* partial = (float*)(qgen_shared + Ring::bytes);
    uint64_t* barriers = (uint64_t*)(partial + kSplit * columns * qgen_column_stride<1>);
    Ring ring(barriers, 0, threadIdx.x);
    const qgen_handover<kSplit, column_tiles> handover(barriers + 2 * stages, true, warp, lane);
    __syncthreads();

    const qgen_share share((rows + 15) / 16);
    // When the next kernel may begin: as in ksplit_tiled.cu.j2.
    const bool late = share.end - share.begin <= 1 && (column_tiles <= 2 ? tokens > 1 : blocks > stages * stage_blocks);
    if (!late) qgen_let_next_begin();
    const int64_t row_bytes = (int64_t)blocks * kTileBytes;  // of a row tile
    int ahead_tile = share.begin, ahead_stage = 0, turn = 0;  // turn: of the warp that makes the next request
    auto request = [&]() {
        if (turn == warp && ahead_tile < share.end)
            ring.template fill<1>(weight + ahead_tile * row_bytes + (int64_t)ahead_stage * slot_bytes, row_bytes, 1,
                                  min(blocks - ahead_stage * stage_blocks, stage_blocks) * kTileBytes, lane);
        ring.ask();
        if (++turn == kSplit) turn = 0;
        if (++ahead_stage == stage_count) ahead_stage = 0, ++ahead_tile;
    };
#pragma unroll 1
    for (int i = 0; i < Ring::ahead; ++i) request();

    // This thread's part of the activation planes, from the CTA's first token on.
    const int column = blockIdx.y * columns, left = tokens - column;
    const int64_t first_place = (int64_t)(column / 8) * blocks + warp;
    const uint8_t* values = qgen_keep(activation + first_place * kValueBytes + lane * 16);
    const uint8_t* sums = qgen_keep(activation + (tokens + 7) / 8 * (int64_t)blocks * kValueBytes + first_place * kSumBytes + lane * 8);
    const int row_end = min(rows, share.end * 16);
    auto finish = [&](int number, int tile) {
        qgen_add_partials<kSplit, column_tiles, 1>(partial, handover, number, warp, lane, tile, row_end, column, left, y, y_stride);
    };
    qgen_wait_for_inputs();
    int number = 0;
    for (int tile = share.begin * 16; tile < row_end; tile += 16) {
        float sum[4 * column_tiles] = {};  // the warp's slice
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            const int place = ring.wait() + warp * kTileBytes;
            request();
            const int64_t first_block = (int64_t)stage * stage_blocks;
            const uint8_t* values_at = values + first_block * kValueBytes;
            const uint8_t* sums_at = sums + first_block * kSumBytes;
#pragma unroll
            for (int i = 0; i < warp_blocks; ++i)
                if (stage * stage_blocks + i * kSplit + warp < blocks)
                    add_block<column_tiles>(place + i * (kSplit * kTileBytes), g, t, lane, blocks, left,
                                            values_at + i * (kSplit * kValueBytes), sums_at + i * (kSplit * kSumBytes), sum);
            ring.release();
            if (stage == 0 && number > 0) finish(number - 1, tile - 16);
        }
        if (late) qgen_let_next_begin();
        handover.before_write(number);
        float own[1][column_tiles][1][4];
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) own[0][i / 4][0][i % 4] = sum[i];
        qgen_write_partial(partial, own, warp, g, t);
        handover.after_write();
        ++number;
    }
    if (number > 0) finish(number - 1, share.begin * 16 + (number - 1) * 16);
}

}  // namespace

// capacity 8 tokens, 16 rows, 8 warps, 1 block a warp and stage, 4 stages; 78928 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_q4_k_f16_t8__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<1, 1, 4>(weight, rows, blocks, tokens, activation, y, y_stride);
}

// capacity 16 tokens, 16 rows, 8 warps, 1 block a warp and stage, 3 stages; 65600 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_q4_k_f16_t16__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<2, 1, 3>(weight, rows, blocks, tokens, activation, y, y_stride);
}
