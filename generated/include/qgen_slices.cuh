// Slices of the contract taken one after the other by the same threads: their order, and sums kept until their partner of
// the halving is ready. Plain C++, the same on the device and in the emulator.
#pragma once

#include "qgen_tiles.cuh"

// Groups of rows, and in each the bundles of the slices that are `part` modulo split, slice by slice in the order in which
// halving adds them: those first whose numbers differ in the highest bit.
template <int split, int slices>
struct qgen_walk {
    int part, group, number = 0, bundle;

    // At the first bundle; behind the last group where there is none.
    __device__ __forceinline__ qgen_walk(int part, int begin, int end, int bundles) : part(part), group(begin), bundle(part) {
        skip(end, bundles);
    }

    // Of the number-th slice of part 0; those of the other parts follow it.
    static __device__ __forceinline__ int slice_of(int number) {
        constexpr int bits = slices / split == 32 ? 5 : slices / split == 16 ? 4 : slices / split == 8 ? 3 : 2;
        return (int)(__brev((unsigned)number) >> (32 - bits)) * split;
    }

    // To the next bundle.
    __device__ __forceinline__ void step(int end, int bundles) {
        bundle += slices;
        skip(end, bundles);
    }

private:
    __device__ __forceinline__ void skip(int end, int bundles) {
        while (bundle >= bundles && group < end) {
            if (++number == slices / split) number = 0, ++group;
            bundle = slice_of(number) + part;
        }
    }
};

// Sums of a thread that wait for their partners, by level of the halving, in shared memory from byte `at` on.
template <int column_tiles, int warps, int parts, int split>
struct qgen_pending {
    static constexpr int level_bytes = 512 * column_tiles * warps;
    static constexpr int levels = parts == 32 ? 5 : parts == 16 ? 4 : parts == 8 ? 3 : parts == 4 ? 2 : 1;
    static constexpr int bytes = levels * level_bytes;

    int at;
    uint64_t* exchange;  // all threads of the warps arrive at it
    uint32_t round = 0;

    __device__ __forceinline__ qgen_pending(int at, uint64_t* exchange) : at(at + 16 * (int)threadIdx.x), exchange(exchange) {}

    // `sum` is that of slice number i: it takes what it can be added to, and waits in its turn unless it is the last.
    __device__ __forceinline__ void add(float (&sum)[4 * column_tiles], int i) const {
        int level = 0;
#pragma unroll 1
        for (; i >> level & 1; ++level) take(sum, at + level * level_bytes);
        if (i + 1 < parts) keep(sum, at + level * level_bytes);
    }

    // Adds what the warps of other parts have, in part 0.
    __device__ __forceinline__ void add_parts(float (&sum)[4 * column_tiles], int part) {
#pragma unroll
        for (int h = split / 2; h > 0; h /= 2) {
            if (part >= h && part < 2 * h) keep(sum, at);
            meet();
            if (part < h) take(sum, at + h * (512 * (warps / split)));
            meet();
        }
    }

private:
    static constexpr int step = 512 * warps;  // bytes from one column tile's sums to the next one's

    __device__ __forceinline__ void meet() {
        qgen_barrier_arrive(exchange);
        qgen_barrier_wait(exchange, round++ & 1);
    }

    __device__ __forceinline__ void take(float (&sum)[4 * column_tiles], int from) const {
#pragma unroll
        for (int n = 0; n < column_tiles; ++n) {
            const float4 v = *(const float4*)(qgen_shared + from + n * step);
            sum[4 * n] = __fadd_rn(v.x, sum[4 * n]), sum[4 * n + 1] = __fadd_rn(v.y, sum[4 * n + 1]);
            sum[4 * n + 2] = __fadd_rn(v.z, sum[4 * n + 2]), sum[4 * n + 3] = __fadd_rn(v.w, sum[4 * n + 3]);
        }
    }
    __device__ __forceinline__ void keep(const float (&sum)[4 * column_tiles], int to) const {
#pragma unroll
        for (int n = 0; n < column_tiles; ++n)
            *(float4*)(qgen_shared + to + n * step) = make_float4(sum[4 * n], sum[4 * n + 1], sum[4 * n + 2], sum[4 * n + 3]);
    }
};
