// mul_mat Q4G64_F16S x bf16, family ksplit_mma.
// Generated from specs/formats/q4g64_f16s.toml and templates/ksplit_float.cu.j2;
// edit those, then run: qgen build
//
// format      Q4G64_F16S: 64 elements in 34 bytes (32 in weight_base, 2 in weight_scale)
// storage     native: as in the file; rows NAME_stride bytes apart
// activation  bf16 in the layout bf16_q4g64_f16s_fragments, from quantize_activation
// traffic     every packed byte is requested once a column tile (read factor 1.00)
// contract    bf16_g64_s8: x is rounded to bf16; codes are exact in it. S of 64 weights that
//             share all scales starts at +0 and takes steps of 16 products, an m16n8k16 each, as the layout
//             orders them; X, the sum of their x, is added by halving. Block b of a row belongs to slice b mod
//             8; a slice takes blocks, groups and terms in order, each as
//             fma(factors * integer scale, S or X, slice), terms +s*S;
//             slices are added by halving: slice s < h takes s + h, h = 4 .. 1
// rounding    inside an instruction it is the hardware's; no column depends on another or on T
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kCodeWords = 4;    // code words of a thread, row and block
constexpr int kValueBytes = 1024;   // activation values of a block and column tile
// One compiled instance: what the planner decided about its launch.
struct T8R1 {
    static constexpr int column_tiles = 1, row_tiles = 1, warps = 8, warp_blocks = 4, stages = 3;
    static constexpr int stage_bytes = 19456;
    static constexpr int weight_base_pieces = 64, weight_base_slot = 1056, weight_base_at = 0;
    static constexpr int weight_scale_pieces = 5, weight_scale_slot = 160, weight_scale_at = 16896;
};
struct T16R1 {
    static constexpr int column_tiles = 2, row_tiles = 1, warps = 8, warp_blocks = 4, stages = 3;
    static constexpr int stage_bytes = 19456;
    static constexpr int weight_base_pieces = 64, weight_base_slot = 1056, weight_base_at = 0;
    static constexpr int weight_scale_pieces = 5, weight_scale_slot = 160, weight_scale_at = 16896;
};
struct T32R1 {
    static constexpr int column_tiles = 4, row_tiles = 1, warps = 8, warp_blocks = 4, stages = 3;
    static constexpr int stage_bytes = 19456;
    static constexpr int weight_base_pieces = 64, weight_base_slot = 1056, weight_base_at = 0;
    static constexpr int weight_scale_pieces = 5, weight_scale_slot = 160, weight_scale_at = 16896;
};
// The code words of thread t for one block of one row, which starts at these bytes of shared memory.
__device__ __forceinline__ void block_codes(int weight_base, int weight_scale, int t, uint32_t (&q)[kCodeWords]) {
    [[maybe_unused]] const int from0 = qgen_keep(weight_base + 8 * t);

    uint32_t w[2];
    qgen_words8<2>(w + 0, qgen_shared, from0);
    q[0] = ((w[0] & 0x0f0f0f0fu)) ^ 0x08080808u;
    q[1] = ((w[0] >> 4 & 0x0f0f0f0fu)) ^ 0x08080808u;
    q[2] = ((w[1] & 0x0f0f0f0fu)) ^ 0x08080808u;
    q[3] = ((w[1] >> 4 & 0x0f0f0f0fu)) ^ 0x08080808u;
}

__device__ __forceinline__ void operand(uint32_t codes, uint32_t& low, uint32_t& high) {
    const uint2 wide = qgen_widen<Class>(codes);
    low = wide.x, high = wide.y;
    low = Class::fma(low, 0x3f803f80u, 0xc308c308u), high = Class::fma(high, 0x3f803f80u, 0xc308c308u);
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

// Adds one block of 16 * row_tiles rows times the tokens of `column_tiles` tiles to one slice. Row number h of this thread,
// which is row g + 8 h of the tile, has its block at byte NAME[h] of shared memory, for every plane NAME. `left` tokens are left
// from the first of the CTA on; values and sums point to this thread's part of the block's activations.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void add_block(const int (&weight_base)[2 * row_tiles], const int (&weight_scale)[2 * row_tiles], int lane, int blocks, int left,
                                          const uint8_t* values, const uint8_t* sums, float (&sum)[4 * row_tiles * column_tiles]) {
    constexpr int rows = 2 * row_tiles;
    const int t = lane % 4, g = lane / 4;
    const int64_t stride = (int64_t)blocks * kValueBytes;
    uint32_t q[rows][kCodeWords];
#pragma unroll
    for (int h = 0; h < rows; ++h) block_codes(weight_base[h], weight_scale[h], t, q[h]);
    float f0[rows];
#pragma unroll
    for (int h = 0; h < rows; ++h) f0[h] = qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + weight_scale[h] + 0));
    uint4 x0[column_tiles];
    load_piece<column_tiles>(x0, values + 0 * 512, stride, left, g);
    uint4 x1[column_tiles];
    load_piece<column_tiles>(x1, values + 1 * 512, stride, left, g);
    {
        float d[row_tiles][column_tiles][4] = {};
        multiply<0, row_tiles, column_tiles>(d, q, 0, x0);
        multiply<1, row_tiles, column_tiles>(d, q, 1, x0);
        multiply<0, row_tiles, column_tiles>(d, q, 2, x1);
        multiply<1, row_tiles, column_tiles>(d, q, 3, x1);
        float c[rows];
#pragma unroll
        for (int h = 0; h < rows; ++h) c[h] = f0[h];
        fold<row_tiles, column_tiles>(sum, c, d);
    }
}

// y[token][row] for all rows and up to 8 * column_tiles tokens from token blockIdx.y * 8 * column_tiles on.
template <class R>
__device__ __forceinline__ void ksplit(const uint8_t* weight_base, int64_t weight_base_stride, const uint8_t* weight_scale, int64_t weight_scale_stride, int rows, int blocks, int tokens,
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
    int ahead_tile = blockIdx.x, ahead_stage = 0, ahead_slot = 0;
    auto request = [&]() {
        if (ahead_tile < tiles) {
            const int count = min(blocks - ahead_stage * stage_blocks, stage_blocks);
            uint8_t* slots = qgen_shared + ahead_slot * R::stage_bytes;
            qgen_stage_plane<R::warps, tile_rows, R::weight_base_pieces, R::weight_base_slot, true>(
                slots + R::weight_base_at, weight_base + (int64_t)ahead_stage * (stage_blocks * 32), weight_base_stride,
                ahead_tile * tile_rows, rows, count * 32, warp, lane);
            qgen_stage_plane<R::warps, tile_rows, R::weight_scale_pieces, R::weight_scale_slot, false>(
                slots + R::weight_scale_at, weight_scale + (int64_t)ahead_stage * (stage_blocks * 2), weight_scale_stride,
                ahead_tile * tile_rows, rows, count * 2, warp, lane);
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
            int weight_base_start[own_rows];
#pragma unroll
            for (int h = 0; h < own_rows; ++h)
                weight_base_start[h] = slot * R::stage_bytes + R::weight_base_at + (g + 8 * h) * R::weight_base_slot +
                    (int)(((uint32_t)(uint64_t)weight_base + (uint32_t)stage * (stage_blocks * 32u) +
                           (uint32_t)(tile * tile_rows + g + 8 * h) * (uint32_t)weight_base_stride) & 15u);
            int weight_scale_start[own_rows];
#pragma unroll
            for (int h = 0; h < own_rows; ++h)
                weight_scale_start[h] = slot * R::stage_bytes + R::weight_scale_at + (g + 8 * h) * R::weight_scale_slot +
                    (int)(((uint32_t)(uint64_t)weight_scale + (uint32_t)stage * (stage_blocks * 2u) +
                           (uint32_t)(tile * tile_rows + g + 8 * h) * (uint32_t)weight_scale_stride) & 15u);
            const int64_t first_block = (int64_t)stage * stage_blocks + warp;
            const uint8_t* values_at = values + first_block * kValueBytes;
#pragma unroll
            for (int j = 0; j < R::warp_blocks; ++j) {
                const int in_stage = j * R::warps + warp;
                if (stage * stage_blocks + in_stage < blocks) {
                    int weight_base_block[own_rows];
#pragma unroll
                    for (int h = 0; h < own_rows; ++h) weight_base_block[h] = weight_base_start[h] + in_stage * 32;
                    int weight_scale_block[own_rows];
#pragma unroll
                    for (int h = 0; h < own_rows; ++h) weight_scale_block[h] = weight_scale_start[h] + in_stage * 2;
                    add_block<R::row_tiles, R::column_tiles>(weight_base_block, weight_scale_block, lane, blocks, tokens - column,
                                                             values_at + j * (R::warps * kValueBytes),
                                                             nullptr,
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

// capacity 8 tokens, 16 rows, 8 warps, 4 blocks a warp and stage, 3 stages; 63504 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 2)
mul_mat_q4g64_f16s_bf16_t8__ksplit_mma_native_r1w8(const uint8_t* __restrict__ weight_base, int64_t weight_base_stride, const uint8_t* __restrict__ weight_scale, int64_t weight_scale_stride, int rows, int blocks,
    int tokens, const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<T8R1>(weight_base, weight_base_stride, weight_scale, weight_scale_stride, rows, blocks, tokens, activation, y, y_stride);
}

// capacity 16 tokens, 16 rows, 8 warps, 4 blocks a warp and stage, 3 stages; 68624 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 2)
mul_mat_q4g64_f16s_bf16_t16__ksplit_mma_native_r1w8(const uint8_t* __restrict__ weight_base, int64_t weight_base_stride, const uint8_t* __restrict__ weight_scale, int64_t weight_scale_stride, int rows, int blocks,
    int tokens, const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<T16R1>(weight_base, weight_base_stride, weight_scale, weight_scale_stride, rows, blocks, tokens, activation, y, y_stride);
}

// capacity 32 tokens, 16 rows, 8 warps, 4 blocks a warp and stage, 3 stages; 78864 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_q4g64_f16s_bf16_t32__ksplit_mma_native_r1w8(const uint8_t* __restrict__ weight_base, int64_t weight_base_stride, const uint8_t* __restrict__ weight_scale, int64_t weight_scale_stride, int rows, int blocks,
    int tokens, const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<T32R1>(weight_base, weight_base_stride, weight_scale, weight_scale_stride, rows, blocks, tokens, activation, y, y_stride);
}
