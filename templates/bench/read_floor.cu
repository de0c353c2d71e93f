// The rulers of qgen bench: how fast the same number of bytes can be read at all. They compute nothing.
//
// read_uN        one kernel after another; each thread asks for N pieces of 16 bytes before it looks at the first
// read_chain_uN  the same under programmatic dependent launch: the first N pieces of a thread are asked for before
//                the kernel waits for the one in front of it, as a matmul may do with its weights (but not its x)
//
// `check` makes every byte count: the xor of all words then goes to *out, so that a test can tell whether the ruler
// read what it says. A timed run passes 0 and stores nothing (but the compiler cannot know that).
#include "qgen_ptx.cuh"

namespace {

// Only sm_90 and later have these; elsewhere (and in the emulator) kernels start after one another anyway.
__device__ __forceinline__ void next_may_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <int unroll, bool chain>
__device__ __forceinline__ void read_all(const uint8_t* bytes, int64_t pieces, int check, uint32_t* out) {
    if (chain) next_may_start();
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t all = 0;
    bool waited = !chain;
    for (; at < pieces || !waited; at += unroll * stride) {
        uint4 v[unroll];
        if (at + (unroll - 1) * stride < pieces) {  // the common case without a branch a load
#pragma unroll
            for (int i = 0; i < unroll; ++i) v[i] = qgen_load_u32x4(bytes + 16 * (at + i * stride));
        } else {
#pragma unroll
            for (int i = 0; i < unroll; ++i)
                v[i] = at + i * stride < pieces ? qgen_load_u32x4(bytes + 16 * (at + i * stride)) : make_uint4(0, 0, 0, 0);
        }
        if (!waited) {
            wait_for_previous();
            waited = true;
        }
#pragma unroll
        for (int i = 0; i < unroll; ++i) all ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    // One word a thread under `check`; without it, only an all-zero sum of a negative count, which there is not.
    if (check || (all == 0 && pieces < 0)) qgen_store_u32(out + (int64_t)blockIdx.x * blockDim.x + threadIdx.x, all);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024)
read_u1(const uint8_t* __restrict__ bytes, int64_t pieces, int32_t check, uint32_t* __restrict__ out) {
    read_all<1, false>(bytes, pieces, check, out);
}

extern "C" __global__ void __launch_bounds__(1024)
read_u2(const uint8_t* __restrict__ bytes, int64_t pieces, int32_t check, uint32_t* __restrict__ out) {
    read_all<2, false>(bytes, pieces, check, out);
}

extern "C" __global__ void __launch_bounds__(512)
read_u4(const uint8_t* __restrict__ bytes, int64_t pieces, int32_t check, uint32_t* __restrict__ out) {
    read_all<4, false>(bytes, pieces, check, out);
}

extern "C" __global__ void __launch_bounds__(512)
read_u8(const uint8_t* __restrict__ bytes, int64_t pieces, int32_t check, uint32_t* __restrict__ out) {
    read_all<8, false>(bytes, pieces, check, out);
}

extern "C" __global__ void __launch_bounds__(512)
read_chain_u4(const uint8_t* __restrict__ bytes, int64_t pieces, int32_t check, uint32_t* __restrict__ out) {
    read_all<4, true>(bytes, pieces, check, out);
}

extern "C" __global__ void __launch_bounds__(512)
read_chain_u8(const uint8_t* __restrict__ bytes, int64_t pieces, int32_t check, uint32_t* __restrict__ out) {
    read_all<8, true>(bytes, pieces, check, out);
}
