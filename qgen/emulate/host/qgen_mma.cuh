// The host's answer to templates/lib/qgen_mma.cuh: a warp's lanes exchange their fragments and multiply.
#pragma once

#include "qgen_ptx.cuh"

// ---- int8 tensor cores ------------------------------------------------------------------------------------

namespace qgen_host {

// d += A * B of 16 rows, 8 columns and 16 * `halves` products; a[2h], a[2h + 1] and b[h] belong to half h.
template <int halves, bool unsigned_a>
void mma(const char* name, int (&d)[4], const uint32_t (&a)[2 * halves], const uint32_t (&b)[halves], Site site) {
    uint32_t words[3 * halves];
    for (int i = 0; i < 2 * halves; ++i) words[i] = a[i];
    for (int i = 0; i < halves; ++i) words[2 * halves + i] = b[i];
    const int lane = lane_id();
    const int4 sum = qgen_warp_exchange(name, 0xffffffffu, words, site, [&d, lane](Lanes lanes) {
        int v[4] = {d[0], d[1], d[2], d[3]};
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4, column = lane % 4 * 2 + i % 2;
            for (int half = 0; half < halves; ++half)
                for (int quad = 0; quad < 4; ++quad) {
                    const uint32_t left = lanes.word(row * 4 + quad, 2 * half + i / 2);
                    const uint32_t right = lanes.word(column * 4 + quad, 2 * halves + half);
                    for (int k = 0; k < 4; ++k) {
                        const uint8_t code = (uint8_t)(left >> 8 * k);
                        v[i] += (unsigned_a ? (int)code : (int)(int8_t)code) * (int)(int8_t)(right >> 8 * k);
                    }
                }
        }
        return make_int4(v[0], v[1], v[2], v[3]);
    });
    d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
}

}  // namespace qgen_host

inline void qgen_mma_k32(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                         qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma<2, false>("qgen_mma_k32", d, {a0, a1, a2, a3}, {b0, b1}, site);
}

inline void qgen_mma_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma<1, false>("qgen_mma_k16", d, {a0, a1}, {b0}, site);
}

inline void qgen_mma_k16_unsigned(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0,
                                  qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::mma<1, true>("qgen_mma_k16_unsigned", d, {a0, a1}, {b0}, site);
}
