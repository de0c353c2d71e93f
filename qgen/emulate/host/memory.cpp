// Global memory: checked against the registered buffers and counted. Asynchronous copies: landed late.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "runtime.hpp"

namespace qgen_host {

namespace {

constexpr size_t gap_bytes = 1 << 20;  // inaccessible on both sides of a buffer's addresses

struct Region {
    Buffer* buffer;
    uintptr_t address;  // of the buffer's first byte, as the kernel sees it
    uint8_t* mapping;
    size_t mapping_bytes;
    uint64_t *read_map, *write_map;  // one bit a byte
};

std::vector<Region> regions;
size_t last_found;
bool sectors, dependent;
std::vector<Site> sites;                                    // numbered in order of first use
std::vector<Access> accesses[thread_limit / warpSize];      // of the running CTA

// The region that holds all of [address, address + bytes), or null. Most accesses repeat the last buffer.
Region* find_region(uintptr_t address, uint64_t bytes) {
    const auto holds = [&](const Region& r) {
        return address - r.address < r.buffer->bytes && r.buffer->bytes - (address - r.address) >= bytes;
    };
    if (last_found < regions.size() && holds(regions[last_found])) return &regions[last_found];
    for (last_found = 0; last_found < regions.size(); ++last_found)
        if (holds(regions[last_found])) return &regions[last_found];
    return nullptr;
}

Region& checked_region(const void* global, int bytes, int alignment, const char* what, Site site) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(global);
    char where[300];
    Region* region = find_region(address, (uint64_t)bytes);
    if (!region) {
        describe_address(where, sizeof(where), address);
        fail(site, "accesses inside one of the launch's buffers", "check the bounds and tails at that line",
             "out of bounds: a %d-byte %s at %s", bytes, what, where);
    }
    if (address % (unsigned)alignment) {
        describe_address(where, sizeof(where), address);
        fail(site, "addresses that are a multiple of the access size", "use a narrower access, or align the data",
             "misaligned: a %d-byte %s at %s, address modulo %d is %d", alignment, what, where, alignment,
             (int)(address % (unsigned)alignment));
    }
    if (dependent && !region->buffer->constant && !machine.current->waited) {
        describe_address(where, sizeof(where), address);
        fail(site, "constant buffers alone before qgen_wait_for_inputs, in a dependent launch",
             "wait first, or pass Buffer(..., constant=True) if no kernel in front writes it",
             "too early: a %d-byte %s at %s by a thread that has not waited", bytes, what, where);
    }
    return *region;
}

// Sets the bits of [first, first + bytes) and returns how many were not set before.
int mark(uint64_t* map, uint64_t first, int bytes) {
    const uint64_t ones = (uint64_t(1) << bytes) - 1;
    const int shift = first % 64;
    uint64_t* word = map + first / 64;
    int fresh = __builtin_popcountll(ones << shift & ~word[0]);
    word[0] |= ones << shift;
    if (shift + bytes > 64) {
        fresh += __builtin_popcountll(ones >> (64 - shift) & ~word[1]);
        word[1] |= ones >> (64 - shift);
    }
    return fresh;
}

void note_access(int buffer, uintptr_t address, Site site) {
    Thread& self = *machine.current;
    size_t number = 0;
    const auto differs = [&](const Site& known) { return known.line != site.line || strcmp(known.file, site.file); };
    while (number < sites.size() && differs(sites[number])) ++number;
    if (number == sites.size()) sites.push_back(site);
    if (self.visits.size() <= number) self.visits.resize(number + 1);
    accesses[self.warp].push_back({(uint32_t)number, self.visits[number]++, address / 32, buffer});
}

const uint8_t* read_checked(const void* global, int bytes, int alignment, Site site) {
    Region& region = checked_region(global, bytes, alignment, "read", site);
    const uintptr_t address = reinterpret_cast<uintptr_t>(global);
    const uint64_t offset = address - region.address;
    Buffer& buffer = *region.buffer;
    buffer.read_bytes += (uint64_t)bytes;
    ++buffer.read_requests;
    buffer.read_distinct += (uint64_t)mark(region.read_map, offset, bytes);
    if (sectors) note_access((int)(&region - regions.data()), address, site);
    return buffer.data + offset;
}

}  // namespace

// ---- the buffers of a launch ------------------------------------------------------------------------------

bool open_memory(Buffer* buffers, int count, bool count_sectors, bool dependent_launch) {
    sectors = count_sectors;
    dependent = dependent_launch;
    sites.clear();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < count; ++i) {
        Buffer& buffer = buffers[i];
        const size_t words = buffer.bytes / 64 + 2;
        const size_t bytes = (buffer.misalignment + buffer.bytes + page - 1) / page * page + 2 * gap_bytes;
        void* space = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED) {
            write_failure("address space the size of each buffer, no memory",
                          "use smaller buffers or raise the limit (ulimit -v)",
                          "no address space for the %zu bytes of buffer '%s'", bytes, buffer.name);
            return false;
        }
        auto* mapping = static_cast<uint8_t*>(space);
        auto* map = static_cast<uint64_t*>(calloc(words, 8));
        auto* write_map = static_cast<uint64_t*>(buffer.writable ? calloc(words, 8) : nullptr);
        const auto address = reinterpret_cast<uintptr_t>(mapping) + gap_bytes + buffer.misalignment;
        regions.push_back({&buffer, address, mapping, bytes, map, write_map});
    }
    return true;
}

void close_memory() {
    for (Region& r : regions) {
        munmap(r.mapping, r.mapping_bytes);
        free(r.read_map);
        free(r.write_map);
    }
    regions.clear();
    for (auto& list : accesses) list.clear();
}

void* buffer_address(int index) { return reinterpret_cast<void*>(regions[(size_t)index].address); }

void describe_address(char* text, size_t size, uintptr_t address) {
    const Region* nearest = nullptr;
    uint64_t least = 0;
    for (const Region& r : regions) {
        const uint64_t end = r.address + r.buffer->bytes;
        const uint64_t distance = address < r.address ? r.address - address : address < end ? 0 : address - end + 1;
        if (!nearest || distance < least) nearest = &r, least = distance;
    }
    if (address < 4096) snprintf(text, size, "the null pointer + %zu", (size_t)address);
    else if (!nearest) snprintf(text, size, "address 0x%zx, and the launch has no buffers", (size_t)address);
    else
        snprintf(text, size, "offset %td of buffer '%s' (%llu bytes)", (ptrdiff_t)(address - nearest->address),
                 nearest->buffer->name, (unsigned long long)nearest->buffer->bytes);
}

// A warp's load instruction asks for each 32-byte sector once, however many lanes share it. Lanes run one by one
// here, so one instruction is recognised as the same visit, by count, of the same source line.
void end_of_cta() {
    if (!sectors) return;
    const auto key = [](const Access& a) { return std::tie(a.site, a.ordinal, a.buffer, a.sector); };
    const auto instruction = [](const Access& a) { return std::tie(a.site, a.ordinal, a.buffer); };
    for (auto& list : accesses) {
        std::sort(list.begin(), list.end(), [&](const Access& a, const Access& b) { return key(a) < key(b); });
        for (size_t i = 0; i < list.size(); ++i) {
            Buffer& buffer = *regions[(size_t)list[i].buffer].buffer;
            buffer.read_sectors += i == 0 || key(list[i]) != key(list[i - 1]);
            buffer.read_warp_requests += i == 0 || instruction(list[i]) != instruction(list[i - 1]);
        }
        list.clear();
    }
}

// ---- what kernels call ------------------------------------------------------------------------------------

const uint8_t* read_global(const void* global, int bytes, Site site) {
    return read_checked(global, bytes, bytes, site);
}

const uint8_t* read_bulk(const void* global, int bytes, Site site) {
    const auto address = reinterpret_cast<uintptr_t>(global);
    const uint8_t* data = nullptr;
    for (int done = 0; done < bytes;) {
        const int piece = std::min(bytes - done, 32 - (int)((address + (unsigned)done) % 32));
        const uint8_t* at = read_checked(static_cast<const uint8_t*>(global) + done, piece, 16, site);
        if (done == 0) data = at;
        done += piece;
    }
    return data;
}

void write_global(void* global, const void* value, int bytes, Site site) {
    Region& region = checked_region(global, bytes, bytes, "write", site);
    Buffer& buffer = *region.buffer;
    const uint64_t offset = reinterpret_cast<uintptr_t>(global) - region.address;
    if (!buffer.writable)
        fail(site, "writes to buffers given as writable", "pass Buffer(..., writable=True) if the kernel may write it",
             "a %d-byte write at offset %llu of the read-only buffer '%s'", bytes, (unsigned long long)offset,
             buffer.name);
    const auto* from = static_cast<const uint8_t*>(value);
    for (int i = 0; i < bytes; ++i) {
        const uint64_t at = offset + (uint64_t)i;
        buffer.rewritten += (region.write_map[at / 64] >> at % 64 & 1) && buffer.data[at] != from[i];
    }
    buffer.write_bytes += (uint64_t)bytes;
    ++buffer.write_requests;
    buffer.write_distinct += (uint64_t)mark(region.write_map, offset, bytes);
    memcpy(buffer.data + offset, value, (size_t)bytes);
}

void copy_async(void* shared, const void* global, int bytes, Site site) {
    auto* to = static_cast<uint8_t*>(shared);
    const ptrdiff_t at = to - qgen_shared;
    if (at < 0 || at + bytes > (ptrdiff_t)machine.shared_bytes || at % bytes)
        fail(site, "destinations inside shared memory at a multiple of the copy's size", "correct the destination",
             "a %d-byte copy to byte %td of shared memory (%zu bytes)", bytes, at, machine.shared_bytes);
    if (reinterpret_cast<uintptr_t>(global) % (unsigned)bytes) {
        char where[300];
        describe_address(where, sizeof(where), reinterpret_cast<uintptr_t>(global));
        fail(site, "sources at a multiple of the copy's size", "copy aligned pieces",
             "misaligned: a %d-byte copy from %s, address modulo %d is %d", bytes, where, bytes,
             (int)(reinterpret_cast<uintptr_t>(global) % (unsigned)bytes));
    }
    Thread& self = *machine.current;
    Copy copy = {to, bytes, self.groups, self.asked++, {}};
    memcpy(copy.value, read_checked(global, bytes, 1, site), (size_t)bytes);
    self.copies.push_back(copy);
    memset(to, poison, (size_t)bytes);
}

void wait_for_inputs() { machine.current->waited = true; }

void copy_commit() { ++machine.current->groups; }

void copy_wait(int pending) {
    Thread& self = *machine.current;
    // The copies of group g may stay in flight only while g is among the `pending` youngest committed ones.
    const auto stays = [&](const Copy& copy) { return copy.group + (uint32_t)pending >= self.groups; };
    const auto first = std::find_if(self.copies.begin(), self.copies.end(), stays);
    if (first != self.copies.begin()) land_copies(self, first[-1].number + 1);
}

bool copies_pending(const Thread& thread, uint64_t before) {
    return !thread.copies.empty() && thread.copies.front().number < before;
}

void land_copies(Thread& thread, uint64_t before) {
    size_t landed = 0;
    for (; landed < thread.copies.size() && thread.copies[landed].number < before; ++landed)
        memcpy(thread.copies[landed].to, thread.copies[landed].value, (size_t)thread.copies[landed].bytes);
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + (ptrdiff_t)landed);
}

}  // namespace qgen_host
