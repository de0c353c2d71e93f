// quantize_activation to bf16 for MXFP4 fragments, family convert.
// Generated from specs/formats/mxfp4.toml and templates/arrange.cu.j2;
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
constexpr int kRecordBytes = 2048; // record of a bundle and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 32 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
1048576, 1310724, 1572872, 1835020, 1114113, 1376261, 1638409, 1900557,
1179650, 1441798, 1703946, 1966094, 1245187, 1507335, 1769483, 2031631,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_mxfp4_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_mxfp4_matrices__warp_bundle(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
}
