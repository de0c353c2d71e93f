// The host's answer to templates/lib/qgen_ptx.cuh: the same functions, with global memory checked and counted,
// and asynchronous copies that land as late as the program allows.
#pragma once

#include "warp.hpp"

template <class T>
inline T* qgen_keep(T* p) {
    return p;
}

inline int qgen_keep(int v) { return v; }

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

// ---- barriers that count arrivals and bytes, and the copies that report to them -----------------------------

inline void qgen_barrier_init(uint64_t* barrier, int count, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::check_arch(__CUDA_ARCH__, 800, "qgen_barrier_init", site);
    qgen_host::barrier_init(barrier, count, site);
}

inline void qgen_barrier_arrive(uint64_t* barrier, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::barrier_arrive(barrier, 0, site);
}

inline void qgen_copy_arrive(uint64_t* barrier, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::copy_arrive(barrier, site);
}

inline void qgen_barrier_wait(uint64_t* barrier, uint32_t parity, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::barrier_wait(barrier, parity, site);
}

constexpr bool qgen_bulk_copies = __CUDA_ARCH__ >= 900;

inline void qgen_barrier_publish() {}

inline void qgen_barrier_expect(uint64_t* barrier, int bytes, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::check_arch(__CUDA_ARCH__, 900, "qgen_barrier_expect", site);
    qgen_host::barrier_arrive(barrier, bytes, site);
}

inline void qgen_copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier,
                           qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::check_arch(__CUDA_ARCH__, 900, "qgen_copy_bulk", site);
    qgen_host::copy_bulk(shared, global, bytes, barrier, site);
}

// One kernel runs at a time: a dependent launch only checks that every thread waits, and there is nobody to let begin.
inline void qgen_wait_for_inputs() { qgen_host::wait_for_inputs(); }
inline void qgen_let_next_begin() {}

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
