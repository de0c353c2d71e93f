// quantize_activation to q8_g32 for Q1_0 fragments, family convert.
// Generated from specs/formats/q1_0.toml and templates/quantize_fragments.cu.j2;
// edit those, then run: qgen build
//
#include "qgen_parts.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlock = 128;      // columns a warp quantises: one weight block of one token
constexpr int kPieceWords = 4;   // activation words a matmul thread loads at once
constexpr int kChunks = 2;       // such pieces of a matmul thread, token and block
constexpr int kWords = 4 * kPieceWords * kChunks;  // words of four codes in a block, padding included
constexpr int kCodeBytes = 1024;  // activation codes of a block and column tile
constexpr int kValues = 4;       // columns of a thread
constexpr int kGroupValues = 1;  // of which this many share a scale
constexpr int kScales = 4;       // scales of a block
constexpr int kWarps = 4;        // warps of a CTA

// The four columns of each word, in memory order; 128 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{524288, 1572880}, {589825, 1638417}, {2621472, 3670064}, {2687009, 3735601},
{655362, 1703954}, {720899, 1769491}, {2752546, 3801138}, {2818083, 3866675},
{786436, 1835028}, {851973, 1900565}, {2883620, 3932212}, {2949157, 3997749},
{917510, 1966102}, {983047, 2031639}, {3014694, 4063286}, {3080231, 4128823},
{4718656, 5767248}, {4784193, 5832785}, {6815840, 7864432}, {6881377, 7929969},
{4849730, 5898322}, {4915267, 5963859}, {6946914, 7995506}, {7012451, 8061043},
{4980804, 6029396}, {5046341, 6094933}, {7077988, 8126580}, {7143525, 8192117},
{5111878, 6160470}, {5177415, 6226007}, {7209062, 8257654}, {7274599, 8323191},
};

}  // namespace

// x: float32 [tokens][x_stride]; activation: the planes of layout q8_g32_q1_0_fragments. Tokens that only fill up
// the last column tile get scales and sums of 0 and no codes; matmul kernels do not read those.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g32_q1_0_fragments__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, int tokens, uint8_t* __restrict__ activation) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    if (block >= blocks) return;
    uint8_t* codes = qgen_shared + warp * 144;
    const int64_t token_tiles = (tokens + 7) / 8;
    const int64_t place = (int64_t)(token / 8) * blocks + block;
    uint8_t* scales = activation + token_tiles * blocks * kCodeBytes;

    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i)
        v[i] = token < tokens ? qgen_load_f32(x + token * x_stride + (int64_t)block * kBlock + 32 * i + lane) : 0.0f;
    float scale[kScales];
    qgen_quantize<kValues, kGroupValues>(v, codes, scale, lane);
    if (lane == 0) {
        codes[kBlock] = 0;
#pragma unroll
        for (int s = 0; s < kScales; ++s)
            qgen_store_f32((float*)(scales + ((place * kScales + s) * 8 + token % 8) * 4), scale[s]);
    }
    __syncwarp();

    if (token < tokens) {
#pragma unroll
        for (int i = lane; i < kWords; i += 32)
            qgen_store_u32(activation + place * kCodeBytes + i / (4 * kPieceWords) * (128 * kPieceWords) +
                               token % 8 * (16 * kPieceWords) + i % (4 * kPieceWords) * 4,
                           qgen_gather4(codes, kOrder[i]));
    }
    uint8_t* sums = scales + token_tiles * blocks * (kScales * 32);
    // Thread g sums group g: 32 neighbouring columns.
    int sum = 0;
    if (lane < 4) {
#pragma unroll
        for (int i = 0; i < 32 / 4; ++i)
            sum = __dp4a((int)((const uint32_t*)codes)[lane * (32 / 4) + i], 0x01010101, sum);
    }
    if (lane < 4)
        qgen_store_u32(sums + ((place * 4 + lane) * 8 + token % 8) * 4, (uint32_t)sum);
}
