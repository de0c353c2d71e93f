// quantize_activation to q8_g128 for Q1_0 fragments, family convert.
// Generated from specs/formats/q1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1120; // record of a bundle and column tile
constexpr int kScales = 1;       // scales of a bundle
constexpr int kBlock = 128;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 32;  // neighbouring slots that share a scale
constexpr int kSumSlots = 32;    // those that share a sum
constexpr int kNone = 65535;    // no column, no word
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{524288, 1572880}, {589825, 1638417}, {655362, 1703954}, {720899, 1769491},
{2621472, 3670064}, {2687009, 3735601}, {2752546, 3801138}, {2818083, 3866675},
{4718656, 5767248}, {4784193, 5832785}, {4849730, 5898322}, {4915267, 5963859},
{6815840, 7864432}, {6881377, 7929969}, {6946914, 7995506}, {7012451, 8061043},
{786436, 1835028}, {851973, 1900565}, {917510, 1966102}, {983047, 2031639},
{2883620, 3932212}, {2949157, 3997749}, {3014694, 4063286}, {3080231, 4128823},
{4980804, 6029396}, {5046341, 6094933}, {5111878, 6160470}, {5177415, 6226007},
{7077988, 8126580}, {7143525, 8192117}, {7209062, 8257654}, {7274599, 8323191},
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g128_q1_0_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g128_q1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = blocks, first_block = bundle;
    const Slots slots(lane);  // constants come while the kernel before this one ends
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* record = activation + ((int64_t)(token / 8) * bundles + bundle) * kRecordBytes;

    float v[kOwn][4];
    const int there = kNone + 1;
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
            qgen_store_u32(record + 1024 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 1) {
            qgen_store_u32(record + 1056 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
            qgen_store_u32(record + 1064 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
        }
    }

}
