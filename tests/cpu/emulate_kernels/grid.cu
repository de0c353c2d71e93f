// Indices in three dimensions, parameter types of every size, the order in which threads and CTAs run.
#include "qgen_ptx.cuh"

extern "C" __global__ void indices(uint32_t* out) {
    const uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const uint32_t cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    qgen_store_u32(out + cta * blockDim.x * blockDim.y * blockDim.z + thread, cta << 16 | thread);
}

extern "C" __global__ void parameters(int8_t a, uint8_t b, int16_t c, uint16_t d, int e, uint32_t f, int64_t g,
                                      uint64_t h, float i, double j, const void* none, uint32_t* out) {
    qgen_store_u32(out, (uint32_t)a);
    qgen_store_u32(out + 1, b);
    qgen_store_u32(out + 2, (uint32_t)c);
    qgen_store_u32(out + 3, d);
    qgen_store_u32(out + 4, (uint32_t)e);
    qgen_store_u32(out + 5, f);
    qgen_store_u32(out + 6, (uint32_t)(g >> 32));
    qgen_store_u32(out + 7, (uint32_t)(h >> 32));
    qgen_store_u32(out + 8, __float_as_uint(i));
    qgen_store_u32(out + 9, __float_as_uint((float)j));
    qgen_store_u32(out + 10, none == 0);
}

// Every thread writes the same word: the last to run is what remains, the counters know of the rest.
extern "C" __global__ void last_writer(uint32_t* out) {
    qgen_store_u32(out, blockIdx.x * blockDim.x + threadIdx.x);
}

// Three loads a lane: all lanes of one word, a word a lane, 16 bytes a lane with every second lane idle.
extern "C" __global__ void sectors(const uint32_t* x, uint32_t* y) {
    uint32_t v = qgen_load_u32(x) + qgen_load_u32(x + threadIdx.x);
    if (threadIdx.x % 2) v += qgen_load_u32x4(x + threadIdx.x * 4).w;
    qgen_store_u32(y + threadIdx.x, v);
}
