// The library's face to Python (program.py): what kernels there are, and one launch at a time.
#include "entry.hpp"
#include "runtime.hpp"

namespace {

using namespace qgen_host;

// Mirrored by program.py.
struct Argument {
    int64_t value;   // its low bytes, for a number
    int32_t buffer;  // index of the buffer whose address it is, or -1
};

struct Launch {
    int32_t entry;
    uint3 grid, block;
    uint64_t shared_bytes;
    Order order;
    uint64_t seed;
    const Argument* arguments;
    Buffer* buffers;
    int32_t buffer_count;
    int32_t count_sectors;
    int32_t dependent;  // begun before the kernels in front of it have ended
    uint64_t first_cta, cta_count;  // those of the grid that run
    uint64_t switches;  // out: how often a fibre was entered
};

bool run(Launch& launch) {
    const Entry& entry = qgen_entries[launch.entry];
    if (!open_memory(launch.buffers, launch.buffer_count, launch.count_sectors, launch.dependent)) return false;
    std::vector<int64_t> values;
    for (int i = 0; i < entry.count; ++i) {
        const Argument& a = launch.arguments[i];
        values.push_back(a.buffer < 0 ? a.value : (int64_t) reinterpret_cast<intptr_t>(buffer_address(a.buffer)));
    }
    std::vector<void*> arguments;
    for (int64_t& value : values) arguments.push_back(&value);
    FaultGuard guard;
    return run_job({entry.call, arguments.data(), launch.grid, launch.block, launch.first_cta, launch.cta_count,
                    launch.shared_bytes, launch.order, launch.seed});
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const Entry* qgen_emulate_entries(int32_t* count) {
    *count = qgen_entry_count;
    return qgen_entries;
}

// Null after success, else what went wrong; valid until the next launch.
__attribute__((visibility("default"))) const Failure* qgen_emulate_launch(Launch* launch) {
    const bool done = run(*launch);
    close_memory();
    launch->switches = machine.switches;
    return done ? nullptr : &machine.failure;
}

}  // extern "C"
