// Portable helpers of generated kernels: plain C++ on top of qgen_ptx.cuh, the same text on the device and in
// the emulator.
#pragma once

#include "qgen_ptx.cuh"

// ---- staging packed bytes -----------------------------------------------------------------------------------

// `threads` neighbouring threads (this one is number `lane`) copy bytes [begin, begin + bytes) to `slot`, so that a byte
// keeps its place in its aligned 16-byte piece. Not a byte outside is read: whole pieces go as such, and the ragged
// ends word by word, then byte by byte. `pieces` is the most pieces that so many bytes can touch.
template <int pieces, int threads = 32>
__device__ __forceinline__ void qgen_stage_bytes(uint8_t* slot, const uint8_t* begin, int bytes, int lane) {
    const int lead = (int)((uint64_t)begin & 15u), end = lead + bytes;
    const uint8_t* from = begin - lead + 16 * lane;
    uint8_t* to = slot + 16 * lane;
    const int left = end - 16 * lane;  // from this thread's first piece on
    if (left >= 16 && (lane > 0 || lead == 0)) qgen_copy16(to, from);
#pragma unroll
    for (int piece = threads; piece < pieces; piece += threads)
        if (left >= 16 * piece + 16) qgen_copy16(to + 16 * piece, from + 16 * piece);
    if (((lead | end) & 15) != 0 && lane < 2) {
        // Thread 0 takes the first piece if it starts late, thread 1 the last if it ends early and is another.
        const int last = end & ~15;
        const int start = lane == 0 ? lead : last, stop = lane == 0 ? min(16, end) : end;
        const bool mine = lane == 0 ? lead != 0 : last != end && (last != 0 || lead == 0);
        const uint8_t* base = begin - lead;
#pragma unroll 1
        for (int i = mine ? start : stop; i < stop;) {
            if (i % 4 == 0 && i + 4 <= stop) {
                qgen_copy4(slot + i, base + i);
                i += 4;
            } else {
                slot[i] = qgen_load_u8(base + i);
                i += 1;
            }
        }
    }
}

// `warps` warps copy `bytes` bytes of each of up to tile_rows rows from `start` on to slots of slot_bytes, rows dealt to
// the warps.
template <int warps, int tile_rows, int pieces, int slot_bytes>
__device__ __forceinline__ void qgen_stage_rows(uint8_t* slots, const uint8_t* start, int64_t row_stride, int rows,
                                                int bytes, int warp, int lane) {
#pragma unroll 1
    for (int row = warp; row < min(rows, tile_rows); row += warps)
        qgen_stage_bytes<pieces>(slots + row * slot_bytes, start + row * row_stride, bytes, lane);
}

// ---- reading a staged block ---------------------------------------------------------------------------------

// n words at byte `at` of `stage` (16-byte aligned), where `at` is a multiple of 16, 8 or 4.
template <int n>
__device__ __forceinline__ void qgen_words16(uint32_t* w, const uint8_t* stage, int at) {
    const uint4* p = (const uint4*)(stage + at);
#pragma unroll
    for (int i = 0; i < n / 4; ++i) {
        const uint4 v = p[i];
        w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
    }
}

template <int n>
__device__ __forceinline__ void qgen_words8(uint32_t* w, const uint8_t* stage, int at) {
    const uint2* p = (const uint2*)(stage + at);
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
        const uint2 v = p[i];
        w[2 * i] = v.x, w[2 * i + 1] = v.y;
    }
}

template <int n>
__device__ __forceinline__ void qgen_words4(uint32_t* w, const uint8_t* stage, int at) {
    const uint32_t* p = (const uint32_t*)(stage + at);
#pragma unroll
    for (int i = 0; i < n; ++i) w[i] = p[i];
}

// The same for any `at`: aligned words, shifted into place. Looks up to four bytes past the last word.
template <int n>
__device__ __forceinline__ void qgen_words1(uint32_t* w, const uint8_t* stage, int at) {
    const uint32_t* p = (const uint32_t*)(stage + (at & ~3));
    const int shift = (at & 3) * 8;
    uint32_t low = p[0];
#pragma unroll
    for (int i = 0; i < n; ++i) {
        const uint32_t high = p[i + 1];
        w[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

// One word at byte `at`, a multiple of 4; and at any byte.
__device__ __forceinline__ uint32_t qgen_word4(const uint8_t* stage, int at) { return *(const uint32_t*)(stage + at); }

__device__ __forceinline__ uint32_t qgen_word1(const uint8_t* stage, int at) {
    uint32_t w[1];
    qgen_words1<1>(w, stage, at);
    return w[0];
}

// Byte k of a word as an unsigned or a signed integer, in one instruction.
template <int k>
__device__ __forceinline__ int qgen_unsigned_byte(uint32_t w) {
    return (int)__byte_perm(w, 0, 0x4440u | k);
}

template <int k>
__device__ __forceinline__ int qgen_signed_byte(uint32_t w) {
    return (int)qgen_prmt(w, 0, (8u | k) * 0x1110u | k);  // the upper bytes repeat the sign
}

// ---- decoding four codes at a time --------------------------------------------------------------------------

// sum + the dot product of four int8 codes with four int8 activation codes.
__device__ __forceinline__ int qgen_dot4(uint32_t codes, uint32_t x, int sum) {
    return __dp4a((int)codes, (int)x, sum);
}

// Four fields of `width` bits at the bottom of `v`, `apart` (at most 4) bits apart, move to the bottom of the four bytes.
template <int width, int apart = width>
__device__ __forceinline__ uint32_t qgen_spread(uint32_t v) {
    const uint32_t ones = (1u << width) - 1u, pair = ones | ones << apart;
    v &= pair | pair << 2 * apart;
    v = (v | v << (16 - 2 * apart)) & (pair | pair << 16);
    return (v | v << (8 - apart)) & ones * 0x01010101u;
}

// A 4-bit index in every nibble of the low half of `w` becomes four entries of a 16-entry int8 codebook.
__device__ __forceinline__ uint32_t qgen_table16(uint32_t w, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
    const uint32_t index = w & 0x7777u;
    const uint32_t low = __byte_perm(t0, t1, index), high = __byte_perm(t2, t3, index);
    return __byte_perm(low, high, 0x3210u | ((w & 0x8888u) >> 1));
}

// The same as a sum of two, for a codebook whose halves were made for it (summed_halves in qgen/plan): what one half has
// for an index of the other is the sign of the entry eight places off, 0 or -1.
__device__ __forceinline__ uint32_t qgen_table_low(uint32_t w, uint32_t t0, uint32_t t1) { return qgen_prmt(t0, t1, w); }
__device__ __forceinline__ uint32_t qgen_table_high(uint32_t w, uint32_t t2, uint32_t t3) {
    return qgen_prmt(t2, t3, w ^ 0x8888u);
}

// The first words of such a codebook's halves, in registers. A CTA is one layer deep, but the compiler cannot know that:
// constants it would put into a register again at every use.
__device__ __forceinline__ uint2 qgen_table_starts(uint32_t t0, uint32_t t2) {
    return make_uint2((uint32_t)qgen_keep((int)(t0 + threadIdx.z)), (uint32_t)qgen_keep((int)(t2 + threadIdx.z)));
}

// The value of the first n base-b digits of each byte (fraction encoding): floor(byte * b^n / 256).
__device__ __forceinline__ uint32_t qgen_leading_digits(uint32_t even, uint32_t odd, uint32_t power) {
    return __byte_perm(even * power, odd * power, 0x7351u);
}

// ---- number formats of scales -------------------------------------------------------------------------------

__device__ __forceinline__ float qgen_bf16_to_f32(uint16_t v) { return __uint_as_float((uint32_t)v << 16); }

// 2^(e-127), exact down to the subnormal 2^-127; 255 is NaN.
__device__ __forceinline__ float qgen_e8m0_to_f32(uint8_t e) {
    return __uint_as_float(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : (uint32_t)e << 23);
}

// 2^(e-128), exact down to the subnormals 2^-127 and 2^-128.
__device__ __forceinline__ float qgen_e8m0_half_to_f32(uint8_t e) {
    return __uint_as_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

// Unsigned e4m3: m * 2^-9 below the first exponent, (1 + m/8) * 2^(e-7) above, bit 7 ignored; but the byte 0x7f
// (not 0xff) is 0.
__device__ __forceinline__ float qgen_ue4m3_to_f32(uint8_t v) {
    const uint32_t e = v >> 3 & 15u, m = v & 7u;
    if (v == 0x7fu) return 0.0f;
    return e == 0 ? (float)m * 0.001953125f : __uint_as_float((e + 120u) << 23 | m << 20);
}

__device__ __forceinline__ float qgen_ue4m3_half_to_f32(uint8_t v) { return 0.5f * qgen_ue4m3_to_f32(v); }

// ---- reading activation scales and sums -----------------------------------------------------------------------

template <int n>
__device__ __forceinline__ void qgen_load_floats(float* v, const uint8_t* p) {
    if (n % 4 == 0) {
#pragma unroll
        for (int i = 0; i < n / 4; ++i) {
            const uint4 u = qgen_load_u32x4(p + 16 * i);
            v[4 * i] = __uint_as_float(u.x), v[4 * i + 1] = __uint_as_float(u.y);
            v[4 * i + 2] = __uint_as_float(u.z), v[4 * i + 3] = __uint_as_float(u.w);
        }
    } else if (n % 2 == 0) {
#pragma unroll
        for (int i = 0; i < n / 2; ++i) {
            const uint2 u = qgen_load_u32x2(p + 8 * i);
            v[2 * i] = __uint_as_float(u.x), v[2 * i + 1] = __uint_as_float(u.y);
        }
    } else {
#pragma unroll
        for (int i = 0; i < n; ++i) v[i] = __uint_as_float(qgen_load_u32(p + 4 * i));
    }
}

// n integers out of `slots` stored ones, slots a power of two.
template <int n, int slots>
__device__ __forceinline__ void qgen_load_ints(int* v, const uint8_t* p) {
    if (slots % 4 == 0) {
#pragma unroll
        for (int i = 0; i < slots / 4; ++i) {
            const uint4 u = qgen_load_u32x4(p + 16 * i);
            const uint32_t four[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (4 * i + k < n) v[4 * i + k] = (int)four[k];
        }
    } else {
#pragma unroll
        for (int i = 0; i < n; ++i) v[i] = (int)qgen_load_u32(p + 4 * i);
    }
}

// ---- adding slices ------------------------------------------------------------------------------------------

// The first n values by halving: v[s] takes v[s + h] for h = n/2, n/4 .. 1. The order every family adds slices in.
template <int n, int size>
__device__ __forceinline__ float qgen_halving_sum(float (&v)[size]) {
    if constexpr (n > 1) {
#pragma unroll
        for (int s = 0; s < n / 2; ++s) v[s] = __fadd_rn(v[s], v[s + n / 2]);
        return qgen_halving_sum<n / 2>(v);
    }
    return v[0];
}
