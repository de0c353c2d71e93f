// quantize_activation to q8_g32 for Q5_1 fragments, family convert.
// Generated from specs/formats/q5_1.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1280; // record of a bundle and column tile
constexpr int kScales = 4;       // scales of a bundle
constexpr int kBundle = 4;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 32;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 8;  // neighbouring slots that share a scale
constexpr int kSumSlots = 8;    // those that share a sum
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{65536, 196610}, {1114128, 1245202}, {327684, 458758}, {1376276, 1507350},
{589832, 720906}, {1638424, 1769498}, {851980, 983054}, {1900572, 2031646},
{16843008, 16974082}, {17891600, 18022674}, {17105156, 17236230}, {18153748, 18284822},
{17367304, 17498378}, {18415896, 18546970}, {17629452, 17760526}, {18678044, 18809118},
{33620480, 33751554}, {34669072, 34800146}, {33882628, 34013702}, {34931220, 35062294},
{34144776, 34275850}, {35193368, 35324442}, {34406924, 34537998}, {35455516, 35586590},
{50397952, 50529026}, {51446544, 51577618}, {50660100, 50791174}, {51708692, 51839766},
{50922248, 51053322}, {51970840, 52101914}, {51184396, 51315470}, {52232988, 52364062},
};
// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kPlaces[32 * kOwn] = {
0, 4, 16, 20, 32, 36, 48, 52, 8, 12, 24, 28, 40, 44, 56, 60,
512, 516, 528, 532, 544, 548, 560, 564, 520, 524, 536, 540, 552, 556, 568, 572,
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_q5_1_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_q5_1_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
        if (slot % kSumSlots == 0 && g < 4) {
            qgen_store_u32(record + 1152 + (token % 8 / 2 * 8 + 2 * g + token % 2) * 4, __float_as_uint(__int2float_rn(sums[i])));
        }
    }

}
