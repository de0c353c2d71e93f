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
// Column e of a slot's word, in elements from the bundle's first one.
__device__ __forceinline__ int column_of(int slot, int e) {
    constexpr int behind[4] = {0, 1, 2, 3};
    return 4 * slot + behind[e];
}

// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kWordPlaces[32 * kOwn] = {
0, 4, 16, 20, 32, 36, 48, 52, 8, 12, 24, 28, 40, 44, 56, 60,
512, 516, 528, 532, 544, 548, 560, 564, 520, 524, 536, 540, 552, 556, 568, 572,
1024, 1028, 1040, 1044, 1056, 1060, 1072, 1076, 1032, 1036, 1048, 1052, 1064, 1068, 1080, 1084,
1536, 1540, 1552, 1556, 1568, 1572, 1584, 1588, 1544, 1548, 1560, 1564, 1576, 1580, 1592, 1596,
};

// The columns of a thread's words of the bundle that starts at x.
__device__ __forceinline__ void load_columns(float (&v)[kOwn][4], const float* x, int lane) {
#pragma unroll
    for (int i = 0; i < 4 * kOwn; ++i) {
        const int column = column_of(i / 4 * 32 + lane, i % 4);
        v[i / 4][i % 4] = qgen_load_f32(x + column);
    }
}

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_q4_k_fragments, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_q4_k_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = blocks, first_block = bundle;
    // Where a thread's words go: constants come while the kernel before this one ends.
    int places[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) places[i] = qgen_keep((int)kWordPlaces[32 * i + lane]);
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* record = activation + ((int64_t)(token / 8) * bundles + bundle) * kRecordBytes;
    float v[kOwn][4];
    load_columns(v, x + token * x_stride + (int64_t)first_block * kBlock, lane);
    uint32_t words[kOwn];
    float scale[kOwn];
    qgen_quantize_words<kOwn, kScaleSlots>(v, words, scale);
    int sums[kOwn];
    qgen_sum_words<kOwn, kSumSlots>(words, sums);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int slot = 32 * i + lane;
        qgen_store_u32(record + token % 8 * 64 + places[i], words[i]);
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
