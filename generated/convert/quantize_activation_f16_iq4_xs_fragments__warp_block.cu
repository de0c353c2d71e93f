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
constexpr int kValueBytes = 4096;  // values of a block and column tile
constexpr int kValues = 8;        // columns of a thread
constexpr int kWarps = 4;         // warps of a CTA

// The two columns of each pair, in memory order; 256 stands for an empty place.
__device__ const uint32_t kOrder[kPairs] = {
1048576, 1114113, 1179650, 1245187, 1310724, 1376261, 1441798, 1507335,
1572872, 1638409, 1703946, 1769483, 1835020, 1900557, 1966094, 2031631,
3145760, 3211297, 3276834, 3342371, 3407908, 3473445, 3538982, 3604519,
3670056, 3735593, 3801130, 3866667, 3932204, 3997741, 4063278, 4128815,
5242944, 5308481, 5374018, 5439555, 5505092, 5570629, 5636166, 5701703,
5767240, 5832777, 5898314, 5963851, 6029388, 6094925, 6160462, 6225999,
7340128, 7405665, 7471202, 7536739, 7602276, 7667813, 7733350, 7798887,
7864424, 7929961, 7995498, 8061035, 8126572, 8192109, 8257646, 8323183,
9437312, 9502849, 9568386, 9633923, 9699460, 9764997, 9830534, 9896071,
9961608, 10027145, 10092682, 10158219, 10223756, 10289293, 10354830, 10420367,
11534496, 11600033, 11665570, 11731107, 11796644, 11862181, 11927718, 11993255,
12058792, 12124329, 12189866, 12255403, 12320940, 12386477, 12452014, 12517551,
13631680, 13697217, 13762754, 13828291, 13893828, 13959365, 14024902, 14090439,
14155976, 14221513, 14287050, 14352587, 14418124, 14483661, 14549198, 14614735,
15728864, 15794401, 15859938, 15925475, 15991012, 16056549, 16122086, 16187623,
16253160, 16318697, 16384234, 16449771, 16515308, 16580845, 16646382, 16711919,
};

}  // namespace

// x: [tokens][x_stride], float32 where x_bytes is 4, of the class itself where it is 2; activation: the planes of layout
// f16_iq4_xs_fragments. Tokens that only fill up the last column tile get no values.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_f16_iq4_xs_fragments__warp_block(const void* __restrict__ x, int64_t x_stride, int x_bytes, int blocks, int tokens, uint8_t* __restrict__ activation) {
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
