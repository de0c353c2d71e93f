// Integer tensor-core instructions of a warpgroup: four neighbouring warps, 64 rows, the columns' side in shared memory.
// They run by themselves until waited for. The emulator has a host version of this file. Only the architecture-specific
// target sm_90a has them; compiled for others nothing here may be reached.
#pragma once

#include "qgen_tiles.cuh"

// Matrices of the columns' side, one for each tile of eight columns: bytes 0 to 15 of column g lie at 16 g, bytes 16 to 31
// 128 bytes later; the next tile's matrix lies `apart` bytes later. Their descriptor is made once and held in 64 bits: that
// of matrices further on is then one uniform addition away, and no word of it is made anew.
template <int apart>
struct qgen_matrices {
    static_assert(apart > 0 && apart % 16 == 0 && apart / 16 < 0x4000, "a descriptor has 14 bits for units of 16 bytes");
    uint64_t first;

    // place: of the first tile's in shared memory, a multiple of 16
    __device__ __forceinline__ explicit qgen_matrices(int place)
        : first((uint64_t)(apart / 16) << 32 | (uint64_t)(128 / 16) << 16 |
                (((uint32_t)__cvta_generic_to_shared(qgen_shared) + (uint32_t)place) & 0x3ffffu) >> 4) {}

    // Of those `offset` bytes further on, a multiple of 16. Shared memory ends within the place's 14 bits: nothing carries.
    __device__ __forceinline__ uint64_t descriptor(int offset) const { return first + (uint64_t)(offset / 16); }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Registers of instructions to come have been written; and those asked for since the last commit are a group.
__device__ __forceinline__ void qgen_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void qgen_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// All groups but the youngest n are done; their sums may be read once qgen_wgmma_keep has been told of them.
template <int n>
__device__ __forceinline__ void qgen_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

// No use of d moves to the other side of this.
template <int size>
__device__ __forceinline__ void qgen_wgmma_keep(int (&d)[size]) {
#pragma unroll
    for (int i = 0; i < size; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Registers of a thread from here on, in all four warps of a warpgroup; those that some give back, others may take.
template <int n>
__device__ __forceinline__ void qgen_more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void qgen_fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

#define QGEN_D8(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define QGEN_N16 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p;\n\t}"
#define QGEN_P16 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %13, 0;\n\t"
#define QGEN_D16 QGEN_D8(0)
#define QGEN_N32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p;\n\t}"
#define QGEN_P32 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
#define QGEN_D32 QGEN_D8(0), QGEN_D8(8)
#define QGEN_N48                                                                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%24, "    \
    "%25, %26, %27}, %28, p;\n\t}"
#define QGEN_P48 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %29, 0;\n\t"
#define QGEN_D48 QGEN_D8(0), QGEN_D8(8), QGEN_D8(16)
#define QGEN_N64                                                                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
    "%26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p;\n\t}"
#define QGEN_P64 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
#define QGEN_D64 QGEN_D8(0), QGEN_D8(8), QGEN_D8(16), QGEN_D8(24)
#define QGEN_WGMMA(n, kind)                                                                                         \
    asm volatile(QGEN_P##n "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." kind ".s8 " QGEN_N##n                  \
                 : QGEN_D##n                                                                                        \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(fresh ? 0 : 1))

// d += A * B, or d = A * B where it is `fresh`, for the 16 rows of this warp and 8 * tiles columns. A and d are as in
// qgen_mma_k32, d of tile n from d[4 n] on. B lies
// `offset` bytes behind the place of `matrices`: of a column 32 bytes, in the order of k.
template <int tiles, bool fresh, bool unsigned_a = false, int apart>
__device__ __forceinline__ void qgen_wgmma_k32(int (&d)[4 * tiles], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               qgen_matrices<apart> matrices, int offset) {
    static_assert(tiles == 2 || tiles == 4 || tiles == 6 || tiles == 8, "16, 32, 48 or 64 columns");
    const uint64_t b = matrices.descriptor(offset);
    if constexpr (tiles == 2 && unsigned_a) QGEN_WGMMA(16, "u8");
    else if constexpr (tiles == 2) QGEN_WGMMA(16, "s8");
    else if constexpr (tiles == 4 && unsigned_a) QGEN_WGMMA(32, "u8");
    else if constexpr (tiles == 4) QGEN_WGMMA(32, "s8");
    else if constexpr (tiles == 6 && unsigned_a) QGEN_WGMMA(48, "u8");
    else if constexpr (tiles == 6) QGEN_WGMMA(48, "s8");
    else if constexpr (tiles == 8 && unsigned_a) QGEN_WGMMA(64, "u8");
    else QGEN_WGMMA(64, "s8");
}

#undef QGEN_WGMMA
#undef QGEN_D8
#undef QGEN_D16
#undef QGEN_D32
#undef QGEN_D48
#undef QGEN_D64
#undef QGEN_N16
#undef QGEN_N32
#undef QGEN_N48
#undef QGEN_N64
#undef QGEN_P16
#undef QGEN_P32
#undef QGEN_P48
#undef QGEN_P64

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "instructions of warpgroups need the target sm_90a: sm_90 has none of them"
#else

__device__ __forceinline__ void qgen_wgmma_begin() {}
__device__ __forceinline__ void qgen_wgmma_commit() {}
template <int n>
__device__ __forceinline__ void qgen_wgmma_wait() {}
template <int size>
__device__ __forceinline__ void qgen_wgmma_keep(int (&)[size]) {}
template <int n>
__device__ __forceinline__ void qgen_more_registers() {}
template <int n>
__device__ __forceinline__ void qgen_fewer_registers() {}
template <int tiles, bool fresh, bool unsigned_a = false, int apart>
__device__ __forceinline__ void qgen_wgmma_k32(int (&)[4 * tiles], uint32_t, uint32_t, uint32_t, uint32_t, qgen_matrices<apart>,
                                               int) {}

#endif
