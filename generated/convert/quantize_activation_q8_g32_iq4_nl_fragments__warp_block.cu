// quantize_activation to q8_g32 for IQ4_NL fragments, family convert.
// Generated from specs/formats/iq4_nl.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1152; // record of a bundle and column tile
constexpr int kScales = 4;       // scales of a bundle
constexpr int kBundle = 4;       // blocks of a bundle
constexpr int kSplit = 8;        // which lie so many apart
constexpr int kBlock = 32;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 8;  // neighbouring slots that share a scale
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{1048576, 1114113}, {1179650, 1245187}, {1310724, 1376261}, {1441798, 1507335},
{1572872, 1638409}, {1703946, 1769483}, {1835020, 1900557}, {1966094, 2031631},
{17826048, 17891585}, {17957122, 18022659}, {18088196, 18153733}, {18219270, 18284807},
{18350344, 18415881}, {18481418, 18546955}, {18612492, 18678029}, {18743566, 18809103},
{34603520, 34669057}, {34734594, 34800131}, {34865668, 34931205}, {34996742, 35062279},
{35127816, 35193353}, {35258890, 35324427}, {35389964, 35455501}, {35521038, 35586575},
{51380992, 51446529}, {51512066, 51577603}, {51643140, 51708677}, {51774214, 51839751},
{51905288, 51970825}, {52036362, 52101899}, {52167436, 52232973}, {52298510, 52364047},
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_iq4_nl_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_iq4_nl_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
