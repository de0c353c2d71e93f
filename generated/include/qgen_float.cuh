// Helpers of the kernels with f16 or bf16 activations: plain C++ on top of qgen_parts.cuh, the same text on the device
// and in the emulator.
#pragma once

#include "qgen_mma_float.cuh"
#include "qgen_parts.cuh"

// ---- codes as numbers -----------------------------------------------------------------------------------------
// Four codes, one a byte, become two registers of two numbers. A byte under the high byte of `magic` is the number
// magic + code: 1024 + code in f16, 128 + code in bf16. What is then added is an integer that the class holds exactly,
// and so is the sum: nothing is rounded.

// An activation class: its arithmetic, and the high byte that makes a number of a code.
struct qgen_f16 {
    static constexpr bool bf16 = false;
    static constexpr uint32_t magic = 0x64646464u, one = 0x3c003c00u;
    static __device__ __forceinline__ uint32_t fma(uint32_t a, uint32_t b, uint32_t c) { return qgen_fma_f16(a, b, c); }
    static __device__ __forceinline__ uint16_t rounded(float v) { return qgen_f32_to_f16(v); }
    static __device__ __forceinline__ float wide(uint16_t v) { return qgen_f16_to_f32(v); }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        qgen_mma_f16(d, a, b0, b1);
    }
};

struct qgen_bf16 {
    static constexpr bool bf16 = true;
    static constexpr uint32_t magic = 0x43434343u, one = 0x3f803f80u;
    static __device__ __forceinline__ uint32_t fma(uint32_t a, uint32_t b, uint32_t c) { return qgen_fma_bf16(a, b, c); }
    static __device__ __forceinline__ uint16_t rounded(float v) { return qgen_f32_to_bf16(v); }
    static __device__ __forceinline__ float wide(uint16_t v) { return qgen_bf16_to_f32(v); }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        qgen_mma_bf16(d, a, b0, b1);
    }
};

// (magic + code 0, magic + code 1) and (magic + code 2, magic + code 3).
template <class F>
__device__ __forceinline__ uint2 qgen_widen(uint32_t codes) {
    return make_uint2(__byte_perm(codes, F::magic, 0x4140u), __byte_perm(codes, F::magic, 0x4342u));
}

// bf16 has no room for 128 + code beyond 127. Of int8 codes in two's complement the low seven bits make 128 + low, the
// sign bit makes 128 or 256, and their difference is the code.
__device__ __forceinline__ uint32_t qgen_signed_bf16(uint32_t widened) {
    return qgen_fma_bf16(widened & 0xff80ff80u, 0xbf80bf80u, widened & 0xff7fff7fu);
}

// ---- the K-split ----------------------------------------------------------------------------------------------

// The warps of a CTA copy `bytes` bytes of each of `tile_rows` rows from row `first` on to slots of slot_bytes, rows dealt
// to the warps; rows from `rows` on are left out. `whole`: every row's bytes are whole aligned pieces of 16. One row after
// the other: unrolled, this would be most of a kernel's text.
template <int warps, int tile_rows, int pieces, int slot_bytes, bool whole>
__device__ __forceinline__ void qgen_stage_plane(uint8_t* slots, const uint8_t* start, int64_t row_stride, int first, int rows,
                                                 int bytes, int warp, int lane) {
#pragma unroll 1
    for (int slot = warp; slot < tile_rows && first + slot < rows; slot += warps) {
        const uint8_t* begin = start + (first + slot) * row_stride;
        if constexpr (whole) {
#pragma unroll
            for (int piece = 0; piece < pieces; piece += 32)
                if (16 * (piece + lane) < bytes)
                    qgen_copy16(slots + slot * slot_bytes + 16 * (piece + lane), begin + 16 * (piece + lane));
        } else {
            qgen_stage_bytes<pieces>(slots + slot * slot_bytes, begin, bytes, lane);
        }
    }
}

// Adds the slices, of which each warp has one, and writes y. Value 4 * (column_tiles * r + n) + i of a thread belongs to
// row 16 r + g + 8 (i / 2) and token 8 n + 2t + i % 2 of the CTA's tile. `partial` has room for warps * 8 * column_tiles
// columns of 16 * row_tiles + 4 floats, a stride that keeps threads out of each other's banks.
template <int warps, int row_tiles, int column_tiles>
__device__ __forceinline__ void qgen_store_tile(const float (&sum)[4 * row_tiles * column_tiles], float* partial,
                                                float* y, int64_t y_stride, int rows_left, int tokens_left) {
    constexpr int rows = 16 * row_tiles, columns = 8 * column_tiles, stride = rows + 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4 * row_tiles * column_tiles; ++i) {
        const int row = i / (4 * column_tiles) * 16 + g + i % 4 / 2 * 8, column = i / 4 % column_tiles * 8 + 2 * t + i % 2;
        partial[(warp * columns + column) * stride + row] = sum[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * columns; i += 32 * warps) {
        const int row = i % rows, column = i / rows;
        float v[warps];
#pragma unroll
        for (int w = 0; w < warps; ++w) v[w] = partial[(w * columns + column) * stride + row];
        const float total = qgen_halving_sum<warps>(v);
        if (row < rows_left && column < tokens_left) qgen_store_f32(y + column * y_stride + row, total);
    }
}
