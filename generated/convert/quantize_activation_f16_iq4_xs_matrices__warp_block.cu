// quantize_activation to f16 for IQ4_XS fragments, family convert.
// Generated from specs/formats/iq4_xs.toml and templates/arrange.cu.j2;
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
1048576, 1310724, 1572872, 1835020, 1114113, 1376261, 1638409, 1900557,
1179650, 1441798, 1703946, 1966094, 1245187, 1507335, 1769483, 2031631,
3145760, 3407908, 3670056, 3932204, 3211297, 3473445, 3735593, 3997741,
3276834, 3538982, 3801130, 4063278, 3342371, 3604519, 3866667, 4128815,
5242944, 5505092, 5767240, 6029388, 5308481, 5570629, 5832777, 6094925,
5374018, 5636166, 5898314, 6160462, 5439555, 5701703, 5963851, 6225999,
7340128, 7602276, 7864424, 8126572, 7405665, 7667813, 7929961, 8192109,
7471202, 7733350, 7995498, 8257646, 7536739, 7798887, 8061035, 8323183,
9437312, 9699460, 9961608, 10223756, 9502849, 9764997, 10027145, 10289293,
9568386, 9830534, 10092682, 10354830, 9633923, 9896071, 10158219, 10420367,
11534496, 11796644, 12058792, 12320940, 11600033, 11862181, 12124329, 12386477,
11665570, 11927718, 12189866, 12452014, 11731107, 11993255, 12255403, 12517551,
13631680, 13893828, 14155976, 14418124, 13697217, 13959365, 14221513, 14483661,
13762754, 14024902, 14287050, 14549198, 13828291, 14090439, 14352587, 14614735,
15728864, 15991012, 16253160, 16515308, 15794401, 16056549, 16318697, 16580845,
15859938, 16122086, 16384234, 16646382, 15925475, 16187623, 16449771, 16711919,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the records of layout
// f16_iq4_xs_matrices. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_f16_iq4_xs_matrices__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
