// quantize_activation to bf16 for Q1_0 fragments, family convert.
// Generated from specs/formats/q1_0.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kBlock = 128;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 64;       // pairs of values in a block, padding included
constexpr int kRecordBytes = 2048; // record of a bundle and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 128 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
524288, 2621472, 4718656, 6815840, 1572880, 3670064, 5767248, 7864432,
589825, 2687009, 4784193, 6881377, 1638417, 3735601, 5832785, 7929969,
655362, 2752546, 4849730, 6946914, 1703954, 3801138, 5898322, 7995506,
720899, 2818083, 4915267, 7012451, 1769491, 3866675, 5963859, 8061043,
786436, 2883620, 4980804, 7077988, 1835028, 3932212, 6029396, 8126580,
851973, 2949157, 5046341, 7143525, 1900565, 3997749, 6094933, 8192117,
917510, 3014694, 5111878, 7209062, 1966102, 4063286, 6160470, 8257654,
983047, 3080231, 5177415, 7274599, 2031639, 4128823, 6226007, 8323191,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_q1_0_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_q1_0_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (block >= blocks) return;
    uint16_t* values = (uint16_t*)(qgen_shared + warp * 272);
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
}
