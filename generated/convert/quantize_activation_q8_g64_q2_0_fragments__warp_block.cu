// quantize_activation to q8_g64 for Q2_0 fragments, family convert.
// Generated from specs/formats/q2_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1216; // record of a bundle and column tile
constexpr int kScales = 2;       // scales of a bundle
constexpr int kBundle = 2;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 64;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 16;  // neighbouring slots that share a scale
constexpr int kSumSlots = 16;    // those that share a sum
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{262144, 786440}, {327681, 851977}, {393218, 917514}, {458755, 983051},
{1310736, 1835032}, {1376273, 1900569}, {1441810, 1966106}, {1507347, 2031643},
{2359328, 2883624}, {2424865, 2949161}, {2490402, 3014698}, {2555939, 3080235},
{3407920, 3932216}, {3473457, 3997753}, {3538994, 4063290}, {3604531, 4128827},
{33817088, 34341384}, {33882625, 34406921}, {33948162, 34472458}, {34013699, 34537995},
{34865680, 35389976}, {34931217, 35455513}, {34996754, 35521050}, {35062291, 35586587},
{35914272, 36438568}, {35979809, 36504105}, {36045346, 36569642}, {36110883, 36635179},
{36962864, 37487160}, {37028401, 37552697}, {37093938, 37618234}, {37159475, 37683771},
};
// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kPlaces[32 * kOwn] = {
0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,
512, 516, 520, 524, 528, 532, 536, 540, 544, 548, 552, 556, 560, 564, 568, 572,
};

// Where a thread's words come from and go.
struct Slots {
    uint2 columns[kOwn];
    int places[kOwn];

    __device__ __forceinline__ explicit Slots(int lane) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            columns[i] = make_uint2(qgen_keep((int)kColumns[32 * i + lane].x), qgen_keep((int)kColumns[32 * i + lane].y));
            places[i] = qgen_keep((int)kPlaces[32 * i + lane]);
        }
    }
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g64_q2_0_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g64_q2_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
    const int first_block = bundle / kSplit * (kSplit * kBundle) + bundle % kSplit;
    const Slots slots(lane);  // constants come while the kernel before this one ends
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* record = activation + ((int64_t)(token / 8) * bundles + bundle) * kRecordBytes;

    float v[kOwn][4];
    const int there = (blocks - first_block) * kBlock;
    qgen_load_columns(v, x + token * x_stride + (int64_t)first_block * kBlock, slots.columns, there);
    uint32_t words[kOwn];
    float scale[kOwn];
    qgen_quantize_words<kOwn, kScaleSlots>(v, words, scale);
    int sums[kOwn];
    qgen_sum_words<kOwn, kSumSlots>(words, sums);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int slot = 32 * i + lane;
        qgen_store_u32(record + token % 8 * 64 + slots.places[i], words[i]);
        if (slot % kScaleSlots == 0 && slot / kScaleSlots < kScales) {
            const int s = slot / kScaleSlots;
            // Adding -0 times anything finite leaves a sum as it is, the sign of a zero included.
            if ((int)(slots.columns[i].x & 0xffffu) >= there) scale[i] = -0.0f;
            qgen_store_u32(record + 1024 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 2) {
            qgen_store_u32(record + 1088 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
            qgen_store_u32(record + 1096 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
        }
    }

}
