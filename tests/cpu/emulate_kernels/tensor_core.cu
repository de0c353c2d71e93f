// How a tensor-core instruction fits in: its fragments go through qgen_warp_exchange.
#include "qgen_ptx.cuh"

// D = A * B + C with int8 in A (16x32) and B (32x8), fragments as in
// mma.sync.m16n8k32 of the PTX manual.
__device__ __forceinline__ int4 mma_m16n8k32(uint4 a, uint2 b, int4 c, qgen_host::Site site = qgen_host::Site::here()) {
    const uint32_t words[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
    const int lane = threadIdx.x % 32;
    return qgen_warp_exchange("mma_m16n8k32", 0xffffffffu, words, site, [=](qgen_host::Lanes lanes) {
        int sum[4] = {c.x, c.y, c.z, c.w};
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
            for (int quad = 0; quad < 8; ++quad)  // four columns of A, four rows of B
                sum[i] = __dp4a((int)lanes.word(row % 8 * 4 + quad % 4, row / 8 + quad / 4 * 2),
                                (int)lanes.word(column * 4 + quad % 4, 4 + quad / 4), sum[i]);
        }
        return make_int4(sum[0], sum[1], sum[2], sum[3]);
    });
}

extern "C" __global__ void tensor_core(const uint32_t* a, const uint32_t* b, uint32_t* d) {
    const int group = threadIdx.x / 4, k = threadIdx.x % 4;  // a: 16 rows of 8 words, b: 8 columns of 8 words
    const uint4 fa = make_uint4(qgen_load_u32(a + group * 8 + k), qgen_load_u32(a + (group + 8) * 8 + k),
                                qgen_load_u32(a + group * 8 + k + 4), qgen_load_u32(a + (group + 8) * 8 + k + 4));
    const uint2 fb = make_uint2(qgen_load_u32(b + group * 8 + k), qgen_load_u32(b + group * 8 + k + 4));
    int4 c = make_int4(0, 0, 0, 0);
    for (int i = 0; i < 3; ++i) c = mma_m16n8k32(fa, fb, c);
    qgen_store_u32(d + group * 8 + k * 2, (uint32_t)c.x);
    qgen_store_u32(d + group * 8 + k * 2 + 1, (uint32_t)c.y);
    qgen_store_u32(d + (group + 8) * 8 + k * 2, (uint32_t)c.z);
    qgen_store_u32(d + (group + 8) * 8 + k * 2 + 1, (uint32_t)c.w);
}
