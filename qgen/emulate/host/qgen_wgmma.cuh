// The host's answer to templates/lib/qgen_wgmma.cuh. A warp multiplies its own sixteen rows: on a device its warpgroup's
// other warps have a part in that, but nothing of it that this warp would see. Instructions are carried out when they are
// waited for, no sooner: until then their sums are poison, and shared memory that changes too early changes the result.
#pragma once

#include "qgen_mma.cuh"
#include "qgen_tiles.cuh"

template <int apart>
struct qgen_matrices {
    static_assert(apart > 0 && apart % 16 == 0 && apart / 16 < 0x4000, "a descriptor has 14 bits for units of 16 bytes");
    int place;  // of the first tile's in shared memory

    explicit qgen_matrices(int place) : place(place) {}
};

namespace qgen_host {

constexpr int wgmma_limit = 64, wgmma_sums = 128;  // instructions on their way in a thread; sums of one

// One thread's part in an instruction that has been asked for. Sums are kept as their bits.
struct Wgmma {
    void* d;
    int sums, at, apart, group;
    uint32_t a[4];
    // Four sums, and B's two words for them.
    void (*multiply)(uint32_t (&four)[4], const Wgmma& own, uint32_t b0, uint32_t b1, Site site);
    bool chained;  // it adds to what the one before it gives
    uint32_t start[wgmma_sums];
};

// The instructions of a thread, oldest first, and the group that the next one will belong to.
struct WgmmaQueue {
    Wgmma entries[wgmma_limit];
    int count = 0, group = 0;
    uint64_t cta = 0;
};
inline WgmmaQueue wgmma_queues[1024];

inline void check_wgmma_queue() {
    const WgmmaQueue& queue = wgmma_queues[threadIdx.x];
    if (queue.cta == cta_number && queue.count)
        fail({}, "waiting for every instruction that was asked for", "wait before the kernel ends",
             "%d instructions of block (%u,%u) that nobody waited for", queue.count, blockIdx.x, blockIdx.y);
}

// The running thread's, empty at first, whatever a launch that failed has left in it.
inline WgmmaQueue& wgmma_queue() {
    WgmmaQueue& queue = wgmma_queues[threadIdx.x];
    if (queue.cta != cta_number) queue.cta = cta_number, queue.count = queue.group = 0;
    before_exit = check_wgmma_queue;
    return queue;
}

// Byte in shared memory of an instruction's first matrix. On a device place and offset each lose what is below 16 bytes.
template <int tiles, int apart>
int matrices_at(const char* name, const qgen_matrices<apart>& matrices, int offset, Site site) {
    const int at = matrices.place + offset, bytes = at + (tiles - 1) * apart + 256;
    if (matrices.place % 16 || offset % 16 || at < 0 || bytes > (int)qgen_shared_limit)
        fail(site, "matrices at a multiple of 16 bytes, inside shared memory", "correct the address",
             "%s of byte %d + %d, tiles %d bytes apart", name, matrices.place, offset, apart);
    return at;
}

// The sums of an instruction go to the next one that adds to them, or else to the thread.
inline void finish_wgmma(WgmmaQueue& queue, int number, Site site) {
    Wgmma& own = queue.entries[number];
    const int lane = lane_id(), token = lane / 4, quad = lane % 4;
    for (int n = 0; n < own.sums / 4; ++n) {
        const uint8_t* b = qgen_shared + own.at + n * own.apart + 16 * token + 4 * quad;
        uint32_t b0, b1, four[4];
        __builtin_memcpy(&b0, b, 4);
        __builtin_memcpy(&b1, b + 128, 4);
        __builtin_memcpy(four, own.start + 4 * n, 16);
        own.multiply(four, own, b0, b1, site);
        __builtin_memcpy(own.start + 4 * n, four, 16);
    }
    for (int i = number + 1; i < queue.count; ++i)
        if (queue.entries[i].d == own.d) {
            if (queue.entries[i].chained) __builtin_memcpy(queue.entries[i].start, own.start, 4 * own.sums);
            return;
        }
    __builtin_memcpy(own.d, own.start, 4 * own.sums);
}

// Asks for an instruction on `sums` sums from d on.
inline void ask_wgmma(const char* name, Wgmma own, bool fresh, Site site) {
    WgmmaQueue& queue = wgmma_queue();
    if (queue.count == wgmma_limit)
        fail(site, "at most 64 instructions on their way", "wait for some of them", "another %s", name);
    own.group = queue.group, own.chained = false;
    for (int i = 0; i < queue.count; ++i) own.chained |= !fresh && queue.entries[i].d == own.d;
    if (fresh) __builtin_memset(own.start, 0, sizeof own.start);
    else if (!own.chained) __builtin_memcpy(own.start, own.d, 4 * own.sums);
    __builtin_memset(own.d, 0xa5, 4 * own.sums);
    queue.entries[queue.count++] = own;
}

template <bool unsigned_a>
void multiply_bytes(uint32_t (&four)[4], const Wgmma& own, uint32_t b0, uint32_t b1, Site site) {
    int sums[4];
    __builtin_memcpy(sums, four, 16);
    mma<2, unsigned_a>("qgen_wgmma_k32", sums, {own.a[0], own.a[1], own.a[2], own.a[3]}, {b0, b1}, site);
    __builtin_memcpy(four, sums, 16);
}

}  // namespace qgen_host

inline void qgen_wgmma_begin() {}
template <int size>
void qgen_wgmma_keep(int (&)[size]) {}
template <int n>
void qgen_more_registers() {}
template <int n>
void qgen_fewer_registers() {}

inline void qgen_wgmma_commit() { ++qgen_host::wgmma_queue().group; }

template <int n>
void qgen_wgmma_wait(qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::WgmmaQueue& queue = qgen_host::wgmma_queue();
    int done = 0;
    for (; done < queue.count && queue.entries[done].group < queue.group - n; ++done) qgen_host::finish_wgmma(queue, done, site);
    queue.count -= done;
    for (int i = 0; i < queue.count; ++i) queue.entries[i] = queue.entries[i + done];
}

template <int tiles, bool fresh, bool unsigned_a = false, int apart>
void qgen_wgmma_k32(int (&d)[4 * tiles], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                    qgen_matrices<apart> matrices, int offset, qgen_host::Site site = qgen_host::Site::here()) {
    static_assert(4 * tiles <= qgen_host::wgmma_sums, "wgmma_sums at most");
    const int at = qgen_host::matrices_at<tiles>("qgen_wgmma_k32", matrices, offset, site);
    qgen_host::ask_wgmma("qgen_wgmma_k32", {d, 4 * tiles, at, apart, 0, {a0, a1, a2, a3}, qgen_host::multiply_bytes<unsigned_a>, false, {}}, fresh, site);
}
