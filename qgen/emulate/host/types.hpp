// CUDA's built-in vector types, with CUDA's alignments: a vector access that would trap on the device is then
// misaligned here too, and the alignment checks of the host build see it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define QGEN_VECTOR_TYPES(name, scalar)                                                                           \
    struct __attribute__((aligned(2 * sizeof(scalar)))) name##2 { scalar x, y; };                                 \
    struct name##3 { scalar x, y, z; };                                                                           \
    struct __attribute__((aligned(4 * sizeof(scalar)))) name##4 { scalar x, y, z, w; };                           \
    inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                          \
    inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                             \
    inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

QGEN_VECTOR_TYPES(int, int)
QGEN_VECTOR_TYPES(uint, unsigned)
QGEN_VECTOR_TYPES(float, float)

#undef QGEN_VECTOR_TYPES
