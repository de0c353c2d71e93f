// quantize_activation to q8_g32 for Q4_0 fragments, family convert.
// Generated from specs/formats/q4_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
namespace {

constexpr int kRecordBytes = 1408; // record of a bundle and column tile
constexpr int kScales = 4;       // scales of a bundle
constexpr int kBundle = 4;       // blocks of a bundle
constexpr int kSplit = 32;        // which lie so many apart
constexpr int kBlock = 32;       // columns of a block
constexpr int kWarps = 4;        // warps of a CTA
constexpr int kOwn = 1;         // words of a thread: of slots 32 * i + lane
constexpr int kScaleSlots = 8;  // neighbouring slots that share a scale
constexpr int kSumSlots = 8;    // those that share a sum
constexpr int kNone = 65535;    // no column, no word
// Column e of a slot's word, in elements from the bundle's first one.
__device__ __forceinline__ int column_of(int slot, int e) {
    constexpr int behind[4] = {0, 1, 2, 3};
    return 4 * (slot & 7) + 1024 * (slot >> 3) + behind[e];
}

// By slot: bytes from the first code of a record to the word.
__device__ const uint16_t kWordPlaces[32 * kOwn] = {
0, 4, 8, 12, 128, 132, 136, 140, 256, 260, 264, 268, 384, 388, 392, 396,
512, 516, 520, 524, 640, 644, 648, 652, 768, 772, 776, 780, 896, 900, 904, 908,
};

// The columns of a thread's words of the bundle that starts at x; 0 for those from `there` on.
__device__ __forceinline__ void load_columns(float (&v)[kOwn][4], const float* x, int lane, int there) {
#pragma unroll
    for (int i = 0; i < 4 * kOwn; ++i) {
        const int column = column_of(i / 4 * 32 + lane, i % 4);
        v[i / 4][i % 4] = column < there ? qgen_load_f32(x + column) : 0.0f;
    }
}

}  // namespace

// x: float32 [tokens][x_stride]; activation: records of layout q8_g32_q4_0_matrices, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_q4_0_matrices__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bundle = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int bundles = (blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;
    const int first_block = bundle / kSplit * (kSplit * kBundle) + bundle % kSplit;
    // Where a thread's words go: constants come while the kernel before this one ends.
    int places[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) places[i] = qgen_keep((int)kWordPlaces[32 * i + lane]);
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    if (bundle >= bundles) return;
    uint8_t* record = activation + ((int64_t)bundle * (((int)gridDim.y + 7) / 8) + token / 8) * kRecordBytes;
    float v[kOwn][4];
    const int there = min((blocks - first_block) * kBlock, kNone);
    load_columns(v, x + token * x_stride + (int64_t)first_block * kBlock, lane, there);
    uint32_t words[kOwn];
    float scale[kOwn];
    qgen_quantize_words<kOwn, kScaleSlots>(v, words, scale);
    int sums[kOwn];
    qgen_sum_words<kOwn, kSumSlots>(words, sums);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int slot = 32 * i + lane;
        qgen_store_u32(record + token % 8 * 16 + places[i], words[i]);
        if (slot % kScaleSlots == 0 && slot / kScaleSlots < kScales) {
            const int s = slot / kScaleSlots;
            // Adding -0 times anything finite leaves a sum as it is, the sign of a zero included.
            if (column_of(slot, 0) >= there) scale[i] = -0.0f;
            qgen_store_u32(record + 1024 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 4) {
            qgen_store_u32(record + 1152 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-8 * sums[i]));
            qgen_store_u32(record + 1160 + g * 64 + token % 8 / 2 * 16 + token % 2 * 4, (uint32_t)(-8 * sums[i]));
        }
    }

}
