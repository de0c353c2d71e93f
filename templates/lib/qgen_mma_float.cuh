// f16 and bf16 numbers in pairs, and their tensor-core instruction: from sm_80 on. The emulator has a host version.
#pragma once

#include "qgen_ptx.cuh"

// ---- f16 and bf16: two numbers a register, the first in its low half ------------------------------------------
// Rounded to nearest, ties to even. qgen_fma is one rounding a number. d += A * B for 16 rows and 8 columns, summed in
// float32 in the instruction's own order. Thread 4g + t holds A of rows g (a0, a2) and g + 8 (a1, a3): k = 2t, 2t + 1
// (a0, a1) and 2t + 8, 2t + 9 (a2, a3); B of column g at the same k (b0, b1); d as in the int8 forms.

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ uint16_t qgen_f32_to_f16(float v) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

__device__ __forceinline__ uint16_t qgen_f32_to_bf16(float v) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

__device__ __forceinline__ uint32_t qgen_fma_f16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t v;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
}

__device__ __forceinline__ uint32_t qgen_fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
}

__device__ __forceinline__ void qgen_mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void qgen_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
