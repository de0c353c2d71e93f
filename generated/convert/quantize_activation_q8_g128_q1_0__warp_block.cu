// quantize_activation to q8_g128 for Q1_0, family convert.
// Generated from specs/formats/q1_0.toml and templates/quantize.cu.j2;
// edit those, then run: qgen build
//
// layout      q8_g128_q1_0: int8 per 128 columns, in the order the Q1_0 kernels read it:
//             codes  int8  [tile][chunk][thread of a warp][16]
//             scale  f32   [block][1]
//             sums   int32 [block][1][1]
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlock = 128;        // columns a warp quantises: one weight block
constexpr int kLanes = 1;          // threads of the matmul kernel that share it
constexpr int kTileBlocks = 32;    // blocks of an activation tile
constexpr int kChunks = 8;         // 16-byte pieces of a matmul thread and block
constexpr int kWords = 32;         // words of four codes in a block, padding included
constexpr int kValues = 4;         // columns of a thread
constexpr int kGroupValues = 4;    // of which this many share a scale
constexpr int kScales = 1;         // scales of a block
constexpr int kSumSlots = 1;       // sums of a matmul thread and block
constexpr int kWarps = 4;          // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{524288, 1572880}, {589825, 1638417}, {655362, 1703954}, {720899, 1769491},
{786436, 1835028}, {851973, 1900565}, {917510, 1966102}, {983047, 2031639},
{2621472, 3670064}, {2687009, 3735601}, {2752546, 3801138}, {2818083, 3866675},
{2883620, 3932212}, {2949157, 3997749}, {3014694, 4063286}, {3080231, 4128823},
{4718656, 5767248}, {4784193, 5832785}, {4849730, 5898322}, {4915267, 5963859},
{4980804, 6029396}, {5046341, 6094933}, {5111878, 6160470}, {5177415, 6226007},
{6815840, 7864432}, {6881377, 7929969}, {6946914, 7995506}, {7012451, 8061043},
{7077988, 8126580}, {7143525, 8192117}, {7209062, 8257654}, {7274599, 8323191},
};

}  // namespace

// x: float32 [tokens][x_stride], a token for each of the grid's y; activation: for each token the planes of layout
// q8_g128_q1_0 for `blocks` weight blocks.
// Every group of 128 shares a scale; qgen_quantize says how.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g128_q1_0__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
    if (block >= tiles * kTileBlocks) return;
    const int64_t scale_plane = (int64_t)tiles * (kChunks * 32 * 16);
    const int64_t sum_plane = scale_plane + (tiles * (kTileBlocks * kScales * 4) + 15) / 16 * 16;
    activation += token * (sum_plane + (int64_t)tiles * (32 * kSumSlots * 4));
    uint8_t* codes = qgen_shared + warp * 272;

    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i)
        v[i] = block < blocks ? qgen_load_f32(x + token * x_stride + (int64_t)block * kBlock + 32 * i + lane) : 0.0f;

    float scale[kScales];
    qgen_quantize<kValues, kGroupValues>(v, codes, scale, lane);
    uint8_t* scales = activation + scale_plane;
#pragma unroll
    for (int s = 0; s < kScales; ++s)
        if (lane == 0) qgen_store_f32((float*)(scales + ((int64_t)block * kScales + s) * 4), scale[s]);
    if (lane == 0) codes[kBlock] = 0;
    __syncwarp();

    // Word i of the block: chunk i / (4 kLanes), then the matmul thread, then the word of its 16-byte piece.
    uint8_t* tile = activation + (int64_t)(block / kTileBlocks) * (kChunks * 32 * 16);
    int* word_sums = (int*)(codes + 144);
#pragma unroll
    for (int i = lane; i < kWords; i += 32) {
        const uint32_t word = qgen_gather4(codes, kOrder[i]);
        const int chunk = i / (4 * kLanes), place = i % (4 * kLanes);
        qgen_store_u32(tile + chunk * (32 * 16) + block % kTileBlocks * (16 * kLanes) + 4 * place, word);
        word_sums[i] = __dp4a((int)word, 0x01010101, 0);
    }
    __syncwarp();

    // Sums of the codes that matmul thread `at / slots` meets in its group `at % slots`.
    uint8_t* sums = activation + sum_plane;
    if (lane < kLanes * kSumSlots) {
        const int thread = lane / kSumSlots, group = lane % kSumSlots;
        int sum = 0;
        if (group < 1) {
            for (int j = 0; j < 32; ++j)
                sum += word_sums[j / 4 * (4 * kLanes) + thread * 4 + j % 4];
        }
        qgen_store_u32(sums + (((int64_t)block * kLanes + thread) * kSumSlots + group) * 4, (uint32_t)sum);
    }
}
