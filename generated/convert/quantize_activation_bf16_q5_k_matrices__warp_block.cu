// quantize_activation to bf16 for Q5_K fragments, family convert.
// Generated from specs/formats/q5_k.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kBlock = 256;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 128;       // pairs of values in a block, padding included
constexpr int kRecordBytes = 4352; // record of a bundle and column tile
constexpr int kValues = 8;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 256 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 589832, 1114128, 1638424, 196610, 720906, 1245202, 1769498,
327684, 851980, 1376276, 1900572, 458758, 983054, 1507350, 2031646,
2162720, 2687016, 3211312, 3735608, 2293794, 2818090, 3342386, 3866682,
2424868, 2949164, 3473460, 3997756, 2555942, 3080238, 3604534, 4128830,
4259904, 4784200, 5308496, 5832792, 4390978, 4915274, 5439570, 5963866,
4522052, 5046348, 5570644, 6094940, 4653126, 5177422, 5701718, 6226014,
6357088, 6881384, 7405680, 7929976, 6488162, 7012458, 7536754, 8061050,
6619236, 7143532, 7667828, 8192124, 6750310, 7274606, 7798902, 8323198,
8454272, 8978568, 9502864, 10027160, 8585346, 9109642, 9633938, 10158234,
8716420, 9240716, 9765012, 10289308, 8847494, 9371790, 9896086, 10420382,
10551456, 11075752, 11600048, 12124344, 10682530, 11206826, 11731122, 12255418,
10813604, 11337900, 11862196, 12386492, 10944678, 11468974, 11993270, 12517566,
12648640, 13172936, 13697232, 14221528, 12779714, 13304010, 13828306, 14352602,
12910788, 13435084, 13959380, 14483676, 13041862, 13566158, 14090454, 14614750,
14745824, 15270120, 15794416, 16318712, 14876898, 15401194, 15925490, 16449786,
15007972, 15532268, 16056564, 16580860, 15139046, 15663342, 16187638, 16711934,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_q5_k_matrices. Tokens that only fill up the last column tile get no values and sums of 0.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_q5_k_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (block >= blocks) return;
    uint16_t* values = (uint16_t*)(qgen_shared + warp * 528);
    uint8_t* record = activation + ((int64_t)block * ((tokens + 7) / 8) + token / 8) * kRecordBytes;
    const int64_t first = token * x_stride + (int64_t)block * kBlock + lane;
    uint16_t v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        if (token >= tokens) v[i] = 0;
        else if (x_bytes == 4) v[i] = Class::rounded(qgen_load_f32((const float*)x + first + 32 * i));
        else v[i] = qgen_load_u16((const uint16_t*)x + first + 32 * i);
        values[32 * i + lane] = v[i];
    }
    if (lane == 0) values[kBlock] = 0;
    __syncwarp();
    if (token < tokens) {
#pragma unroll
        for (int i = lane; i < kPairs; i += 32) {
            const uint32_t pair = kOrder[i];
            const uint16_t a = values[pair & 0xffffu], b = values[pair >> 16];
            qgen_store_u32(record + i / 4 * 128 + token % 8 * 16 + i % 4 * 4, a | (uint32_t)b << 16);
        }
    }
    // Element e < h of a group takes e + h, for h = 32 / 2 .. 1: first within a thread, then between threads.
    float* sums = (float*)(record + 4096) + token % 8;
    {
        float own[1] = {Class::wide(v[0])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (0 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[1])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (1 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[2])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (2 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[3])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (3 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[4])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (4 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[5])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (5 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[6])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (6 + lane / 32) * 8, sum);
    }
    {
        float own[1] = {Class::wide(v[7])};
        float sum = qgen_halving_sum<1>(own);
#pragma unroll
        for (int h = 32 / 2; h > 0; h /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, h));
        if (lane % 32 == 0) qgen_store_f32(sums + (7 + lane / 32) * 8, sum);
    }
}
