// Words of shared memory, named by their bytes from its start as tiles are: the same loads and stores that qgen_ptx.cuh
// and qgen_stores.cuh have for pointers to global memory, so that one text reads and writes activation records of either.
#pragma once

#include "qgen_stores.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

__device__ __forceinline__ uint32_t qgen_load_u32(int at) { return *(const uint32_t*)(qgen_shared + at); }
__device__ __forceinline__ uint2 qgen_load_u32x2(int at) { return *(const uint2*)(qgen_shared + at); }
__device__ __forceinline__ uint4 qgen_load_u32x4(int at) { return *(const uint4*)(qgen_shared + at); }
__device__ __forceinline__ void qgen_store_u8(int at, uint8_t v) { qgen_shared[at] = v; }
__device__ __forceinline__ void qgen_store_u32(int at, uint32_t v) { *(uint32_t*)(qgen_shared + at) = v; }
