// repack Q5_K to tiles and back, family convert.
// Generated from specs/formats/q5_k.toml and templates/repack.cu.j2;
// edit those, then run: qgen build
//
// native      rows of blocks of 176 bytes in native, NAME_stride bytes apart, at any address
// tiled       [row tile of 16 rows][block]: pieces of 16, 64, 64, 32 bytes of a block one after the
//             other, of each piece the 16 rows; rows that only fill up the last tile are zero
//
#include "qgen_stores.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kRows = 16;          // rows of a tile
constexpr int kBlockBytes = 176;
constexpr int kTileBytes = 2816;   // one block of each row
constexpr int kSpan = 5;          // neighbouring tiles that a CTA moves at once
constexpr int kWarps = 8;          // warps of a CTA

// Where byte i of a row's block lies in the tile: in row 0, and how far from one row to the next.
__device__ const uint2 kPlace[kBlockBytes] = {
{0, 16}, {1, 16}, {2, 16}, {3, 16}, {4, 16}, {5, 16}, {6, 16}, {7, 16},
{8, 16}, {9, 16}, {10, 16}, {11, 16}, {12, 16}, {13, 16}, {14, 16}, {15, 16},
{256, 64}, {257, 64}, {258, 64}, {259, 64}, {260, 64}, {261, 64}, {262, 64}, {263, 64},
{272, 64}, {273, 64}, {274, 64}, {275, 64}, {276, 64}, {277, 64}, {278, 64}, {279, 64},
{288, 64}, {289, 64}, {290, 64}, {291, 64}, {292, 64}, {293, 64}, {294, 64}, {295, 64},
{304, 64}, {305, 64}, {306, 64}, {307, 64}, {308, 64}, {309, 64}, {310, 64}, {311, 64},
{264, 64}, {265, 64}, {266, 64}, {267, 64}, {268, 64}, {269, 64}, {270, 64}, {271, 64},
{280, 64}, {281, 64}, {282, 64}, {283, 64}, {284, 64}, {285, 64}, {286, 64}, {287, 64},
{296, 64}, {297, 64}, {298, 64}, {299, 64}, {300, 64}, {301, 64}, {302, 64}, {303, 64},
{312, 64}, {313, 64}, {314, 64}, {315, 64}, {316, 64}, {317, 64}, {318, 64}, {319, 64},
{1280, 64}, {1281, 64}, {1282, 64}, {1283, 64}, {1284, 64}, {1285, 64}, {1286, 64}, {1287, 64},
{1296, 64}, {1297, 64}, {1298, 64}, {1299, 64}, {1300, 64}, {1301, 64}, {1302, 64}, {1303, 64},
{1312, 64}, {1313, 64}, {1314, 64}, {1315, 64}, {1316, 64}, {1317, 64}, {1318, 64}, {1319, 64},
{1328, 64}, {1329, 64}, {1330, 64}, {1331, 64}, {1332, 64}, {1333, 64}, {1334, 64}, {1335, 64},
{1288, 64}, {1289, 64}, {1290, 64}, {1291, 64}, {1292, 64}, {1293, 64}, {1294, 64}, {1295, 64},
{1304, 64}, {1305, 64}, {1306, 64}, {1307, 64}, {1308, 64}, {1309, 64}, {1310, 64}, {1311, 64},
{1320, 64}, {1321, 64}, {1322, 64}, {1323, 64}, {1324, 64}, {1325, 64}, {1326, 64}, {1327, 64},
{1336, 64}, {1337, 64}, {1338, 64}, {1339, 64}, {1340, 64}, {1341, 64}, {1342, 64}, {1343, 64},
{2304, 32}, {2305, 32}, {2306, 32}, {2307, 32}, {2308, 32}, {2309, 32}, {2310, 32}, {2311, 32},
{2312, 32}, {2313, 32}, {2314, 32}, {2315, 32}, {2316, 32}, {2317, 32}, {2318, 32}, {2319, 32},
{2320, 32}, {2321, 32}, {2322, 32}, {2323, 32}, {2324, 32}, {2325, 32}, {2326, 32}, {2327, 32},
{2328, 32}, {2329, 32}, {2330, 32}, {2331, 32}, {2332, 32}, {2333, 32}, {2334, 32}, {2335, 32},
};

// Bytes at .. at + n - 1 of a row of the plane that has `bytes` bytes of a block, counted from the CTA's first block, the
// first lowest in v, to the tiles in shared memory. `place`: those of the plane's bytes.
template <int bytes, int n>
__device__ __forceinline__ void scatter(const uint2* place, int row, int at, uint32_t v) {
    int block = at / bytes, byte = at % bytes;
#pragma unroll
    for (int i = 0; i < n; ++i) {
        qgen_shared[block * kTileBytes + place[byte].x + row * place[byte].y] = (uint8_t)(v >> (8 * i));
        if (++byte == bytes) byte = 0, ++block;
    }
}

// The same bytes from there.
template <int bytes, int n>
__device__ __forceinline__ uint32_t gather(const uint2* place, int row, int at) {
    int block = at / bytes, byte = at % bytes;
    uint32_t v = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
        v |= (uint32_t)qgen_shared[block * kTileBytes + place[byte].x + row * place[byte].y] << (8 * i);
        if (++byte == bytes) byte = 0, ++block;
    }
    return v;
}

// Bytes of a row up to its first aligned word. Rows begin at any address: what lies before that word and behind the last
// one is moved byte by byte.
__device__ __forceinline__ int ragged(const uint8_t* row, int bytes) {
    return min((int)(-(uint64_t)row & 3u), bytes);
}

// The warps of a CTA move `blocks` blocks of a row tile's rows, from `native` on, to shared memory. `there`: rows that the
// weight has; the others are zero.
template <int bytes>
__device__ __forceinline__ void stage(const uint8_t* native, int64_t row_stride, int blocks, int64_t there, const uint2* place, int warp, int lane) {
    const int size = blocks * bytes;
    for (int row = warp; row < kRows; row += kWarps) {
        const uint8_t* from = native + row * row_stride;
        const int head = ragged(from, size), words = (size - head) / 4, tail = head + 4 * words;
        for (int word = lane; word < words; word += 32)
            scatter<bytes, 4>(place, row, head + 4 * word, row < there ? qgen_load_u32(from + head + 4 * word) : 0u);
        if (lane < head) scatter<bytes, 1>(place, row, lane, row < there ? qgen_load_u8(from + lane) : 0u);
        if (tail + lane < size) scatter<bytes, 1>(place, row, tail + lane, row < there ? qgen_load_u8(from + tail + lane) : 0u);
    }
}

// The way back: from shared memory to the rows that the weight has.
template <int bytes>
__device__ __forceinline__ void store(uint8_t* native, int64_t row_stride, int blocks, int64_t there, const uint2* place, int warp, int lane) {
    const int size = blocks * bytes;
    for (int row = warp; row < kRows && row < there; row += kWarps) {
        uint8_t* to = native + row * row_stride;
        const int head = ragged(to, size), words = (size - head) / 4, tail = head + 4 * words;
        for (int word = lane; word < words; word += 32)
            qgen_store_u32(to + head + 4 * word, gather<bytes, 4>(place, row, head + 4 * word));
        if (lane < head) qgen_store_u8(to + lane, (uint8_t)gather<bytes, 1>(place, row, lane));
        if (tail + lane < size) qgen_store_u8(to + tail + lane, (uint8_t)gather<bytes, 1>(place, row, tail + lane));
    }
}

}  // namespace

// Row tiles first .. first + count - 1 of a weight of `rows` rows and `blocks` blocks. native: its rows,
// NAME_stride bytes apart, from row 16 * first on; tiled: all tiles of the weight, 16-byte aligned.
extern "C" __global__ void __launch_bounds__(256, 4)
repack_q5_k_to_tiled__row_tile(const uint8_t* __restrict__ native, int64_t native_stride, int rows, int blocks, int first, int count, uint8_t* __restrict__ tiled) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const int64_t row = (int64_t)tile * kRows, there = rows - (int64_t)first * kRows - row;
        stage<176>(native + row * native_stride + (int64_t)block * 176, native_stride, own, there, kPlace, warp, lane);
        __syncthreads();
        uint8_t* to = tiled + ((int64_t)(first + tile) * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < own * kBlockBytes; i += 32 * kWarps)
            qgen_store_u32x4(to + 16 * i, ((const uint4*)qgen_shared)[i]);
        __syncthreads();
    }
}

// The way back. tiled: row tiles first .. first + count - 1, 16-byte aligned; native: all rows of the weight,
// NAME_stride bytes apart; what lies between them is left alone.
extern "C" __global__ void __launch_bounds__(256, 4)
repack_q5_k_to_native__row_tile(const uint8_t* __restrict__ tiled, int rows, int blocks, int first, int count, uint8_t* __restrict__ native, int64_t native_stride) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const uint8_t* from = tiled + ((int64_t)tile * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < own * kBlockBytes; i += 32 * kWarps)
            ((uint4*)qgen_shared)[i] = qgen_load_u32x4(from + 16 * i);
        __syncthreads();
        const int64_t row = (int64_t)(first + tile) * kRows;
        store<176>(native + row * native_stride + (int64_t)block * 176, native_stride, own, rows - row, kPlace, warp, lane);
        __syncthreads();
    }
}
