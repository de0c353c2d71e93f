"""The functions of ggml's public headers (ggml.h, ggml-alloc.h, ggml-backend.h, ggml-cuda.h) that a MUL_MAT needs.

No layout is known here but that of ggml_init's argument, which is passed by value.
"""

from __future__ import annotations

import ctypes
from typing import Any

from qgen.bench.live.cell import Unavailable

CPU, GPU = 0, 1  # of ggml_backend_dev_type
F32 = 0  # of ggml_type

_P, _N, _I, _L = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", _N), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool)]


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_init": (_P, (InitParams,)),
    "ggml_free": (None, (_P,)),
    "ggml_tensor_overhead": (_N, ()),
    "ggml_graph_overhead_custom": (_N, (_N, ctypes.c_bool)),
    "ggml_new_tensor_2d": (_P, (_P, _I, _L, _L)),
    "ggml_mul_mat": (_P, (_P, _P, _P)),
    "ggml_new_graph_custom": (_P, (_P, _N, ctypes.c_bool)),
    "ggml_build_forward_expand": (None, (_P, _P)),
    "ggml_nbytes": (_N, (_P,)),
    "ggml_type_name": (ctypes.c_char_p, (_I,)),
    "ggml_type_size": (_N, (_I,)),
    "ggml_blck_size": (_L, (_I,)),
    "ggml_backend_name": (ctypes.c_char_p, (_P,)),
    "ggml_backend_free": (None, (_P,)),
    "ggml_backend_supports_op": (ctypes.c_bool, (_P, _P)),
    "ggml_backend_alloc_ctx_tensors": (_P, (_P, _P)),
    "ggml_backend_alloc_buffer": (_P, (_P, _N)),
    "ggml_backend_buffer_get_base": (_P, (_P,)),
    "ggml_backend_buffer_free": (None, (_P,)),
    "ggml_backend_tensor_alloc": (_I, (_P, _P, _P)),
    "ggml_backend_tensor_set": (None, (_P, _P, _N, _N)),
    "ggml_backend_tensor_get": (None, (_P, _P, _N, _N)),
    "ggml_backend_graph_compute": (_I, (_P, _P)),
    "ggml_backend_graph_compute_async": (_I, (_P, _P)),
    "ggml_backend_synchronize": (None, (_P,)),
}  # fmt: skip
# One of these makes a backend; the first is of a library built with CUDA, the others go through its registry.
_OPTIONAL: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_backend_cuda_init": (_P, (_I,)),
    "ggml_backend_init_by_type": (_P, (_I, ctypes.c_char_p)),
    "ggml_backend_load_all_from_path": (None, (ctypes.c_char_p,)),
    "ggml_version": (ctypes.c_char_p, ()),
}


def load(path: str) -> Any:
    """The library with every function typed; absent optional ones are None.

    Raises Unavailable when it cannot be loaded or lacks a function.
    """
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as cause:
        raise Unavailable(f"the library cannot be loaded: {cause}") from cause
    missing = []
    for name, (result, arguments) in (_FUNCTIONS | _OPTIONAL).items():
        try:
            function = getattr(library, name)
        except AttributeError:
            if name in _FUNCTIONS:
                missing.append(name)
            else:
                setattr(library, name, None)
            continue
        function.restype, function.argtypes = result, arguments
    if missing:
        raise Unavailable(f"{path} is too old, or no ggml: it has no {', '.join(missing)}")
    return library
