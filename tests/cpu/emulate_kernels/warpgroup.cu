// What warps of a warpgroup may and may not do. Every thread hands its own words in and its own sums out; B lies in shared
// memory as bytes of `b`.
#include "qgen_wgmma.cuh"

constexpr int kTileBytes = 384;  // from a tile to the next one; an instruction takes 256 bytes of each

template <int tiles>
__device__ __forceinline__ void take_b(const uint32_t* b) {
    for (int i = threadIdx.x; i < tiles * kTileBytes / 4; i += blockDim.x) ((uint32_t*)qgen_shared)[i] = qgen_load_u32(b + i);
    __syncthreads();
}

template <int tiles, bool fresh, bool unsigned_a>
__device__ __forceinline__ void product(const uint32_t* a, const uint32_t* b, uint32_t* d) {
    take_b<tiles>(b);
    uint32_t A[4];
    int sum[4 * tiles];
    for (int i = 0; i < 4; ++i) A[i] = qgen_load_u32(a + 4 * threadIdx.x + i);
    for (int i = 0; i < 4 * tiles; ++i) sum[i] = 1000 * threadIdx.x + i;
    qgen_wgmma_begin();
    qgen_wgmma_k32<tiles, fresh, unsigned_a>(sum, A[0], A[1], A[2], A[3], qgen_matrices<kTileBytes>(0), 0);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(sum);
    for (int i = 0; i < 4 * tiles; ++i) qgen_store_u32(d + 4 * tiles * threadIdx.x + i, (uint32_t)sum[i]);
}

extern "C" __global__ void n16(const uint32_t* a, const uint32_t* b, uint32_t* d) { product<2, false, false>(a, b, d); }
extern "C" __global__ void n32(const uint32_t* a, const uint32_t* b, uint32_t* d) { product<4, true, false>(a, b, d); }
extern "C" __global__ void n48(const uint32_t* a, const uint32_t* b, uint32_t* d) { product<6, false, true>(a, b, d); }
extern "C" __global__ void n64(const uint32_t* a, const uint32_t* b, uint32_t* d) { product<8, true, true>(a, b, d); }

// Sums of 32 ones times B's bytes, all the same, in the ways below; y has what a thread reads of its first sum.
constexpr uint32_t kOnes = 0x01010101;

__device__ __forceinline__ void fill_b(int byte) {
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * kTileBytes; i += blockDim.x) qgen_shared[i] = (uint8_t)byte;
    __syncthreads();
}

template <bool fresh>
__device__ __forceinline__ void ask(int (&d)[8], int place = 0, int offset = 0) {
    qgen_wgmma_k32<2, fresh>(d, kOnes, kOnes, kOnes, kOnes, qgen_matrices<kTileBytes>(place), offset);
}

// y: before the wait, after it.
extern "C" __global__ void reads_early(uint32_t* y) {
    int d[8] = {};
    fill_b(1);
    qgen_wgmma_begin();
    ask<true>(d);
    qgen_wgmma_commit();
    qgen_store_u32(y + 2 * threadIdx.x, (uint32_t)d[0]);
    qgen_wgmma_wait<0>();
    qgen_store_u32(y + 2 * threadIdx.x + 1, (uint32_t)d[0]);
}

// y: of an instruction whose B changed before the wait, of one whose B changed behind it.
extern "C" __global__ void overwrites(uint32_t* y) {
    int d[8], e[8];
    fill_b(1);
    ask<true>(d);
    qgen_wgmma_commit();
    fill_b(2);
    qgen_wgmma_wait<0>();
    ask<true>(e);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
    fill_b(3);
    qgen_store_u32(y + 2 * threadIdx.x, (uint32_t)d[0]);
    qgen_store_u32(y + 2 * threadIdx.x + 1, (uint32_t)e[0]);
}

// y: the older and the younger of two groups when one may be on its way; then the younger one.
extern "C" __global__ void groups(uint32_t* y) {
    int d[8], e[8];
    fill_b(1);
    ask<true>(d);
    ask<false>(d);
    qgen_wgmma_commit();
    ask<true>(e);
    qgen_wgmma_commit();
    qgen_wgmma_wait<1>();
    qgen_store_u32(y + 3 * threadIdx.x, (uint32_t)d[0]);
    qgen_store_u32(y + 3 * threadIdx.x + 1, (uint32_t)e[0]);
    qgen_wgmma_wait<0>();
    qgen_store_u32(y + 3 * threadIdx.x + 2, (uint32_t)e[0]);
}

// y: of an instruction that is in no group when all groups are waited for.
extern "C" __global__ void commits_late(uint32_t* y) {
    int d[8];
    fill_b(1);
    ask<true>(d);
    qgen_wgmma_wait<0>();
    qgen_store_u32(y + threadIdx.x, (uint32_t)d[0]);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
}

extern "C" __global__ void at(int place, int offset) {
    int d[8];
    ask<true>(d, place, offset);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
}

// So many instructions, and whether they are waited for.
extern "C" __global__ void asks(int count, int wait) {
    int d[8] = {};
    for (int i = 0; i < count; ++i) ask<false>(d);
    qgen_wgmma_commit();
    if (wait) qgen_wgmma_wait<0>();
}

extern "C" __global__ void one_thread_short() {
    int d[8];
    if (threadIdx.x != 5) ask<true>(d);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
}

// All but the last thread wait for what never comes, or nobody does.
extern "C" __global__ void stuck(int waits, uint32_t* y) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    if (threadIdx.x == 0) qgen_barrier_init(barrier, 64);
    __syncthreads();
    if (waits && threadIdx.x < 31) qgen_barrier_wait(barrier, 0);
    qgen_store_u32(y + threadIdx.x, threadIdx.x);
}
