// mul_mat TQ1_0 x q8_g256, family ksplit_mma.
// Generated from specs/formats/tq1_0.toml and templates/ksplit.cu.j2;
// edit those, then run: qgen build
//
// format      TQ1_0: 256 elements in 54 bytes
// storage     native: blocks as in the file, aligned to 2, rows row_stride bytes apart
// activation  q8_g256 in the layout q8_g256_tq1_0_fragments, from quantize_activation
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g256_u256_s16: block b of a row belongs to slice b mod 16; a slice takes its blocks in
//             increasing order, in them units of 256 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sum(q*a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 97536
//
#include "qgen_parts.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlockBytes = 54;    // packed bytes of a block
constexpr int kSlices = 16;       // slices of K in the canonical order
constexpr int kRows = 16;         // rows of a fragment, and of a CTA
constexpr int kCodeWords = 16;    // code words of a thread, row and block
constexpr int kPieceWords = 4;    // activation words a thread loads at once
constexpr int kChunks = 4;        // such pieces of a thread, token and block
constexpr int kCodeBytes = 2048;   // activation codes of a block and column tile
constexpr int kScales = 1;        // activation scales of a block
constexpr int kSumBytes = 32;    // activation sums of a block and column tile
constexpr int kColumnStride = 20; // floats between columns of a partial result: no two threads in one bank
// The code words of thread t for one block of one row, which starts at byte b of `stage`.
__device__ __forceinline__ void block_codes(const uint8_t* stage, int b, int t, uint32_t (&q)[kCodeWords]) {
    [[maybe_unused]] const int at0 = 48 + 1 * t;
    [[maybe_unused]] const int at1 = 0 + 12 * t;
    uint32_t w[3];
    qgen_words1<3>(w + 0, stage, b + at1);
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[0] & 0x00ff00ffu, odd = w[0] >> 8 & 0x00ff00ffu;
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        q[0] = p1;
        q[1] = p2 - 3u * p1;
        q[2] = p3 - 3u * p2;
        q[3] = p4 - 3u * p3;
        q[4] = p5 - 3u * p4;
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[1] & 0x00ff00ffu, odd = w[1] >> 8 & 0x00ff00ffu;
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        q[5] = p1;
        q[6] = p2 - 3u * p1;
        q[7] = p3 - 3u * p2;
        q[8] = p4 - 3u * p3;
        q[9] = p5 - 3u * p4;
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[2] & 0x00ff00ffu, odd = w[2] >> 8 & 0x00ff00ffu;
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        q[10] = p1;
        q[11] = p2 - 3u * p1;
        q[12] = p3 - 3u * p2;
        q[13] = p4 - 3u * p3;
        q[14] = p5 - 3u * p4;
    }
    {
        // The leading digit values of one byte, lowest first; subtracting the shifted word leaves its digits.
        const uint32_t v = stage[b + at0];
        const uint32_t p = __byte_perm(v * 589827u, v * 5308443u, 0x7531u);
        q[15] = p - 3u * (p << 8);
    }
}

// Adds one block of 16 rows times the tokens of `column_tiles` tiles to the slice sums of this thread: rows g and g + 8,
// tokens 2t and 2t + 1 of every tile. The block of row g starts at byte b0 of stage0, that of row g + 8 at b1 of stage1.
// `left` tokens are left from the first of the CTA on; codes, scales and sums point to this thread's part of the
// block's activations, `blocks` blocks before those of the next tile.
template <int column_tiles>
__device__ __forceinline__ void add_block(const uint8_t* stage0, int b0, const uint8_t* stage1, int b1, int lane,
                                          int blocks, int left, const uint8_t* codes, const uint8_t* scales,
                                          const uint8_t* sums, float (&sum)[column_tiles][4]) {
    const int t = lane % 4, g = lane / 4;
    uint32_t q0[kCodeWords], q1[kCodeWords];
    block_codes(stage0, b0, t, q0);
    block_codes(stage1, b1, t, q1);
    const float f0_00 = qgen_f16_to_f32(*(const uint16_t*)(stage0 + b0 + 52));
    const float f0_01 = qgen_f16_to_f32(*(const uint16_t*)(stage1 + b1 + 52));
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        if (8 * n >= left) break;
        const int64_t skip = (int64_t)n * blocks;
        uint32_t x[kPieceWords * kChunks];
        const bool wanted = 8 * n + g < left;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            const uint8_t* piece = codes + skip * kCodeBytes + c * (128 * kPieceWords);
            const uint4 v = wanted ? qgen_load_u32x4(piece) : make_uint4(0, 0, 0, 0);
            x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
        }
        float dx[kScales][2];
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
            const uint2 v = qgen_load_u32x2(scales + skip * (kScales * 32) + s * 32);
            dx[s][0] = __uint_as_float(v.x), dx[s][1] = __uint_as_float(v.y);
        }
        {
            const uint2 a = qgen_load_u32x2(sums + skip * kSumBytes + 0 * 32);
            int total[4] = {0, 0, 0, 0};
            qgen_mma_k32(total, q0[0], q1[0], q0[1], q1[1], x[0], x[1]);
            qgen_mma_k32(total, q0[2], q1[2], q0[3], q1[3], x[2], x[3]);
            qgen_mma_k32(total, q0[4], q1[4], q0[5], q1[5], x[4], x[5]);
            qgen_mma_k32(total, q0[6], q1[6], q0[7], q1[7], x[6], x[7]);
            qgen_mma_k32(total, q0[8], q1[8], q0[9], q1[9], x[8], x[9]);
            qgen_mma_k32(total, q0[10], q1[10], q0[11], q1[11], x[10], x[11]);
            qgen_mma_k32(total, q0[12], q1[12], q0[13], q1[13], x[12], x[13]);
            qgen_mma_k32(total, q0[14], q1[14], q0[15], q1[15], x[14], x[15]);
#pragma unroll
            for (int i = 0; i < 4; ++i) total[i] = 1 * total[i] + -1 * (int)(i % 2 ? a.y : a.x);

#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float v = sum[n][i];
                v = __fmaf_rn(__fmul_rn(i < 2 ? f0_00 : f0_01, dx[0][i % 2]), __int2float_rn(total[i]), v);
                sum[n][i] = v;
            }
        }
    }
}

// y[token][row] for all rows and up to 8 * column_tiles tokens from token blockIdx.y * 8 * column_tiles on.
template <int column_tiles, int warps, int warp_blocks, int stages, int pieces, int slot_bytes>
__device__ __forceinline__ void ksplit(const uint8_t* weight, int64_t row_stride, int rows, int blocks, int tokens,
                                       const uint8_t* activation, float* y, int64_t y_stride) {
    constexpr int threads = 32 * warps;
    constexpr int stage_blocks = warps * warp_blocks;
    constexpr int substeps = kSlices / warps;
    constexpr int ring_bytes = stages * kRows * slot_bytes;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    const int tiles = (rows + kRows - 1) / kRows;
    const int column = blockIdx.y * (8 * column_tiles);
    float* partial = (float*)(qgen_shared + ring_bytes);

    // This thread's part of the activation planes, from the CTA's first token on.
    const int64_t places = (tokens + 7) / 8 * (int64_t)blocks, first_place = (int64_t)(column / 8) * blocks;
    const uint8_t* codes = qgen_keep(activation + first_place * kCodeBytes + lane * (4 * kPieceWords));
    const uint8_t* scales = qgen_keep(activation + places * kCodeBytes + first_place * (kScales * 32) + t * 8);
    const uint8_t* sums = qgen_keep(activation + places * (kCodeBytes + kScales * 32) + first_place * kSumBytes +
                                    t * 8);
    int ahead_tile = blockIdx.x, ahead_stage = 0, ahead_slot = 0;
    auto request = [&]() {
        if (ahead_tile < tiles)
            qgen_stage_rows<warps, kRows, pieces, slot_bytes>(
                qgen_shared + ahead_slot * (kRows * slot_bytes), weight + (int64_t)ahead_stage * (stage_blocks * kBlockBytes),
                row_stride, ahead_tile * kRows, rows, min(blocks - ahead_stage * stage_blocks, stage_blocks) * kBlockBytes,
                warp, lane);
        qgen_copy_commit();
        ahead_slot = ahead_slot + 1 == stages ? 0 : ahead_slot + 1;
        if (++ahead_stage == stage_count) {
            ahead_stage = 0;
            ahead_tile += gridDim.x;
        }
    };
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) request();

    int slot = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sum[substeps][column_tiles][4] = {};
        constexpr int rounds = substeps / warp_blocks;  // 1, or with warp_blocks = 1 as many as slices
        // The slices of the stage at hand come first in sum: after every stage they move up, in a circle. Where the circle
        // stops does not matter: halving adds the same pairs from any place of it.
        auto turn = [&]() {
#pragma unroll
            for (int i = 0; rounds > 1 && i < 4 * column_tiles; ++i) {
                const float first = sum[0][i / 4][i % 4];
#pragma unroll
                for (int s = 1; s < substeps; ++s) sum[s - 1][i / 4][i % 4] = sum[s][i / 4][i % 4];
                sum[substeps - 1][i / 4][i % 4] = first;
            }
        };
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            qgen_copy_wait<stages - 2>();
            // The stage has landed for every thread, and everyone is done with the slot that is filled next.
            __syncthreads();
            request();
            const uint8_t* ring = qgen_shared + slot * (kRows * slot_bytes);
            // Where the stage's first byte lies in its 16-byte piece; the low bits of an address suffice.
            const uint32_t start = (uint32_t)(uint64_t)weight + (uint32_t)(stage * (stage_blocks * kBlockBytes)) +
                                   (uint32_t)(tile * kRows + g) * (uint32_t)row_stride;
            const int64_t first_block = (int64_t)stage * stage_blocks + warp;
            const uint8_t* block_codes_at = codes + first_block * kCodeBytes;
            const uint8_t* block_scales_at = scales + first_block * (kScales * 32);
            const uint8_t* block_sums_at = sums + first_block * kSumBytes;
            const int lead0 = start & 15u, lead1 = (start + 8u * (uint32_t)row_stride) & 15u;
#pragma unroll
            for (int j = 0; j < warp_blocks; ++j) {
                const int in_stage = j * warps + warp;
                if (stage * stage_blocks + in_stage < blocks)
                    add_block<column_tiles>(ring + g * slot_bytes, lead0 + in_stage * kBlockBytes,
                                            ring + (g + 8) * slot_bytes, lead1 + in_stage * kBlockBytes, lane, blocks,
                                            tokens - column, block_codes_at + j * (warps * kCodeBytes),
                                            block_scales_at + j * (warps * kScales * 32),
                                            block_sums_at + j * (warps * kSumBytes),
                                            sum[j]);
            }
            slot = slot + 1 == stages ? 0 : slot + 1;
            turn();
        }
        // A warp's own slices first, then those of the warps, always s and s + h.
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) {
            float own[substeps];
#pragma unroll
            for (int s = 0; s < substeps; ++s) own[s] = sum[s][i / 4][i % 4];
            partial[(warp * 8 * column_tiles + i / 4 * 8 + 2 * t + i % 2) * kColumnStride + g + i % 4 / 2 * 8] =
                qgen_halving_sum<substeps>(own);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < kRows * 8 * column_tiles; i += threads) {
            const int row = i % kRows, at = i / kRows;
            float v[warps];
#pragma unroll
            for (int w = 0; w < warps; ++w) v[w] = partial[(w * 8 * column_tiles + at) * kColumnStride + row];
            const float total = qgen_halving_sum<warps>(v);
            if (tile * kRows + row < rows && column + at < tokens)
                qgen_store_f32(y + (column + at) * y_stride + tile * kRows + row, total);
        }
    }
}

}  // namespace

// capacity 8 tokens, 8 warps, 2 blocks a warp and stage, 3 stages; 50448 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 2)
mul_mat_tq1_0_q8_g256_t8__ksplit_mma_native_w8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<1, 8, 2, 3, 55, 944>(
        weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}

// capacity 16 tokens, 8 warps, 2 blocks a warp and stage, 3 stages; 55568 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 2)
mul_mat_tq1_0_q8_g256_t16__ksplit_mma_native_w8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<2, 8, 2, 3, 55, 944>(
        weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}

// capacity 32 tokens, 8 warps, 2 blocks a warp and stage, 3 stages; 65808 bytes of shared memory
extern "C" __global__ void __launch_bounds__(256, 1)
mul_mat_tq1_0_q8_g256_t32__ksplit_mma_native_w8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    ksplit<4, 8, 2, 3, 55, 944>(
        weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
