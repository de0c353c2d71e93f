// quantize_activation to q8_g256 for Q3_K, family convert.
// Generated from specs/formats/q3_k.toml and templates/quantize.cu.j2;
// edit those, then run: qgen build
//
// layout      q8_g256_q3_k: int8 per 256 columns, in the order the Q3_K kernels read it:
//             codes  int8  [tile][chunk][thread of a warp][16]
//             scale  f32   [block][1]
//             sums   int32 [block][4][4]
//
#include "qgen_quantize.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kBlock = 256;        // columns a warp quantises: one weight block
constexpr int kLanes = 4;          // threads of the matmul kernel that share it
constexpr int kTileBlocks = 8;    // blocks of an activation tile
constexpr int kChunks = 4;         // 16-byte pieces of a matmul thread and block
constexpr int kWords = 64;         // words of four codes in a block, padding included
constexpr int kValues = 8;         // columns of a thread
constexpr int kGroupValues = 8;    // of which this many share a scale
constexpr int kScales = 1;         // scales of a block
constexpr int kSumSlots = 4;       // sums of a matmul thread and block
constexpr int kWarps = 4;          // warps of a CTA

// The four columns of each word, in memory order; 256 stands for an empty place.
__device__ const uint2 kOrder[kWords] = {
{65536, 196610}, {327684, 458758}, {589832, 720906}, {851980, 983054},
{1114128, 1245202}, {1376276, 1507350}, {1638424, 1769498}, {1900572, 2031646},
{8454272, 8585346}, {8716420, 8847494}, {8978568, 9109642}, {9240716, 9371790},
{9502864, 9633938}, {9765012, 9896086}, {10027160, 10158234}, {10289308, 10420382},
{2162720, 2293794}, {2424868, 2555942}, {2687016, 2818090}, {2949164, 3080238},
{3211312, 3342386}, {3473460, 3604534}, {3735608, 3866682}, {3997756, 4128830},
{10551456, 10682530}, {10813604, 10944678}, {11075752, 11206826}, {11337900, 11468974},
{11600048, 11731122}, {11862196, 11993270}, {12124344, 12255418}, {12386492, 12517566},
{4259904, 4390978}, {4522052, 4653126}, {4784200, 4915274}, {5046348, 5177422},
{5308496, 5439570}, {5570644, 5701718}, {5832792, 5963866}, {6094940, 6226014},
{12648640, 12779714}, {12910788, 13041862}, {13172936, 13304010}, {13435084, 13566158},
{13697232, 13828306}, {13959380, 14090454}, {14221528, 14352602}, {14483676, 14614750},
{6357088, 6488162}, {6619236, 6750310}, {6881384, 7012458}, {7143532, 7274606},
{7405680, 7536754}, {7667828, 7798902}, {7929976, 8061050}, {8192124, 8323198},
{14745824, 14876898}, {15007972, 15139046}, {15270120, 15401194}, {15532268, 15663342},
{15794416, 15925490}, {16056564, 16187638}, {16318712, 16449786}, {16580860, 16711934},
};

}  // namespace

// x: float32 [tokens][x_stride], a token for each of the grid's y; activation: for each token the planes of layout
// q8_g256_q3_k for `blocks` weight blocks.
// Every group of 256 shares a scale; qgen_quantize says how.
extern "C" __global__ void __launch_bounds__(128)
quantize_activation_q8_g256_q3_k__warp_block(const float* __restrict__ x, int64_t x_stride, int blocks, uint8_t* __restrict__ activation) {
    qgen_let_next_begin();
    qgen_wait_for_inputs();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kWarps + warp, token = blockIdx.y;
    const int tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
    if (block >= tiles * kTileBlocks) return;
    const int64_t scale_plane = (int64_t)tiles * (kChunks * 32 * 16);
    const int64_t sum_plane = scale_plane + (tiles * (kTileBlocks * kScales * 4) + 15) / 16 * 16;
    activation += token * (sum_plane + (int64_t)tiles * (32 * kSumSlots * 4));
    uint8_t* codes = qgen_shared + warp * 528;

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
    int* word_sums = (int*)(codes + 272);
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
        if (group < 4) {
            for (int j = 0 + 4 * group; j < 4 + 4 * group; ++j)
                sum += word_sums[j / 4 * (4 * kLanes) + thread * 4 + j % 4];
        }
        qgen_store_u32(sums + (((int64_t)block * kLanes + thread) * kSumSlots + group) * 4, (uint32_t)sum);
    }
}
