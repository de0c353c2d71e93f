// quantize_activation to bf16 for PTQ1_0 fragments, family convert.
// Generated from specs/formats/ptq1_0.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kBlock = 128;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 88;       // pairs of values in a block, padding included
constexpr int kRecordBytes = 2816; // record of a bundle and column tile
constexpr int kValues = 4;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 128 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 327684, 589832, 851980, 196610, 458758, 720906, 983054,
1114128, 1376276, 1638424, 1900572, 1245202, 1507350, 1769498, 2031646,
2162720, 2424868, 2687016, 2949164, 2293794, 2555942, 2818090, 3080238,
3211312, 3473460, 3735608, 3997756, 3342386, 3604534, 3866682, 4128830,
4259904, 4522052, 4784200, 5046348, 4390978, 4653126, 4915274, 5177422,
5308496, 5439570, 5570644, 5701718, 8388736, 8388736, 8388736, 8388736,
5832792, 5963866, 6094940, 6226014, 8388736, 8388736, 8388736, 8388736,
6357088, 6488162, 6619236, 6750310, 8388736, 8388736, 8388736, 8388736,
6881384, 7012458, 7143532, 7274606, 8388736, 8388736, 8388736, 8388736,
7405680, 7536754, 7667828, 7798902, 8388736, 8388736, 8388736, 8388736,
7995512, 8061049, 8388736, 8388736, 8257660, 8323197, 8388736, 8388736,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_ptq1_0_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_ptq1_0_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
