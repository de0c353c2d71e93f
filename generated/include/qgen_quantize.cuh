// Quantising activations: portable helpers of the quantize_activation kernels.
#pragma once

#include "qgen_parts.cuh"

// ---- over the threads of a warp -----------------------------------------------------------------------------

__device__ __forceinline__ uint32_t qgen_warp_max(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, v);
#else
#pragma unroll
    for (int h = 16; h > 0; h /= 2) v = max(v, __shfl_xor_sync(0xffffffffu, v, h));
    return v;
#endif
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
        bits = qgen_warp_max(bits);
        const float largest = __uint_as_float(bits);
        float inverse = __fdiv_rn(127.0f, largest);
        if (!(inverse <= 3.402823466e+38f)) inverse = 0.0f;  // largest is 0, too small to divide by, or NaN
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
