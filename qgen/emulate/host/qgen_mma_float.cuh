// The host's answer to templates/lib/qgen_mma_float.cuh: f16 and bf16 in pairs, and their tensor-core instruction.
#pragma once

#include "qgen_ptx.cuh"

// ---- one number ---------------------------------------------------------------------------------------------

namespace qgen_host {

inline float bf16_to_f32(uint16_t v) { return __uint_as_float((uint32_t)v << 16); }

// `v` rounded to nearest, ties to even, with `bits` bits of fraction and exponents from `least` (of the smallest normal
// number) to `most`: what is left of a double after that, as double.
inline double rounded(double v, int bits, int least, int most) {
    if (v == 0 || v != v || v - v != 0) return v;
    int exponent;
    __builtin_frexp(v, &exponent);  // |v| = f * 2^exponent, f in [1/2, 1)
    const int last = (exponent - 1 < least ? least : exponent - 1) - bits;  // weight of the last bit kept
    const double kept = __builtin_ldexp(__builtin_rint(__builtin_ldexp(v, -last)), last);
    return __builtin_fabs(kept) >= __builtin_ldexp(1.0, most + 1) ? __builtin_copysign(__builtin_inf(), v) : kept;
}

inline uint16_t double_to_f16(double v) {
    v = rounded(v, 10, -14, 15);
    const uint16_t sign = __builtin_signbit(v) ? 0x8000 : 0;
    const double size = __builtin_fabs(v);
    if (v != v) return 0x7fff;  // what the device gives for every NaN
    if (size - size != 0) return sign | 0x7c00;
    if (size < 0x1p-14) return sign | (uint16_t)(size * 0x1p24);
    int exponent;
    const double fraction = __builtin_frexp(size, &exponent);
    return sign | (uint16_t)((exponent + 14) << 10 | ((uint32_t)(fraction * 0x1p11) & 0x3ff));
}

inline uint16_t double_to_bf16(double v) {
    if (v != v) return 0x7fff;
    const float kept = (float)rounded(v, 7, -126, 127);  // exact
    return (uint16_t)(__float_as_uint(kept) >> 16);
}

}  // namespace qgen_host

inline uint16_t qgen_f32_to_f16(float v) { return qgen_host::double_to_f16(v); }
inline uint16_t qgen_f32_to_bf16(float v) { return qgen_host::double_to_bf16(v); }

// ---- two numbers a register -----------------------------------------------------------------------------------

namespace qgen_host {

// The product of two numbers of 11 bits is exact in double, and so is the sum for all that kernels make of it: integers
// of a few digits.
template <float (*wide)(uint16_t), uint16_t (*narrow)(double)>
uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (int half = 0; half < 32; half += 16) {
        const double product = (double)wide((uint16_t)(a >> half)) * wide((uint16_t)(b >> half));
        result |= (uint32_t)narrow(product + wide((uint16_t)(c >> half))) << half;
    }
    return result;
}

// d += A * B of 16 rows, 8 columns and 16 products. The device's order of additions is its own; here the 17 numbers
// are added in double, one after the other, and rounded once.
template <float (*wide)(uint16_t)>
void mma_floats(const char* name, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const int lane = lane_id();
    const float4 sum = qgen_warp_exchange(name, 0xffffffffu, words, site, [&d, lane](Lanes lanes) {
        float v[4];
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4, column = lane % 4 * 2 + i % 2;
            double total = d[i];
            for (int half = 0; half < 2; ++half)
                for (int quad = 0; quad < 4; ++quad) {
                    const uint32_t left = lanes.word(row * 4 + quad, 2 * half + i / 2);
                    const uint32_t right = lanes.word(column * 4 + quad, 4 + half);
                    for (int k = 0; k < 32; k += 16)
                        total += (double)wide((uint16_t)(left >> k)) * wide((uint16_t)(right >> k));
                }
            v[i] = (float)total;
        }
        return make_float4(v[0], v[1], v[2], v[3]);
    });
    d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
}

inline float f16_wide(uint16_t v) { return qgen_f16_to_f32(v); }

}  // namespace qgen_host

inline uint32_t qgen_fma_f16(uint32_t a, uint32_t b, uint32_t c) {
    return qgen_host::fma_pair<qgen_host::f16_wide, qgen_host::double_to_f16>(a, b, c);
}

inline uint32_t qgen_fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    return qgen_host::fma_pair<qgen_host::bf16_to_f32, qgen_host::double_to_bf16>(a, b, c);
}

inline void qgen_mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma_floats<qgen_host::f16_wide>("qgen_mma_f16", d, a, b0, b1, site);
}

inline void qgen_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                          qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma_floats<qgen_host::bf16_to_f32>("qgen_mma_bf16", d, a, b0, b1, site);
}
