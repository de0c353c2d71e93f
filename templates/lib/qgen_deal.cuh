// Sums over threads that each of them needs only a part of: plain C++, the same on the device and in the emulator.
#pragma once

#include "qgen_parts.cuh"

__device__ __forceinline__ int qgen_add(int a, int b) { return a + b; }
__device__ __forceinline__ float qgen_add(float a, float b) { return __fadd_rn(a, b); }

// Threads whose lanes differ in bits `high`, high / 2 .. `low` add their v[0 .. n) by halving, the highest bit first, and
// deal the sums among themselves: with every bit a thread keeps half of the values, and sends the other half to where
// they are kept. What is left in v[i] is the sum number qgen_dealt<n, high, low>(lane) + i * (threads that share a deal),
// which are as many as there are values, at most all. n is a power of two.
template <int n, int high, int low, class T>
__device__ __forceinline__ void qgen_deal_sums(T* v, int lane) {
    if constexpr (high >= low) {
        if constexpr (n > 1) {
            const bool upper = (lane & high) != 0;
#pragma unroll
            for (int i = 0; i < n / 2; ++i) {
                const T kept = upper ? v[2 * i + 1] : v[2 * i], sent = upper ? v[2 * i] : v[2 * i + 1];
                v[i] = qgen_add(kept, __shfl_xor_sync(0xffffffffu, sent, high));
            }
            qgen_deal_sums<n / 2, high / 2, low>(v, lane);
        } else {
            v[0] = qgen_add(v[0], __shfl_xor_sync(0xffffffffu, v[0], high));
            qgen_deal_sums<1, high / 2, low>(v, lane);
        }
    }
}

// The number of the first sum that a thread keeps of n.
template <int n, int high, int low>
__device__ __forceinline__ int qgen_dealt(int lane) {
    if constexpr (n > 1 && high >= low)
        return ((lane & high) != 0 ? 1 : 0) + 2 * qgen_dealt<n / 2, high / 2, low>(lane);
    return 0;
}

// The `lanes` threads of a team, this one number t, add their sums of some rows and columns and deal them: this one gets
// row t % rows of column qgen_dealt<columns, lanes / 2, rows>(t). Of row j ^ (t % rows) it has its own share in v[..][j],
// so that the rows are dealt without choosing.
template <int columns, int rows, int lanes>
__device__ __forceinline__ int qgen_team_sum(int (&v)[columns][rows], int t) {
    int sums[columns];
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
        for (int h = rows / 2; h > 0; h /= 2)
#pragma unroll
            for (int r = 0; r < h; ++r) v[c][r] += __shfl_xor_sync(0xffffffffu, v[c][r + h], h);
        sums[c] = v[c][0];
    }
    qgen_deal_sums<columns, lanes / 2, rows>(sums, t);
    return sums[0];
}
