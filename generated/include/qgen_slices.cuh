// Slices of the contract taken one after the other by the same threads: their order, and sums kept until their partner of
// the halving is ready. Plain C++, the same on the device and in the emulator.
#pragma once

#include "qgen_tiles.cuh"

// Of a power of two.
__device__ constexpr int qgen_log2(int n) { return n > 1 ? 1 + qgen_log2(n / 2) : 0; }

// Groups of rows, and in each the bundles of the slices that are `part` modulo split, slice by slice in the order in which
// halving adds them: those first whose numbers differ in the highest bit.
template <int split, int slices>
struct qgen_walk {
    static constexpr int parts = slices / split, bits = qgen_log2(parts);  // slices of a part
    static_assert(parts >= 2 && split << bits == slices, "powers of two, and no part with one slice alone");

    int part, group, number = 0, bundle;

    // At the first bundle; behind the last group where there is none.
    __device__ __forceinline__ qgen_walk(int part, int begin, int end, int bundles) : part(part), group(begin), bundle(part) {
        skip(end, bundles);
    }

    // Of the number-th slice of part 0; those of the other parts follow it.
    static __device__ __forceinline__ int slice_of(int number) {
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
            if (++number == parts) number = 0, ++group;
            bundle = slice_of(number) + part;
        }
    }
};

// Sums of a thread that wait for their partners, by level of the halving, in shared memory from byte `at` on.
// kept: those of the first level, which wait for the very next slice, stay in registers
template <int column_tiles, int warps, int parts, int split, bool kept>
struct qgen_pending {
    static_assert(parts >= 2 && 1 << qgen_log2(parts) == parts, "a power of two, and more than one slice");
    static constexpr int level_bytes = 512 * column_tiles * warps, first_level = kept ? 1 : 0;
    static constexpr int levels = qgen_log2(parts) - first_level;
    // Parts are added in the place of the lowest level.
    static constexpr int bytes = (levels == 0 && split > 1 ? 1 : levels) * level_bytes;

    int at;
    uint64_t* exchange;  // all threads of the warps arrive at it
    uint32_t round = 0;
    float even[kept ? 4 * column_tiles : 1];  // sum of the even slice before

    __device__ __forceinline__ qgen_pending(int at, uint64_t* exchange) : at(at + 16 * (int)threadIdx.x), exchange(exchange) {}

    // `sum` is that of slice number i: it takes what it can be added to, and waits in its turn unless it is the last.
    __device__ __forceinline__ void add(float (&sum)[4 * column_tiles], int i) {
        if constexpr (kept) {
            if (i % 2 == 0) {
#pragma unroll
                for (int j = 0; j < 4 * column_tiles; ++j) even[j] = sum[j];
                return;
            }
#pragma unroll
            for (int j = 0; j < 4 * column_tiles; ++j) sum[j] = __fadd_rn(even[j], sum[j]);
        }
        int level = first_level, place = at;
#pragma unroll 1
        for (; i >> level & 1; ++level, place += level_bytes) take(sum, place);
        if (i + 1 < parts) keep(sum, place);
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
