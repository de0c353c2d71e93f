// quantize_activation to q8_g128 for PTQ1_0 fragments, family convert.
// Generated from specs/formats/ptq1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1632; // record of a bundle and column tile
constexpr int kScales = 1;       // scales of a bundle
constexpr int kBlock = 128;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 2;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 64;  // neighbouring slots that share a scale
constexpr int kSumSlots = 64;    // those that share a sum
constexpr int kNone = 65535;    // no column, no word
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{65536, 196610}, {1114128, 1245202}, {2162720, 2293794}, {3211312, 3342386},
{327684, 458758}, {1376276, 1507350}, {2424868, 2555942}, {3473460, 3604534},
{589832, 720906}, {1638424, 1769498}, {2687016, 2818090}, {3735608, 3866682},
{851980, 983054}, {1900572, 2031646}, {2949164, 3080238}, {3997756, 4128830},
{4259904, 4390978}, {5308496, 4294967295}, {5832792, 4294967295}, {6357088, 4294967295},
{4522052, 4653126}, {5439570, 4294967295}, {5963866, 4294967295}, {6488162, 4294967295},
{4784200, 4915274}, {5570644, 4294967295}, {6094940, 4294967295}, {6619236, 4294967295},
{5046348, 5177422}, {5701718, 4294967295}, {6226014, 4294967295}, {6750310, 4294967295},
{6881384, 4294967295}, {7405680, 4294967295}, {7995512, 8257660}, {7012458, 4294967295},
{7536754, 4294967295}, {8061049, 8323197}, {7143532, 4294967295}, {7667828, 4294967295},
{7274606, 4294967295}, {7798902, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295},
{4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295},
{4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295},
{4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295},
{4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295},
{4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295}, {4294967295, 4294967295},
};
// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kPlaces[32 * kOwn] = {
0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,
512, 516, 520, 524, 528, 532, 536, 540, 544, 548, 552, 556, 560, 564, 568, 572,
1024, 1028, 1032, 1040, 1044, 1048, 1056, 1060, 1072, 1076, 1036, 1052, 1064, 1068, 1080, 1084,
65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535,
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g128_ptq1_0_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g128_ptq1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = blocks, first_block = bundle;
    const Slots slots(lane);  // constants come while the kernel before this one ends
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* record = activation + ((int64_t)(token / 8) * bundles + bundle) * kRecordBytes;

    float v[kOwn][4];
    const int there = kNone;
    qgen_load_columns(v, x + token * x_stride + (int64_t)first_block * kBlock, slots.columns, there);
    uint32_t words[kOwn];
    float scale[kOwn];
    qgen_quantize_words<kOwn, kScaleSlots>(v, words, scale);
    int sums[kOwn];
    qgen_sum_words<kOwn, kSumSlots>(words, sums);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int slot = 32 * i + lane;
        if (slots.places[i] != kNone) qgen_store_u32(record + token % 8 * 64 + slots.places[i], words[i]);
        if (slot % kScaleSlots == 0 && slot / kScaleSlots < kScales) {
            const int s = slot / kScaleSlots;
            qgen_store_u32(record + 1536 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 1) {
            qgen_store_u32(record + 1568 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
            qgen_store_u32(record + 1576 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
        }
    }

}
