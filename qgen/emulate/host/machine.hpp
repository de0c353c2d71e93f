// What a kernel's translation unit sees of the emulated machine: who am I, rendezvous, checked global memory.
// One cooperative thread array (CTA) runs at a time; each of its threads is a fibre that runs until it meets a
// barrier or a warp collective. The definitions are in machine.cpp and memory.cpp, compiled once for all kernels.
#pragma once

#include "types.hpp"

extern uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

// The only shared memory a kernel has; kernels declare it themselves. 227 KB is the most a CTA can ask for.
constexpr size_t qgen_shared_limit = 227 * 1024;
extern uint8_t qgen_shared[];

namespace qgen_host {

// A place in the kernel's source. As a default argument, here() is the place of the call.
struct Site {
    const char* file;
    int line;

    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

// Ends the launch with an error; `found` is a printf format. Thread, block and site are added to it.
[[noreturn]] void fail(Site site, const char* allowed, const char* next, const char* found, ...)
    __attribute__((format(printf, 4, 5)));

// Counts the CTAs of all launches; and what a running CTA's threads call before they exit, if anything.
extern uint64_t cta_number;
extern void (*before_exit)();

// __syncthreads: returns when every live thread of the CTA has arrived.
void barrier(Site site);

// ---- warp collectives -------------------------------------------------------------------------------------

constexpr int payload_limit = 16;  // words a lane can deposit: the fragments of one m16n8 tensor-core instruction

// One collective of one warp: the lanes of `mask` deposit their words, the last to arrive lets all go on.
struct Meeting {
    const char* name;
    uint32_t mask, arrived, to_leave;
    int words;
    uint32_t deposit[warpSize][payload_limit];
};

Meeting& meet(const char* name, uint32_t mask, const uint32_t* mine, int words, Site site);
void leave(Meeting& meeting);
int lane_id();

// The deposits of all lanes of a completed collective, as its reader sees them.
struct Lanes {
    const Meeting& meeting;
    Site site;

    uint32_t mask() const { return meeting.mask; }
    uint32_t word(int lane, int index = 0) const {
        if (!(meeting.mask >> lane & 1))
            fail(site, "sources among the lanes named in the mask", "widen the mask or correct the source lane",
                 "%s(0x%08x) in lane %d reads lane %d, which is not in the mask", meeting.name, meeting.mask,
                 lane_id(), lane);
        return meeting.deposit[lane][index];
    }
};

}  // namespace qgen_host

// The primitive under every warp collective: each lane of `mask` deposits N words, and when all have come,
// each calls read(Lanes) on the complete set and returns its result.
template <int N, class Read>
auto qgen_warp_exchange(const char* name, uint32_t mask, const uint32_t (&mine)[N], qgen_host::Site site, Read read) {
    static_assert(N <= qgen_host::payload_limit, "payload_limit words at most");
    qgen_host::Meeting& meeting = qgen_host::meet(name, mask, mine, N, site);
    auto result = read(qgen_host::Lanes{meeting, site});
    qgen_host::leave(meeting);
    return result;
}

// ---- global memory ----------------------------------------------------------------------------------------

namespace qgen_host {

// Global pointers are addresses of a region without access rights: only these functions reach the data, so
// nothing escapes the bounds check and the count.

// Counts a read of `bytes` bytes at `global`, aligned to its size, and returns where the data really lies.
const uint8_t* read_global(const void* global, int bytes, Site site);

void write_global(void* global, const void* value, int bytes, Site site);

// cp.async of `bytes` bytes, of which `valid` are read. The destination is undefined (poison) from here until
// the thread that asked has waited for the group.
void copy_async(void* shared, const void* global, int bytes, Site site);
void copy_commit();
void copy_wait(int pending);

// In a dependent launch the running thread may touch no more than constant buffers before this.
void wait_for_inputs();

// ---- barriers that count arrivals and bytes (barriers.cpp) --------------------------------------------------

// An mbarrier in shared memory. A phase ends when all have arrived and as many bytes have been asked for as were
// announced; the copies of the phase land, and the next begins, not before somebody looks. copy_arrive is an arrival
// that brings all copies the running thread has asked for: they land with the phase, if nothing lands them before.
void barrier_init(uint64_t* barrier, int count, Site site);
void barrier_arrive(uint64_t* barrier, int expected_bytes, Site site);
void copy_arrive(uint64_t* barrier, Site site);
bool barrier_passed(uint64_t* barrier, uint32_t parity, Site site);
void barrier_wait(uint64_t* barrier, uint32_t parity, Site site);
void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier, Site site);

// Fails where the kernel's text is compiled for an architecture before the first that has the instruction.
void check_arch(int arch, int first, const char* name, Site site);

}  // namespace qgen_host
