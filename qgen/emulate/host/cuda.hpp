// CUDA C++'s keywords and arithmetic built-ins on the host, exact in every bit.
#pragma once

#include "machine.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// Declared, not included: <math.h> would bring names (y0, j1, gamma) that a kernel is free to use.
extern "C" {
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float fabsf(float) noexcept;
float rintf(float) noexcept;
float fmaf(float, float, float) noexcept;
}

// ---- integers ---------------------------------------------------------------------------------------------

#define QGEN_MIN_MAX(type)                                          \
    inline type min(type a, type b) { return b < a ? b : a; }       \
    inline type max(type a, type b) { return a < b ? b : a; }
QGEN_MIN_MAX(int)
QGEN_MIN_MAX(unsigned)
QGEN_MIN_MAX(long)
QGEN_MIN_MAX(unsigned long)
QGEN_MIN_MAX(long long)
QGEN_MIN_MAX(unsigned long long)
#undef QGEN_MIN_MAX
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}

inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; ++i) sum += (unsigned)((int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i));
    return (int)sum;
}

inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}

namespace qgen_host {

// PTX prmt: bits 0-2 of a selector nibble choose one of the eight bytes {y, x}; bit 3 spreads that byte's sign.
inline unsigned permute_bytes(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> 4 * i & 0xf;
        unsigned byte = (unsigned)(bytes >> 8 * (nibble & 7)) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

}  // namespace qgen_host

// The built-in does not look at bit 3.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    return qgen_host::permute_bytes(x, y, selector & 0x7777u);
}

// Funnel shifts of the 64-bit value {high, low}; the plain forms take the amount modulo 32, the c forms stop at 32.
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

// ---- floating point ---------------------------------------------------------------------------------------

inline int __float_as_int(float x) { int v; __builtin_memcpy(&v, &x, 4); return v; }
inline unsigned __float_as_uint(float x) { unsigned v; __builtin_memcpy(&v, &x, 4); return v; }
inline float __int_as_float(int x) { float v; __builtin_memcpy(&v, &x, 4); return v; }
inline float __uint_as_float(unsigned x) { float v; __builtin_memcpy(&v, &x, 4); return v; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }

// Saturates like cvt.rni.s32.f32, and a NaN becomes 0.
inline int __float2int_rn(float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 0x7fffffff;
    if (x <= -2147483648.0f) return -0x7fffffff - 1;
    return (int)rintf(x);
}
