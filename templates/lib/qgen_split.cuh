// What warps that share rows and split K do with their sums: kept by slice of the contract, added up at the end of a row
// tile in the contract's order. Plain C++, the same on the device and in the emulator.
#pragma once

#include "qgen_parts.cuh"

// sum[slice][column tile][row tile][i] of a thread: row g (i < 2) or g + 8 of the row tile, token 2t + i % 2 of the
// column tile, in the slices that the thread's warp owns.

// The slices of the stage at hand come first in sum: after every stage of fewer blocks a warp they move up, in a circle.
// Where the circle stops does not matter: halving adds the same pairs from any place of it.
template <int warp_blocks, int slices, int column_tiles, int row_tiles>
__device__ __forceinline__ void qgen_turn_slices(float (&sum)[slices][column_tiles][row_tiles][4]) {
#pragma unroll
    for (int i = 0; slices > warp_blocks && i < 4 * column_tiles * row_tiles; ++i) {
        float v[slices];
#pragma unroll
        for (int s = 0; s < slices; ++s) v[s] = sum[s][i / 4 / row_tiles][i / 4 % row_tiles][i % 4];
#pragma unroll
        for (int s = 0; s < slices; ++s) sum[s][i / 4 / row_tiles][i / 4 % row_tiles][i % 4] = v[(s + warp_blocks) % slices];
    }
}

// Floats between columns of a partial result: no two threads in one bank.
template <int row_tiles>
constexpr int qgen_column_stride = 16 * row_tiles + 4;

// Writes this warp's slices, added up, to partial[warp][column][row].
template <int slices, int column_tiles, int row_tiles>
__device__ __forceinline__ void qgen_write_partial(float* partial, const float (&sum)[slices][column_tiles][row_tiles][4],
                                                   int warp, int row, int t) {
#pragma unroll
    for (int i = 0; i < 4 * column_tiles * row_tiles; ++i) {
        const int n = i / 4 / row_tiles, m = i / 4 % row_tiles;
        float own[slices];
#pragma unroll
        for (int s = 0; s < slices; ++s) own[s] = sum[s][n][m][i % 4];
        partial[(warp * (8 * column_tiles) + 8 * n + 2 * t + i % 2) * qgen_column_stride<row_tiles> + row + 16 * m +
                i % 4 / 2 * 8] = qgen_halving_sum<slices>(own);
    }
}

// Adds up what `split` warps have of result `number` and stores it: rows from `tile` on, tokens from `column` on, `left`
// of which there are. A unit of 16 rows and 8 columns a warp, four rows of a column a thread.
template <int split, int column_tiles, int row_tiles, class Handover>
__device__ __forceinline__ void qgen_add_partials(const float* partial, const Handover& handover, int number, int warp, int lane,
                                                  int tile, int row_end, int column, int left, float* y, int64_t y_stride) {
    constexpr int units = row_tiles * column_tiles, column_stride = qgen_column_stride<row_tiles>;
#pragma unroll 1
    for (int unit = (warp + number) % split; unit < units; unit += split) {
        if (unit < split) handover.before_add(number);
        const int row = unit % row_tiles * 16 + lane % 4 * 4, at = unit / row_tiles * 8 + lane / 4;
        const float* terms = partial + at * column_stride + row;
        float v[4][split];
#pragma unroll
        for (int w = 0; w < split; ++w) {
            const float4 four = *(const float4*)(terms + w * (8 * column_tiles * column_stride));
            v[0][w] = four.x, v[1][w] = four.y, v[2][w] = four.z, v[3][w] = four.w;
        }
        float* to = y + (column + at) * y_stride + tile + row;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float total = qgen_halving_sum<split>(v[i]);
            if (tile + row + i < row_end && at < left) qgen_store_f32(to + i, total);
        }
        if (unit + split >= units) handover.after_add();
    }
}

// A buffer of partial sums in shared memory, handed from the warps that write to those that add them up and back. With
// `bulk` by barriers, so that nobody waits who has something else to do; without, a __syncthreads of the ring comes
// between writing and adding, and one here before the next writing.
template <int writers, int adders>
struct qgen_handover {
    uint64_t *written, *added;
    bool bulk;

    // All threads of the CTA; `barriers` has room for 2 of 8 bytes.
    __device__ __forceinline__ qgen_handover(uint64_t* barriers, bool bulk, int warp, int lane)
        : written(barriers), added(barriers + 1), bulk(bulk) {
        if (bulk && warp == 0 && lane == 0) {
            qgen_barrier_init(written, 32 * writers);
            qgen_barrier_init(added, 32 * adders);
            qgen_barrier_publish();
        }
    }

    // `number` counts the results of this CTA.
    __device__ __forceinline__ void before_write(int number) const {
        if (!bulk) __syncthreads();
        else if (number > 0) qgen_barrier_wait(added, (number + 1) & 1);
    }
    __device__ __forceinline__ void after_write() const {
        if (bulk) qgen_barrier_arrive(written);
    }
    __device__ __forceinline__ void before_add(int number) const {
        if (bulk) qgen_barrier_wait(written, number & 1);
    }
    __device__ __forceinline__ void after_add() const {
        if (bulk) qgen_barrier_arrive(added);
    }
};
