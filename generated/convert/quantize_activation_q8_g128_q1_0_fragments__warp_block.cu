// quantize_activation to q8_g128 for Q1_0 fragments, family convert.
// Generated from specs/formats/q1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 128;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 32;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 1120; // record of a bundle and column tile
constexpr int kValues = 4;       // columns of a thread
constexpr int kGroupValues = 4;  // of which this many share a scale
constexpr int kScales = 1;       // scales of a bundle
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{524288, 1572880}, {589825, 1638417}, {655362, 1703954}, {720899, 1769491},
{2621472, 3670064}, {2687009, 3735601}, {2752546, 3801138}, {2818083, 3866675},
{4718656, 5767248}, {4784193, 5832785}, {4849730, 5898322}, {4915267, 5963859},
{6815840, 7864432}, {6881377, 7929969}, {6946914, 7995506}, {7012451, 8061043},
{786436, 1835028}, {851973, 1900565}, {917510, 1966102}, {983047, 2031639},
{2883620, 3932212}, {2949157, 3997749}, {3014694, 4063286}, {3080231, 4128823},
{4980804, 6029396}, {5046341, 6094933}, {5111878, 6160470}, {5177415, 6226007},
{7077988, 8126580}, {7143525, 8192117}, {7209062, 8257654}, {7274599, 8323191},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g128_q1_0_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g128_q1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
            qgen_store_f32((float*)(record + 1024 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4), scale[s]);
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
        uint8_t* start = record + 1056 + group * 64 + token % 8 / 2 * 16 + token % 2 * 4;
        qgen_store_u32(start, (uint32_t)(-1 * sum));
        qgen_store_u32(start + 8, (uint32_t)(-1 * sum));
    }
}
