// quantize_activation to bf16 for Q5_1 fragments, family convert.
// Generated from specs/formats/q5_1.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kBlock = 32;       // columns of a block
constexpr int kBundle = 4;       // blocks a warp arranges, of one token,
constexpr int kApart = 8;        // which lie so many apart
constexpr int kPairs = 16;       // pairs of values in a block, padding included
constexpr int kRecordBytes = 2176; // record of a bundle and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 32 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 327684, 589832, 851980, 196610, 458758, 720906, 983054,
1114128, 1376276, 1638424, 1900572, 1245202, 1507350, 1769498, 2031646,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_q5_1_matrices. Tokens that only fill up the last column tile get no values and sums of 0.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_q5_1_matrices__warp_bundle(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = (blocks + kApart * kBundle - 1) / (kApart * kBundle) * kApart;
    const int block = bundle / kApart * (kApart * kBundle) + bundle % kApart;  // the first one
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint16_t* values = (uint16_t*)(qgen_shared + warp * 272);
    uint8_t* record = activation + ((int64_t)bundle * ((tokens + 7) / 8) + token / 8) * kRecordBytes;
    const int64_t first = token * x_stride + (int64_t)block * kBlock + lane;
    uint16_t v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const int inside = 32 * i / kBlock * kApart, offset = inside * kBlock + 32 * i % kBlock;
        if (token >= tokens || block + inside >= blocks) v[i] = 0;
        else if (x_bytes == 4) v[i] = Class::rounded(qgen_load_f32((const float*)x + first + offset));
        else v[i] = qgen_load_u16((const uint16_t*)x + first + offset);
        values[32 * i + lane] = v[i];
    }
    if (lane == 0) values[kBundle * kBlock] = 0;
    __syncwarp();
    if (token < tokens) {
#pragma unroll
        for (int i = lane; i < kBundle * kPairs; i += 32) {
            const uint32_t pair = kOrder[i % kPairs], low = pair & 0xffffu, high = pair >> 16;
            const int own = i / kPairs * kBlock;  // an empty place is none of the block
            const uint16_t a = values[low == kBlock ? kBundle * kBlock : own + low], b = values[high == kBlock ? kBundle * kBlock : own + high];
            qgen_store_u32(record + i / 4 * 128 + token % 8 * 16 + i % 4 * 4, a | (uint32_t)b << 16);
        }
    }
    // Element e < h of a group takes e + h, for h = 32 / 2 .. 1: first within a thread, then between threads.
    float* sums = (float*)(record + 2048) + token % 8;
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
}
