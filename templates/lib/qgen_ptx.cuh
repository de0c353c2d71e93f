// The few instructions that generated kernels use beyond CUDA C++'s own built-ins.
// Every access to global memory goes through this file: the emulator swaps it for a host version that
// counts bytes and checks bounds, while the kernel text stays the same.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// Makes a pointer opaque, so that it stays in registers instead of being worked out again at every use.
template <class T>
__device__ __forceinline__ T* qgen_keep(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}

// The same for an integer, so that what is added to it later can become part of an address.
__device__ __forceinline__ int qgen_keep(int v) {
    asm("" : "+r"(v));
    return v;
}

// ---- global loads (read-only data, through L1) and stores ------------------------------------------------

__device__ __forceinline__ uint8_t qgen_load_u8(const uint8_t* p) {
    uint32_t v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (uint8_t)v;
}

__device__ __forceinline__ uint16_t qgen_load_u16(const uint16_t* p) {
    uint16_t v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ uint32_t qgen_load_u32(const void* p) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ float qgen_load_f32(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ uint2 qgen_load_u32x2(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

__device__ __forceinline__ uint4 qgen_load_u32x4(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ void qgen_store_u32(void* p, uint32_t v) {
    asm volatile("st.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void qgen_store_f32(float* p, float v) {
    asm volatile("st.global.f32 [%0], %1;" :: "l"(p), "f"(v) : "memory");
}

// ---- asynchronous copies, global -> shared ---------------------------------------------------------------
// qgen_copy16 / qgen_copy4 move one aligned 16- or 4-byte piece. A copy is complete, for the thread that asked for it,
// after qgen_copy_wait<n>() with at most n younger groups outstanding. Before sm_80 there is no such instruction: the
// copy happens at once.

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void qgen_copy16(void* shared, const void* global) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(s), "l"(global) : "memory");
}

__device__ __forceinline__ void qgen_copy4(void* shared, const void* global) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(s), "l"(global) : "memory");
}

__device__ __forceinline__ void qgen_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n>
__device__ __forceinline__ void qgen_copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
}

#else

__device__ __forceinline__ void qgen_copy16(void* shared, const void* global) {
    *(uint4*)shared = qgen_load_u32x4(global);
}

__device__ __forceinline__ void qgen_copy4(void* shared, const void* global) {
    *(uint32_t*)shared = qgen_load_u32(global);
}

__device__ __forceinline__ void qgen_copy_commit() {}

template <int n>
__device__ __forceinline__ void qgen_copy_wait() {}

#endif

// ---- barriers that count arrivals and bytes, and the copies that report to them -------------------------------
// A phase of a barrier in shared memory ends when `count` threads have arrived and as many bytes as they expect have
// come; qgen_barrier_wait returns once the phase of the parity given (0 for the first) is over. sm_80 brought barriers;
// before, nothing here may be reached.

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void qgen_barrier_init(uint64_t* barrier, int count) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(s), "r"(count) : "memory");
}

__device__ __forceinline__ void qgen_barrier_arrive(uint64_t* barrier) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(s) : "memory");
}

// This thread arrives once every qgen_copy16 and qgen_copy4 that it has asked for has landed; it does not wait for that.
__device__ __forceinline__ void qgen_copy_arrive(uint64_t* barrier) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(s) : "memory");
}

__device__ __forceinline__ void qgen_barrier_wait(uint64_t* barrier, uint32_t parity) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(barrier), done = 0;
    while (!done)
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
#else
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
#endif
                     : "=r"(done) : "r"(s), "r"(parity) : "memory");
}

#else

__device__ __forceinline__ void qgen_barrier_init(uint64_t*, int) {}
__device__ __forceinline__ void qgen_barrier_arrive(uint64_t*) {}
__device__ __forceinline__ void qgen_copy_arrive(uint64_t*) {}
__device__ __forceinline__ void qgen_barrier_wait(uint64_t*, uint32_t) {}

#endif

// A bulk copy moves a multiple of 16 bytes, 16-byte aligned at both ends, on the word of one thread, and reports the
// bytes to a barrier. sm_90 brought them; before, qgen_bulk_copies says no, and neither they nor announced bytes may be
// reached.

#if __CUDA_ARCH__ >= 900

constexpr bool qgen_bulk_copies = true;

// What was initialised before is seen by bulk copies after; other threads need __syncthreads as well.
__device__ __forceinline__ void qgen_barrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void qgen_barrier_expect(uint64_t* barrier, int bytes) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(s), "r"(bytes) : "memory");
}

__device__ __forceinline__ void qgen_copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared), b = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(s), "l"(global), "r"(bytes), "r"(b) : "memory");
}

// Under programmatic dependent launch a kernel may begin before those it depends on are done: it waits here before it
// touches what they write. Launched the usual way, it does not wait.
__device__ __forceinline__ void qgen_wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// From here on the kernels launched after this one may begin.
__device__ __forceinline__ void qgen_let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

#else

constexpr bool qgen_bulk_copies = false;

__device__ __forceinline__ void qgen_barrier_publish() {}
__device__ __forceinline__ void qgen_barrier_expect(uint64_t*, int) {}
__device__ __forceinline__ void qgen_copy_bulk(void*, const void*, int, uint64_t*) {}
__device__ __forceinline__ void qgen_wait_for_inputs() {}
__device__ __forceinline__ void qgen_let_next_begin() {}

#endif

// ---- bytes ----------------------------------------------------------------------------------------------------

// PTX prmt: like __byte_perm, but bit 3 of a selector repeats the sign of the byte chosen, which __byte_perm ignores.
__device__ __forceinline__ uint32_t qgen_prmt(uint32_t a, uint32_t b, uint32_t selectors) {
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selectors));
    return v;
}

// ---- number formats ---------------------------------------------------------------------------------------

__device__ __forceinline__ float qgen_f16_to_f32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
