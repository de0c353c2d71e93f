// Quantising activations: portable helpers of the quantize_activation kernels.
#pragma once

#include "qgen_parts.cuh"

// ---- over the threads of a warp -----------------------------------------------------------------------------

// The largest over `lanes` neighbouring threads, in each of them.
template <int lanes>
__device__ __forceinline__ uint32_t qgen_max_lanes(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    if constexpr (lanes == 32) {
        return __reduce_max_sync(0xffffffffu, v);
    } else
#endif
    {
#pragma unroll
        for (int h = lanes / 2; h > 0; h /= 2) v = max(v, __shfl_xor_sync(0xffffffffu, v, h));
        return v;
    }
}

// The sum over `lanes` neighbouring threads, in each of them.
template <int lanes>
__device__ __forceinline__ int qgen_add_lanes(int v) {
#if __CUDA_ARCH__ >= 800
    if constexpr (lanes == 32) {
        return __reduce_add_sync(0xffffffffu, v);
    } else
#endif
    {
#pragma unroll
        for (int h = lanes / 2; h > 0; h /= 2) v += __shfl_xor_sync(0xffffffffu, v, h);
        return v;
    }
}

// ---- quantising ---------------------------------------------------------------------------------------------

// What x is multiplied by, where `largest` is the largest |x| of its group: 127 / largest, or 0 where that is not finite.
__device__ __forceinline__ float qgen_inverse_scale(float largest) {
    const float inverse = __fdiv_rn(127.0f, largest);
    return inverse <= 3.402823466e+38f ? inverse : 0.0f;  // largest is 0, too small to divide by, or NaN
}

// A warp quantises 32 * values columns, of which a thread holds columns 32 i + lane in v[i]; every group_values of them
// share a scale with the same ones of the other threads. Codes go to `codes` in column order, scales to scale[..]:
// scale = largest |x| / 127, code = round-to-nearest-even(x * (127 / largest |x|)), all codes 0 where that is not
// finite. An Inf or NaN in x makes the scale Inf or NaN.
template <int values, int group_values>
__device__ __forceinline__ void qgen_quantize(const float (&v)[values], uint8_t* codes,
                                              float (&scale)[values / group_values], int lane) {
#pragma unroll
    for (int s = 0; s < values / group_values; ++s) {
        // The bits of |x| order like the values, and a NaN is the largest of all, so that it is never lost.
        uint32_t bits = 0;
#pragma unroll
        for (int i = s * group_values; i < (s + 1) * group_values; ++i)
            bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
        const float largest = __uint_as_float(qgen_max_lanes<32>(bits)), inverse = qgen_inverse_scale(largest);
#pragma unroll
        for (int i = s * group_values; i < (s + 1) * group_values; ++i)
            codes[32 * i + lane] = (uint8_t)__float2int_rn(__fmul_rn(v[i], inverse));
        scale[s] = __fdiv_rn(largest, 127.0f);
    }
}

// The four codes at the packed 16-bit places e.x and e.y.
__device__ __forceinline__ uint32_t qgen_gather4(const uint8_t* codes, uint2 e) {
    return codes[e.x & 0xffffu] | (uint32_t)codes[e.x >> 16] << 8 | (uint32_t)codes[e.y & 0xffffu] << 16 |
           (uint32_t)codes[e.y >> 16] << 24;
}

// ---- words: a warp's slot 32 * i + lane is number i of thread `lane`; groups are neighbouring slots -----------------

// The words of four codes each of v, and each word's scale, which `slots` slots share (a power of two): as qgen_quantize.
template <int own, int slots>
__device__ __forceinline__ void qgen_quantize_words(const float (&v)[own][4], uint32_t (&words)[own], float (&scale)[own]) {
    constexpr int rounds = slots > 32 ? slots / 32 : 1;  // slots of a thread in one group
#pragma unroll
    for (int first = 0; first < own; first += rounds) {
        uint32_t bits = 0;
#pragma unroll
        for (int i = first; i < first + rounds && i < own; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) bits = max(bits, __float_as_uint(v[i][e]) & 0x7fffffffu);
        const float largest = __uint_as_float(qgen_max_lanes<slots < 32 ? slots : 32>(bits)), inverse = qgen_inverse_scale(largest);
#pragma unroll
        for (int i = first; i < first + rounds && i < own; ++i) {
            uint32_t code[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) code[e] = (uint32_t)__float2int_rn(__fmul_rn(v[i][e], inverse));
            words[i] = __byte_perm(__byte_perm(code[0], code[1], 0x0040u), __byte_perm(code[2], code[3], 0x0040u), 0x5410u);
            scale[i] = __fdiv_rn(largest, 127.0f);
        }
    }
}

// The sum of the codes of every word's group of `slots` slots (a power of two), at the words of its first 32.
template <int own, int slots>
__device__ __forceinline__ void qgen_sum_words(const uint32_t (&words)[own], int (&sum)[own]) {
    constexpr int rounds = slots > 32 ? slots / 32 : 1;
#pragma unroll
    for (int first = 0; first < own; first += rounds) {
        int total = 0;
#pragma unroll
        for (int i = first; i < first + rounds && i < own; ++i) total = __dp4a((int)words[i], 0x01010101, total);
        sum[first] = qgen_add_lanes<slots < 32 ? slots : 32>(total);
    }
}
