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
constexpr int kRecordBytes = 4096; // record of a bundle and column tile
constexpr int kValues = 8;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 256 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 327684, 589832, 851980, 196610, 458758, 720906, 983054,
1114128, 1376276, 1638424, 1900572, 1245202, 1507350, 1769498, 2031646,
2162720, 2424868, 2687016, 2949164, 2293794, 2555942, 2818090, 3080238,
3211312, 3473460, 3735608, 3997756, 3342386, 3604534, 3866682, 4128830,
4259904, 4522052, 4784200, 5046348, 4390978, 4653126, 4915274, 5177422,
5308496, 5570644, 5832792, 6094940, 5439570, 5701718, 5963866, 6226014,
6357088, 6619236, 6881384, 7143532, 6488162, 6750310, 7012458, 7274606,
7405680, 7667828, 7929976, 8192124, 7536754, 7798902, 8061050, 8323198,
8454272, 8716420, 8978568, 9240716, 8585346, 8847494, 9109642, 9371790,
9502864, 9765012, 10027160, 10289308, 9633938, 9896086, 10158234, 10420382,
10551456, 10813604, 11075752, 11337900, 10682530, 10944678, 11206826, 11468974,
11600048, 11862196, 12124344, 12386492, 11731122, 11993270, 12255418, 12517566,
12648640, 12910788, 13172936, 13435084, 12779714, 13041862, 13304010, 13566158,
13697232, 13959380, 14221528, 14483676, 13828306, 14090454, 14352602, 14614750,
14745824, 15007972, 15270120, 15532268, 14876898, 15139046, 15401194, 15663342,
15794416, 16056564, 16318712, 16580860, 15925490, 16187638, 16449786, 16711934,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_q3_k_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_q3_k_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
}
