// A ggml "CUDA" library whose device is ggml's own CPU backend: what the live peer calls goes through the real C API.
// GGML_FAKE in the environment: "no device"; "aborts" at once; "aborts later", on asking for a MUL_MAT of one row.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ggml-backend.h"
#include "ggml-cpu.h"

static bool is(const char* mode) {
    const char* set = std::getenv("GGML_FAKE");
    return set && !std::strcmp(set, mode);
}

static void fault() {
    std::fputs("CUDA error: a fault\n", stderr);
    std::abort();
}

extern "C" ggml_backend_t ggml_backend_cuda_init(int device) {
    if (device != 0 || is("no device")) return nullptr;
    if (is("aborts")) fault();
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1);
    return backend;
}

extern "C" bool ggml_backend_supports_op(ggml_backend_t backend, const ggml_tensor* op) {
    if (is("aborts later") && op->ne[0] == 1) fault();
    return op->src[0]->type != GGML_TYPE_Q4_1 && ggml_backend_dev_supports_op(ggml_backend_get_device(backend), op);
}
