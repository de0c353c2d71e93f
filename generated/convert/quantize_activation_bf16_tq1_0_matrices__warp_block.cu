// quantize_activation to bf16 for TQ1_0 fragments, family convert.
// Generated from specs/formats/tq1_0.toml and templates/arrange.cu.j2;
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
65536, 851980, 1638424, 10813604, 196610, 983054, 1769498, 10944678,
2162720, 2949164, 3735608, 11862196, 2293794, 3080238, 3866682, 11993270,
4259904, 5046348, 5832792, 12910788, 4390978, 5177422, 5963866, 13041862,
6357088, 7143532, 7929976, 13959380, 6488162, 7274606, 8061050, 14090454,
8454272, 9240716, 10027160, 15007972, 8585346, 9371790, 10158234, 15139046,
327684, 1114128, 1900572, 11075752, 458758, 1245202, 2031646, 11206826,
2424868, 3211312, 3997756, 12124344, 2555942, 3342386, 4128830, 12255418,
4522052, 5308496, 6094940, 13172936, 4653126, 5439570, 6226014, 13304010,
6619236, 7405680, 8192124, 14221528, 6750310, 7536754, 8323198, 14352602,
8716420, 9502864, 10289308, 15270120, 8847494, 9633938, 10420382, 15401194,
589832, 1376276, 10551456, 11337900, 720906, 1507350, 10682530, 11468974,
2687016, 3473460, 11600048, 12386492, 2818090, 3604534, 11731122, 12517566,
4784200, 5570644, 12648640, 13435084, 4915274, 5701718, 12779714, 13566158,
6881384, 7667828, 13697232, 14483676, 7012458, 7798902, 13828306, 14614750,
8978568, 9765012, 14745824, 15532268, 9109642, 9896086, 14876898, 15663342,
15991024, 16056561, 16122098, 16187635, 16515320, 16580857, 16646394, 16711931,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// bf16_tq1_0_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_bf16_tq1_0_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
