// quantize_activation to q8_g64 for Q2_0 fragments, family convert.
// Generated from specs/formats/q2_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 128;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 32;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 1216; // record of a bundle and column tile
constexpr int kValues = 4;       // columns of a thread
constexpr int kGroupValues = 2;  // of which this many share a scale
constexpr int kScales = 2;       // scales of a bundle
constexpr int kBundle = 2;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 64;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{262144, 786440}, {327681, 851977}, {393218, 917514}, {458755, 983051},
{1310736, 1835032}, {1376273, 1900569}, {1441810, 1966106}, {1507347, 2031643},
{2359328, 2883624}, {2424865, 2949161}, {2490402, 3014698}, {2555939, 3080235},
{3407920, 3932216}, {3473457, 3997753}, {3538994, 4063290}, {3604531, 4128827},
{4456512, 4980808}, {4522049, 5046345}, {4587586, 5111882}, {4653123, 5177419},
{5505104, 6029400}, {5570641, 6094937}, {5636178, 6160474}, {5701715, 6226011},
{6553696, 7077992}, {6619233, 7143529}, {6684770, 7209066}, {6750307, 7274603},
{7602288, 8126584}, {7667825, 8192121}, {7733362, 8257658}, {7798899, 8323195},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g64_q2_0_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g64_q2_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
            if (first_block + s * 64 / kBlock * kSplit >= blocks) scale[s] = -0.0f;
            qgen_store_f32((float*)(record + 1024 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4), scale[s]);
        }
    }
    __syncwarp();

#pragma unroll
    for (int j = 0; j < (kWords + 31) / 32; ++j) {
        const int i = 32 * j + lane;
        if (i < kWords) qgen_store_u32(record + i / 16 * 512 + token % 8 * 64 + i % 16 * 4, qgen_gather4(codes, order[j]));
    }
    // Sums of 64 neighbouring columns, 16 threads each.
    const int group = lane / 16;
    const bool summed = lane % 16 == 0 && group < 2;
    int sum = 0;
    if (group < 2) {
#pragma unroll
        for (int i = lane % 16; i < 64 / 4; i += 16)
            sum = __dp4a((int)((const uint32_t*)codes)[group * (64 / 4) + i], 0x01010101, sum);
    }
    sum = qgen_add_lanes<16>(sum);
    if (summed) {
        uint8_t* start = record + 1088 + group * 64 + token % 8 / 2 * 16 + token % 2 * 4;
        qgen_store_u32(start, (uint32_t)(-1 * sum));
        qgen_store_u32(start + 8, (uint32_t)(-1 * sum));
    }
}
