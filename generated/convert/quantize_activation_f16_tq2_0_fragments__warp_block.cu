// quantize_activation to f16 for TQ2_0 fragments, family convert.
// Generated from specs/formats/tq2_0.toml and templates/arrange.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_float.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

using Class = qgen_f16;
constexpr int kBlock = 256;       // columns a warp arranges: one weight block of one token
constexpr int kPairs = 128;       // pairs of values in a block, padding included
constexpr int kValueBytes = 4096;  // values of a block and column tile
constexpr int kValues = 8;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 256 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 196610, 2162720, 2293794, 1114128, 1245202, 3211312, 3342386,
8454272, 8585346, 10551456, 10682530, 9502864, 9633938, 11600048, 11731122,
4259904, 4390978, 6357088, 6488162, 5308496, 5439570, 7405680, 7536754,
12648640, 12779714, 14745824, 14876898, 13697232, 13828306, 15794416, 15925490,
327684, 458758, 2424868, 2555942, 1376276, 1507350, 3473460, 3604534,
8716420, 8847494, 10813604, 10944678, 9765012, 9896086, 11862196, 11993270,
4522052, 4653126, 6619236, 6750310, 5570644, 5701718, 7667828, 7798902,
12910788, 13041862, 15007972, 15139046, 13959380, 14090454, 16056564, 16187638,
589832, 720906, 2687016, 2818090, 1638424, 1769498, 3735608, 3866682,
8978568, 9109642, 11075752, 11206826, 10027160, 10158234, 12124344, 12255418,
4784200, 4915274, 6881384, 7012458, 5832792, 5963866, 7929976, 8061050,
13172936, 13304010, 15270120, 15401194, 14221528, 14352602, 16318712, 16449786,
851980, 983054, 2949164, 3080238, 1900572, 2031646, 3997756, 4128830,
9240716, 9371790, 11337900, 11468974, 10289308, 10420382, 12386492, 12517566,
5046348, 5177422, 7143532, 7274606, 6094940, 6226014, 8192124, 8323198,
13435084, 13566158, 15532268, 15663342, 14483676, 14614750, 16580860, 16711934,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the planes of layout
// f16_tq2_0_fragments. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_f16_tq2_0_fragments__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
