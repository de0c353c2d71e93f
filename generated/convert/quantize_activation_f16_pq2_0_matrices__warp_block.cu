// quantize_activation to f16 for PQ2_0 fragments, family convert.
// Generated from specs/formats/pq2_0.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_f16;
constexpr int kBlock = 128;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 64;       // pairs of values in a block, padding included
constexpr int kRecordBytes = 2048; // record of a bundle and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 128 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
262144, 2359328, 4456512, 6553696, 786440, 2883624, 4980808, 7077992,
327681, 2424865, 4522049, 6619233, 851977, 2949161, 5046345, 7143529,
393218, 2490402, 4587586, 6684770, 917514, 3014698, 5111882, 7209066,
458755, 2555939, 4653123, 6750307, 983051, 3080235, 5177419, 7274603,
1310736, 3407920, 5505104, 7602288, 1835032, 3932216, 6029400, 8126584,
1376273, 3473457, 5570641, 7667825, 1900569, 3997753, 6094937, 8192121,
1441810, 3538994, 5636178, 7733362, 1966106, 4063290, 6160474, 8257658,
1507347, 3604531, 5701715, 7798899, 2031643, 4128827, 6226011, 8323195,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// f16_pq2_0_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_f16_pq2_0_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
