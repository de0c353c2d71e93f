// quantize_activation to q8_g32 for Q4_0 fragments, family convert.
// Generated from specs/formats/q4_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 128;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 32;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 1408; // record of a bundle and column tile
constexpr int kValues = 4;       // columns of a thread
constexpr int kGroupValues = 1;  // of which this many share a scale
constexpr int kScales = 4;       // scales of a bundle
constexpr int kBundle = 4;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 32;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{65536, 196610}, {1114128, 1245202}, {2162720, 2293794}, {3211312, 3342386},
{327684, 458758}, {1376276, 1507350}, {2424868, 2555942}, {3473460, 3604534},
{589832, 720906}, {1638424, 1769498}, {2687016, 2818090}, {3735608, 3866682},
{851980, 983054}, {1900572, 2031646}, {2949164, 3080238}, {3997756, 4128830},
{4259904, 4390978}, {5308496, 5439570}, {6357088, 6488162}, {7405680, 7536754},
{4522052, 4653126}, {5570644, 5701718}, {6619236, 6750310}, {7667828, 7798902},
{4784200, 4915274}, {5832792, 5963866}, {6881384, 7012458}, {7929976, 8061050},
{5046348, 5177422}, {6094940, 6226014}, {7143532, 7274606}, {8192124, 8323198},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_q4_0_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_q4_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
    // Sums of 32 neighbouring columns, 8 threads each.
    const int group = lane / 8;
    const bool summed = lane % 8 == 0 && group < 4;
    int sum = 0;
    if (group < 4) {
#pragma unroll
        for (int i = lane % 8; i < 32 / 4; i += 8)
            sum = __dp4a((int)((const uint32_t*)codes)[group * (32 / 4) + i], 0x01010101, sum);
    }
    sum = qgen_add_lanes<8>(sum);
    if (summed) {
        uint8_t* start = record + 1152 + group * 64 + token % 8 / 2 * 16 + token % 2 * 4;
        qgen_store_u32(start, (uint32_t)(-8 * sum));
        qgen_store_u32(start + 8, (uint32_t)(-8 * sum));
    }
}
