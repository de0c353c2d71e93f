// What kernels over tiled storage share: which tiles are a CTA's, and a ring of stages in shared memory, filled with
// tiles ahead of use: by bulk copies where the architecture has them, else by cp.async, 16 bytes a thread.
#pragma once

#include "qgen_parts.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

// A CTA's share of `items` things in a row, as equal as they allow. The first CTAs take one more: those that come first lie
// on different multiprocessors, and of the ones that share a multiprocessor at most one then has more.
struct qgen_share {
    int begin, end;

    __device__ __forceinline__ explicit qgen_share(int items) {
        const int ctas = (int)gridDim.x, cta = (int)blockIdx.x, each = items / ctas, more = items - each * ctas;
        begin = cta * each + min(cta, more);
        end = begin + each + (cta < more ? 1 : 0);
    }
};

// kept: slots that are neither in use nor asked for. With one, a slot is filled again not when the slowest warp has just
// left it, but a stage later: nobody waits for anybody.
template <int warps, int stages, int stage_bytes, int kept = 1>
struct qgen_tile_ring {
    static constexpr int bytes = stages * stage_bytes;
    // Stages asked for before the first is used.
    static constexpr int ahead = stages > 1 + kept ? stages - 1 - kept : 1;
    // Who arrives at a full slot: the thread that announces the bytes of bulk copies; else every thread of the warp that
    // asks, once its own copies have landed.
    static constexpr int askers = qgen_bulk_copies ? 1 : 32;

    uint64_t *full, *empty;  // a barrier a slot: its bytes have come; all threads of the `warps` are done with it
    int start;               // where in shared memory the ring starts
    int slot = 0, ahead_slot = 0;
    uint32_t round = 0, ahead_round = 0;  // how often the ring has gone round

    // All threads of the `warps`, before they meet the others of the CTA; `barriers` has room for 2 * stages of 8 bytes.
    __device__ __forceinline__ qgen_tile_ring(uint64_t* barriers, int start, int thread)
        : full(barriers), empty(barriers + stages), start(start) {
        if (thread < stages) {
            qgen_barrier_init(full + thread, askers);
            qgen_barrier_init(empty + thread, 32 * warps);
            qgen_barrier_publish();
        }
    }

    // One warp asks for `copies` runs of `bytes` bytes, `apart` bytes apart in memory and stage_bytes / most in the slot.
    template <int most>
    __device__ __forceinline__ void fill(const uint8_t* from, int64_t apart, int copies, int bytes, int lane) const {
        if (ahead_round > 0) qgen_barrier_wait(empty + ahead_slot, (ahead_round + 1) & 1);
        if (qgen_bulk_copies) {
            if (lane == 0) qgen_barrier_expect(full + ahead_slot, copies * bytes);
            __syncwarp();
            if (lane < copies)
                qgen_copy_bulk(qgen_shared + start + ahead_slot * stage_bytes + lane * (stage_bytes / most), from + lane * apart, bytes, full + ahead_slot);
        } else {
#pragma unroll 1
            for (int copy = 0; copy < copies; ++copy)
                for (int at = 16 * lane; at < bytes; at += 512)
                    qgen_copy16(qgen_shared + start + ahead_slot * stage_bytes + copy * (stage_bytes / most) + at, from + copy * apart + at);
            qgen_copy_arrive(full + ahead_slot);
        }
    }

    // The slot to fill next has been asked for, by whichever thread.
    __device__ __forceinline__ void ask() {
        if (++ahead_slot == stages) ahead_slot = 0, ++ahead_round;
    }

    // The oldest slot not yet released has come. Returns where in shared memory it starts.
    __device__ __forceinline__ int wait() const {
        qgen_barrier_wait(full + slot, round & 1);
        return start + slot * stage_bytes;
    }

    // This thread is done with the slot. Each says so for itself: one that spoke for its warp would have to wait for it.
    __device__ __forceinline__ void release() {
        qgen_barrier_arrive(empty + slot);
        if (++slot == stages) slot = 0, ++round;
    }
};

// The n activation words of one block and thread: two, or whole pieces of four, which lie `apart` bytes apart in a record.
template <int n, int apart, class Place>
__device__ __forceinline__ void qgen_load_codes(uint32_t (&x)[(n + 3) / 4 * 4], Place p) {
    if (n == 2) {
        const uint2 v = qgen_load_u32x2(p);
        x[0] = v.x, x[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < (n + 3) / 4; ++i) {
            const uint4 v = qgen_load_u32x4(p + apart * i);
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
    }
}
