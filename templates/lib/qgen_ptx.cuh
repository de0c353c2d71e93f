// The few instructions that generated kernels use beyond CUDA C++'s own built-ins.
// Every access to global memory goes through this file: the emulator swaps it for a host version that
// counts bytes and checks bounds, while the kernel text stays the same.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// Makes a pointer opaque, so that it stays in registers instead of being worked out again at every use.
template <class T>
__device__ __forceinline__ T* qgen_keep(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}

// ---- global loads (read-only data, through L1) and stores ------------------------------------------------

__device__ __forceinline__ uint8_t qgen_load_u8(const uint8_t* p) {
    uint32_t v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (uint8_t)v;
}

__device__ __forceinline__ uint16_t qgen_load_u16(const uint16_t* p) {
    uint16_t v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ uint32_t qgen_load_u32(const void* p) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ float qgen_load_f32(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ uint2 qgen_load_u32x2(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

__device__ __forceinline__ uint4 qgen_load_u32x4(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ void qgen_store_u32(void* p, uint32_t v) {
    asm volatile("st.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void qgen_store_f32(float* p, float v) {
    asm volatile("st.global.f32 [%0], %1;" :: "l"(p), "f"(v) : "memory");
}

// ---- asynchronous copies, global -> shared ---------------------------------------------------------------
// qgen_copy16 / qgen_copy4 move one aligned 16- or 4-byte piece. A copy is complete, for the thread that asked for it,
// after qgen_copy_wait<n>() with at most n younger groups outstanding. Before sm_80 there is no such instruction: the
// copy happens at once.

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void qgen_copy16(void* shared, const void* global) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(s), "l"(global) : "memory");
}

__device__ __forceinline__ void qgen_copy4(void* shared, const void* global) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(s), "l"(global) : "memory");
}

__device__ __forceinline__ void qgen_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n>
__device__ __forceinline__ void qgen_copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
}

#else

__device__ __forceinline__ void qgen_copy16(void* shared, const void* global) {
    *(uint4*)shared = qgen_load_u32x4(global);
}

__device__ __forceinline__ void qgen_copy4(void* shared, const void* global) {
    *(uint32_t*)shared = qgen_load_u32(global);
}

__device__ __forceinline__ void qgen_copy_commit() {}

template <int n>
__device__ __forceinline__ void qgen_copy_wait() {}

#endif

// ---- bytes ----------------------------------------------------------------------------------------------------

// PTX prmt: like __byte_perm, but bit 3 of a selector repeats the sign of the byte chosen, which __byte_perm ignores.
__device__ __forceinline__ uint32_t qgen_prmt(uint32_t a, uint32_t b, uint32_t selectors) {
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selectors));
    return v;
}

// ---- number formats ---------------------------------------------------------------------------------------

__device__ __forceinline__ float qgen_f16_to_f32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

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
