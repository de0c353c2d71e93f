// Helpers of the kernels of a folded float contract, which multiply codes by integer scales before the instruction: plain
// C++ on top of qgen_float.cuh, the same text on the device and in the emulator.
#pragma once

#include "qgen_float.cuh"

// (magic + s, magic + s) for byte number `byte` of a scale word.
template <class F, int byte>
__device__ __forceinline__ uint32_t qgen_widen_both(uint32_t scales) {
    return __byte_perm(scales, F::magic, 0x4040u | byte << 8 | byte);
}

// Bytes 0, 1 of a scale word, or bytes 2, 3 where `second`, as a pair of bf16. They are at most 127.
__device__ __forceinline__ uint32_t qgen_scale_pair(uint32_t scales, bool second) {
    const uint32_t wide = __byte_perm(scales, qgen_bf16::magic, second ? 0x4342u : 0x4140u);
    return qgen_fma_bf16(wide, qgen_bf16::one, 0xc300c300u);
}

// Two sums of x as pairs of bf16: x is their high pieces, y their low pieces, what the high ones leave. The difference is
// exact.
__device__ __forceinline__ uint2 qgen_sum_pieces(float first, float second) {
    const uint16_t a = qgen_f32_to_bf16(first), b = qgen_f32_to_bf16(second);
    const uint16_t c = qgen_f32_to_bf16(__fsub_rn(first, qgen_bf16_to_f32(a)));
    const uint16_t d = qgen_f32_to_bf16(__fsub_rn(second, qgen_bf16_to_f32(b)));
    return make_uint2(a | (uint32_t)b << 16, c | (uint32_t)d << 16);
}
