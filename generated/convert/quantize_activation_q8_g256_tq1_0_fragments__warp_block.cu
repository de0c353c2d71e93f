// quantize_activation to q8_g256 for TQ1_0 fragments, family convert.
// Generated from specs/formats/tq1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 256;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 64;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 2144; // record of a bundle and column tile
constexpr int kValues = 8;       // columns of a thread
constexpr int kGroupValues = 8;  // of which this many share a scale
constexpr int kScales = 1;       // scales of a bundle
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 256 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
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

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_tq1_0_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_tq1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = blocks;
    // Constants first: they come while the kernel before this one ends.
    uint2 order[(kWords + 31) / 32];
#pragma unroll
    for (int j = 0; j < (kWords + 31) / 32; ++j)
        if (32 * j + lane < kWords) order[j] = make_uint2(qgen_keep((int)kOrder[32 * j + lane].x), qgen_keep((int)kOrder[32 * j + lane].y));
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* codes = qgen_shared + warp * 272;
    uint8_t* record = activation + ((int64_t)(token / 8) * bundles + bundle) * kRecordBytes;

    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const int64_t column = (int64_t)bundle * kColumns + 32 * i + lane;
        v[i] = qgen_load_f32(x + token * x_stride + column);
    }
    float scale[kScales];
    qgen_quantize<kValues, kGroupValues>(v, codes, scale, lane);
    if (lane == 0) {
        codes[kColumns] = 0;
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
            qgen_store_f32((float*)(record + 2048 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4), scale[s]);
        }
    }
    __syncwarp();

#pragma unroll
    for (int j = 0; j < (kWords + 31) / 32; ++j) {
        const int i = 32 * j + lane;
        if (i < kWords) qgen_store_u32(record + i / 16 * 512 + token % 8 * 64 + i % 16 * 4, qgen_gather4(codes, order[j]));
    }
    // Sums of 256 neighbouring columns, 32 threads each.
    const int group = lane / 32;
    const bool summed = lane % 32 == 0 && group < 1;
    int sum = 0;
    if (group < 1) {
#pragma unroll
        for (int i = lane % 32; i < 256 / 4; i += 32)
            sum = __dp4a((int)((const uint32_t*)codes)[group * (256 / 4) + i], 0x01010101, sum);
    }
    sum = qgen_add_lanes<32>(sum);
    if (summed) {
        uint8_t* start = record + 2080 + group * 64 + token % 8 / 2 * 16 + token % 2 * 4;
        qgen_store_u32(start, (uint32_t)(-1 * sum));
        qgen_store_u32(start + 8, (uint32_t)(-1 * sum));
    }
}
