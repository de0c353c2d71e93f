// repack Q3_K to tiles and back, family convert.
// Generated from specs/formats/q3_k.toml and templates/repack.cu.j2;
// edit those, then run: qgen build
//
// native      rows of blocks of 110 bytes in native, NAME_stride bytes apart, at any address
// tiled       [row tile of 16 rows][block]: pieces of 12, 64, 32, 2 bytes of a block one after the
//             other, of each piece the 16 rows; rows that only fill up the last tile are zero
//
#include "qgen_stores.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kRows = 16;          // rows of a tile
constexpr int kBlockBytes = 110;
constexpr int kTileBytes = 1760;   // one block of each row
constexpr int kSpan = 9;          // neighbouring tiles that a CTA moves at once
constexpr int kWarps = 8;          // warps of a CTA

// Where byte i of a row's block lies in the tile: in row 0, and how far from one row to the next.
__device__ const uint2 kPlace[kBlockBytes] = {
{192, 64}, {193, 64}, {194, 64}, {195, 64}, {208, 64}, {209, 64}, {210, 64}, {211, 64},
{224, 64}, {225, 64}, {226, 64}, {227, 64}, {240, 64}, {241, 64}, {242, 64}, {243, 64},
{196, 64}, {197, 64}, {198, 64}, {199, 64}, {212, 64}, {213, 64}, {214, 64}, {215, 64},
{228, 64}, {229, 64}, {230, 64}, {231, 64}, {244, 64}, {245, 64}, {246, 64}, {247, 64},
{200, 64}, {201, 64}, {202, 64}, {203, 64}, {216, 64}, {217, 64}, {218, 64}, {219, 64},
{232, 64}, {233, 64}, {234, 64}, {235, 64}, {248, 64}, {249, 64}, {250, 64}, {251, 64},
{204, 64}, {205, 64}, {206, 64}, {207, 64}, {220, 64}, {221, 64}, {222, 64}, {223, 64},
{236, 64}, {237, 64}, {238, 64}, {239, 64}, {252, 64}, {253, 64}, {254, 64}, {255, 64},
{1216, 32}, {1217, 32}, {1218, 32}, {1219, 32}, {1224, 32}, {1225, 32}, {1226, 32}, {1227, 32},
{1232, 32}, {1233, 32}, {1234, 32}, {1235, 32}, {1240, 32}, {1241, 32}, {1242, 32}, {1243, 32},
{1220, 32}, {1221, 32}, {1222, 32}, {1223, 32}, {1228, 32}, {1229, 32}, {1230, 32}, {1231, 32},
{1236, 32}, {1237, 32}, {1238, 32}, {1239, 32}, {1244, 32}, {1245, 32}, {1246, 32}, {1247, 32},
{0, 12}, {1, 12}, {2, 12}, {3, 12}, {4, 12}, {5, 12}, {6, 12}, {7, 12},
{8, 12}, {9, 12}, {10, 12}, {11, 12}, {1728, 2}, {1729, 2},
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
repack_q3_k_to_tiled__row_tile(const uint8_t* __restrict__ native, int64_t native_stride, int rows, int blocks, int first, int count, uint8_t* __restrict__ tiled) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const int64_t row = (int64_t)tile * kRows, there = rows - (int64_t)first * kRows - row;
        stage<110>(native + row * native_stride + (int64_t)block * 110, native_stride, own, there, kPlace, warp, lane);
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
repack_q3_k_to_native__row_tile(const uint8_t* __restrict__ tiled, int rows, int blocks, int first, int count, uint8_t* __restrict__ native, int64_t native_stride) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const uint8_t* from = tiled + ((int64_t)tile * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < own * kBlockBytes; i += 32 * kWarps)
            ((uint4*)qgen_shared)[i] = qgen_load_u32x4(from + 16 * i);
        __syncthreads();
        const int64_t row = (int64_t)(first + tile) * kRows;
        store<110>(native + row * native_stride + (int64_t)block * 110, native_stride, own, rows - row, kPlace, warp, lane);
        __syncthreads();
    }
}
