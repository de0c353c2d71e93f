// quantize_activation to q8_g256 for TQ1_0 fragments, family convert.
// Generated from specs/formats/tq1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 2144; // record of a bundle and column tile
constexpr int kScales = 1;       // scales of a bundle
constexpr int kBlock = 256;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 2;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 64;  // neighbouring slots that share a scale
constexpr int kSumSlots = 64;    // those that share a sum
constexpr int kNone = 65535;    // no column, no word
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{65536, 196610}, {2162720, 2293794}, {4259904, 4390978}, {6357088, 6488162},
{851980, 983054}, {2949164, 3080238}, {5046348, 5177422}, {7143532, 7274606},
{1638424, 1769498}, {3735608, 3866682}, {5832792, 5963866}, {7929976, 8061050},
{10813604, 10944678}, {11862196, 11993270}, {12910788, 13041862}, {13959380, 14090454},
{8454272, 8585346}, {327684, 458758}, {2424868, 2555942}, {4522052, 4653126},
{9240716, 9371790}, {1114128, 1245202}, {3211312, 3342386}, {5308496, 5439570},
{10027160, 10158234}, {1900572, 2031646}, {3997756, 4128830}, {6094940, 6226014},
{15007972, 15139046}, {11075752, 11206826}, {12124344, 12255418}, {13172936, 13304010},
{6619236, 6750310}, {8716420, 8847494}, {589832, 720906}, {2687016, 2818090},
{7405680, 7536754}, {9502864, 9633938}, {1376276, 1507350}, {3473460, 3604534},
{8192124, 8323198}, {10289308, 10420382}, {10551456, 10682530}, {11600048, 11731122},
{14221528, 14352602}, {15270120, 15401194}, {11337900, 11468974}, {12386492, 12517566},
{4784200, 4915274}, {6881384, 7012458}, {8978568, 9109642}, {15991024, 16515320},
{5570644, 5701718}, {7667828, 7798902}, {9765012, 9896086}, {16056561, 16580857},
{12648640, 12779714}, {13697232, 13828306}, {14745824, 14876898}, {16122098, 16646394},
{13435084, 13566158}, {14483676, 14614750}, {15532268, 15663342}, {16187635, 16711931},
};
// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kPlaces[32 * kOwn] = {
0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,
512, 516, 520, 524, 528, 532, 536, 540, 544, 548, 552, 556, 560, 564, 568, 572,
1024, 1028, 1032, 1036, 1040, 1044, 1048, 1052, 1056, 1060, 1064, 1068, 1072, 1076, 1080, 1084,
1536, 1540, 1544, 1548, 1552, 1556, 1560, 1564, 1568, 1572, 1576, 1580, 1584, 1588, 1592, 1596,
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_tq1_0_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_tq1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
            qgen_store_u32(record + 2048 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 1) {
            qgen_store_u32(record + 2080 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
            qgen_store_u32(record + 2088 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-1 * sums[i]));
        }
    }

}
