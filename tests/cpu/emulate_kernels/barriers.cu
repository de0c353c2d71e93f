// Barriers that count bytes, and bulk copies. The line that a message must name ends in "// <- entry".
// BROKEN leaves one thing out of ring_rows, to show that it is noticed: 1 the wait for a slot's bytes, 2 the wait
// before a slot is filled again, 3 the report that a warp is done with a slot, 4 half of the bytes announced.
#include "qgen_ptx.cuh"

#ifndef BROKEN
#define BROKEN 0
#endif

extern __shared__ __align__(16) uint8_t qgen_shared[];

extern "C" __global__ void never_initialised() {
    qgen_barrier_wait((uint64_t*)(qgen_shared + 8), 0);  // <- never_initialised
}

extern "C" __global__ void nobody_initialised() {
    qgen_barrier_arrive((uint64_t*)(qgen_shared + 16));  // <- nobody_initialised
}

extern "C" __global__ void initialised_at(int at, int count) {
    qgen_barrier_init((uint64_t*)(qgen_shared + at), count);  // <- initialised_at
}

// `count` arrivals are wanted; the first thread announces 16 bytes that are never copied, then all others arrive.
extern "C" __global__ void many_arrive(int count) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    if (threadIdx.x == 0) qgen_barrier_init(barrier, count);
    __syncwarp();
    if (threadIdx.x == 0) qgen_barrier_expect(barrier, 16);
    __syncwarp();
    if (threadIdx.x > 0) qgen_barrier_arrive(barrier);  // <- many_arrive
}

// A copy of `bytes` bytes from x + offset to byte `to` of shared memory, of which `expected` are announced.
extern "C" __global__ void copy_bulk(const uint8_t* x, int64_t offset, int to, int bytes, int expected) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    if (threadIdx.x == 0) qgen_barrier_init(barrier, 1);
    qgen_barrier_publish();
    __syncthreads();
    if (threadIdx.x == 0) {
        qgen_barrier_expect(barrier, expected);
        qgen_copy_bulk(qgen_shared + to, x + offset, bytes, barrier);  // <- copy_bulk
    }
    qgen_barrier_wait(barrier, 0);  // <- copy_waits
}

// y[0]: what lies there before anything, y[1]: after the copy was asked for, y[2]: after the wait.
extern "C" __global__ void lands_late(const uint8_t* x, uint32_t* y) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    uint32_t* slot = (uint32_t*)(qgen_shared + 16);
    slot[threadIdx.x] = 7;
    if (threadIdx.x == 0) qgen_barrier_init(barrier, 1);
    __syncthreads();
    qgen_store_u32(y + threadIdx.x, slot[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        qgen_barrier_expect(barrier, 128);
        qgen_copy_bulk(slot, x, 128, barrier);
    }
    __syncthreads();
    qgen_store_u32(y + 32 + threadIdx.x, slot[threadIdx.x]);
    __syncthreads();
    qgen_barrier_wait(barrier, 0);
    qgen_store_u32(y + 64 + threadIdx.x, slot[threadIdx.x]);
}

// The phases of one barrier: each thread arrives and waits, `rounds` times; then the number of the last round is told.
extern "C" __global__ void rounds_of(int rounds, uint32_t* y) {
    uint64_t* barrier = (uint64_t*)qgen_shared;
    uint32_t* told = (uint32_t*)(qgen_shared + 16);
    if (threadIdx.x == 0) qgen_barrier_init(barrier, (int)blockDim.x);
    __syncthreads();
    uint32_t seen = 0;
    for (int round = 0; round < rounds; ++round) {
        told[threadIdx.x] = (uint32_t)round + 1;
        qgen_barrier_arrive(barrier);
        qgen_barrier_wait(barrier, (uint32_t)(2 * round) & 1);
        seen += told[(threadIdx.x + 1) % blockDim.x] == (uint32_t)round + 1;
        qgen_barrier_arrive(barrier);
        qgen_barrier_wait(barrier, (uint32_t)(2 * round + 1) & 1);
    }
    qgen_store_u32(y + threadIdx.x, seen);
}

// y[w][step]: the sum of step's 128 words of x, as warp w of three finds them in a ring of two slots.
extern "C" __global__ void ring_rows(const uint8_t* x, int steps, uint32_t* y) {
    constexpr int slots = 2, warps = 3, bytes = 512;
    uint64_t *full = (uint64_t*)qgen_shared, *empty = full + slots;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < slots) {
        qgen_barrier_init(full + threadIdx.x, 1);
        qgen_barrier_init(empty + threadIdx.x, warps);
    }
    qgen_barrier_publish();
    __syncthreads();
    auto ask = [&](int step) {
        if (step >= steps || step % warps != warp) return;
        const int slot = step % slots, round = step / slots;
#if BROKEN != 2
        if (round > 0) qgen_barrier_wait(empty + slot, (uint32_t)(round + 1) & 1);
#endif
        if (lane == 0) qgen_barrier_expect(full + slot, BROKEN == 4 ? bytes / 2 : bytes);
        __syncwarp();
        if (lane < 2) qgen_copy_bulk(qgen_shared + 32 + slot * bytes + lane * 256, x + step * bytes + lane * 256, 256, full + slot);
    };
    ask(0);
    ask(1);
    for (int step = 0; step < steps; ++step) {
        const int slot = step % slots, round = step / slots;
#if BROKEN != 1
        qgen_barrier_wait(full + slot, (uint32_t)round & 1);
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
