// Tensor-core instructions of a warpgroup on f16 and bf16, summed in float32: what qgen_wgmma.cuh has for integers. The
// emulator has a host version of this file.
#pragma once

#include "qgen_float.cuh"
#include "qgen_wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// No use of d moves to the other side of this.
template <int size>
__device__ __forceinline__ void qgen_wgmma_keep(float (&d)[size]) {
#pragma unroll
    for (int i = 0; i < size; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define QGEN_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define QGEN_N16 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n\t}"
#define QGEN_P16 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %13, 0;\n\t"
#define QGEN_D16 QGEN_D8(0)
#define QGEN_N32 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n\t}"
#define QGEN_P32 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
#define QGEN_D32 QGEN_D8(0), QGEN_D8(8)
#define QGEN_N48                                                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%24, " \
    "%25, %26, %27}, %28, p, 1, 1, 0;\n\t}"
#define QGEN_P48 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %29, 0;\n\t"
#define QGEN_D48 QGEN_D8(0), QGEN_D8(8), QGEN_D8(16)
#define QGEN_N64                                                                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
    "%26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"
#define QGEN_P64 "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
#define QGEN_D64 QGEN_D8(0), QGEN_D8(8), QGEN_D8(16), QGEN_D8(24)
#define QGEN_WGMMA(n, kind)                                                                                           \
    asm volatile(QGEN_P##n "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kind "." kind " " QGEN_N##n              \
                 : QGEN_D##n                                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(fresh ? 0 : 1))

// d += A * B, or d = A * B where it is `fresh`, for the 16 rows of this warp and 8 * tiles columns, in class F. A and d are
// as in qgen_mma_f16, d of tile n from d[4 n] on. B lies `offset` bytes behind the place of `matrices`: of a column
// 16 values, in the order of k.
template <class F, int tiles, bool fresh, int apart>
__device__ __forceinline__ void qgen_wgmma_k16(float (&d)[4 * tiles], const uint32_t (&a)[4], qgen_matrices<apart> matrices, int offset) {
    static_assert(tiles == 2 || tiles == 4 || tiles == 6 || tiles == 8, "16, 32, 48 or 64 columns");
    const uint64_t b = matrices.descriptor(offset);
    if constexpr (F::bf16) {
        if constexpr (tiles == 2) QGEN_WGMMA(16, "bf16");
        else if constexpr (tiles == 4) QGEN_WGMMA(32, "bf16");
        else if constexpr (tiles == 6) QGEN_WGMMA(48, "bf16");
        else QGEN_WGMMA(64, "bf16");
    } else {
        if constexpr (tiles == 2) QGEN_WGMMA(16, "f16");
        else if constexpr (tiles == 4) QGEN_WGMMA(32, "f16");
        else if constexpr (tiles == 6) QGEN_WGMMA(48, "f16");
        else QGEN_WGMMA(64, "f16");
    }
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

#else

template <int size>
__device__ __forceinline__ void qgen_wgmma_keep(float (&)[size]) {}
template <class F, int tiles, bool fresh, int apart>
__device__ __forceinline__ void qgen_wgmma_k16(float (&)[4 * tiles], const uint32_t (&)[4], qgen_matrices<apart>, int) {}

#endif
