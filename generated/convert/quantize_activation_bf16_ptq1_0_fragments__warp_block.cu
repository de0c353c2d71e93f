// quantize_activation to bf16 for PTQ1_0 fragments, family convert.
// Generated from specs/formats/ptq1_0.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kBlock = 128;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 96;       // pairs of values in a block, padding included
constexpr int kValueBytes = 3072;  // values of a block and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 128 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 196610, 1114128, 1245202, 327684, 458758, 1376276, 1507350,
589832, 720906, 1638424, 1769498, 851980, 983054, 1900572, 2031646,
2162720, 2293794, 3211312, 3342386, 2424868, 2555942, 3473460, 3604534,
2687016, 2818090, 3735608, 3866682, 2949164, 3080238, 3997756, 4128830,
4259904, 4390978, 5308496, 8388736, 4522052, 4653126, 5439570, 8388736,
4784200, 4915274, 5570644, 8388736, 5046348, 5177422, 5701718, 8388736,
5832792, 8388736, 6357088, 8388736, 5963866, 8388736, 6488162, 8388736,
6094940, 8388736, 6619236, 8388736, 6226014, 8388736, 6750310, 8388736,
6881384, 8388736, 7405680, 8388736, 7012458, 8388736, 7536754, 8388736,
7143532, 8388736, 7667828, 8388736, 7274606, 8388736, 7798902, 8388736,
7995512, 8257660, 8388736, 8388736, 8061049, 8323197, 8388736, 8388736,
8388736, 8388736, 8388736, 8388736, 8388736, 8388736, 8388736, 8388736,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the planes of layout
// bf16_ptq1_0_fragments. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_ptq1_0_fragments__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
