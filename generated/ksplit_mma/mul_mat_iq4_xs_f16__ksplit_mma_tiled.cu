// mul_mat IQ4_XS x f16, family ksplit_mma.
// Generated from specs/formats/iq4_xs.toml and templates/ksplit_float_tiled.cu.j2;
// edit those, then run: qgen build
//
// format      IQ4_XS: 256 elements in 136 bytes (136 in weight)
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  f16 in the layout f16_iq4_xs_fragments, from quantize_activation
// traffic     every packed byte is requested once a column tile (read factor 1.00)
// contract    f16_g32_s8: x is rounded to f16; codes are exact in it. S of 32 weights that
//             share all scales starts at +0 and takes steps of 16 products, an m16n8k16 each, as the layout
//             orders them; X, the sum of their x, is added by halving. Block b of a row belongs to slice b mod
//             8; a slice takes blocks, groups and terms in order, each as
//             fma(factors * integer scale, S or X, slice), terms +d*sc*S;
//             slices are added by halving: slice s < h takes s + h, h = 4 .. 1
// rounding    inside an instruction it is the hardware's; no column depends on another or on T
//
#include "qgen_float.cuh"
#include "qgen_split.cuh"
#include "qgen_tiles.cuh"

namespace {

using Class = qgen_f16;
constexpr int kTileBytes = 2176;   // bytes of a tile: sixteen rows of a block
constexpr int kSplit = 8;        // warps that share rows: a slice of K each, its blocks dealt to them in turn
constexpr int kCodeWords = 16;    // code words of a thread, row and block
constexpr int kValueBytes = 4096;   // activation values of a block and column tile
// Other architectures' compilers want more registers for this text: one CTA at a time there.
constexpr bool kRoomy = __CUDA_ARCH__ == 900;
constexpr uint32_t kTable0 = 0x3e2c1700u;
constexpr uint32_t kTable1 = 0x75695c4eu;
constexpr uint32_t kTable2 = 0xa5988c80u;
constexpr uint32_t kTable3 = 0xf0d8c4b4u;
// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 8 * row + 2 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 8 * row + 1 * (t >> 0 & 1));
    [[maybe_unused]] const int from3 = qgen_keep(b + 8 * row);

    uint32_t w[8];
    qgen_words16<4>(w + 0, qgen_shared + skip, from0 + 128 + half * 512);
    qgen_words16<4>(w + 4, qgen_shared + skip, from0 + 1152 + half * 512);
    q[0] = qgen_table16(w[0], kTable0, kTable1, kTable2, kTable3);
    q[1] = qgen_table16(w[0] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[2] = qgen_table16(w[1], kTable0, kTable1, kTable2, kTable3);
    q[3] = qgen_table16(w[1] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[4] = qgen_table16(w[2], kTable0, kTable1, kTable2, kTable3);
    q[5] = qgen_table16(w[2] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[6] = qgen_table16(w[3], kTable0, kTable1, kTable2, kTable3);
    q[7] = qgen_table16(w[3] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[8] = qgen_table16(w[4], kTable0, kTable1, kTable2, kTable3);
    q[9] = qgen_table16(w[4] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[10] = qgen_table16(w[5], kTable0, kTable1, kTable2, kTable3);
    q[11] = qgen_table16(w[5] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[12] = qgen_table16(w[6], kTable0, kTable1, kTable2, kTable3);
    q[13] = qgen_table16(w[6] >> 16, kTable0, kTable1, kTable2, kTable3);
    q[14] = qgen_table16(w[7], kTable0, kTable1, kTable2, kTable3);
    q[15] = qgen_table16(w[7] >> 16, kTable0, kTable1, kTable2, kTable3);
}

// Four integer scales sc of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_sc(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 8 * row + 2 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 8 * row + 1 * (t >> 0 & 1));
    [[maybe_unused]] const int from3 = qgen_keep(b + 8 * row);

    return (((qgen_spread<4>(qgen_word1(qgen_shared + skip, from1 + 4 + half * 64) >> 0) | qgen_spread<2>(qgen_word1(qgen_shared + skip, from2 + 2 + half * 64) >> 0) << 4) | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
}

// The float factor of the row that f0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_f0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 8 * row + 2 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(b + 8 * row + 1 * (t >> 0 & 1));
    [[maybe_unused]] const int from3 = qgen_keep(b + 8 * row);

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from3 + 0 + half * 64));
}

__device__ __forceinline__ void operand(uint32_t codes, uint32_t& low, uint32_t& high) {
    const uint2 wide = qgen_widen<Class>(codes);
    low = wide.x, high = wide.y;
    low = Class::fma(low, 0x3c003c00u, 0xe47fe47fu), high = Class::fma(high, 0x3c003c00u, 0xe47fe47fu);
}

// x of one piece, two code words: `values` is this thread's part of the first tile's, the next tile's is `stride` further.
template <int column_tiles>
__device__ __forceinline__ void load_piece(uint4 (&x)[column_tiles], const uint8_t* values, int64_t stride, int left, int g) {
#pragma unroll
    for (int n = 0; n < column_tiles; ++n)
        x[n] = 8 * n + g < left ? qgen_load_u32x4(values + n * stride) : make_uint4(0, 0, 0, 0);
}

// One step of the contract for every row and column tile: d += the 16 products of one code word, whose x is in half
// `half` of the piece.
template <int half, int row_tiles, int column_tiles>
__device__ __forceinline__ void multiply(float (&d)[row_tiles][column_tiles][4], const uint32_t (&q)[2 * row_tiles][kCodeWords],
                                         int word, const uint4 (&x)[column_tiles]) {
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
        uint32_t a[4];
        operand(q[2 * r][word], a[0], a[2]);
        operand(q[2 * r + 1][word], a[1], a[3]);
#pragma unroll
        for (int n = 0; n < column_tiles; ++n)
            Class::mma(d[r][n], a, half == 0 ? x[n].x : x[n].z, half == 0 ? x[n].y : x[n].w);
    }
}

// sum = coefficient * d + sum for the group sums d; coefficients by row.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void fold(float (&sum)[4 * row_tiles * column_tiles], const float (&c)[2 * row_tiles],
                                     const float (&d)[row_tiles][column_tiles][4]) {
#pragma unroll
    for (int i = 0; i < 4 * row_tiles * column_tiles; ++i)
        sum[i] = __fmaf_rn(c[i / (4 * column_tiles) * 2 + i % 4 / 2], d[i / (4 * column_tiles)][i / 4 % column_tiles][i % 4], sum[i]);
}

// Adds one block of sixteen rows, the tile at byte `place` of shared memory, times the tokens of `column_tiles` tiles to one
// slice: rows g and g + 8, tokens 2t and 2t + 1 of every column tile. `left` tokens are left from the first of the CTA on;
// values and sums point to this thread's part of the block's activations.
template <int column_tiles>
__device__ __forceinline__ void add_block(int place, int g, int t, int lane, int blocks, int left, const uint8_t* values,
                                          const uint8_t* sums, float (&sum)[4 * column_tiles]) {
    constexpr int row_tiles = 1, rows = 2;
    const int64_t stride = (int64_t)blocks * kValueBytes;
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
    const float f0[rows] = {factor_f0<0>(place, g, t), factor_f0<1>(place, g, t)};
    uint4 x0[column_tiles];
    load_piece<column_tiles>(x0, values + 0 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 0, x0);
        multiply<1, row_tiles, column_tiles>(d, q, 1, x0);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<0>(sc[h][0])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x1[column_tiles];
    load_piece<column_tiles>(x1, values + 1 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 2, x1);
        multiply<1, row_tiles, column_tiles>(d, q, 3, x1);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<1>(sc[h][0])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x2[column_tiles];
    load_piece<column_tiles>(x2, values + 2 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 4, x2);
        multiply<1, row_tiles, column_tiles>(d, q, 5, x2);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<2>(sc[h][0])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x3[column_tiles];
    load_piece<column_tiles>(x3, values + 3 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 6, x3);
        multiply<1, row_tiles, column_tiles>(d, q, 7, x3);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<3>(sc[h][0])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x4[column_tiles];
    load_piece<column_tiles>(x4, values + 4 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 8, x4);
        multiply<1, row_tiles, column_tiles>(d, q, 9, x4);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<0>(sc[h][1])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x5[column_tiles];
    load_piece<column_tiles>(x5, values + 5 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 10, x5);
        multiply<1, row_tiles, column_tiles>(d, q, 11, x5);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<1>(sc[h][1])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x6[column_tiles];
    load_piece<column_tiles>(x6, values + 6 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 12, x6);
        multiply<1, row_tiles, column_tiles>(d, q, 13, x6);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<2>(sc[h][1])));
        fold<row_tiles, column_tiles>(sum, c, d);
    }
    uint4 x7[column_tiles];
    load_piece<column_tiles>(x7, values + 7 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 14, x7);
        multiply<1, row_tiles, column_tiles>(d, q, 15, x7);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = __fmul_rn(f0[h], __int2float_rn(qgen_signed_byte<3>(sc[h][1])));
        fold<row_tiles, column_tiles>(sum, c, d);
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
#pragma unroll
            for (int i = 0; i < warp_blocks; ++i)
                if (stage * stage_blocks + i * kSplit + warp < blocks)
                    add_block<column_tiles>(place + i * (kSplit * kTileBytes), g, t, lane, blocks, left,
                                            values_at + i * (kSplit * kValueBytes), nullptr, sum);
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

// capacity 8 tokens, 16 rows, 8 warps, 1 block a warp and stage, 4 stages; 74832 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, kRoomy ? 2 : 1)
mul_mat_iq4_xs_f16_t8__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<1, 1, 4>(weight, rows, blocks, tokens, activation, y, y_stride);
}

// capacity 16 tokens, 16 rows, 8 warps, 1 block a warp and stage, 3 stages; 62528 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_iq4_xs_f16_t16__ksplit_mma_tiled_w8(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<2, 1, 3>(weight, rows, blocks, tokens, activation, y, y_stride);
}
