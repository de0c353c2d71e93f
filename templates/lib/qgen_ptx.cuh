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

// ---- global loads (read-only data, through L1) and stores ------------------------------------------------

__device__ __forceinline__ uint8_t qgen_load_u8(const uint8_t* p) {
    uint32_t v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (uint8_t)v;
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
// qgen_copy16 / qgen_copy4 move one aligned 16- or 4-byte piece of which only the first `valid` bytes are
// read from global memory; the rest of the piece in shared memory becomes zero. A copy is complete, for
// the thread that asked for it, after qgen_copy_wait<n>() with at most n younger groups outstanding.
// Before sm_80 there is no such instruction: the copy happens at once, byte by byte at the ragged end.

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void qgen_copy16(void* shared, const void* global, int valid) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(s), "l"(global), "r"(valid) : "memory");
}

__device__ __forceinline__ void qgen_copy4(void* shared, const void* global, int valid) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(s), "l"(global), "r"(valid) : "memory");
}

__device__ __forceinline__ void qgen_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n>
__device__ __forceinline__ void qgen_copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
}

#else

template <int size>
__device__ __forceinline__ void qgen_copy_ragged(void* shared, const void* global, int valid) {
#pragma unroll 1
    for (int i = 0; i < size; ++i)
        ((uint8_t*)shared)[i] = i < valid ? __ldg((const uint8_t*)global + i) : (uint8_t)0;
}

__device__ __forceinline__ void qgen_copy16(void* shared, const void* global, int valid) {
    if (valid == 16) *(uint4*)shared = qgen_load_u32x4(global);
    else qgen_copy_ragged<16>(shared, global, valid);
}

__device__ __forceinline__ void qgen_copy4(void* shared, const void* global, int valid) {
    if (valid == 4) *(uint32_t*)shared = qgen_load_u32(global);
    else qgen_copy_ragged<4>(shared, global, valid);
}

__device__ __forceinline__ void qgen_copy_commit() {}

template <int n>
__device__ __forceinline__ void qgen_copy_wait() {}

#endif

// ---- number formats ---------------------------------------------------------------------------------------

__device__ __forceinline__ float qgen_f16_to_f32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
