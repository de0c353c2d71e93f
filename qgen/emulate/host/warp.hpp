// Barriers and warp collectives. Every collective is one qgen_warp_exchange with its own reader.
#pragma once

#include "cuda.hpp"

inline void __syncthreads(qgen_host::Site site = qgen_host::Site::here()) { qgen_host::barrier(site); }

inline void __syncwarp(unsigned mask = 0xffffffffu, qgen_host::Site site = qgen_host::Site::here()) {
    const uint32_t nothing[1] = {0};
    qgen_warp_exchange("__syncwarp", mask, nothing, site, [](qgen_host::Lanes) { return 0; });
}

namespace qgen_host {

enum class Shuffle { index, up, down, butterfly };

// The source lane by the rules of PTX shfl.sync, where `width` splits the warp into segments. A source outside
// the segment (for butterfly: in a later segment) means the lane's own value.
inline int shuffle_source(Shuffle kind, int lane, unsigned by, int width) {
    const int segment = 32 - width;  // the bits of a lane number that name its segment
    const int first = lane & segment, last = first | (width - 1), b = (int)(by & 31);
    int source = lane;
    switch (kind) {
        case Shuffle::index: return first | (b & ~segment);
        case Shuffle::up: source = lane - b; return source >= first ? source : lane;
        case Shuffle::down: source = lane + b; break;
        case Shuffle::butterfly: source = lane ^ b; break;
    }
    return source <= last ? source : lane;
}

template <class T>
T shuffle(const char* name, Shuffle kind, unsigned mask, T value, unsigned by, int width, Site site) {
    if (width < 1 || width > 32 || (width & (width - 1)))
        fail(site, "a width that is a power of two from 1 to 32", "correct the width", "%s with width %d", name, width);
    uint32_t words[sizeof(T) / 4];
    __builtin_memcpy(words, &value, sizeof(T));
    const int source = shuffle_source(kind, lane_id(), by, width);
    return qgen_warp_exchange(name, mask, words, site, [source](Lanes lanes) {
        uint32_t got[sizeof(T) / 4];
        for (int i = 0; i < (int)(sizeof(T) / 4); ++i) got[i] = lanes.word(source, i);
        T result;
        __builtin_memcpy(&result, got, sizeof(T));
        return result;
    });
}

// Folds the deposits of the mask's lanes, lowest lane first.
template <class T, class Fold>
T reduce(const char* name, unsigned mask, T value, Site site, Fold fold) {
    const uint32_t words[1] = {(uint32_t)value};
    return qgen_warp_exchange(name, mask, words, site, [fold](Lanes lanes) {
        int lane = __builtin_ctz(lanes.mask());
        T total = (T)lanes.word(lane);
        while (++lane < warpSize)
            if (lanes.mask() >> lane & 1) total = fold(total, (T)lanes.word(lane));
        return total;
    });
}

inline unsigned votes(const char* name, unsigned mask, int predicate, Site site) {
    const uint32_t words[1] = {predicate != 0};
    return qgen_warp_exchange(name, mask, words, site, [](Lanes lanes) {
        unsigned set = 0;
        for (int lane = 0; lane < warpSize; ++lane)
            if (lanes.mask() >> lane & 1) set |= lanes.word(lane) << lane;
        return set;
    });
}

// The built-ins themselves; the directive at the end puts them where kernels look for them.
namespace builtins {

#define QGEN_SHUFFLES(type)                                                                                            \
    inline type __shfl_sync(unsigned mask, type value, int source, int width = 32, Site site = Site::here()) {         \
        return shuffle("__shfl_sync", Shuffle::index, mask, value, (unsigned)source, width, site);                     \
    }                                                                                                                  \
    inline type __shfl_up_sync(unsigned mask, type value, unsigned delta, int width = 32, Site site = Site::here()) {  \
        return shuffle("__shfl_up_sync", Shuffle::up, mask, value, delta, width, site);                                \
    }                                                                                                                  \
    inline type __shfl_down_sync(unsigned mask, type value, unsigned delta, int width = 32, Site site = Site::here()) {\
        return shuffle("__shfl_down_sync", Shuffle::down, mask, value, delta, width, site);                            \
    }                                                                                                                  \
    inline type __shfl_xor_sync(unsigned mask, type value, int bits, int width = 32, Site site = Site::here()) {       \
        return shuffle("__shfl_xor_sync", Shuffle::butterfly, mask, value, (unsigned)bits, width, site);               \
    }
QGEN_SHUFFLES(int)
QGEN_SHUFFLES(unsigned)
QGEN_SHUFFLES(float)
QGEN_SHUFFLES(long long)
QGEN_SHUFFLES(unsigned long long)
#undef QGEN_SHUFFLES

inline unsigned __ballot_sync(unsigned mask, int predicate, Site site = Site::here()) {
    return votes("__ballot_sync", mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate, Site site = Site::here()) {
    return votes("__any_sync", mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, Site site = Site::here()) {
    return votes("__all_sync", mask, predicate, site) == mask;
}

#if __CUDA_ARCH__ >= 800
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, Site site = Site::here()) {
    return reduce("__reduce_add_sync", mask, value, site, [](unsigned a, unsigned b) { return a + b; });
}
inline int __reduce_add_sync(unsigned mask, int value, Site site = Site::here()) {
    return (int)__reduce_add_sync(mask, (unsigned)value, site);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, Site site = Site::here()) {
    return reduce("__reduce_max_sync", mask, value, site, [](unsigned a, unsigned b) { return max(a, b); });
}
inline int __reduce_max_sync(unsigned mask, int value, Site site = Site::here()) {
    return reduce("__reduce_max_sync", mask, value, site, [](int a, int b) { return max(a, b); });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, Site site = Site::here()) {
    return reduce("__reduce_min_sync", mask, value, site, [](unsigned a, unsigned b) { return min(a, b); });
}
inline int __reduce_min_sync(unsigned mask, int value, Site site = Site::here()) {
    return reduce("__reduce_min_sync", mask, value, site, [](int a, int b) { return min(a, b); });
}
#endif

}  // namespace builtins
}  // namespace qgen_host

using namespace qgen_host::builtins;
