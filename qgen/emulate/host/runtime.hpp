// What the parts of the emulated machine share among themselves; kernels do not see this file.
#pragma once

#include <setjmp.h>

#include <vector>

#include "machine.hpp"

namespace qgen_host {

constexpr int thread_limit = 1024;  // threads of a CTA
constexpr size_t guard_bytes = 4096;  // checked after the shared memory that a launch asked for
constexpr uint8_t poison = 0xa5, guard_fill = 0x5a;

// ---- the interface to Python; launch.cpp and program.py say the same ----------------------------------------

// One array that the kernel may touch: what it is, then what the launch counted.
struct Buffer {
    const char* name;
    uint8_t* data;
    uint64_t bytes;
    uint64_t misalignment;  // of the address that the kernel sees, past a multiple of the page size
    int32_t writable;
    int32_t constant;  // no kernel in front of this one writes it
    uint64_t read_bytes, read_requests, read_distinct;        // distinct: bytes read at least once
    uint64_t write_bytes, write_requests, write_distinct;
    uint64_t rewritten;  // bytes that were written again with another value
    uint64_t read_sectors, read_warp_requests;  // only where the launch asked for sectors
};

struct Failure {
    char found[2048], allowed[512], next[512];
};

enum class Order : int32_t { forward, reverse, shuffle };

// ---- the machine ------------------------------------------------------------------------------------------

struct Copy {
    uint8_t* to;
    int bytes;
    uint32_t group;   // committed groups before it
    uint64_t number;  // copies that its thread asked for before it
    uint8_t value[16];
};

struct Access {
    uint32_t site, ordinal;  // the ordinal-th time that its lane came by this site
    uint64_t sector;
    int buffer;
};

struct Thread {
    uint3 index;
    int id, lane, warp;
    enum State { ready, waiting, exited } state;
    bool entered;  // its fibre can be resumed where it stopped
    jmp_buf resume;
    const char* waits_at;  // while waiting: where
    uint32_t waits_mask;   // 0 for the CTA's barrier
    const uint64_t* waits_on;  // the barrier in shared memory, or null
    Site site;
    std::vector<Copy> copies;  // asked for and not yet landed, oldest first
    uint32_t groups;           // committed so far
    uint64_t asked;            // copies so far
    bool waited;               // for what earlier kernels write and read
    std::vector<uint32_t> visits;  // by site number; only where sectors are counted
};

struct Machine {
    Thread* current;
    bool running;  // fibres are executing
    jmp_buf root;  // the launch itself: 1 the CTA is done, 2 it failed
    Failure failure;
    size_t shared_bytes;
    uint64_t switches;
};

extern Machine machine;

// Fills machine.failure; `found` is a printf format.
void write_failure(const char* allowed, const char* next, const char* found, ...) __attribute__((format(printf, 3, 4)));

struct Job {
    void (*call)(void* const* arguments);
    void* const* arguments;
    uint3 grid, block;
    uint64_t first_cta, cta_count;  // those of the grid that run
    size_t shared_bytes;
    Order order;
    uint64_t seed;
};

// Runs the CTAs; false after a failure, which is then in machine.failure.
bool run_job(const Job& job);

// Stops the running thread until wake_waiters is called for `barrier`.
void wait_on(const uint64_t* barrier, Site site);
void wake_waiters(const uint64_t* barrier);

// ---- barriers.cpp -----------------------------------------------------------------------------------------

void forget_barriers();  // at the start of a CTA

// ---- memory.cpp -------------------------------------------------------------------------------------------

// Gives every buffer its region of inaccessible addresses, and takes it back.
bool open_memory(Buffer* buffers, int count, bool count_sectors, bool dependent_launch);
void close_memory();
void* buffer_address(int index);
bool copies_pending(const Thread& thread, uint64_t before);  // of those numbered below `before` some have not landed
void land_copies(Thread& thread, uint64_t before);           // those numbered below `before`
const uint8_t* read_bulk(const void* global, int bytes, Site site);  // checked and counted sector by sector
void end_of_cta();  // folds the accesses of each warp into sector counts

// "offset 12 of buffer 'x' (8 bytes)" for the buffer nearest to an address.
void describe_address(char* text, size_t size, uintptr_t address);

// ---- faults.cpp -------------------------------------------------------------------------------------------

// While it lives, a memory fault inside a fibre becomes a failure of the launch.
struct FaultGuard {
    FaultGuard();
    ~FaultGuard();
};

}  // namespace qgen_host
