// repack MXFP4 to tiles and back, family convert.
// Generated from specs/formats/mxfp4.toml and templates/repack.cu.j2;
// edit those, then run: qgen build
//
// native      rows of blocks of 17 bytes in native, NAME_stride bytes apart, at any address
// tiled       [row tile of 16 rows][block]: pieces of 16, 1 bytes of a block one after the
//             other, of each piece the 16 rows; rows that only fill up the last tile are zero
//
#include "qgen_stores.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kRows = 16;          // rows of a tile
constexpr int kBlockBytes = 17;
constexpr int kTileBytes = 272;   // one block of each row
constexpr int kSpan = 60;          // neighbouring tiles that a CTA moves at once
constexpr int kWarps = 8;          // warps of a CTA

// Where byte i of a row's block lies in the tile: in row 0, and how far from one row to the next.
__device__ const uint2 kPlace[kBlockBytes] = {
{256, 1}, {0, 16}, {1, 16}, {2, 16}, {3, 16}, {4, 16}, {5, 16}, {6, 16},
{7, 16}, {8, 16}, {9, 16}, {10, 16}, {11, 16}, {12, 16}, {13, 16}, {14, 16},
{15, 16},
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
repack_mxfp4_to_tiled__row_tile(const uint8_t* __restrict__ native, int64_t native_stride, int rows, int blocks, int first, int count, uint8_t* __restrict__ tiled) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const int64_t row = (int64_t)tile * kRows, there = rows - (int64_t)first * kRows - row;
        stage<17>(native + row * native_stride + (int64_t)block * 17, native_stride, own, there, kPlace, warp, lane);
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
repack_mxfp4_to_native__row_tile(const uint8_t* __restrict__ tiled, int rows, int blocks, int first, int count, uint8_t* __restrict__ native, int64_t native_stride) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const uint8_t* from = tiled + ((int64_t)tile * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < own * kBlockBytes; i += 32 * kWarps)
            ((uint4*)qgen_shared)[i] = qgen_load_u32x4(from + 16 * i);
        __syncthreads();
        const int64_t row = (int64_t)(first + tile) * kRows;
        store<17>(native + row * native_stride + (int64_t)block * 17, native_stride, own, rows - row, kPlace, warp, lane);
        __syncthreads();
    }
}
