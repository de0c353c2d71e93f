// The host's answer to templates/lib/qgen_wgmma_float.cuh.
#pragma once

#include "qgen_float.cuh"
#include "qgen_wgmma.cuh"

namespace qgen_host {

template <class F>
void multiply_floats(uint32_t (&four)[4], const Wgmma& own, uint32_t b0, uint32_t b1, Site site) {
    float sums[4];
    __builtin_memcpy(sums, four, 16);
    if (F::bf16) mma_floats<bf16_to_f32>("qgen_wgmma_k16", sums, own.a, b0, b1, site);
    else mma_floats<f16_wide>("qgen_wgmma_k16", sums, own.a, b0, b1, site);
    __builtin_memcpy(four, sums, 16);
}

}  // namespace qgen_host

template <int size>
void qgen_wgmma_keep(float (&)[size]) {}

template <class F, int tiles, bool fresh, int apart>
void qgen_wgmma_k16(float (&d)[4 * tiles], const uint32_t (&a)[4], qgen_matrices<apart> matrices, int offset, qgen_host::Site site = qgen_host::Site::here()) {
    static_assert(4 * tiles <= qgen_host::wgmma_sums, "wgmma_sums at most");
    const int at = qgen_host::matrices_at<tiles>("qgen_wgmma_k16", matrices, offset, site);
    qgen_host::ask_wgmma("qgen_wgmma_k16", {d, 4 * tiles, at, apart, 0, {a[0], a[1], a[2], a[3]}, qgen_host::multiply_floats<F>, false, {}}, fresh, site);
}
