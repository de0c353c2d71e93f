// Barriers in shared memory that count arrivals and bytes, and the copies that report to them.
#include <string.h>

#include <algorithm>

#include "runtime.hpp"

namespace qgen_host {

namespace {

struct Bulk {
    uint8_t* to;
    std::vector<uint8_t> value;
};

// An arrival that comes once the thread's copies numbered below `before` have landed.
struct Arrival {
    Thread* thread;
    uint64_t before;
};

struct Barrier {
    const uint64_t* at;
    int count, arrived;
    uint32_t phase;
    int64_t expected, asked;  // bytes announced, and those of copies asked for
    std::vector<Bulk> copies;
    std::vector<Arrival> arrivals;

    bool complete() const { return arrived == count && expected == asked; }

    bool awaits_copies() const {
        return std::any_of(arrivals.begin(), arrivals.end(), [](const Arrival& a) { return copies_pending(*a.thread, a.before); });
    }

    void settle() {
        if (!complete()) return;
        for (const Bulk& copy : copies) memcpy(copy.to, copy.value.data(), copy.value.size());
        for (const Arrival& arrival : arrivals) land_copies(*arrival.thread, arrival.before);
        copies.clear();
        arrivals.clear();
        arrived = 0;
        expected = asked = 0;
        ++phase;
    }
};

std::vector<Barrier> barriers;  // of the running CTA

void check_place(const void* shared, int bytes, int alignment, const char* what, Site site) {
    const ptrdiff_t at = static_cast<const uint8_t*>(shared) - qgen_shared;
    if (at < 0 || at + bytes > (ptrdiff_t)machine.shared_bytes || at % alignment)
        fail(site, "places inside shared memory, a barrier's a multiple of 8, a bulk copy's of 16", "correct the address",
             "a %s of %d bytes at byte %td of shared memory (%zu bytes)", what, bytes, at, machine.shared_bytes);
}

Barrier& known(const uint64_t* at, Site site) {
    for (Barrier& barrier : barriers)
        if (barrier.at == at) return barrier;
    fail(site, "barriers set up by qgen_barrier_init", "initialise it, and let all threads meet before its first use",
         "the barrier at byte %td of shared memory was never initialised",
         reinterpret_cast<const uint8_t*>(at) - qgen_shared);
}

// The barrier, ready for one arrival more in its phase.
Barrier& arriving(uint64_t* at, Site site) {
    Barrier& barrier = known(at, site);
    if (barrier.complete() && barrier.awaits_copies())
        fail(site, "arrivals in a phase that has begun", "wait for the phase before arriving for the next",
             "arrival %d at a barrier for %d whose copies may be in flight: nobody has waited for them", barrier.arrived + 1,
             barrier.count);
    barrier.settle();
    if (barrier.arrived == barrier.count)
        fail(site, "as many arrivals in a phase as the barrier counts", "wait for the phase before arriving for the next",
             "arrival %d at a barrier for %d, %lld of %lld bytes asked for", barrier.arrived + 1, barrier.count,
             (long long)barrier.asked, (long long)barrier.expected);
    return barrier;
}

}  // namespace

void forget_barriers() { barriers.clear(); }

void barrier_init(uint64_t* at, int count, Site site) {
    check_place(at, 8, 8, "barrier", site);
    if (count < 1) fail(site, "a count of at least 1", "count the threads that arrive", "a barrier for %d arrivals", count);
    barriers.erase(std::remove_if(barriers.begin(), barriers.end(), [at](const Barrier& b) { return b.at == at; }), barriers.end());
    barriers.push_back({at, count, 0, 0, 0, 0, {}, {}});
}

void barrier_arrive(uint64_t* at, int expected_bytes, Site site) {
    Barrier& barrier = arriving(at, site);
    ++barrier.arrived;
    barrier.expected += expected_bytes;
    if (barrier.complete()) wake_waiters(at);
}

void copy_arrive(uint64_t* at, Site site) {
    Barrier& barrier = arriving(at, site);
    barrier.arrivals.push_back({machine.current, machine.current->asked});
    ++barrier.arrived;
    if (barrier.complete()) wake_waiters(at);
}

bool barrier_passed(uint64_t* at, uint32_t parity, Site site) {
    Barrier& barrier = known(at, site);
    barrier.settle();
    return (barrier.phase & 1) != (parity & 1);
}

void barrier_wait(uint64_t* at, uint32_t parity, Site site) {
    while (!barrier_passed(at, parity, site)) wait_on(at, site);
}

void check_arch(int arch, int first, const char* name, Site site) {
    if (arch < first)
        fail(site, "instructions that the architecture has", "choose another way below that architecture",
             "%s, which begins with sm_%d, in text for sm_%d", name, first / 10, arch / 10);
}

void copy_bulk(void* shared, const void* global, int bytes, uint64_t* at, Site site) {
    check_place(shared, bytes, 16, "bulk copy", site);
    if (bytes <= 0 || bytes % 16)
        fail(site, "a multiple of 16 bytes", "copy whole pieces", "a bulk copy of %d bytes", bytes);
    Barrier& barrier = known(at, site);
    barrier.settle();
    const uint8_t* data = read_bulk(global, bytes, site);
    barrier.copies.push_back({static_cast<uint8_t*>(shared), std::vector<uint8_t>(data, data + bytes)});
    memset(shared, poison, (size_t)bytes);
    barrier.asked += bytes;
    if (barrier.complete()) wake_waiters(at);
}

}  // namespace qgen_host
