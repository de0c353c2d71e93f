// Stores to global memory of other widths than qgen_ptx.cuh has. The emulator swaps this file, too, for a host version.
#pragma once

#include "qgen_ptx.cuh"

__device__ __forceinline__ void qgen_store_u8(uint8_t* p, uint8_t v) {
    asm volatile("st.global.u8 [%0], %1;" :: "l"(p), "r"((uint32_t)v) : "memory");
}

__device__ __forceinline__ void qgen_store_u32x4(void* p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
