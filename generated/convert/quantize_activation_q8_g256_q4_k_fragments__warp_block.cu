// quantize_activation to q8_g256 for Q4_K fragments, family convert.
// Generated from specs/formats/q4_k.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
#include "qgen_stores.cuh"
namespace {

constexpr int kRecordBytes = 2336; // record of a bundle and column tile
constexpr int kScales = 1;       // scales of a bundle
constexpr int kBlock = 256;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 2;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 64;  // neighbouring slots that share a scale
constexpr int kSumSlots = 8;    // those that share a sum
constexpr int kNone = 65535;    // no column, no word
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{65536, 196610}, {327684, 458758}, {589832, 720906}, {851980, 983054},
{1114128, 1245202}, {1376276, 1507350}, {1638424, 1769498}, {1900572, 2031646},
{2162720, 2293794}, {2424868, 2555942}, {2687016, 2818090}, {2949164, 3080238},
{3211312, 3342386}, {3473460, 3604534}, {3735608, 3866682}, {3997756, 4128830},
{4259904, 4390978}, {4522052, 4653126}, {4784200, 4915274}, {5046348, 5177422},
{5308496, 5439570}, {5570644, 5701718}, {5832792, 5963866}, {6094940, 6226014},
{6357088, 6488162}, {6619236, 6750310}, {6881384, 7012458}, {7143532, 7274606},
{7405680, 7536754}, {7667828, 7798902}, {7929976, 8061050}, {8192124, 8323198},
{8454272, 8585346}, {8716420, 8847494}, {8978568, 9109642}, {9240716, 9371790},
{9502864, 9633938}, {9765012, 9896086}, {10027160, 10158234}, {10289308, 10420382},
{10551456, 10682530}, {10813604, 10944678}, {11075752, 11206826}, {11337900, 11468974},
{11600048, 11731122}, {11862196, 11993270}, {12124344, 12255418}, {12386492, 12517566},
{12648640, 12779714}, {12910788, 13041862}, {13172936, 13304010}, {13435084, 13566158},
{13697232, 13828306}, {13959380, 14090454}, {14221528, 14352602}, {14483676, 14614750},
{14745824, 14876898}, {15007972, 15139046}, {15270120, 15401194}, {15532268, 15663342},
{15794416, 15925490}, {16056564, 16187638}, {16318712, 16449786}, {16580860, 16711934},
};
// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kPlaces[32 * kOwn] = {
0, 4, 16, 20, 32, 36, 48, 52, 8, 12, 24, 28, 40, 44, 56, 60,
512, 516, 528, 532, 544, 548, 560, 564, 520, 524, 536, 540, 552, 556, 568, 572,
1024, 1028, 1040, 1044, 1056, 1060, 1072, 1076, 1032, 1036, 1048, 1052, 1064, 1068, 1080, 1084,
1536, 1540, 1552, 1556, 1568, 1572, 1584, 1588, 1544, 1548, 1560, 1564, 1576, 1580, 1592, 1596,
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_q4_k_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_q4_k_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
        if (slot % kSumSlots == 0 && g < 8) {
            // Four sums a word, as low and high parts that fit int8: sum = low + 128 * high.
            const int high = (sums[i] + 64) >> 7, low = sums[i] - 128 * high;
            qgen_store_u8(record + 2080 + (token % 8 * 4 + g / 4) * 8 + g % 4, (uint8_t)low);
            qgen_store_u8(record + 2084 + (token % 8 * 4 + g / 4) * 8 + g % 4, (uint8_t)high);
        }
    }
    // Instructions over sums take sixteen groups.
    if (lane >= 8 && lane < 16) {
        qgen_store_u8(record + 2080 + (token % 8 * 4 + lane / 4) * 8 + lane % 4, 0);
        qgen_store_u8(record + 2084 + (token % 8 * 4 + lane / 4) * 8 + lane % 4, 0);
    }

}
