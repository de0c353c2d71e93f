// quantize_activation to q8_g32 for NVFP4 fragments, family convert.
// Generated from specs/formats/nvfp4.toml and templates/quantize_fragments.cu.j2;
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
constexpr int kBundle = 2;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 64;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{524288, 589825}, {1572880, 1638417}, {2621472, 2687009}, {3670064, 3735601},
{655362, 720899}, {1703954, 1769491}, {2752546, 2818083}, {3801138, 3866675},
{786436, 851973}, {1835028, 1900565}, {2883620, 2949157}, {3932212, 3997749},
{917510, 983047}, {1966102, 2031639}, {3014694, 3080231}, {4063286, 4128823},
{4718656, 4784193}, {5767248, 5832785}, {6815840, 6881377}, {7864432, 7929969},
{4849730, 4915267}, {5898322, 5963859}, {6946914, 7012451}, {7995506, 8061043},
{4980804, 5046341}, {6029396, 6094933}, {7077988, 7143525}, {8126580, 8192117},
{5111878, 5177415}, {6160470, 6226007}, {7209062, 7274599}, {8257654, 8323191},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_nvfp4_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_nvfp4_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
