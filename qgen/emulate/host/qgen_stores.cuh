// The host's answer to templates/lib/qgen_stores.cuh: the same stores, checked and counted.
#pragma once

#include "qgen_ptx.cuh"

inline void qgen_store_u8(uint8_t* p, uint8_t v, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::write_global(p, &v, 1, site);
}

inline void qgen_store_u32x4(void* p, uint4 v, qgen_host::Site site = qgen_host::Site::here()) {
    qgen_host::write_global(p, &v, 16, site);
}
