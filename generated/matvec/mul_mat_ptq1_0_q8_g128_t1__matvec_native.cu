// mul_mat PTQ1_0 x q8_g128, one token, family matvec.
// Generated from specs/formats/ptq1_0.toml and templates/matvec.cu.j2;
// edit those, then run: qgen build
//
// format      PTQ1_0: 128 elements in 28 bytes
// storage     native: blocks as in the file, aligned to 4, rows row_stride bytes apart
// activation  q8_g128 in the layout q8_g128_ptq1_0, from quantize_activation
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g128_u128_s32: block b of a row belongs to slice b mod 32; a slice takes its blocks in
//             increasing order, in them units of 128 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sum(q*a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 48768
//
#include "qgen_parts.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlockBytes = 28;       // packed bytes of a block
constexpr int kLanes = 1;            // threads that share a block
constexpr int kSlices = 32;          // slices of K in the canonical order
constexpr int kWarps = 4;            // warps of a CTA
constexpr int kTileBlocks = 32;      // blocks of an activation tile
constexpr int kChunks = 8;           // 16-byte activation pieces of a thread and block
constexpr int kScales = 1;           // activation scales of a block
constexpr int kGroups = 1;           // groups a thread meets: one integer sum each
constexpr int kSumSlots = 1;         // activation sums stored for a thread and block
constexpr int kIntegers = 1;        // integer sums of a block: units x terms
// The integer sums of one block of one row: thread t's share. The block starts at byte b of `stage`.
// x: activation words of this thread; a: their sums by group; s[unit * terms + term]: the result.
__device__ __forceinline__ void block_sums(const uint8_t* stage, int b, int t, const uint32_t (&x)[4 * kChunks],
                                           const int (&a)[kGroups], int (&s)[kIntegers]) {

    uint32_t w[6];
    qgen_words4<6>(w + 0, stage, b);
    int g0 = -1 * a[0];
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[0] & 0x00ff00ffu, odd = qgen_prmt(w[0], 0u, 0x4341u);
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        g0 = qgen_dot4(p1, x[0], g0);
        g0 = qgen_dot4(p2 - 3u * p1, x[1], g0);
        g0 = qgen_dot4(p3 - 3u * p2, x[2], g0);
        g0 = qgen_dot4(p4 - 3u * p3, x[3], g0);
        g0 = qgen_dot4(p5 - 3u * p4, x[4], g0);
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[1] & 0x00ff00ffu, odd = qgen_prmt(w[1], 0u, 0x4341u);
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        g0 = qgen_dot4(p1, x[5], g0);
        g0 = qgen_dot4(p2 - 3u * p1, x[6], g0);
        g0 = qgen_dot4(p3 - 3u * p2, x[7], g0);
        g0 = qgen_dot4(p4 - 3u * p3, x[8], g0);
        g0 = qgen_dot4(p5 - 3u * p4, x[9], g0);
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[2] & 0x00ff00ffu, odd = qgen_prmt(w[2], 0u, 0x4341u);
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        g0 = qgen_dot4(p1, x[10], g0);
        g0 = qgen_dot4(p2 - 3u * p1, x[11], g0);
        g0 = qgen_dot4(p3 - 3u * p2, x[12], g0);
        g0 = qgen_dot4(p4 - 3u * p3, x[13], g0);
        g0 = qgen_dot4(p5 - 3u * p4, x[14], g0);
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[3] & 0x00ff00ffu, odd = qgen_prmt(w[3], 0u, 0x4341u);
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        g0 = qgen_dot4(p1, x[15], g0);
        g0 = qgen_dot4(p2 - 3u * p1, x[16], g0);
        g0 = qgen_dot4(p3 - 3u * p2, x[17], g0);
        g0 = qgen_dot4(p4 - 3u * p3, x[18], g0);
        g0 = qgen_dot4(p5 - 3u * p4, x[19], g0);
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[4] & 0x00ff00ffu, odd = qgen_prmt(w[4], 0u, 0x4341u);
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        g0 = qgen_dot4(p1, x[20], g0);
        g0 = qgen_dot4(p2 - 3u * p1, x[21], g0);
        g0 = qgen_dot4(p3 - 3u * p2, x[22], g0);
        g0 = qgen_dot4(p4 - 3u * p3, x[23], g0);
        g0 = qgen_dot4(p5 - 3u * p4, x[24], g0);
    }
    {
        // Digit n of a byte is p(n) - 3 p(n-1), where p(n) is the value of its first n digits.
        const uint32_t even = w[5] & 0x00ff00ffu, odd = qgen_prmt(w[5], 0u, 0x4341u);
        const uint32_t p1 = qgen_leading_digits(even, odd, 3u);
        const uint32_t p2 = qgen_leading_digits(even, odd, 9u);
        const uint32_t p3 = qgen_leading_digits(even, odd, 27u);
        const uint32_t p4 = qgen_leading_digits(even, odd, 81u);
        const uint32_t p5 = qgen_leading_digits(even, odd, 243u);
        g0 = qgen_dot4(p1, x[25], g0);
        g0 = qgen_dot4(p2 - 3u * p1, x[26], g0);
        g0 = qgen_dot4(p3 - 3u * p2, x[27], g0);
        g0 = qgen_dot4(p4 - 3u * p3, x[28], g0);
        g0 = qgen_dot4(p5 - 3u * p4, x[29], g0);
    }
    {
        // The leading digit values of one byte, lowest first; subtracting the shifted word leaves its digits.
        const uint32_t q = stage[b + 24];
        const uint32_t p = __byte_perm(q * 589827u, q * 5308443u, 0x7531u);
        g0 = qgen_dot4(p - 3u * (p << 8), x[30], g0);
    }

    {
        // The leading digit values of one byte, lowest first; subtracting the shifted word leaves its digits.
        const uint32_t q = stage[b + 25];
        const uint32_t p = __byte_perm(q * 589827u, q * 5308443u, 0x7531u);
        g0 = qgen_dot4(p - 3u * (p << 8), x[31], g0);
    }

    // d*q
    s[0] = g0;
}

// Requests the packed bytes of one step of a warp's rows: blocks [step * team_blocks, + team_blocks) of each row.
template <int warp_rows, int team_blocks, int pieces>
__device__ __forceinline__ void stage_step(uint8_t* slots, const uint8_t* weight, int64_t row_stride, int rows,
                                           int blocks, int tile, int step, int lane) {
    const int64_t first = (int64_t)step * (team_blocks * kBlockBytes);
    const int left = blocks - step * team_blocks;
    const int bytes = (left < team_blocks ? left : team_blocks) * kBlockBytes;
    if constexpr (pieces > 16) {
#pragma unroll
        for (int slot = 0; slot < warp_rows; ++slot) {
            const int row = tile * warp_rows + slot;
            if (row < rows)
                qgen_stage_bytes<pieces>(slots + slot * (16 * pieces), weight + row * row_stride + first, bytes, lane);
        }
    } else {  // rows of few pieces: two or more rows share the warp
        constexpr int share = pieces <= 8 ? 8 : 16;
#pragma unroll
        for (int pass = 0; pass < warp_rows; pass += 32 / share) {
            const int slot = pass + lane / share, row = tile * warp_rows + slot;
            if (slot < warp_rows && row < rows)
                qgen_stage_bytes<pieces, share>(slots + slot * (16 * pieces), weight + row * row_stride + first, bytes,
                                                lane % share);
        }
    }
}

// y[row] for all rows, one token. See the contract above for the order of the float additions.
template <int rows_a_team, int team_blocks, int stages, int pieces>
__device__ __forceinline__ void matvec(const uint8_t* weight, int64_t row_stride, int rows, int blocks,
                                       const uint8_t* activation, float* y) {
    constexpr int teams = 32 / (team_blocks * kLanes);
    constexpr int warp_rows = rows_a_team * teams;
    constexpr int substeps = kSlices / team_blocks;
    constexpr int slot_bytes = 16 * pieces;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int t = lane % kLanes, column = lane / kLanes % team_blocks, team = lane / (team_blocks * kLanes);
    const int steps = (blocks + team_blocks - 1) / team_blocks;
    const int tiles = (rows + warp_rows - 1) / warp_rows;
    const int tile_stride = gridDim.x * kWarps;
    uint8_t* ring = qgen_shared + warp * (stages * warp_rows * slot_bytes);

    const int activation_tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
    const uint8_t* activation_scales = activation + (int64_t)activation_tiles * (kChunks * 32 * 16);
    const uint8_t* activation_sums =
        activation_scales + (activation_tiles * (kTileBlocks * kScales * 4) + 15) / 16 * 16;
    // Copies run `stages` steps ahead of the sums, across the borders of row tiles, so that memory never idles.
    int ahead_tile = blockIdx.x * kWarps + warp, ahead_step = 0, ahead_slot = 0;
    auto request = [&]() {
        if (ahead_tile < tiles)
            stage_step<warp_rows, team_blocks, pieces>(ring + ahead_slot * (warp_rows * slot_bytes), weight, row_stride,
                                                       rows, blocks, ahead_tile, ahead_step, lane);
        qgen_copy_commit();
        ahead_slot = ahead_slot + 1 == stages ? 0 : ahead_slot + 1;
        if (++ahead_step == steps) {
            ahead_step = 0;
            ahead_tile += tile_stride;
        }
    };
#pragma unroll
    for (int i = 0; i < stages; ++i) request();
    qgen_wait_for_inputs();

    int slot = 0;
    for (int tile = blockIdx.x * kWarps + warp; tile < tiles; tile += tile_stride) {
        float sum[rows_a_team][substeps] = {};
        for (int next = 0; next < steps; next += substeps) {
#pragma unroll
            for (int sub = 0; sub < substeps; ++sub) {
                const int step = next + sub;
                if (step >= steps) break;
                const int block = step * team_blocks + column;

                uint32_t x[4 * kChunks];
                const int activation_thread = block % kTileBlocks * kLanes + t;
                const uint8_t* codes =
                    activation + ((int64_t)(block / kTileBlocks) * (kChunks * 32) + activation_thread) * 16;
#pragma unroll
                for (int c = 0; c < kChunks; ++c) {
                    const uint4 v = qgen_load_u32x4(codes + c * (32 * 16));
                    x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
                }
                float dx[kScales];
                qgen_load_floats<kScales>(dx, activation_scales + (int64_t)block * (kScales * 4));
                int a[kGroups] = {};
                qgen_load_ints<kGroups, kSumSlots>(a, activation_sums + ((int64_t)block * kLanes + t) * (kSumSlots * 4));
                qgen_copy_wait<stages - 1>();
                __syncwarp();
#pragma unroll
                for (int r = 0; r < rows_a_team; ++r) {
                    const int warp_row = team * rows_a_team + r;
                    // Where the step's first byte lies in its 16-byte piece; the low bits of an address suffice.
                    const uint32_t start = (uint32_t)(uint64_t)weight +
                                           (uint32_t)(tile * warp_rows + warp_row) * (uint32_t)row_stride +
                                           (uint32_t)(step * (team_blocks * kBlockBytes));
                    const uint8_t* stage = ring + (slot * warp_rows + warp_row) * slot_bytes;
                    const int b = (start & 15u) + column * kBlockBytes;
                    int s[kIntegers];
                    block_sums(stage, b, t, x, a, s);
                    if (block < blocks) {
                        float total = sum[r][sub];
                        total = __fmaf_rn(__fmul_rn(qgen_f16_to_f32(*(const uint16_t*)(stage + b + 26)), dx[0]), __int2float_rn(s[0]), total);
                        sum[r][sub] = total;
                    }
                }
                // Every lane has read the slot before it is filled again.
                __syncwarp();
                request();
                slot = slot + 1 == stages ? 0 : slot + 1;
            }
        }
#pragma unroll
        for (int r = 0; r < rows_a_team; ++r) {
#pragma unroll
            for (int h = substeps / 2; h > 0; h /= 2)
#pragma unroll
                for (int sub = 0; sub < h; ++sub) sum[r][sub] = __fadd_rn(sum[r][sub], sum[r][sub + h]);
            float total = sum[r][0];
#pragma unroll
            for (int h = team_blocks / 2 * kLanes; h >= kLanes; h /= 2)
                total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, h));
            const int row = tile * warp_rows + team * rows_a_team + r;
            if (t == 0 && column == 0 && row < rows) qgen_store_f32(y + row, total);
        }
    }
}

}  // namespace

// 2 rows a team, 32 blocks at once, 1 team a warp; 21904 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 4)
mul_mat_ptq1_0_q8_g128_t1__matvec_native_r2_b32(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks,
    const uint8_t* __restrict__ activation, float* __restrict__ y) {
    matvec<2, 32, 3, 57>(weight, row_stride, rows, blocks, activation, y);
}
// 4 rows a team, 32 blocks at once, 1 team a warp; 29200 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 3)
mul_mat_ptq1_0_q8_g128_t1__matvec_native_r4_b32(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks,
    const uint8_t* __restrict__ activation, float* __restrict__ y) {
    matvec<4, 32, 2, 57>(weight, row_stride, rows, blocks, activation, y);
}
// 4 rows a team, 8 blocks at once, 4 teams a warp; 30736 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 3)
mul_mat_ptq1_0_q8_g128_t1__matvec_native_r4_b8(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks,
    const uint8_t* __restrict__ activation, float* __restrict__ y) {
    matvec<4, 8, 2, 15>(weight, row_stride, rows, blocks, activation, y);
}
