// quantize_activation to q8_g32 for IQ4_NL, family convert.
// Generated from specs/formats/iq4_nl.toml and templates/quantize.cu.j2;
// edit those, then run: qgen build
//
// layout      q8_g32_iq4_nl: int8 per 32 columns, in the order the IQ4_NL kernels read it:
//             codes  int8  [tile][chunk][thread of a warp][16]
//             scale  f32   [block][1]
//             no sums
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlock = 32;        // columns a warp quantises: one weight block
constexpr int kLanes = 1;          // threads of the matmul kernel that share it
constexpr int kTileBlocks = 32;    // blocks of an activation tile
constexpr int kChunks = 2;         // 16-byte pieces of a matmul thread and block
constexpr int kWords = 8;         // words of four codes in a block, padding included
constexpr int kValues = 1;         // columns of a thread
constexpr int kGroupValues = 1;    // of which this many share a scale
constexpr int kScales = 1;         // scales of a block
constexpr int kSumSlots = 0;       // sums of a matmul thread and block
constexpr int kWarps = 4;          // warps of a CTA

// The four columns of each word, in memory order; 32 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{1048576, 1114113}, {1179650, 1245187}, {1310724, 1376261}, {1441798, 1507335},
{1572872, 1638409}, {1703946, 1769483}, {1835020, 1900557}, {1966094, 2031631},
};

}  // namespace

// x: float32 [tokens][x_stride], a token for each of the grid's y; activation: for each token the planes of layout
// q8_g32_iq4_nl for `blocks` weight blocks.
// Every group of 32 shares a scale; qgen_quantize says how.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_iq4_nl__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
    if (block >= tiles * kTileBlocks) return;
    const int64_t scale_plane = (int64_t)tiles * (kChunks * 32 * 16);
    const int64_t sum_plane = scale_plane + (tiles * (kTileBlocks * kScales * 4) + 15) / 16 * 16;
    activation += token * (sum_plane + (int64_t)tiles * (32 * kSumSlots * 4));
    uint8_t* codes = qgen_shared + warp * 48;

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
#pragma unroll
    for (int i = lane; i < kWords; i += 32) {
        const uint32_t word = qgen_gather4(codes, kOrder[i]);
        const int chunk = i / (4 * kLanes), place = i % (4 * kLanes);
        qgen_store_u32(tile + chunk * (32 * 16) + block % kTileBlocks * (16 * kLanes) + 4 * place, word);
    }
}
