// Rows summed through a ring of asynchronous copies. BROKEN leaves one thing out, to show that it is noticed:
// 1 the wait, 2 the barrier after the wait, 3 the barrier before a stage is filled again, 4 one group too few.
#include "qgen_ptx.cuh"

#ifndef BROKEN
#define BROKEN 0
#endif

constexpr int stages = 3, piece_words = 4;

struct __align__(16) Piece { uint32_t word[piece_words]; };
__constant__ const uint32_t weight_of_word[piece_words] = {1, 3, 5, 7};

template <int threads>
__device__ __forceinline__ void fill(Piece* ring, const uint8_t* row, int bytes, int step) {
    const int at = (step * threads + (int)threadIdx.x) * 16;
    Piece* piece = &ring[step % stages * threads + threadIdx.x];
    if (at < bytes) qgen_copy16(piece, row + at);
    else *piece = Piece{};
    qgen_copy_commit();
}

// y[row] = sum over 16-byte pieces of the row of weight_of_word . piece; each thread adds up its right neighbour's.
extern "C" __global__ void __launch_bounds__(64) sum_rows(const uint8_t* __restrict__ x, int64_t stride, int bytes,
                                                          float* __restrict__ y) {
    extern __shared__ __align__(16) uint8_t qgen_shared[];
    Piece* ring = (Piece*)qgen_shared;
    const uint8_t* row = x + blockIdx.x * stride;
    const int steps = (bytes + 64 * 16 - 1) / (64 * 16);
    uint32_t sum = 0;
    fill<64>(ring, row, bytes, 0);
    fill<64>(ring, row, bytes, 1);
    for (int step = 0; step < steps; ++step) {
#if BROKEN != 1
        qgen_copy_wait<BROKEN == 4 ? 2 : 1>();
#endif
#if BROKEN != 2
        __syncthreads();
#endif
        const Piece piece = ring[step % stages * 64 + (threadIdx.x + 1) % 64];
#pragma unroll
        for (int i = 0; i < piece_words; ++i) sum += piece.word[i] * weight_of_word[i];
#if BROKEN == 3
        fill<64>(ring, row, bytes, step + stages);
#else
        fill<64>(ring, row, bytes, step + 2);
#endif
    }
    sum = __reduce_add_sync(0xffffffffu, sum);
    qgen_copy_wait<0>();
    __syncthreads();
    if (threadIdx.x % 32 == 0) *(uint32_t*)(qgen_shared + threadIdx.x / 32 * 4) = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint2 both = *(const uint2*)qgen_shared;
        qgen_store_f32(y + blockIdx.x, (float)(both.x + both.y));
    }
}

extern "C" __global__ void copy4(const uint8_t* x, uint32_t* y) {
    extern __shared__ __align__(16) uint8_t qgen_shared[];
    qgen_copy4(qgen_shared + threadIdx.x * 4, x + threadIdx.x * 4);
    qgen_store_u32(y + threadIdx.x, *(uint32_t*)(qgen_shared + threadIdx.x * 4));
    qgen_copy_wait<0>();  // nothing is committed yet
    qgen_store_u32(y + 32 + threadIdx.x, *(uint32_t*)(qgen_shared + threadIdx.x * 4));
    qgen_copy_commit();
    qgen_copy_wait<0>();
    qgen_store_u32(y + 64 + threadIdx.x, *(uint32_t*)(qgen_shared + threadIdx.x * 4));
}
