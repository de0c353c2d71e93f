// One fault an entry; the line that a message must name ends in "// <- entry".
#include "qgen_ptx.cuh"

extern __shared__ __align__(16) uint8_t qgen_shared[];

extern "C" __global__ void load_any(const uint8_t* x, int64_t offset, uint32_t* y) {
    qgen_store_u32(y, qgen_load_u32(x + offset));  // <- load_any
}

extern "C" __global__ void load_vector(const uint8_t* x, int64_t offset, uint32_t* y) {
    const uint4 v = qgen_load_u32x4(x + offset);  // <- load_vector
    qgen_store_u32(y, v.x ^ v.y ^ v.z ^ v.w);
}

extern "C" __global__ void store_any(uint8_t* y, int64_t offset) {
    qgen_store_u32(y + offset, 1u);  // <- store_any
}

extern "C" __global__ void copy_any(const uint8_t* x, int64_t offset, int to) {
    qgen_copy16(qgen_shared + to, x + offset);  // <- copy_any
    qgen_copy_commit();
    qgen_copy_wait<0>();
}

extern "C" __global__ void plain_read(const float* x, float* y) {
    qgen_store_f32(y, x[threadIdx.x]);
}

extern "C" __global__ void plain_write(float* y) {
    if (threadIdx.x == 7) y[1] = 1.0f;
}

extern "C" __global__ void shared_misaligned(uint32_t* y) {
    qgen_store_u32(y, ((const uint4*)(qgen_shared + 8))->x);  // <- shared_misaligned
}

extern "C" __global__ void shared_overrun(int at) {
    if (blockIdx.x == 1 && threadIdx.x == 3) qgen_shared[at] = 0;
}

extern "C" __global__ void array_overrun(uint32_t* y, int at) {
    uint32_t local[4] = {1, 2, 3, 4};
    qgen_store_u32(y, local[at]);  // <- array_overrun
}

extern "C" __global__ void wide_shift(uint32_t* y, int by) {
    qgen_store_u32(y, 1u << by);  // <- wide_shift
}

extern "C" __global__ void division(uint32_t* y, int by) {
    qgen_store_u32(y, (uint32_t)(7 / by));  // <- division
}

extern "C" __global__ void deadlock() {
    if (threadIdx.x < 16) __syncwarp(0xffffffffu);  // <- deadlock
    else __syncthreads();
}

extern "C" __global__ void half_masks() {
    __syncwarp(threadIdx.x < 16 ? 0x0001ffffu : 0xffff8000u);  // <- half_masks
}

extern "C" __global__ void divergent_barrier() {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}

extern "C" __global__ void different_collectives(uint32_t* y) {
    if (threadIdx.x % 2) qgen_store_u32(y, __ballot_sync(0xffffffffu, 1));
    else qgen_store_u32(y, (uint32_t)__any_sync(0xffffffffu, 1));
}

extern "C" __global__ void exited_before() {
    if (threadIdx.x == 3) return;
    __syncwarp();  // <- exited_before
}

extern "C" __global__ void not_in_mask() {
    __syncwarp(0xfffffffeu);  // <- not_in_mask
}

extern "C" __global__ void source_not_in_mask(uint32_t* y) {
    if (threadIdx.x < 16) qgen_store_u32(y, (uint32_t)__shfl_xor_sync(0x0000ffffu, 1, 16));  // <- source_not_in_mask
}

extern "C" __global__ void bad_width(uint32_t* y) {
    qgen_store_u32(y, (uint32_t)__shfl_sync(0xffffffffu, 1, 0, 24));  // <- bad_width
}

// Each thread stores its number and, after a barrier, reads its neighbour's; `skip` leaves the barrier out.
extern "C" __global__ void neighbour(uint32_t* y, int skip) {
    uint32_t* number = (uint32_t*)qgen_shared;
    number[threadIdx.x] = threadIdx.x;
    if (!skip) __syncthreads();
    qgen_store_u32(y + threadIdx.x, number[(threadIdx.x + 1) % blockDim.x]);
}

// Threads that have left do not hold up the others' barrier.
extern "C" __global__ void leave_early(uint32_t* y) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    qgen_store_u32(y + threadIdx.x, 1u);
}

// What a dependent launch may not do: one thread of a CTA does not wait.
extern "C" __global__ void early_read(const uint32_t* x, uint32_t* y, int lazy) {
    if ((int)threadIdx.x != lazy) qgen_wait_for_inputs();
    const uint32_t v = qgen_load_u32(x + threadIdx.x);  // <- early_read
    qgen_wait_for_inputs();
    qgen_store_u32(y + threadIdx.x, v);
}

extern "C" __global__ void early_write(uint32_t* y, int lazy) {
    if ((int)threadIdx.x != lazy) qgen_wait_for_inputs();
    qgen_store_u32(y + threadIdx.x, 1u);  // <- early_write
}

extern "C" __global__ void early_copy(const uint32_t* x, int lazy) {
    if ((int)threadIdx.x != lazy) qgen_wait_for_inputs();
    qgen_copy4(qgen_shared + 4 * threadIdx.x, x + threadIdx.x);  // <- early_copy
    qgen_copy_commit();
    qgen_copy_wait<0>();
}

extern "C" __global__ void early_cta(uint32_t* y) {
    if (blockIdx.x == 0) qgen_wait_for_inputs();
    qgen_store_u32(y + threadIdx.x, 1u);  // <- early_cta
}
