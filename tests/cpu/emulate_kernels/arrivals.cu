// Arrivals at a barrier that bring the copies a thread has asked for. The line that a message must name ends in
// "// <- entry". BROKEN changes one thing in copied_rows, to show that it is noticed: 1 no wait for a slot's copies, 2 no
// wait before a slot is filled again, 3 no report that a warp is done with a slot, 4 a barrier for one thread fewer, 5 for
// one more, 6 the arrival in front of the copies, 7 an arrival that brings nothing, 8 the wait for the round before.
#include "qgen_ptx.cuh"

#ifndef BROKEN
#define BROKEN 0
#endif

extern __shared__ __align__(16) uint8_t qgen_shared[];

// y[0]: what lies there before anything; after the copy was asked for; after the arrival; after the wait.
extern "C" __global__ void lands_late(const uint8_t* x, uint32_t* y) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    uint32_t* slot = (uint32_t*)(qgen_shared + 16);
    slot[threadIdx.x] = 7;
    if (threadIdx.x == 0) qgen_barrier_init(barrier, 32);
    __syncthreads();
    qgen_store_u32(y + threadIdx.x, slot[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x < 8) qgen_copy16(slot + 4 * threadIdx.x, x + 16 * threadIdx.x);
    __syncthreads();
    qgen_store_u32(y + 32 + threadIdx.x, slot[threadIdx.x]);
    __syncthreads();
    qgen_copy_arrive(barrier);
    __syncthreads();
    qgen_store_u32(y + 64 + threadIdx.x, slot[threadIdx.x]);
    __syncthreads();
    qgen_barrier_wait(barrier, 0);
    qgen_store_u32(y + 96 + threadIdx.x, slot[threadIdx.x]);
}

// Copies that arrive at the first barrier and those after, which arrive at the second: y[0] the first ones' word and y[1] the
// second ones' after a wait for the barrier `awaited`.
extern "C" __global__ void two_barriers(const uint8_t* x, int awaited, uint32_t* y) {
    uint64_t* barriers = (uint64_t*)qgen_shared;
    uint32_t* slot = (uint32_t*)(qgen_shared + 16);
    if (threadIdx.x < 2) qgen_barrier_init(barriers + threadIdx.x, 32);
    __syncthreads();
    if (threadIdx.x == 0) qgen_copy16(slot, x);
    qgen_copy_arrive(barriers);
    if (threadIdx.x == 0) qgen_copy16(slot + 4, x + 16);
    qgen_copy_arrive(barriers + 1);
    qgen_barrier_wait(barriers + awaited, 0);
    if (threadIdx.x == 0) {
        qgen_store_u32(y, slot[0]);
        qgen_store_u32(y + 1, slot[4]);
    }
}

// Two rounds of copies without a wait between them.
extern "C" __global__ void never_awaited(const uint8_t* x) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    if (threadIdx.x == 0) qgen_barrier_init(barrier, 1);
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int round = 0; round < 2; ++round) {
        qgen_copy16(qgen_shared + 16, x);
        qgen_copy_arrive(barrier);  // <- never_awaited
    }
}

// What an architecture before `first` lacks.
extern "C" __global__ void too_new(const uint8_t* x, int which) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    if (threadIdx.x > 0) return;
    qgen_barrier_init(barrier, 1);
    if (which == 1) qgen_barrier_expect(barrier, 16);
    if (which == 2) qgen_copy_bulk(qgen_shared + 16, x, 16, barrier);
}

// y[w][step]: the sum of step's 128 words of x, as warp w of three finds them in a ring of two slots.
extern "C" __global__ void copied_rows(const uint8_t* x, int steps, uint32_t* y) {
    constexpr int slots = 2, warps = 3, bytes = 512;
    uint64_t *full = (uint64_t*)qgen_shared, *empty = full + slots;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < slots) {
        qgen_barrier_init(full + threadIdx.x, BROKEN == 4 ? 31 : BROKEN == 5 ? 33 : 32);
        qgen_barrier_init(empty + threadIdx.x, warps);
    }
    __syncthreads();
    auto ask = [&](int step) {
        if (step >= steps || step % warps != warp) return;
        const int slot = step % slots, round = step / slots;
#if BROKEN != 2
        if (round > 0) qgen_barrier_wait(empty + slot, (uint32_t)(round + 1) & 1);
#endif
#if BROKEN == 6
        qgen_copy_arrive(full + slot);
#endif
        qgen_copy16(qgen_shared + 32 + slot * bytes + lane * 16, x + step * bytes + lane * 16);
#if BROKEN == 7
        qgen_barrier_arrive(full + slot);
#elif BROKEN != 6
        qgen_copy_arrive(full + slot);
#endif
    };
    ask(0);
    ask(1);
    for (int step = 0; step < steps; ++step) {
        const int slot = step % slots, round = step / slots;
#if BROKEN != 1
        qgen_barrier_wait(full + slot, (uint32_t)(BROKEN == 8 ? round + 1 : round) & 1);
#endif
        uint32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += ((const uint32_t*)(qgen_shared + 32 + slot * bytes))[4 * lane + i];
        sum = __reduce_add_sync(0xffffffffu, sum);
        __syncwarp();
#if BROKEN != 3
        if (lane == 0) qgen_barrier_arrive(empty + slot);
#endif
        if (lane == 0) qgen_store_u32(y + warp * steps + step, sum);
        ask(step + 2);
    }
}
