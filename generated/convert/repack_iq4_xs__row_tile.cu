// repack IQ4_XS to tiles and back, family convert.
// Generated from specs/formats/iq4_xs.toml and templates/repack.cu.j2;
// edit those, then run: qgen build
//
// native      rows of blocks of 136 bytes in native, NAME_stride bytes apart, at any address
// tiled       [row tile of 16 rows][block]: pieces of 8, 64, 64 bytes of a block one after the
//             other, of each piece the 16 rows; rows that only fill up the last tile are zero
//
#include "qgen_stores.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

namespace {

constexpr int kRows = 16;          // rows of a tile
constexpr int kBlockBytes = 136;
constexpr int kTileBytes = 2176;   // one block of each row
constexpr int kSpan = 7;          // neighbouring tiles that a CTA moves at once
constexpr int kWarps = 8;          // warps of a CTA

// Where byte i of a row's block lies in the tile: in row 0, and how far from one row to the next.
__device__ const uint2 kPlace[kBlockBytes] = {
{0, 8}, {1, 8}, {2, 8}, {3, 8}, {4, 8}, {5, 8}, {6, 8}, {7, 8},
{128, 64}, {129, 64}, {130, 64}, {131, 64}, {144, 64}, {145, 64}, {146, 64}, {147, 64},
{160, 64}, {161, 64}, {162, 64}, {163, 64}, {176, 64}, {177, 64}, {178, 64}, {179, 64},
{132, 64}, {133, 64}, {134, 64}, {135, 64}, {148, 64}, {149, 64}, {150, 64}, {151, 64},
{164, 64}, {165, 64}, {166, 64}, {167, 64}, {180, 64}, {181, 64}, {182, 64}, {183, 64},
{136, 64}, {137, 64}, {138, 64}, {139, 64}, {152, 64}, {153, 64}, {154, 64}, {155, 64},
{168, 64}, {169, 64}, {170, 64}, {171, 64}, {184, 64}, {185, 64}, {186, 64}, {187, 64},
{140, 64}, {141, 64}, {142, 64}, {143, 64}, {156, 64}, {157, 64}, {158, 64}, {159, 64},
{172, 64}, {173, 64}, {174, 64}, {175, 64}, {188, 64}, {189, 64}, {190, 64}, {191, 64},
{1152, 64}, {1153, 64}, {1154, 64}, {1155, 64}, {1168, 64}, {1169, 64}, {1170, 64}, {1171, 64},
{1184, 64}, {1185, 64}, {1186, 64}, {1187, 64}, {1200, 64}, {1201, 64}, {1202, 64}, {1203, 64},
{1156, 64}, {1157, 64}, {1158, 64}, {1159, 64}, {1172, 64}, {1173, 64}, {1174, 64}, {1175, 64},
{1188, 64}, {1189, 64}, {1190, 64}, {1191, 64}, {1204, 64}, {1205, 64}, {1206, 64}, {1207, 64},
{1160, 64}, {1161, 64}, {1162, 64}, {1163, 64}, {1176, 64}, {1177, 64}, {1178, 64}, {1179, 64},
{1192, 64}, {1193, 64}, {1194, 64}, {1195, 64}, {1208, 64}, {1209, 64}, {1210, 64}, {1211, 64},
{1164, 64}, {1165, 64}, {1166, 64}, {1167, 64}, {1180, 64}, {1181, 64}, {1182, 64}, {1183, 64},
{1196, 64}, {1197, 64}, {1198, 64}, {1199, 64}, {1212, 64}, {1213, 64}, {1214, 64}, {1215, 64},
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
repack_iq4_xs_to_tiled__row_tile(const uint8_t* __restrict__ native, int64_t native_stride, int rows, int blocks, int first, int count, uint8_t* __restrict__ tiled) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const int64_t row = (int64_t)tile * kRows, there = rows - (int64_t)first * kRows - row;
        stage<136>(native + row * native_stride + (int64_t)block * 136, native_stride, own, there, kPlace, warp, lane);
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
repack_iq4_xs_to_native__row_tile(const uint8_t* __restrict__ tiled, int rows, int blocks, int first, int count, uint8_t* __restrict__ native, int64_t native_stride) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan, own = min(kSpan, blocks - block);
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const uint8_t* from = tiled + ((int64_t)tile * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < own * kBlockBytes; i += 32 * kWarps)
            ((uint4*)qgen_shared)[i] = qgen_load_u32x4(from + 16 * i);
        __syncthreads();
        const int64_t row = (int64_t)(first + tile) * kRows;
        store<136>(native + row * native_stride + (int64_t)block * 136, native_stride, own, rows - row, kPlace, warp, lane);
        __syncthreads();
    }
}
