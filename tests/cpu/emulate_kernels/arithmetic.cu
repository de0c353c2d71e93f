// One element a thread: the integer and float built-ins, for comparison with NumPy.
#include "qgen_ptx.cuh"

extern "C" __global__ void permute(const uint32_t* x, const uint32_t* y, const uint32_t* selector, uint32_t* out,
                                   int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    qgen_store_u32(out + i, __byte_perm(qgen_load_u32(x + i), qgen_load_u32(y + i), qgen_load_u32(selector + i)));
}

extern "C" __global__ void permute_signs(const uint32_t* x, const uint32_t* y, const uint32_t* selector, uint32_t* out,
                                         int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    qgen_store_u32(out + i, qgen_prmt(qgen_load_u32(x + i), qgen_load_u32(y + i), qgen_load_u32(selector + i)));
}

extern "C" __global__ void funnel(const uint32_t* low, const uint32_t* high, const uint32_t* shift, uint32_t* out,
                                  int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint32_t l = qgen_load_u32(low + i), h = qgen_load_u32(high + i), s = qgen_load_u32(shift + i);
    qgen_store_u32(out + i, __funnelshift_l(l, h, s));
    qgen_store_u32(out + n + i, __funnelshift_lc(l, h, s));
    qgen_store_u32(out + 2 * n + i, __funnelshift_r(l, h, s));
    qgen_store_u32(out + 3 * n + i, __funnelshift_rc(l, h, s));
}

extern "C" __global__ void dot(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint32_t x = qgen_load_u32(a + i), y = qgen_load_u32(b + i), z = qgen_load_u32(c + i);
    qgen_store_u32(out + i, (uint32_t)__dp4a((int)x, (int)y, (int)z));
    qgen_store_u32(out + n + i, __dp4a(x, y, z));
}

extern "C" __global__ void bits(const uint32_t* x, uint32_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint32_t v = qgen_load_u32(x + i);
    qgen_store_u32(out + i, (uint32_t)__popc(v));
    qgen_store_u32(out + n + i, (uint32_t)__clz((int)v));
    qgen_store_u32(out + 2 * n + i, (uint32_t)__ffs((int)v));
    qgen_store_u32(out + 3 * n + i, __brev(v));
    qgen_store_u32(out + 4 * n + i, __float_as_uint(__int2float_rn((int)v)));
    qgen_store_u32(out + 5 * n + i, __float_as_uint(__uint2float_rn(v)));
    qgen_store_u32(out + 6 * n + i, (uint32_t)min((int)v, 7) ^ (uint32_t)max((int)v, -7));
    qgen_store_u32(out + 7 * n + i, min(v, 7u) ^ max(v, 9u));
}

extern "C" __global__ void round_to_int(const float* x, uint32_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) qgen_store_u32(out + i, (uint32_t)__float2int_rn(qgen_load_f32(x + i)));
}

extern "C" __global__ void floats(const float* a, const float* b, const float* c, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = qgen_load_f32(a + i), y = qgen_load_f32(b + i), z = qgen_load_f32(c + i);
    qgen_store_f32(out + i, __fadd_rn(x, y));
    qgen_store_f32(out + n + i, __fsub_rn(x, y));
    qgen_store_f32(out + 2 * n + i, __fmul_rn(x, y));
    qgen_store_f32(out + 3 * n + i, __fdiv_rn(x, y));
    qgen_store_f32(out + 4 * n + i, __fmaf_rn(x, y, z));
    qgen_store_f32(out + 5 * n + i, x * y + z);
    qgen_store_f32(out + 6 * n + i, fmaxf(x, y));
    qgen_store_f32(out + 7 * n + i, fminf(x, y));
    qgen_store_f32(out + 8 * n + i, fabsf(x));
    qgen_store_f32(out + 9 * n + i, rintf(x));
}

extern "C" __global__ void from_f16(const uint32_t* pairs, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint32_t pair = qgen_load_u32(pairs + i);
    qgen_store_f32(out + 2 * i, qgen_f16_to_f32((uint16_t)pair));
    qgen_store_f32(out + 2 * i + 1, qgen_f16_to_f32((uint16_t)(pair >> 16)));
}
