// Threads as fibres: scheduling, the CTA's barrier, the meeting of a warp's lanes, deadlock.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>

#include "runtime.hpp"

uint3 threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) uint8_t qgen_shared[qgen_shared_limit + qgen_host::guard_bytes];

namespace qgen_host {

Machine machine;

void write_failure(const char* allowed, const char* next, const char* found, ...) {
    Failure& failure = machine.failure;
    va_list values;
    va_start(values, found);
    vsnprintf(failure.found, sizeof(failure.found), found, values);
    va_end(values);
    snprintf(failure.allowed, sizeof(failure.allowed), "%s", allowed);
    snprintf(failure.next, sizeof(failure.next), "%s", next);
}

namespace {

constexpr size_t stack_bytes = 256 * 1024;  // address space; a page is used only once it is touched
constexpr uint64_t canary = 0x7167656e2d656e64;

struct Warp {
    uint32_t live;        // lanes that have not exited
    uint32_t used;        // meetings in use; every lane holds at most one, so 32 are enough
    uint32_t gathering;   // those whose lanes have not all come
    Meeting meetings[warpSize];
};

const Job* job;
Thread threads[thread_limit];
Warp warps[thread_limit / warpSize];
uint8_t* stacks;
int count, live, at_barrier, first_at_barrier;
uint64_t ready[thread_limit / 64];  // threads that can run and are not running
uint64_t random_state;

uint64_t random_below(uint64_t bound) {  // splitmix64
    uint64_t z = random_state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % bound;
}

uint64_t* stack_of(int id) { return reinterpret_cast<uint64_t*>(stacks + (size_t)id * stack_bytes); }

// ---- fibres -----------------------------------------------------------------------------------------------

void thread_exits();

// A fibre outlives its CTA: once started, it waits in thread_exits for the next CTA to run.
void fibre_main() {
    for (;;) {
        job->call(job->arguments);
        thread_exits();
    }
}

[[noreturn]] void enter(Thread& thread) {
    machine.current = &thread;
    threadIdx = thread.index;
    ++machine.switches;
    if (thread.entered) _longjmp(thread.resume, 1);
    thread.entered = true;
    *stack_of(thread.id) = canary;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_of(thread.id);
    context.uc_stack.ss_size = stack_bytes - (size_t)thread.id % 128 * 320;  // else their hot lines share one cache set
    context.uc_link = nullptr;
    makecontext(&context, fibre_main, 0);
    setcontext(&context);
    __builtin_unreachable();
}

// ---- who runs next ----------------------------------------------------------------------------------------

void make_ready(int id) {
    threads[id].state = Thread::ready;
    ready[id / 64] |= uint64_t(1) << id % 64;
}

// The first ready thread at or after `from`, or -1.
int ready_from(int from) {
    if (from >= count) return -1;
    uint64_t word = ready[from / 64] >> from % 64;
    if (word) return from + __builtin_ctzll(word);
    for (int i = from / 64 + 1; i * 64 < count; ++i)
        if (ready[i]) return i * 64 + __builtin_ctzll(ready[i]);
    return -1;
}

// Takes the next thread by the launch's order out of the ready ones; -1 if there is none. Forward and reverse
// are priorities, not queues: the first warp runs as far ahead of the others as its barriers let it.
int take_ready() {
    int id = -1;
    if (job->order == Order::reverse) {
        for (int i = (count - 1) / 64; i >= 0 && id < 0; --i)
            if (ready[i]) id = i * 64 + 63 - __builtin_clzll(ready[i]);
    } else {
        if (job->order == Order::shuffle) id = ready_from((int)random_below((uint64_t)count));
        if (id < 0) id = ready_from(0);
    }
    if (id >= 0) ready[id / 64] &= ~(uint64_t(1) << id % 64);
    return id;
}

// "threads 0-15 wait at __syncwarp(0x0000ffff), k.cu:9; threads 16-31 have exited"
void describe_threads(char* text, size_t size) {
    size_t used = 0;
    for (int first = 0, last; first < count && used + 160 < size; first = last + 1) {
        const Thread& t = threads[first];
        for (last = first; last + 1 < count; ++last) {
            const Thread& u = threads[last + 1];
            if (u.state != t.state) break;
            if (t.state != Thread::exited &&
                (u.waits_mask != t.waits_mask || u.site.line != t.site.line || strcmp(u.waits_at, t.waits_at)))
                break;
        }
        used += snprintf(text + used, size - used, first == last ? "%sthread %d " : "%sthreads %d-%d ",
                         first ? "; " : "", first, last);
        if (t.state == Thread::exited) used += snprintf(text + used, size - used, "exited");
        else if (t.waits_mask == 0)
            used += snprintf(text + used, size - used, "at %s, %s:%d", t.waits_at, t.site.file, t.site.line);
        else
            used += snprintf(text + used, size - used, "at %s(0x%08x), %s:%d", t.waits_at, t.waits_mask, t.site.file,
                             t.site.line);
    }
}

[[noreturn]] void fail_deadlocked() {
    char who[1400];
    describe_threads(who, sizeof(who));
    machine.current = std::find_if(threads, threads + count, [](Thread& t) { return t.state == Thread::waiting; });
    fail(machine.current->site, "barriers and collectives that all threads concerned reach",
         "move the barrier or the collective out of the divergent branch", "deadlock: %s", who);
}

// Leaves the running thread for the next one; returns when it is this thread's turn again.
void run_others(Thread& self) {
    const int next = take_ready();
    if (next < 0) fail_deadlocked();
    if (next != self.id && _setjmp(self.resume) == 0) enter(threads[next]);
}

void wait_here(Thread& self, const char* name, uint32_t mask, Site site) {
    self.state = Thread::waiting;
    self.waits_at = name;
    self.waits_mask = mask;
    self.waits_on = nullptr;
    self.site = site;
}

void release_barrier() {
    at_barrier = 0;
    for (int id = 0; id < count; ++id)
        if (threads[id].state == Thread::waiting && threads[id].waits_mask == 0) make_ready(id);
}

void thread_exits() {
    Thread& self = *machine.current;
    if (*stack_of(self.id) != canary)
        fail({}, "locals of less than 256 KB a thread", "make the kernel's local arrays smaller",
             "the kernel overran its stack");
    Warp& warp = warps[self.warp];
    for (uint32_t rest = warp.gathering; rest; rest &= rest - 1) {
        const Meeting& meeting = warp.meetings[__builtin_ctz(rest)];
        if (meeting.mask >> self.lane & 1) {
            const Thread& waiter = threads[self.warp * warpSize + __builtin_ctz(meeting.arrived)];
            fail(waiter.site, "masks that name only lanes which reach the collective",
                 "keep the lanes alive, or leave them out of the mask",
                 "lane %d exits while lane %d waits for it at %s(0x%08x)", self.lane, waiter.lane, meeting.name,
                 meeting.mask);
        }
    }
    if (before_exit) before_exit();
    self.state = Thread::exited;
    warp.live &= ~(1u << self.lane);
    if (--live == 0) {
        if (_setjmp(self.resume) == 0) _longjmp(machine.root, 1);
        return;
    }
    if (at_barrier == live) release_barrier();
    run_others(self);
}

// ---- a CTA, a grid ----------------------------------------------------------------------------------------

void start_cta(uint64_t linear) {
    ++cta_number;
    before_exit = nullptr;
    const uint3 grid = job->grid;
    const uint64_t row = linear / grid.x;
    blockIdx = {(unsigned)(linear % grid.x), (unsigned)(row % grid.y), (unsigned)(row / grid.y)};
    memset(qgen_shared, poison, job->shared_bytes);
    forget_barriers();
    live = count;
    at_barrier = 0;
    for (int w = 0; w * warpSize < count; ++w) {
        const int lanes = std::min(warpSize, count - w * warpSize);
        warps[w].live = lanes == warpSize ? ~0u : (1u << lanes) - 1;
        warps[w].used = warps[w].gathering = 0;
    }
    for (int id = 0; id < count; ++id) {
        threads[id].state = Thread::ready;
        threads[id].waits_at = "the start of the kernel";
        threads[id].copies.clear();
        threads[id].visits.clear();
        threads[id].groups = 0;
        threads[id].asked = 0;
        threads[id].waited = false;
        make_ready(id);
    }
}

bool guard_is_whole() {
    const uint8_t* guard = qgen_shared + job->shared_bytes;
    const uint8_t* touched = std::find_if(guard, guard + guard_bytes, [](uint8_t byte) { return byte != guard_fill; });
    if (touched == guard + guard_bytes) return true;
    write_failure("writes inside the shared memory that the launch asked for",
                  "check the kernel's shared layout against the launch's shared bytes",
                  "shared memory written at byte %td, past its %zu bytes; block (%u,%u,%u)", touched - qgen_shared,
                  job->shared_bytes, blockIdx.x, blockIdx.y, blockIdx.z);
    return false;
}

// Not inlined: the second return of setjmp must find run_job's locals on the stack.
__attribute__((noinline)) bool run_cta(uint64_t linear) {
    start_cta(linear);
    const int outcome = _setjmp(machine.root);
    if (outcome == 0) {
        machine.running = true;
        enter(threads[take_ready()]);
    }
    machine.running = false;
    if (outcome == 2 || !guard_is_whole()) return false;
    end_of_cta();
    return true;
}

void prepare_threads() {
    count = (int)(job->block.x * job->block.y * job->block.z);
    memset(ready, 0, sizeof(ready));
    for (int id = 0; id < count; ++id) {
        Thread& t = threads[id];
        t.id = id;
        t.lane = id % warpSize;
        t.warp = id / warpSize;
        t.index = {id % job->block.x, id / job->block.x % job->block.y, id / job->block.x / job->block.y};
    }
}

}  // namespace

bool run_job(const Job& request) {
    job = &request;
    if (!stacks) {
        void* space = mmap(nullptr, stack_bytes * thread_limit, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED) {
            write_failure("256 MB of address space, used only where touched", "raise the limit (ulimit -v)",
                          "no address space for the stacks of %d threads", thread_limit);
            return false;
        }
        stacks = static_cast<uint8_t*>(space);
    }
    prepare_threads();
    gridDim = request.grid;
    blockDim = request.block;
    machine.shared_bytes = request.shared_bytes;
    machine.switches = 0;
    random_state = request.seed;
    memset(qgen_shared + request.shared_bytes, guard_fill, guard_bytes);

    const uint64_t ctas = request.cta_count;
    std::vector<uint64_t> shuffled;
    if (request.order == Order::shuffle) {
        for (uint64_t i = 0; i < ctas; ++i) shuffled.push_back(i);
        for (uint64_t i = ctas; i > 1; --i) std::swap(shuffled[i - 1], shuffled[random_below(i)]);
    }
    for (uint64_t i = 0; i < ctas; ++i) {
        const uint64_t linear = request.order == Order::forward   ? i
                                : request.order == Order::reverse ? ctas - 1 - i
                                                                  : shuffled[i];
        if (run_cta(request.first_cta + linear)) continue;
        // The fibres of this CTA stopped half-way, a deadlock's last one on its way out: all begin anew on the next launch.
        for (Thread& t : threads)
            t.entered = false;
        return false;
    }
    return true;
}

// ---- what kernels call ------------------------------------------------------------------------------------

uint64_t cta_number;
void (*before_exit)();

int lane_id() { return machine.current->lane; }

void fail(Site site, const char* allowed, const char* next, const char* found, ...) {
    const uint3 t = machine.current->index, b = blockIdx;
    char text[1600];
    va_list values;
    va_start(values, found);
    vsnprintf(text, sizeof(text), found, values);
    va_end(values);
    char place[256] = "";
    if (site.file) snprintf(place, sizeof(place), ", %s:%d", site.file, site.line);
    write_failure(allowed, next, "%s; thread (%u,%u,%u) of block (%u,%u,%u)%s", text, t.x, t.y, t.z, b.x, b.y, b.z,
                  place);
    _longjmp(machine.root, 2);
}

void barrier(Site site) {
    Thread& self = *machine.current;
    if (at_barrier == 0) {
        first_at_barrier = self.id;
    } else {
        const Thread& first = threads[first_at_barrier];
        if (first.site.line != site.line || strcmp(first.site.file, site.file))
            fail(site, "one __syncthreads that all threads of the CTA reach together",
                 "move the barrier out of the branch",
                 "divergent barrier: thread %d waits at %s:%d while thread %d comes to %s:%d", first.id,
                 first.site.file, first.site.line, self.id, site.file, site.line);
    }
    wait_here(self, "__syncthreads", 0, site);
    if (++at_barrier == live) release_barrier();
    run_others(self);
}

void wait_on(const uint64_t* barrier, Site site) {
    Thread& self = *machine.current;
    wait_here(self, "qgen_barrier_wait", ~0u, site);
    self.waits_on = barrier;
    run_others(self);
}

void wake_waiters(const uint64_t* barrier) {
    for (int id = 0; id < count; ++id)
        if (threads[id].state == Thread::waiting && threads[id].waits_on == barrier) make_ready(id);
}

Meeting& meet(const char* name, uint32_t mask, const uint32_t* mine, int words, Site site) {
    Thread& self = *machine.current;
    Warp& warp = warps[self.warp];
    if (!(mask >> self.lane & 1))
        fail(site, "masks that name the calling lane", "correct the mask",
             "lane %d calls %s(0x%08x), which does not name it", self.lane, name, mask);
    if (mask & ~warp.live)
        fail(site, "masks that name only lanes which reach the collective",
             "keep the lanes alive, or leave them out of the mask",
             "%s(0x%08x) names lane %d, which has exited or does not exist", name, mask,
             __builtin_ctz(mask & ~warp.live));

    Meeting* meeting = nullptr;
    for (uint32_t rest = warp.gathering; rest && !meeting; rest &= rest - 1) {
        Meeting& candidate = warp.meetings[__builtin_ctz(rest)];
        if (candidate.mask == mask) meeting = &candidate;
    }
    if (!meeting) {
        const int slot = __builtin_ctz(~warp.used);
        warp.used |= 1u << slot;
        warp.gathering |= 1u << slot;
        meeting = &warp.meetings[slot];
        meeting->name = name;
        meeting->mask = mask;
        meeting->arrived = 0;
        meeting->words = words;
    } else if (meeting->words != words || (meeting->name != name && strcmp(meeting->name, name))) {
        fail(site, "the same collective in all lanes of a mask", "make the branch the same for the whole mask",
             "lane %d comes to %s while lane %d waits at %s, both with mask 0x%08x", self.lane, name,
             __builtin_ctz(meeting->arrived), meeting->name, mask);
    }
    memcpy(meeting->deposit[self.lane], mine, words * sizeof(uint32_t));
    meeting->arrived |= 1u << self.lane;
    wait_here(self, name, mask, site);
    if (meeting->arrived == mask) {
        meeting->to_leave = mask;
        warp.gathering &= ~(1u << (meeting - warp.meetings));
        for (uint32_t rest = mask; rest; rest &= rest - 1) make_ready(self.warp * warpSize + __builtin_ctz(rest));
    }
    run_others(self);
    return *meeting;
}

void leave(Meeting& meeting) {
    const Thread& self = *machine.current;
    meeting.to_leave &= ~(1u << self.lane);
    if (meeting.to_leave == 0) warps[self.warp].used &= ~(1u << (&meeting - warps[self.warp].meetings));
}

}  // namespace qgen_host
