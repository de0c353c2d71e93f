// quantize_activation to q8_g256 for IQ4_XS fragments, family convert.
// Generated from specs/formats/iq4_xs.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 2080; // record of a bundle and column tile
constexpr int kScales = 1;       // scales of a bundle
constexpr int kBlock = 256;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 2;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 64;  // neighbouring slots that share a scale
constexpr int kNone = 65535;    // no column, no word
// By slot: four columns, in elements from the bundle's first one.
__device__ const uint2 kColumns[32 * kOwn] = {
{1048576, 1114113}, {1179650, 1245187}, {1310724, 1376261}, {1441798, 1507335},
{1572872, 1638409}, {1703946, 1769483}, {1835020, 1900557}, {1966094, 2031631},
{3145760, 3211297}, {3276834, 3342371}, {3407908, 3473445}, {3538982, 3604519},
{3670056, 3735593}, {3801130, 3866667}, {3932204, 3997741}, {4063278, 4128815},
{5242944, 5308481}, {5374018, 5439555}, {5505092, 5570629}, {5636166, 5701703},
{5767240, 5832777}, {5898314, 5963851}, {6029388, 6094925}, {6160462, 6225999},
{7340128, 7405665}, {7471202, 7536739}, {7602276, 7667813}, {7733350, 7798887},
{7864424, 7929961}, {7995498, 8061035}, {8126572, 8192109}, {8257646, 8323183},
{9437312, 9502849}, {9568386, 9633923}, {9699460, 9764997}, {9830534, 9896071},
{9961608, 10027145}, {10092682, 10158219}, {10223756, 10289293}, {10354830, 10420367},
{11534496, 11600033}, {11665570, 11731107}, {11796644, 11862181}, {11927718, 11993255},
{12058792, 12124329}, {12189866, 12255403}, {12320940, 12386477}, {12452014, 12517551},
{13631680, 13697217}, {13762754, 13828291}, {13893828, 13959365}, {14024902, 14090439},
{14155976, 14221513}, {14287050, 14352587}, {14418124, 14483661}, {14549198, 14614735},
{15728864, 15794401}, {15859938, 15925475}, {15991012, 16056549}, {16122086, 16187623},
{16253160, 16318697}, {16384234, 16449771}, {16515308, 16580845}, {16646382, 16711919},
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_iq4_xs_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_iq4_xs_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int slot = 32 * i + lane;
        qgen_store_u32(record + token % 8 * 64 + slots.places[i], words[i]);
        if (slot % kScaleSlots == 0 && slot / kScaleSlots < kScales) {
            const int s = slot / kScaleSlots;
            qgen_store_u32(record + 2048 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
    }

}
