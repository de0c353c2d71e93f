// Warp collectives: every shuffle at every width, votes, reductions, over masks and with several meetings open.
#include "qgen_ptx.cuh"

// out[kind][width index][by][lane], for the widths 1 2 4 8 16 32
extern "C" __global__ void shuffles(uint32_t* out) {
    const int lane = threadIdx.x;
    for (int w = 0; w < 6; ++w)
        for (int by = 0; by < 32; ++by) {
            const int value = 100 + lane, width = 1 << w;
            uint32_t* at = out + (w * 32 + by) * 32 + lane;
            qgen_store_u32(at, (uint32_t)__shfl_sync(0xffffffffu, value, by, width));
            qgen_store_u32(at + 6144, __shfl_up_sync(0xffffffffu, (unsigned)value, (unsigned)by, width));
            qgen_store_u32(at + 12288, (uint32_t)__shfl_down_sync(0xffffffffu, (float)value, (unsigned)by, width));
            qgen_store_u32(at + 18432, (uint32_t)__shfl_xor_sync(0xffffffffu, value, by, width));
        }
}

// The lanes of each of four masks meet by themselves, at different times.
extern "C" __global__ void masked(const uint32_t* x, uint32_t* out) {
    const int lane = threadIdx.x % 32;
    const uint32_t v = qgen_load_u32(x + threadIdx.x);
    const unsigned mask = 0x11111111u << (lane % 4);
    uint32_t* at = out + threadIdx.x * 9;
    for (int i = 0; i < lane % 4; ++i) __syncwarp(mask);
    qgen_store_u32(at, __reduce_add_sync(mask, v));
    qgen_store_u32(at + 1, (uint32_t)__reduce_add_sync(mask, (int)v));
    qgen_store_u32(at + 2, __reduce_max_sync(mask, v));
    qgen_store_u32(at + 3, (uint32_t)__reduce_max_sync(mask, (int)v));
    qgen_store_u32(at + 4, __ballot_sync(mask, v & 1));
    qgen_store_u32(at + 5, (uint32_t)__any_sync(mask, (v & 7) == 0));
    qgen_store_u32(at + 6, (uint32_t)__all_sync(mask, (v & 7) != 0));
    qgen_store_u32(at + 7, __reduce_min_sync(mask, v));
    qgen_store_u32(at + 8, (uint32_t)__reduce_min_sync(mask, (int)v));
}

extern "C" __global__ void many_syncwarps(int count) {
    for (int i = 0; i < count; ++i) __syncwarp();
}
