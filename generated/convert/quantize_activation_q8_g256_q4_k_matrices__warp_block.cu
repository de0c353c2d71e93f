// quantize_activation to q8_g256 for Q4_K fragments, family convert.
// Generated from specs/formats/q4_k.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_quantize.cuh"
#include "qgen_stores.cuh"
namespace {

constexpr int kRecordBytes = 2432; // record of a bundle and column tile
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
0, 128, 4, 132, 8, 136, 12, 140, 256, 384, 260, 388, 264, 392, 268, 396,
512, 640, 516, 644, 520, 648, 524, 652, 768, 896, 772, 900, 776, 904, 780, 908,
1024, 1152, 1028, 1156, 1032, 1160, 1036, 1164, 1280, 1408, 1284, 1412, 1288, 1416, 1292, 1420,
1536, 1664, 1540, 1668, 1544, 1672, 1548, 1676, 1792, 1920, 1796, 1924, 1800, 1928, 1804, 1932,
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

// x: float32 [tokens][x_stride]; activation: records of layout q8_g256_q4_k_matrices, those of blocks that only fill up too.
// A warp quantises one bundle of weight blocks of one token.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_q4_k_matrices__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
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
    uint8_t* record = activation + ((int64_t)bundle * (((int)gridDim.y + 7) / 8) + token / 8) * kRecordBytes;
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
        qgen_store_u32(record + token % 8 * 16 + places[i], words[i]);
        if (slot % kScaleSlots == 0 && slot / kScaleSlots < kScales) {
            const int s = slot / kScaleSlots;
            qgen_store_u32(record + 2048 + (token % 8 / 2 * (2 * kScales) + 2 * s + token % 2) * 4, __float_as_uint(scale[i]));
        }
        const int g = slot / kSumSlots;
        if (slot % kSumSlots == 0 && g < 8) {
            // Four sums a word, as low and high parts that fit int8: sum = low + 128 * high.
            const int high = (sums[i] + 64) >> 7, low = sums[i] - 128 * high;
            qgen_store_u8(record + 2080 + token % 8 * 16 + g, (uint8_t)low);
            qgen_store_u8(record + 2208 + token % 8 * 16 + g, (uint8_t)high);
        }
    }
    // Instructions over sums take sixteen groups.
    if (lane >= 8 && lane < 16) {
        qgen_store_u8(record + 2080 + token % 8 * 16 + lane, 0);
        qgen_store_u8(record + 2208 + token % 8 * 16 + lane, 0);
    }

}
