// Tensor-core instructions of generated kernels. The emulator has a host version of this file.
#pragma once

#include "qgen_ptx.cuh"

// ---- int8 tensor cores ------------------------------------------------------------------------------------
// d += A * B for 16 rows and 8 columns. Thread 4g + t holds A of rows g and g + 8: four codes at k = 4t (a0, a1)
// and, in the k32 form, four at k = 16 + 4t (a2, a3); B of column g at the same k (b0, b1); d of row g, columns 2t
// and 2t + 1 (d[0], d[1]), and of row g + 8 (d[2], d[3]).

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void qgen_mma_k32(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void qgen_mma_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

// A of unsigned bytes, for scales above 127.
__device__ __forceinline__ void qgen_mma_k16_unsigned(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

#else  // Turing has the 8 x 8 x 16 form only

__device__ __forceinline__ void qgen_mma_rows8(int& d0, int& d1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(d0), "+r"(d1) : "r"(a), "r"(b));
}

__device__ __forceinline__ void qgen_mma_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    qgen_mma_rows8(d[0], d[1], a0, b0);
    qgen_mma_rows8(d[2], d[3], a1, b0);
}

__device__ __forceinline__ void qgen_mma_k32(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
    qgen_mma_k16(d, a0, a1, b0);
    qgen_mma_k16(d, a2, a3, b1);
}

__device__ __forceinline__ void qgen_mma_k16_unsigned(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1]) : "r"(a0), "r"(b0));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(d[2]), "+r"(d[3]) : "r"(a1), "r"(b0));
}

#endif
