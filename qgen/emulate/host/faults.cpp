// Faults of a kernel's own memory accesses and undefined operations, turned into failures of the launch.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "runtime.hpp"

namespace qgen_host {

namespace {

constexpr int fault_signals[] = {SIGSEGV, SIGBUS};
struct sigaction previous[2];
stack_t previous_stack;
alignas(16) char signal_stack[64 * 1024];
pthread_t host;

// The signal is synchronous and comes from kernel code, so leaving by longjmp interrupts nothing of the library's.
void on_fault(int, siginfo_t* info, void*) {
    if (!machine.running || !pthread_equal(pthread_self(), host)) {
        // Not ours: the same instruction faults again, under the handler that was there before.
        for (int i = 0; i < 2; ++i) sigaction(fault_signals[i], &previous[i], nullptr);
        return;
    }
    char where[300];
    describe_address(where, sizeof(where), reinterpret_cast<uintptr_t>(info->si_addr));
    fail({},
         "global accesses through the functions of qgen_ptx.cuh, which check and count them",
         "replace the plain access by qgen_load_*, qgen_store_* or qgen_copy*",
         "a plain access (not through qgen_ptx.cuh) to %s", where);
}

}  // namespace

FaultGuard::FaultGuard() {
    host = pthread_self();
    stack_t stack = {};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof(signal_stack);
    sigaltstack(&stack, &previous_stack);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // not blocked while handled: the handler never returns
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 2; ++i) sigaction(fault_signals[i], &action, &previous[i]);
}

FaultGuard::~FaultGuard() {
    for (int i = 0; i < 2; ++i) sigaction(fault_signals[i], &previous[i], nullptr);
    sigaltstack(&previous_stack, nullptr);
}

}  // namespace qgen_host

// ---- checks that g++ -fsanitize puts into the kernel's code -------------------------------------------------
// The compiler calls these entry points of its own runtime library; every record begins with the source place.

namespace {

struct Place {
    const char* file;
    uint32_t line, column;
};

struct TypeName {
    uint16_t kind, info;
    char name[1];
};

struct TypeMismatch {
    Place place;
    const TypeName* type;
    unsigned char log_alignment, access;
};

qgen_host::Site site_of(const Place& place) { return {place.file, (int)place.line}; }

}  // namespace

extern "C" {

void __ubsan_handle_type_mismatch_v1(const TypeMismatch* data, uintptr_t address) {
    const uintptr_t shared = reinterpret_cast<uintptr_t>(qgen_shared);
    char where[100] = "a local or constant object";
    if (address - shared < qgen_shared_limit)
        snprintf(where, sizeof(where), "byte %zu of shared memory", (size_t)(address - shared));
    qgen_host::fail(site_of(data->place), "addresses that are a multiple of the type's alignment",
                    "use a narrower access, or align the data", "misaligned: an access as %s, aligned to %d, at %s",
                    data->type->name, 1 << data->log_alignment, where);
}

void __ubsan_handle_out_of_bounds(const Place* place, uintptr_t index) {
    qgen_host::fail(site_of(*place), "indices inside the array", "correct the index",
                    "index %td is out of the array's bounds", (ptrdiff_t)index);
}

void __ubsan_handle_shift_out_of_bounds(const Place* place, uintptr_t, uintptr_t by) {
    qgen_host::fail(site_of(*place), "shifts by less than the operand's width", "correct or mask the amount",
                    "a shift by %td bits", (ptrdiff_t)by);
}

void __ubsan_handle_divrem_overflow(const Place* place, uintptr_t, uintptr_t) {
    qgen_host::fail(site_of(*place), "divisors other than zero", "check the divisor", "an integer division by zero");
}

}  // extern "C"
