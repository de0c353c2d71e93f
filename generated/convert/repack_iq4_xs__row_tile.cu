// repack IQ4_XS to tiles and back, family convert.
// Generated from specs/formats/iq4_xs.toml and templates/repack.cu.j2;
// edit those, then run: qgen build
//
// native      rows of blocks of 136 bytes, row_stride bytes apart, at any address
// tiled       [row tile of 16 rows][block]: pieces of 64, 64, 8 bytes of a block one after the
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
{2048, 8}, {2049, 8}, {2050, 8}, {2051, 8}, {2052, 8}, {2053, 8}, {2054, 8}, {2055, 8},
{0, 64}, {1, 64}, {2, 64}, {3, 64}, {16, 64}, {17, 64}, {18, 64}, {19, 64},
{32, 64}, {33, 64}, {34, 64}, {35, 64}, {48, 64}, {49, 64}, {50, 64}, {51, 64},
{4, 64}, {5, 64}, {6, 64}, {7, 64}, {20, 64}, {21, 64}, {22, 64}, {23, 64},
{36, 64}, {37, 64}, {38, 64}, {39, 64}, {52, 64}, {53, 64}, {54, 64}, {55, 64},
{8, 64}, {9, 64}, {10, 64}, {11, 64}, {24, 64}, {25, 64}, {26, 64}, {27, 64},
{40, 64}, {41, 64}, {42, 64}, {43, 64}, {56, 64}, {57, 64}, {58, 64}, {59, 64},
{12, 64}, {13, 64}, {14, 64}, {15, 64}, {28, 64}, {29, 64}, {30, 64}, {31, 64},
{44, 64}, {45, 64}, {46, 64}, {47, 64}, {60, 64}, {61, 64}, {62, 64}, {63, 64},
{1024, 64}, {1025, 64}, {1026, 64}, {1027, 64}, {1040, 64}, {1041, 64}, {1042, 64}, {1043, 64},
{1056, 64}, {1057, 64}, {1058, 64}, {1059, 64}, {1072, 64}, {1073, 64}, {1074, 64}, {1075, 64},
{1028, 64}, {1029, 64}, {1030, 64}, {1031, 64}, {1044, 64}, {1045, 64}, {1046, 64}, {1047, 64},
{1060, 64}, {1061, 64}, {1062, 64}, {1063, 64}, {1076, 64}, {1077, 64}, {1078, 64}, {1079, 64},
{1032, 64}, {1033, 64}, {1034, 64}, {1035, 64}, {1048, 64}, {1049, 64}, {1050, 64}, {1051, 64},
{1064, 64}, {1065, 64}, {1066, 64}, {1067, 64}, {1080, 64}, {1081, 64}, {1082, 64}, {1083, 64},
{1036, 64}, {1037, 64}, {1038, 64}, {1039, 64}, {1052, 64}, {1053, 64}, {1054, 64}, {1055, 64},
{1068, 64}, {1069, 64}, {1070, 64}, {1071, 64}, {1084, 64}, {1085, 64}, {1086, 64}, {1087, 64},
};

// Bytes at .. at + n - 1 of a row (counted from the CTA's first block), the first lowest in v, to the tiles in shared
// memory.
template <int n>
__device__ __forceinline__ void scatter(int row, int at, uint32_t v) {
    int block = at / kBlockBytes, byte = at % kBlockBytes;
#pragma unroll
    for (int i = 0; i < n; ++i) {
        qgen_shared[block * kTileBytes + kPlace[byte].x + row * kPlace[byte].y] = (uint8_t)(v >> (8 * i));
        if (++byte == kBlockBytes) byte = 0, ++block;
    }
}

// The same bytes from there.
template <int n>
__device__ __forceinline__ uint32_t gather(int row, int at) {
    int block = at / kBlockBytes, byte = at % kBlockBytes;
    uint32_t v = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
        v |= (uint32_t)qgen_shared[block * kTileBytes + kPlace[byte].x + row * kPlace[byte].y] << (8 * i);
        if (++byte == kBlockBytes) byte = 0, ++block;
    }
    return v;
}

// Bytes of a row up to its first aligned word. Rows begin at any address: what lies before that word and behind the last
// one is moved byte by byte.
__device__ __forceinline__ int ragged(const uint8_t* row, int bytes) {
    return min((int)(-(uint64_t)row & 3u), bytes);
}

}  // namespace

// Row tiles first .. first + count - 1 of a weight of `rows` rows and `blocks` blocks. native: their rows, row_stride
// bytes apart, from row 16 * first on; tiled: all tiles of the weight, 16-byte aligned.
extern "C" __global__ void __launch_bounds__(256, 4)
repack_iq4_xs_to_tiled__row_tile(const uint8_t* __restrict__ native, int64_t row_stride, int rows, int blocks, int first, int count, uint8_t* __restrict__ tiled) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan;
    const int bytes = min(kSpan, blocks - block) * kBlockBytes;  // of a row
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        for (int row = warp; row < kRows; row += kWarps) {
            const uint8_t* from = native + ((int64_t)tile * kRows + row) * row_stride + (int64_t)block * kBlockBytes;
            const bool there = (first + tile) * kRows + row < rows;
            const int head = ragged(from, bytes), words = (bytes - head) / 4, tail = head + 4 * words;
            for (int word = lane; word < words; word += 32)
                scatter<4>(row, head + 4 * word, there ? qgen_load_u32(from + head + 4 * word) : 0u);
            if (lane < head) scatter<1>(row, lane, there ? qgen_load_u8(from + lane) : 0u);
            if (tail + lane < bytes) scatter<1>(row, tail + lane, there ? qgen_load_u8(from + tail + lane) : 0u);
        }
        __syncthreads();
        uint8_t* to = tiled + ((int64_t)(first + tile) * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < bytes; i += 32 * kWarps)
            qgen_store_u32x4(to + 16 * i, ((const uint4*)qgen_shared)[i]);
        __syncthreads();
    }
}

// The way back. tiled: row tiles first .. first + count - 1, 16-byte aligned; native: all rows of the weight, row_stride
// bytes apart; what lies between them is left alone.
extern "C" __global__ void __launch_bounds__(256, 4)
repack_iq4_xs_to_native__row_tile(const uint8_t* __restrict__ tiled, int rows, int blocks, int first, int count, uint8_t* __restrict__ native, int64_t row_stride) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x * kSpan;
    const int bytes = min(kSpan, blocks - block) * kBlockBytes;  // of a row
    for (int tile = blockIdx.y; tile < count; tile += gridDim.y) {
        const uint8_t* from = tiled + ((int64_t)tile * blocks + block) * kTileBytes;
        for (int i = threadIdx.x; i < bytes; i += 32 * kWarps)
            ((uint4*)qgen_shared)[i] = qgen_load_u32x4(from + 16 * i);
        __syncthreads();
        for (int row = warp; row < kRows; row += kWarps) {
            const int64_t weight_row = (int64_t)(first + tile) * kRows + row;
            if (weight_row >= rows) break;
            uint8_t* to = native + weight_row * row_stride + (int64_t)block * kBlockBytes;
            const int head = ragged(to, bytes), words = (bytes - head) / 4, tail = head + 4 * words;
            for (int word = lane; word < words; word += 32)
                qgen_store_u32(to + head + 4 * word, gather<4>(row, head + 4 * word));
            if (lane < head) qgen_store_u8(to + lane, (uint8_t)gather<1>(row, lane));
            if (tail + lane < bytes) qgen_store_u8(to + tail + lane, (uint8_t)gather<1>(row, tail + lane));
        }
        __syncthreads();
    }
}
