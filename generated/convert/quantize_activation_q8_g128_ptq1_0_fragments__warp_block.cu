// quantize_activation to q8_g128 for PTQ1_0 fragments, family convert.
// Generated from specs/formats/ptq1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 128;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 48;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 1632; // record of a bundle and column tile
constexpr int kValues = 4;       // columns of a thread
constexpr int kGroupValues = 4;  // of which this many share a scale
constexpr int kScales = 1;       // scales of a bundle
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{65536, 196610}, {1114128, 1245202}, {2162720, 2293794}, {3211312, 3342386},
{327684, 458758}, {1376276, 1507350}, {2424868, 2555942}, {3473460, 3604534},
{589832, 720906}, {1638424, 1769498}, {2687016, 2818090}, {3735608, 3866682},
{851980, 983054}, {1900572, 2031646}, {2949164, 3080238}, {3997756, 4128830},
{4259904, 4390978}, {5308496, 8388736}, {5832792, 8388736}, {6357088, 8388736},
{4522052, 4653126}, {5439570, 8388736}, {5963866, 8388736}, {6488162, 8388736},
{4784200, 4915274}, {5570644, 8388736}, {6094940, 8388736}, {6619236, 8388736},
{5046348, 5177422}, {5701718, 8388736}, {6226014, 8388736}, {6750310, 8388736},
{6881384, 8388736}, {7405680, 8388736}, {7995512, 8257660}, {8388736, 8388736},
{7012458, 8388736}, {7536754, 8388736}, {8061049, 8323197}, {8388736, 8388736},
{7143532, 8388736}, {7667828, 8388736}, {8388736, 8388736}, {8388736, 8388736},
{7274606, 8388736}, {7798902, 8388736}, {8388736, 8388736}, {8388736, 8388736},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g128_ptq1_0_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g128_ptq1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = blocks;
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
        const int64_t column = (int64_t)bundle * kColumns + 32 * i + lane;
        v[i] = qgen_load_f32(x + token * x_stride + column);
    }
    float scale[kScales];
    qgen_quantize<kValues, kGroupValues>(v, codes, scale, lane);
    if (lane == 0) {
        codes[kColumns] = 0;
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
            qgen_store_f32((float*)(record + 1536 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4), scale[s]);
        }
    }
    __syncwarp();

#pragma unroll
    for (int j = 0; j < (kWords + 31) / 32; ++j) {
        const int i = 32 * j + lane;
        if (i < kWords) qgen_store_u32(record + i / 16 * 512 + token % 8 * 64 + i % 16 * 4, qgen_gather4(codes, order[j]));
    }
    // Sums of 128 neighbouring columns, 32 threads each.
    const int group = lane / 32;
    const bool summed = lane % 32 == 0 && group < 1;
    int sum = 0;
    if (group < 1) {
#pragma unroll
        for (int i = lane % 32; i < 128 / 4; i += 32)
            sum = __dp4a((int)((const uint32_t*)codes)[group * (128 / 4) + i], 0x01010101, sum);
    }
    sum = qgen_add_lanes<32>(sum);
    if (summed) {
        uint8_t* start = record + 1568 + group * 64 + token % 8 / 2 * 16 + token % 2 * 4;
        qgen_store_u32(start, (uint32_t)(-1 * sum));
        qgen_store_u32(start + 8, (uint32_t)(-1 * sum));
    }
}
