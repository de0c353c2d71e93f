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
constexpr int kValueBytes = 2048;  // values of a block and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 128 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
262144, 786440, 327681, 851977, 2359328, 2883624, 2424865, 2949161,
4456512, 4980808, 4522049, 5046345, 6553696, 7077992, 6619233, 7143529,
393218, 917514, 458755, 983051, 2490402, 3014698, 2555939, 3080235,
4587586, 5111882, 4653123, 5177419, 6684770, 7209066, 6750307, 7274603,
1310736, 1835032, 1376273, 1900569, 3407920, 3932216, 3473457, 3997753,
5505104, 6029400, 5570641, 6094937, 7602288, 8126584, 7667825, 8192121,
1441810, 1966106, 1507347, 2031643, 3538994, 4063290, 3604531, 4128827,
5636178, 6160474, 5701715, 6226011, 7733362, 8257658, 7798899, 8323195,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the planes of layout
// f16_pq2_0_fragments. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_f16_pq2_0_fragments__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (block >= blocks) return;
    uint16_t* values = (uint16_t*)(qgen_shared + warp * 272);
    const int64_t place = (int64_t)(token / 8) * blocks + block;
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
            qgen_store_u32(activation + place * kValueBytes + i / 16 * 512 + token % 8 * 64 + i % 16 * 4, a | (uint32_t)b << 16);
        }
    }
}
