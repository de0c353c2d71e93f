// A ring of stages in shared memory, filled ahead of use with packed bytes of up to `tile_rows` rows: by bulk copies where
// every row starts and ends on a 16-byte boundary and the architecture has them, else by cp.async, 16 bytes a thread.
#pragma once

#include "qgen_parts.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

template <int warps, int tile_rows, int pieces, int slot_bytes, int stages>
struct qgen_ring {
    static constexpr int bytes = stages * tile_rows * slot_bytes;
    // Stages asked for before the first is used. One slot fewer than there are, so that a slot is filled again not when
    // the slowest warp has just left it, but a stage later: nobody waits for anybody.
    static constexpr int ahead = stages > 2 ? stages - 2 : 1;

    uint64_t *full, *empty;  // a barrier a slot: its bytes have come; all warps are done with it
    bool bulk;
    int warp, lane;
    int slot = 0, ahead_slot = 0, turn = 0;  // turn: of the warp that makes the next request
    uint32_t round = 0, ahead_round = 0;  // how often the ring has gone round

    // All threads of the CTA; the ring is at the start of shared memory, `barriers` has room for 2 * stages of 8 bytes.
    __device__ __forceinline__ qgen_ring(uint64_t* barriers, bool aligned, int warp, int lane)
        : full(barriers), empty(barriers + stages), bulk(qgen_bulk_copies && aligned), warp(warp), lane(lane) {
        if (bulk && warp == 0 && lane < stages) {
            qgen_barrier_init(full + lane, 1);
            qgen_barrier_init(empty + lane, warps);
            qgen_barrier_publish();
        }
    }

    // Asks for `bytes` bytes of each of `rows` rows from `start` on. Bulk copies are asked for by one warp, the
    // warps taking turns: a request takes its time, and the others need not wait for it.
    __device__ __forceinline__ void request(const uint8_t* start, int64_t row_stride, int rows, int bytes) {
        const int to = ahead_slot * (tile_rows * slot_bytes);
        if (!bulk) {
            if (rows > 0) qgen_stage_rows<warps, tile_rows, pieces, slot_bytes>(qgen_shared + to, start, row_stride, rows, bytes, warp, lane);
            qgen_copy_commit();
        } else if (rows > 0 && turn == warp) {
            if (ahead_round > 0) qgen_barrier_wait(empty + ahead_slot, (ahead_round + 1) & 1);
            if (lane == 0) qgen_barrier_expect(full + ahead_slot, min(rows, tile_rows) * bytes);
            __syncwarp();
            if (lane < rows && lane < tile_rows)
                qgen_copy_bulk(qgen_shared + to + lane * slot_bytes, start + lane * row_stride, bytes, full + ahead_slot);
        }
        if (++turn == warps) turn = 0;
        if (++ahead_slot == stages) ahead_slot = 0, ++ahead_round;
    }

    // The oldest stage not yet released has landed for every thread. Returns where in shared memory its slots start.
    __device__ __forceinline__ int wait() {
        if (bulk) {
            qgen_barrier_wait(full + slot, round & 1);
        } else {
            qgen_copy_wait<ahead - 1>();
            __syncthreads();
        }
        return slot * (tile_rows * slot_bytes);
    }

    // This warp is done with the stage.
    __device__ __forceinline__ void release() {
        if (bulk) {
            __syncwarp();
            if (lane == 0) qgen_barrier_arrive(empty + slot);
        }
        if (++slot == stages) slot = 0, ++round;
    }
};
