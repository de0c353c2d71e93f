// Slices as the parts of a CTA take them, a warp each: the bundles in their order, and sums of two column tiles added by
// halving. Shared memory has what the sums need and the barrier behind it, no more.
#include "qgen_slices.cuh"

template <int split, int slices>
__device__ __forceinline__ void walk(int begin, int end, int bundles, uint32_t* visits, int room) {
    const int part = threadIdx.x;
    int count = 0;
    for (qgen_walk<split, slices> next(part, begin, end, bundles); next.group < end && count < room; next.step(end, bundles))
        qgen_store_u32(visits + part * room + count++, (uint32_t)(next.group * bundles + next.bundle));
}

// x: of group, slice, lane and sum; y: of group, lane and sum; bytes: of shared memory that sums have
template <int split, int slices, bool kept>
__device__ __forceinline__ void add_all(const float* x, float* y, int groups, uint32_t* bytes) {
    using Pending = qgen_pending<2, split, slices / split, split, kept>;
    uint64_t* exchange = (uint64_t*)(qgen_shared + Pending::bytes);
    const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        qgen_barrier_init(exchange, 32 * split);
        qgen_barrier_publish();
        qgen_store_u32(bytes, (uint32_t)Pending::bytes);
    }
    __syncthreads();
    Pending pending(0, exchange);
    for (int group = 0; group < groups; ++group) {
        float sum[8];
        for (int i = 0; i < slices / split; ++i) {
            const int slice = qgen_walk<split, slices>::slice_of(i) + part;
            for (int j = 0; j < 8; ++j) sum[j] = qgen_load_f32(x + ((group * slices + slice) * 32 + lane) * 8 + j);
            pending.add(sum, i);
        }
        pending.add_parts(sum, part);
        if (part == 0)
            for (int j = 0; j < 8; ++j) qgen_store_f32(y + (group * 32 + lane) * 8 + j, sum[j]);
    }
}

template <int split, int slices>
__device__ __forceinline__ void add(const float* x, float* y, int groups, int kept, uint32_t* bytes) {
    if (kept) add_all<split, slices, true>(x, y, groups, bytes);
    else add_all<split, slices, false>(x, y, groups, bytes);
}

extern "C" __global__ void walk_1_2(int begin, int end, int bundles, uint32_t* visits, int room) { walk<1, 2>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_1_4(int begin, int end, int bundles, uint32_t* visits, int room) { walk<1, 4>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_2_4(int begin, int end, int bundles, uint32_t* visits, int room) { walk<2, 4>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_1_8(int begin, int end, int bundles, uint32_t* visits, int room) { walk<1, 8>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_4_8(int begin, int end, int bundles, uint32_t* visits, int room) { walk<4, 8>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_2_16(int begin, int end, int bundles, uint32_t* visits, int room) { walk<2, 16>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_1_32(int begin, int end, int bundles, uint32_t* visits, int room) { walk<1, 32>(begin, end, bundles, visits, room); }
extern "C" __global__ void walk_4_32(int begin, int end, int bundles, uint32_t* visits, int room) { walk<4, 32>(begin, end, bundles, visits, room); }

extern "C" __global__ void add_1_2(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<1, 2>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_1_4(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<1, 4>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_2_4(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<2, 4>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_1_8(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<1, 8>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_4_8(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<4, 8>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_2_16(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<2, 16>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_1_32(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<1, 32>(x, y, groups, kept, bytes); }
extern "C" __global__ void add_4_32(const float* x, float* y, int groups, int kept, uint32_t* bytes) { add<4, 32>(x, y, groups, kept, bytes); }
