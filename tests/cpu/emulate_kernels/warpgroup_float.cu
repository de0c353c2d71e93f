// Instructions of a warpgroup on f16 and bf16. Every thread hands its own words in and its own sums out; B lies in shared
// memory as bytes of `b`, the two matrices of an instruction 256 bytes in all.
#include "qgen_wgmma_float.cuh"

constexpr int kApart = 768;  // from a tile to the next one: two instructions' matrices, and some more

__device__ __forceinline__ void take(const uint32_t* from, int tiles) {
    for (int i = threadIdx.x; i < tiles * kApart / 4; i += blockDim.x) ((uint32_t*)qgen_shared)[i] = qgen_load_u32(from + i);
    __syncthreads();
}

// d: sums of two instructions one upon the other, of one group or of two; fresh: the first begins anew.
template <class F, int tiles, bool fresh, bool apart>
__device__ __forceinline__ void chain(const uint32_t* a, const uint32_t* b, uint32_t* d) {
    take(b, tiles);
    uint32_t A[2][4];
    float sum[4 * tiles];
    for (int j = 0; j < 2; ++j)
        for (int i = 0; i < 4; ++i) A[j][i] = qgen_load_u32(a + 8 * threadIdx.x + 4 * j + i);
    for (int i = 0; i < 4 * tiles; ++i) sum[i] = 100.0f * threadIdx.x + i;
    const qgen_matrices<kApart> matrices(0);
    qgen_wgmma_begin();
    qgen_wgmma_k16<F, tiles, fresh>(sum, A[0], matrices, 0);
    if (apart) qgen_wgmma_commit();
    qgen_wgmma_k16<F, tiles, false>(sum, A[1], matrices, 256);
    qgen_wgmma_commit();
    if (apart) qgen_wgmma_wait<1>();
    for (int j = 0; j < 2; ++j)
        for (int i = 0; i < 4; ++i) A[j][i] = 0;
    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(sum);
    for (int i = 0; i < 4 * tiles; ++i) qgen_store_u32(d + 4 * tiles * threadIdx.x + i, __float_as_uint(sum[i]));
}

extern "C" __global__ void f16_2(const uint32_t* a, const uint32_t* b, uint32_t* d) { chain<qgen_f16, 2, false, true>(a, b, d); }
extern "C" __global__ void bf16_4(const uint32_t* a, const uint32_t* b, uint32_t* d) { chain<qgen_bf16, 4, true, true>(a, b, d); }
extern "C" __global__ void f16_6(const uint32_t* a, const uint32_t* b, uint32_t* d) { chain<qgen_f16, 6, true, false>(a, b, d); }
extern "C" __global__ void bf16_8(const uint32_t* a, const uint32_t* b, uint32_t* d) { chain<qgen_bf16, 8, false, false>(a, b, d); }

// y: of sixteen products 1 * 1, before the wait and after it; then of a chain of which the older one is waited for.
extern "C" __global__ void reads_early(uint32_t* y) {
    for (int i = threadIdx.x; i < 512; i += blockDim.x) ((uint32_t*)qgen_shared)[i] = 0x3c003c00u;
    __syncthreads();
    const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    const qgen_matrices<kApart> matrices(0);
    float d[8] = {}, e[8];
    qgen_wgmma_k16<qgen_f16, 2, true>(d, ones, matrices, 0);
    qgen_wgmma_commit();
    qgen_store_u32(y + 4 * threadIdx.x, __float_as_uint(d[0]));
    qgen_wgmma_k16<qgen_f16, 2, false>(d, ones, matrices, 16);
    qgen_wgmma_k16<qgen_f16, 2, true>(e, ones, matrices, 0);
    qgen_wgmma_commit();
    qgen_wgmma_wait<1>();
    qgen_store_u32(y + 4 * threadIdx.x + 1, __float_as_uint(d[0]));
    qgen_wgmma_wait<0>();
    qgen_store_u32(y + 4 * threadIdx.x + 2, __float_as_uint(d[0]));
    qgen_store_u32(y + 4 * threadIdx.x + 3, __float_as_uint(e[7]));
}

extern "C" __global__ void at(int place, int offset) {
    const uint32_t ones[4] = {};
    float d[8];
    qgen_wgmma_k16<qgen_f16, 2, true>(d, ones, qgen_matrices<kApart>(place), offset);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
}
