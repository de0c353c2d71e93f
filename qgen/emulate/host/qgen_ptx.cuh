// The host's answer to templates/lib/qgen_ptx.cuh: the same functions, with global memory checked and counted,
// and asynchronous copies that land as late as the program allows.
#pragma once

#include "warp.hpp"

template <class T>
inline T* qgen_keep(T* p) {
    return p;
}

// ---- global loads and stores ------------------------------------------------------------------------------

inline uint8_t qgen_load_u8(const uint8_t* p, qgen_host::Site site = qgen_host::Site::here()) {
    return *(const uint8_t*)qgen_host::read_global(p, 1, site);
}

inline uint16_t qgen_load_u16(const uint16_t* p, qgen_host::Site site = qgen_host::Site::here()) {
    uint16_t v;
    __builtin_memcpy(&v, qgen_host::read_global(p, 2, site), 2);
    return v;
}

inline uint32_t qgen_load_u32(const void* p, qgen_host::Site site = qgen_host::Site::here()) {
    uint32_t v;
    __builtin_memcpy(&v, qgen_host::read_global(p, 4, site), 4);
    return v;
}

inline float qgen_load_f32(const float* p, qgen_host::Site site = qgen_host::Site::here()) {
    float v;
    __builtin_memcpy(&v, qgen_host::read_global(p, 4, site), 4);
    return v;
}

inline uint2 qgen_load_u32x2(const void* p, qgen_host::Site site = qgen_host::Site::here()) {
    uint2 v;
    __builtin_memcpy(&v, qgen_host::read_global(p, 8, site), 8);
    return v;
}

inline uint4 qgen_load_u32x4(const void* p, qgen_host::Site site = qgen_host::Site::here()) {
    uint4 v;
    __builtin_memcpy(&v, qgen_host::read_global(p, 16, site), 16);
    return v;
}

inline void qgen_store_u32(void* p, uint32_t v, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::write_global(p, &v, 4, site);
}

inline void qgen_store_f32(float* p, float v, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::write_global(p, &v, 4, site);
}

// ---- asynchronous copies, global -> shared ----------------------------------------------------------------

inline void qgen_copy16(void* shared, const void* global, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::copy_async(shared, global, 16, site);
}

inline void qgen_copy4(void* shared, const void* global, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::copy_async(shared, global, 4, site);
}

inline void qgen_copy_commit() { qgen_host::copy_commit(); }

template <int n>
inline void qgen_copy_wait() {
    static_assert(n >= 0, "a count of groups");
    qgen_host::copy_wait(n);
}

// ---- bytes --------------------------------------------------------------------------------------------------

inline uint32_t qgen_prmt(uint32_t a, uint32_t b, uint32_t selectors) {
    return qgen_host::permute_bytes(a, b, selectors);
}

// ---- number formats ---------------------------------------------------------------------------------------

inline float qgen_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24 is exact in float
        const float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

// ---- int8 tensor cores ------------------------------------------------------------------------------------

namespace qgen_host {

// d += A * B of 16 rows, 8 columns and 16 * `halves` products; a[2h], a[2h + 1] and b[h] belong to half h.
template <int halves, bool unsigned_a>
void mma(const char* name, int (&d)[4], const uint32_t (&a)[2 * halves], const uint32_t (&b)[halves], Site site) {
    uint32_t words[3 * halves];
    for (int i = 0; i < 2 * halves; ++i) words[i] = a[i];
    for (int i = 0; i < halves; ++i) words[2 * halves + i] = b[i];
    const int lane = lane_id();
    const int4 sum = qgen_warp_exchange(name, 0xffffffffu, words, site, [&d, lane](Lanes lanes) {
        int v[4] = {d[0], d[1], d[2], d[3]};
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4, column = lane % 4 * 2 + i % 2;
            for (int half = 0; half < halves; ++half)
                for (int quad = 0; quad < 4; ++quad) {
                    const uint32_t left = lanes.word(row * 4 + quad, 2 * half + i / 2);
                    const uint32_t right = lanes.word(column * 4 + quad, 2 * halves + half);
                    for (int k = 0; k < 4; ++k) {
                        const uint8_t code = (uint8_t)(left >> 8 * k);
                        v[i] += (unsigned_a ? (int)code : (int)(int8_t)code) * (int)(int8_t)(right >> 8 * k);
                    }
                }
        }
        return make_int4(v[0], v[1], v[2], v[3]);
    });
    d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
}

}  // namespace qgen_host

inline void qgen_mma_k32(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                         qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma<2, false>("qgen_mma_k32", d, {a0, a1, a2, a3}, {b0, b1}, site);
}

inline void qgen_mma_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma<1, false>("qgen_mma_k16", d, {a0, a1}, {b0}, site);
}

inline void qgen_mma_k16_unsigned(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0,
                                  qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma<1, true>("qgen_mma_k16_unsigned", d, {a0, a1}, {b0}, site);
}

#include "floats.hpp"
