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
constexpr int kRecordBytes = 4096; // record of a bundle and column tile
constexpr int kValues = 8;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 256 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
65536, 1114128, 8454272, 9502864, 196610, 1245202, 8585346, 9633938,
2162720, 3211312, 10551456, 11600048, 2293794, 3342386, 10682530, 11731122,
4259904, 5308496, 12648640, 13697232, 4390978, 5439570, 12779714, 13828306,
6357088, 7405680, 14745824, 15794416, 6488162, 7536754, 14876898, 15925490,
327684, 1376276, 8716420, 9765012, 458758, 1507350, 8847494, 9896086,
2424868, 3473460, 10813604, 11862196, 2555942, 3604534, 10944678, 11993270,
4522052, 5570644, 12910788, 13959380, 4653126, 5701718, 13041862, 14090454,
6619236, 7667828, 15007972, 16056564, 6750310, 7798902, 15139046, 16187638,
589832, 1638424, 8978568, 10027160, 720906, 1769498, 9109642, 10158234,
2687016, 3735608, 11075752, 12124344, 2818090, 3866682, 11206826, 12255418,
4784200, 5832792, 13172936, 14221528, 4915274, 5963866, 13304010, 14352602,
6881384, 7929976, 15270120, 16318712, 7012458, 8061050, 15401194, 16449786,
851980, 1900572, 9240716, 10289308, 983054, 2031646, 9371790, 10420382,
2949164, 3997756, 11337900, 12386492, 3080238, 4128830, 11468974, 12517566,
5046348, 6094940, 13435084, 14483676, 5177422, 6226014, 13566158, 14614750,
7143532, 8192124, 15532268, 16580860, 7274606, 8323198, 15663342, 16711934,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// f16_tq2_0_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_f16_tq2_0_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
