// quantize_activation to q8_g32 for IQ4_NL fragments, family convert.
// Generated from specs/formats/iq4_nl.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 128;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 32;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 1152; // record of a bundle and column tile
constexpr int kValues = 4;       // columns of a thread
constexpr int kGroupValues = 1;  // of which this many share a scale
constexpr int kScales = 4;       // scales of a bundle
constexpr int kBundle = 4;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 32;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{1048576, 1114113}, {1179650, 1245187}, {3145760, 3211297}, {3276834, 3342371},
{1310724, 1376261}, {1441798, 1507335}, {3407908, 3473445}, {3538982, 3604519},
{1572872, 1638409}, {1703946, 1769483}, {3670056, 3735593}, {3801130, 3866667},
{1835020, 1900557}, {1966094, 2031631}, {3932204, 3997741}, {4063278, 4128815},
{5242944, 5308481}, {5374018, 5439555}, {7340128, 7405665}, {7471202, 7536739},
{5505092, 5570629}, {5636166, 5701703}, {7602276, 7667813}, {7733350, 7798887},
{5767240, 5832777}, {5898314, 5963851}, {7864424, 7929961}, {7995498, 8061035},
{6029388, 6094925}, {6160462, 6225999}, {8126572, 8192109}, {8257646, 8323183},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_iq4_nl_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_iq4_nl_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
    const int first_block = bundle / kSplit * (kSplit * kBundle) + bundle % kSplit;
    // Constants first: they come while the kernel before this one ends.
    uint2 order[(kWords + 31) / 32];
#pragma unroll
    for (int j = 0; j < (kWords + 31) / 32; ++j)
        if (32 * j + lane < kWords) order[j] = make_uint2(qgen_keep((int)kOrder[32 * j + lane].x), qgen_keep((int)kOrder[32 * j + lane].y));
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* codes = qgen_shared + warp * 144;
    uint8_t* record = activation + ((int64_t)(token / 8) * bundles + bundle) * kRecordBytes;

    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const int block = first_block + (32 * i + lane) / kBlock * kSplit;
        const bool inside = block < blocks;
        const int64_t column = (int64_t)block * kBlock + (32 * i + lane) % kBlock;
        v[i] = inside ? qgen_load_f32(x + token * x_stride + column) : 0.0f;
    }
    float scale[kScales];
    qgen_quantize<kValues, kGroupValues>(v, codes, scale, lane);
    if (lane == 0) {
        codes[kColumns] = 0;
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
            // Adding -0 times anything finite leaves a sum as it is, the sign of a zero included.
            if (first_block + s * 32 / kBlock * kSplit >= blocks) scale[s] = -0.0f;
            qgen_store_f32((float*)(record + 1024 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4), scale[s]);
        }
    }
    __syncwarp();

#pragma unroll
    for (int j = 0; j < (kWords + 31) / 32; ++j) {
        const int i = 32 * j + lane;
        if (i < kWords) qgen_store_u32(record + i / 16 * 512 + token % 8 * 64 + i % 16 * 4, qgen_gather4(codes, order[j]));
    }
}
