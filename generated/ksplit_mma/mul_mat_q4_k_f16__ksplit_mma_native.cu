// mul_mat Q4_K x f16, family ksplit_mma.
// Generated from specs/formats/q4_k.toml and templates/ksplit_float.cu.j2;
// edit those, then run: qgen build
//
// format      Q4_K: 256 elements in 144 bytes (144 in weight)
// storage     native: as in the file; rows NAME_stride bytes apart
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

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_f16;
constexpr int kCodeWords = 16;    // code words of a thread, row and block
constexpr int kValueBytes = 4096;   // activation values of a block and column tile
constexpr int kSumBytes = 256;    // activation sums of a block and column tile
// One compiled instance: what the planner decided about its launch.
struct T8R1 {
    static constexpr int column_tiles = 1, row_tiles = 1, warps = 8, warp_blocks = 1, stages = 3;
    static constexpr int stage_bytes = 18944;
    static constexpr int weight_pieces = 72, weight_slot = 1184, weight_at = 0;
};
// The code words of thread t for one block of one row, which starts at these bytes of shared memory.
__device__ __forceinline__ void block_codes(int weight, int t, uint32_t (&q)[kCodeWords]) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(weight + 8 * t);
    [[maybe_unused]] const int from1 = qgen_keep(weight + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(weight + 4 * (t >> 0 & 1));

    uint32_t w[8];
    qgen_words8<2>(w + 0, qgen_shared, from0 + 16);
    qgen_words8<2>(w + 2, qgen_shared, from0 + 48);
    qgen_words8<2>(w + 4, qgen_shared, from0 + 80);
    qgen_words8<2>(w + 6, qgen_shared, from0 + 112);
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
__device__ __forceinline__ uint32_t scale_word_sc(int weight, int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(weight + 8 * t);
    [[maybe_unused]] const int from1 = qgen_keep(weight + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(weight + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared, from1 + 4) >> 0 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared, weight + 4) >> lane0 & 0x03030303u) << 4;
}

// Four integer scales mn of the row, as thread t of a quad holds them.
__device__ __forceinline__ uint32_t scale_word_mn(int weight, int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(weight + 8 * t);
    [[maybe_unused]] const int from1 = qgen_keep(weight + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from2 = qgen_keep(weight + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared, from2 + 8) >> lane1 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared, weight + 8) >> lane0 & 0x03030303u) << 4;
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

// Adds one block of 16 * row_tiles rows times the tokens of `column_tiles` tiles to one slice. Row number h of this thread,
// which is row g + 8 h of the tile, has its block at byte NAME[h] of shared memory, for every plane NAME. `left` tokens are left
// from the first of the CTA on; values and sums point to this thread's part of the block's activations.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void add_block(const int (&weight)[2 * row_tiles], int lane, int blocks, int left,
                                          const uint8_t* values, const uint8_t* sums, float (&sum)[4 * row_tiles * column_tiles]) {
    constexpr int rows = 2 * row_tiles;
    const int t = lane % 4, g = lane / 4;
    const int64_t stride = (int64_t)blocks * kValueBytes;
    const int64_t sum_stride = (int64_t)blocks * kSumBytes;
    uint32_t q[rows][kCodeWords];
#pragma unroll
    for (int h = 0; h < rows; ++h) block_codes(weight[h], t, q[h]);
    uint32_t sc[rows][2];
#pragma unroll
    for (int h = 0; h < rows; ++h) {
        const uint32_t own = scale_word_sc(weight[h], t);
#pragma unroll
        for (int i = 0; i < 2; ++i) sc[h][i] = __shfl_sync(0xffffffffu, own, (lane & 28) + i);
    }
    uint32_t pairs[1][rows];  // scales of groups 8i + 2t and 8i + 2t + 1
#pragma unroll
    for (int h = 0; h < rows; ++h) {
        const uint32_t own = scale_word_mn(weight[h], t);
#pragma unroll
        for (int i = 0; i < 1; ++i)
            pairs[i][h] = qgen_scale_pair(__shfl_sync(0xffffffffu, own, (lane & 28) + 2 * i + t / 2), t % 2);
    }
    float f0[rows];
#pragma unroll
    for (int h = 0; h < rows; ++h) f0[h] = qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + weight[h] + 0));
    float f1[rows];
#pragma unroll
    for (int h = 0; h < rows; ++h) f1[h] = qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + weight[h] + 2));
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

// y[token][row] for all rows and up to 8 * column_tiles tokens from token blockIdx.y * 8 * column_tiles on.
template <class R>
__device__ __forceinline__ void ksplit(const uint8_t* weight, int64_t weight_stride, int rows, int blocks, int tokens,
                                       const uint8_t* activation, float* y, int64_t y_stride) {
    constexpr int stage_blocks = R::warps * R::warp_blocks;
    constexpr int tile_rows = 16 * R::row_tiles, own_rows = 2 * R::row_tiles, columns = 8 * R::column_tiles;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    const int tiles = (rows + tile_rows - 1) / tile_rows;
    const int column = blockIdx.y * columns;

    // This thread's part of the activation planes, from the CTA's first token on.
    const int64_t first_place = (int64_t)(column / 8) * blocks;
    const uint8_t* values = qgen_keep(activation + first_place * kValueBytes + lane * 16);
    const uint8_t* sums = qgen_keep(activation + (tokens + 7) / 8 * (int64_t)blocks * kValueBytes + first_place * kSumBytes + lane * 8);
    int ahead_tile = blockIdx.x, ahead_stage = 0, ahead_slot = 0;
    auto request = [&]() {
        if (ahead_tile < tiles) {
            const int count = min(blocks - ahead_stage * stage_blocks, stage_blocks);
            uint8_t* slots = qgen_shared + ahead_slot * R::stage_bytes;
            qgen_stage_plane<R::warps, tile_rows, R::weight_pieces, R::weight_slot, true>(
                slots + R::weight_at, weight + (int64_t)ahead_stage * (stage_blocks * 144), weight_stride,
                ahead_tile * tile_rows, rows, count * 144, warp, lane);
        }
        qgen_copy_commit();
        ahead_slot = ahead_slot + 1 == R::stages ? 0 : ahead_slot + 1;
        if (++ahead_stage == stage_count) {
            ahead_stage = 0;
            ahead_tile += gridDim.x;
        }
    };
#pragma unroll 1
    for (int i = 0; i < R::stages - 1; ++i) request();
    qgen_wait_for_inputs();  // the weights are no one's result, x is

    int slot = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sum[4 * R::row_tiles * R::column_tiles] = {};  // the warp's slice
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            qgen_copy_wait<R::stages - 2>();
            // The stage has landed for every thread, and everyone is done with the slot that is filled next.
            __syncthreads();
            request();
            // Where each row begins: in its slot, as far into a 16-byte piece as in memory; an address's low bits suffice.
            int weight_start[own_rows];
#pragma unroll
            for (int h = 0; h < own_rows; ++h)
                weight_start[h] = slot * R::stage_bytes + R::weight_at + (g + 8 * h) * R::weight_slot +
                    (int)(((uint32_t)(uint64_t)weight + (uint32_t)stage * (stage_blocks * 144u) +
                           (uint32_t)(tile * tile_rows + g + 8 * h) * (uint32_t)weight_stride) & 15u);
            const int64_t first_block = (int64_t)stage * stage_blocks + warp;
            const uint8_t* values_at = values + first_block * kValueBytes;
            const uint8_t* sums_at = sums + first_block * kSumBytes;
#pragma unroll
            for (int j = 0; j < R::warp_blocks; ++j) {
                const int in_stage = j * R::warps + warp;
                if (stage * stage_blocks + in_stage < blocks) {
                    int weight_block[own_rows];
#pragma unroll
                    for (int h = 0; h < own_rows; ++h) weight_block[h] = weight_start[h] + in_stage * 144;
                    add_block<R::row_tiles, R::column_tiles>(weight_block, lane, blocks, tokens - column,
                                                             values_at + j * (R::warps * kValueBytes),
                                                             sums_at + j * (R::warps * kSumBytes),
                                                             sum);
                }
            }
            slot = slot + 1 == R::stages ? 0 : slot + 1;
        }
        qgen_store_tile<R::warps, R::row_tiles, R::column_tiles>(sum, (float*)(qgen_shared + R::stages * R::stage_bytes),
                                                                 y + column * y_stride + tile * tile_rows, y_stride,
                                                                 rows - tile * tile_rows, tokens - column);
    }
}

}  // namespace

// capacity 8 tokens, 16 rows, 8 warps, 1 block a warp and stage, 3 stages; 61968 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 2)
mul_mat_q4_k_f16_t8__ksplit_mma_native_r1w8(const uint8_t* __restrict__ weight, int64_t weight_stride, int rows, int blocks,
    int tokens, const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<T8R1>(weight, weight_stride, rows, blocks, tokens, activation, y, y_stride);
}
