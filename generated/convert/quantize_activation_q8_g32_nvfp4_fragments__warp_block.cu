// quantize_activation to q8_g32 for NVFP4 fragments, family convert.
// Generated from specs/formats/nvfp4.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1152; // record of a bundle and column tile
constexpr int kScales = 4;       // scales of a bundle
constexpr int kBundle = 2;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 64;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 8;  // neighbouring slots that share a scale
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{524288, 589825}, {655362, 720899}, {786436, 851973}, {917510, 983047},
{1572880, 1638417}, {1703954, 1769491}, {1835028, 1900565}, {1966102, 2031639},
{2621472, 2687009}, {2752546, 2818083}, {2883620, 2949157}, {3014694, 3080231},
{3670064, 3735601}, {3801138, 3866675}, {3932212, 3997749}, {4063286, 4128823},
{34079232, 34144769}, {34210306, 34275843}, {34341380, 34406917}, {34472454, 34537991},
{35127824, 35193361}, {35258898, 35324435}, {35389972, 35455509}, {35521046, 35586583},
{36176416, 36241953}, {36307490, 36373027}, {36438564, 36504101}, {36569638, 36635175},
{37225008, 37290545}, {37356082, 37421619}, {37487156, 37552693}, {37618230, 37683767},
};
// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kPlaces[32 * kOwn] = {
0, 16, 32, 48, 4, 20, 36, 52, 8, 24, 40, 56, 12, 28, 44, 60,
512, 528, 544, 560, 516, 532, 548, 564, 520, 536, 552, 568, 524, 540, 556, 572,
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_nvfp4_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_nvfp4_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
    }

}
