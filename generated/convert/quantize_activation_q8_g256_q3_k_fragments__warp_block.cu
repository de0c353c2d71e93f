// quantize_activation to q8_g256 for Q3_K fragments, family convert.
// Generated from specs/formats/q3_k.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kColumns = 256;    // columns a warp quantises: one bundle of weight blocks of one token
constexpr int kWords = 64;       // words of four codes in a bundle, padding included
constexpr int kRecordBytes = 2336; // record of a bundle and column tile
constexpr int kValues = 8;       // columns of a thread
constexpr int kGroupValues = 8;  // of which this many share a scale
constexpr int kScales = 1;       // scales of a bundle
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 256 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{65536, 196610}, {1114128, 1245202}, {2162720, 2293794}, {3211312, 3342386},
{327684, 458758}, {1376276, 1507350}, {2424868, 2555942}, {3473460, 3604534},
{589832, 720906}, {1638424, 1769498}, {2687016, 2818090}, {3735608, 3866682},
{851980, 983054}, {1900572, 2031646}, {2949164, 3080238}, {3997756, 4128830},
{4259904, 4390978}, {5308496, 5439570}, {6357088, 6488162}, {7405680, 7536754},
{4522052, 4653126}, {5570644, 5701718}, {6619236, 6750310}, {7667828, 7798902},
{4784200, 4915274}, {5832792, 5963866}, {6881384, 7012458}, {7929976, 8061050},
{5046348, 5177422}, {6094940, 6226014}, {7143532, 7274606}, {8192124, 8323198},
{8454272, 8585346}, {9502864, 9633938}, {10551456, 10682530}, {11600048, 11731122},
{8716420, 8847494}, {9765012, 9896086}, {10813604, 10944678}, {11862196, 11993270},
{8978568, 9109642}, {10027160, 10158234}, {11075752, 11206826}, {12124344, 12255418},
{9240716, 9371790}, {10289308, 10420382}, {11337900, 11468974}, {12386492, 12517566},
{12648640, 12779714}, {13697232, 13828306}, {14745824, 14876898}, {15794416, 15925490},
{12910788, 13041862}, {13959380, 14090454}, {15007972, 15139046}, {16056564, 16187638},
{13172936, 13304010}, {14221528, 14352602}, {15270120, 15401194}, {16318712, 16449786},
{13435084, 13566158}, {14483676, 14614750}, {15532268, 15663342}, {16580860, 16711934},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_q3_k_fragments, those of blocks that only fill up too.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_q3_k_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
    // Sums of 16 neighbouring columns, 2 threads each.
    const int group = lane / 2;
    int sum = 0;
    if (group < 16) {
#pragma unroll
        for (int i = lane % 2; i < 16 / 4; i += 2)
            sum = __dp4a((int)((const uint32_t*)codes)[group * (16 / 4) + i], 0x01010101, sum);
    }
    sum = qgen_add_lanes<2>(sum);
    // Four sums a word, as low and high parts that fit int8: sum = low + 128 * high.
    const int high = (sum + 64) >> 7, low = sum - 128 * high;
    uint32_t low_word = 0, high_word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int from = (4 * lane + i) * 2 % 32;
        const uint32_t l = (uint8_t)__shfl_sync(0xffffffffu, low, from), h = (uint8_t)__shfl_sync(0xffffffffu, high, from);
        if (4 * lane + i < 16) low_word |= l << (8 * i), high_word |= h << (8 * i);
    }
    if (lane < 4) {
        qgen_store_u32(record + 2080 + (token % 8 * 4 + lane) * 8, low_word);
        qgen_store_u32(record + 2080 + (token % 8 * 4 + lane) * 8 + 4, high_word);
    }
}
