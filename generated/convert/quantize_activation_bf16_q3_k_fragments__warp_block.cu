// quantize_activation to bf16 for Q3_K fragments, family convert.
// Generated from specs/formats/q3_k.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_bf16;
constexpr int kBlock = 256;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 128;       // pairs of values in a block, padding included
constexpr int kValueBytes = 4096;  // values of a block and column tile
constexpr int kValues = 8;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 256 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 196610, 1114128, 1245202, 327684, 458758, 1376276, 1507350,
589832, 720906, 1638424, 1769498, 851980, 983054, 1900572, 2031646,
2162720, 2293794, 3211312, 3342386, 2424868, 2555942, 3473460, 3604534,
2687016, 2818090, 3735608, 3866682, 2949164, 3080238, 3997756, 4128830,
4259904, 4390978, 5308496, 5439570, 4522052, 4653126, 5570644, 5701718,
4784200, 4915274, 5832792, 5963866, 5046348, 5177422, 6094940, 6226014,
6357088, 6488162, 7405680, 7536754, 6619236, 6750310, 7667828, 7798902,
6881384, 7012458, 7929976, 8061050, 7143532, 7274606, 8192124, 8323198,
8454272, 8585346, 9502864, 9633938, 8716420, 8847494, 9765012, 9896086,
8978568, 9109642, 10027160, 10158234, 9240716, 9371790, 10289308, 10420382,
10551456, 10682530, 11600048, 11731122, 10813604, 10944678, 11862196, 11993270,
11075752, 11206826, 12124344, 12255418, 11337900, 11468974, 12386492, 12517566,
12648640, 12779714, 13697232, 13828306, 12910788, 13041862, 13959380, 14090454,
13172936, 13304010, 14221528, 14352602, 13435084, 13566158, 14483676, 14614750,
14745824, 14876898, 15794416, 15925490, 15007972, 15139046, 16056564, 16187638,
15270120, 15401194, 16318712, 16449786, 15532268, 15663342, 16580860, 16711934,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the planes of layout
// bf16_q3_k_fragments. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_q3_k_fragments__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (block >= blocks) return;
    uint16_t* values = (uint16_t*)(qgen_shared + warp * 528);
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
