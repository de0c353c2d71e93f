// mul_mat Q1_0 x q8_g128, a few tokens, family multirow.
// Generated from specs/formats/q1_0.toml and templates/multirow.cu.j2;
// edit those, then run: qgen build
//
// format      Q1_0: 128 elements in 18 bytes
// storage     native: blocks as in the file, aligned to 2, rows row_stride bytes apart
// activation  q8_g128 in the layout q8_g128_q1_0, from quantize_activation
// traffic     every packed byte is requested once (read factor 1.00)
// contract    q8_g128_u128_s32: block b of a row belongs to slice b mod 32; a slice takes its blocks in
//             increasing order, in them units of 128 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sum(q*a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 48768
//
#include "qgen_deal.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlockBytes = 18;       // packed bytes of a block
constexpr int kLanes = 1;            // threads that share a block
constexpr int kSlices = 32;          // slices of K in the canonical order
constexpr int kTileBlocks = 32;      // blocks of an activation tile
constexpr int kChunks = 8;           // 16-byte activation pieces of a thread and block
constexpr int kScales = 1;           // activation scales of a block
constexpr int kSumSlots = 1;         // activation sums stored for a thread and block
// Part 0 of a block: thread t's code words of one row, their integer scales and float factors ...
struct Row0 {
    uint32_t q[32];
    float f[1];
};

// ... and its share of one token's activation: codes, the codes' sums by group, scales.
struct Column0 {
    uint32_t x[32];
    int a[1];
    float dx[1];
};

// The codes of the block that starts at byte b of `stage`.
__device__ __forceinline__ void decode0(const uint8_t* stage, int b, int t, Row0& row) {

    uint32_t(&q)[32] = row.q;
    uint32_t w[4];
    qgen_words1<4>(w + 0, stage, b + 2);
    q[0] = ((w[0] & 0x01010101u));
    q[1] = ((w[0] >> 1 & 0x01010101u));
    q[2] = ((w[0] >> 2 & 0x01010101u));
    q[3] = ((w[0] >> 3 & 0x01010101u));
    q[4] = ((w[0] >> 4 & 0x01010101u));
    q[5] = ((w[0] >> 5 & 0x01010101u));
    q[6] = ((w[0] >> 6 & 0x01010101u));
    q[7] = ((w[0] >> 7 & 0x01010101u));
    q[8] = ((w[1] & 0x01010101u));
    q[9] = ((w[1] >> 1 & 0x01010101u));
    q[10] = ((w[1] >> 2 & 0x01010101u));
    q[11] = ((w[1] >> 3 & 0x01010101u));
    q[12] = ((w[1] >> 4 & 0x01010101u));
    q[13] = ((w[1] >> 5 & 0x01010101u));
    q[14] = ((w[1] >> 6 & 0x01010101u));
    q[15] = ((w[1] >> 7 & 0x01010101u));
    q[16] = ((w[2] & 0x01010101u));
    q[17] = ((w[2] >> 1 & 0x01010101u));
    q[18] = ((w[2] >> 2 & 0x01010101u));
    q[19] = ((w[2] >> 3 & 0x01010101u));
    q[20] = ((w[2] >> 4 & 0x01010101u));
    q[21] = ((w[2] >> 5 & 0x01010101u));
    q[22] = ((w[2] >> 6 & 0x01010101u));
    q[23] = ((w[2] >> 7 & 0x01010101u));
    q[24] = ((w[3] & 0x01010101u));
    q[25] = ((w[3] >> 1 & 0x01010101u));
    q[26] = ((w[3] >> 2 & 0x01010101u));
    q[27] = ((w[3] >> 3 & 0x01010101u));
    q[28] = ((w[3] >> 4 & 0x01010101u));
    q[29] = ((w[3] >> 5 & 0x01010101u));
    q[30] = ((w[3] >> 6 & 0x01010101u));
    q[31] = ((w[3] >> 7 & 0x01010101u));
}

// Its float factors.
__device__ __forceinline__ void factors0(const uint8_t* stage, int b, Row0& row) {
    row.f[0] = qgen_f16_to_f32(*(const uint16_t*)(stage + b + 0));
}

// The activation at this thread's codes, scales and sums of the block.
__device__ __forceinline__ void load0(const uint8_t* codes, const uint8_t* scales, const uint8_t* sums,
                                      Column0& column) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const uint4 v = qgen_load_u32x4(codes + (0 + c) * (32 * 16));
        column.x[4 * c] = v.x, column.x[4 * c + 1] = v.y, column.x[4 * c + 2] = v.z, column.x[4 * c + 3] = v.w;
    }
    qgen_load_ints<1, kSumSlots>(column.a, sums);
    qgen_load_floats<1>(column.dx + 0, scales + 4 * 0);
}

// s[..]: the integer sums of this thread.
__device__ __forceinline__ void dot0(const Row0& row, const Column0& column, int (&s)[1]) {
    [[maybe_unused]] const int(&a)[1] = column.a;
    int g0 = 0;
#pragma unroll
    for (int j = 0; j < 32; ++j) g0 = qgen_dot4(row.q[j], column.x[j], g0);
    g0 = 2 * g0 + -1 * a[0];
    // d*q
    s[0] = g0;
}

// The slice's sum with these integer sums added, in the order of the contract.
__device__ __forceinline__ float add0(const int (&s)[1], const float (&f)[1],
                                      const float (&dx)[1], float total) {
    total = __fmaf_rn(__fmul_rn(f[0], dx[0]), __int2float_rn(s[0]), total);
    return total;
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

// y[token][row] of all rows and the tokens [columns * blockIdx.y, + columns). See the contract above for the order of the
// float additions. Sum e of a team is that of the row and token `e % held` and `e / held`: of the two, the one of which
// there are fewer is kept in registers.
template <int rows_a_team, int columns, int team_blocks, int stages, int pieces, int warps>
__device__ __forceinline__ void multirow(const uint8_t* weight, int64_t row_stride, int rows, int blocks, int tokens,
                                         const uint8_t* activation, float* y, int64_t y_stride) {
    constexpr int teams = 32 / (team_blocks * kLanes);
    constexpr int warp_rows = rows_a_team * teams;
    constexpr int substeps = kSlices / team_blocks;
    constexpr int slot_bytes = 16 * pieces;
    constexpr bool rows_held = rows_a_team <= columns;
    constexpr int held = rows_held ? rows_a_team : columns;
    constexpr int all = rows_a_team * columns;
    // The sums of a block are dealt to the threads that share it, and those of a row to all threads of a team.
    constexpr int dealt = all < kLanes ? all : kLanes, owned = all / dealt;
    constexpr int spread = owned < team_blocks ? owned : team_blocks;
    // A deal is of so many rows and tokens. Thread t walks the rows of a deal in the order 0 ^ t, 1 ^ t, 2 ^ t ..: what it
    // must send to another thread is then in the same register of all threads.
    constexpr int deal_rows = rows_held ? (dealt < held ? dealt : held) : (dealt > held ? dealt / held : 1);
    constexpr int deal_columns = dealt / deal_rows;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int t = lane % kLanes, slice = lane / kLanes % team_blocks, team = lane / (team_blocks * kLanes);
    const int deal_row = t % deal_rows, deal_column = qgen_dealt<deal_columns, kLanes / 2, deal_rows>(t);
    auto own_row = [&](int deal) {
        return (rows_held ? deal * dealt % held : deal * dealt / held) + deal_row;
    };
    auto own_column = [&](int deal) {
        return (rows_held ? deal * dealt / held : deal * dealt % held) + deal_column;
    };
    const int first = blockIdx.y * columns, left = min(tokens - first, columns);
    const int steps = (blocks + team_blocks - 1) / team_blocks;
    const int tiles = (rows + warp_rows - 1) / warp_rows;
    const int tile_stride = gridDim.x * warps;
    uint8_t* ring = qgen_shared + warp * (stages * warp_rows * slot_bytes);

    const int activation_tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
    const int64_t scale_plane = (int64_t)activation_tiles * (kChunks * 32 * 16);
    const int64_t sum_plane = scale_plane + (int64_t)(activation_tiles * (kTileBlocks * kScales * 4) + 15) / 16 * 16;
    const int64_t token_bytes = sum_plane + (int64_t)activation_tiles * (32 * kSumSlots * 4);
    activation += first * token_bytes;

    // Copies run `stages` steps ahead of the sums, across the borders of row tiles, so that memory never idles.
    int ahead_tile = blockIdx.x * warps + warp, ahead_step = 0, ahead_slot = 0;
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
    for (int tile = blockIdx.x * warps + warp; tile < tiles; tile += tile_stride) {
        float sum[substeps][owned] = {};
        for (int next = 0; next < steps; next += substeps) {
#pragma unroll
            for (int sub = 0; sub < substeps; ++sub) {
                const int step = next + sub;
                if (step >= steps) break;
                const int block = step * team_blocks + slice;
                const int rows_left = rows - tile * warp_rows - team * rows_a_team;
                const int64_t codes = (int64_t)(block / kTileBlocks) * (kChunks * 32 * 16) +
                                      (block % kTileBlocks * kLanes + t) * 16;
                const int64_t scales = scale_plane + (int64_t)block * (kScales * 4);
                const int64_t sums = sum_plane + ((int64_t)block * kLanes + t) * (kSumSlots * 4);
                auto stage = [&](int r) { return ring + (slot * warp_rows + team * rows_a_team + r) * slot_bytes; };
                // Where the row's block lies there; the low bits of an address suffice.
                auto begin = [&](int r) {
                    const uint32_t start = (uint32_t)(uint64_t)weight +
                                           (uint32_t)(tile * warp_rows + team * rows_a_team + r) * (uint32_t)row_stride +
                                           (uint32_t)(step * (team_blocks * kBlockBytes));
                    return (int)(start & 15u) + slice * kBlockBytes;
                };

                qgen_copy_wait<stages - 1>();
                __syncwarp();
                {
                    const uint8_t* token = activation;
                    Row0 row[rows_a_team];
                    Column0 column[columns];
#pragma unroll
                    for (int e = 0; e < all; ++e) {
                        const int r = rows_held ? e % held : e / held, c = rows_held ? e / held : e % held;
                        if (e % held == 0 && e % dealt == 0 && (rows_held ? c >= left : r >= rows_left)) break;
                        if (rows_held ? e < held : e % held == 0) {
                            decode0(stage(r ^ deal_row), begin(r ^ deal_row), t, row[r]);
                            factors0(stage(r), begin(r), row[r]);
                        }
                        if (rows_held ? e % held == 0 : e < held) {
                            load0(token + codes, token + scales, token + sums, column[c]);
                            // A token past the last is computed like the last and not stored.
                            if (c + 1 < left) token += token_bytes;
                        }
                        int s[1];
                        dot0(row[r], column[c], s);
                        if (block < blocks) sum[sub][e] = add0(s, row[r].f, column[c].dx, sum[sub][e]);
                    }
                }
                // Every lane has read the slot before it is filled again.
                __syncwarp();
                request();
                slot = slot + 1 == stages ? 0 : slot + 1;
            }
        }
#pragma unroll
        for (int h = substeps / 2; h > 0; h /= 2)
#pragma unroll
            for (int sub = 0; sub < h; ++sub)
#pragma unroll
                for (int i = 0; i < owned; ++i) sum[sub][i] = __fadd_rn(sum[sub][i], sum[sub + h][i]);
        qgen_deal_sums<owned, team_blocks / 2 * kLanes, kLanes>(sum[0], lane);
        // Of the threads that hold the same sums, one stores them.
        const bool stores = t / deal_rows % (kLanes / dealt) == 0 && slice % (team_blocks / spread) == 0;
#pragma unroll
        for (int i = 0; i < owned / spread; ++i) {
            const int deal = qgen_dealt<owned, team_blocks / 2 * kLanes, kLanes>(lane) + i * spread;
            const int row = tile * warp_rows + team * rows_a_team + own_row(deal), c = own_column(deal);
            if (stores && row < rows && c < left) qgen_store_f32(y + (first + c) * y_stride + row, sum[0][i]);
        }
    }
}

}  // namespace

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 750
// 2 rows and 2 tokens a team; 18960 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 2)
mul_mat_q1_0_q8_g128_t2__multirow_native_r2(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multirow<2, 2, 32, 4, 37, 4>(weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
// 4 rows and 2 tokens a team; 18960 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 2)
mul_mat_q1_0_q8_g128_t2__multirow_native_r4(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multirow<4, 2, 32, 2, 37, 4>(weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 750
// 2 rows and 4 tokens a team; 18960 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 2)
mul_mat_q1_0_q8_g128_t4__multirow_native_r2(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multirow<2, 4, 32, 4, 37, 4>(weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
// 4 rows and 4 tokens a team; 18960 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 2)
mul_mat_q1_0_q8_g128_t4__multirow_native_r4(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multirow<4, 4, 32, 2, 37, 4>(weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 750
// 2 rows and 8 tokens a team; 18960 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128, 2)
mul_mat_q1_0_q8_g128_t8__multirow_native_r2(const uint8_t* __restrict__ weight, int64_t row_stride, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multirow<2, 8, 32, 4, 37, 4>(weight, row_stride, rows, blocks, tokens, activation, y, y_stride);
}
#endif
