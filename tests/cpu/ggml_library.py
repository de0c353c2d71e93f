"""ggml's own C decoders, called through the library that the PyPI package libggml-python carries."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import libggml
import numpy as np
from numpy.typing import NDArray


class _TypeTraits(ctypes.Structure):
    """The head of ggml's struct of one tensor type (ggml.h)."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    (path,) = (Path(libggml.__file__).parent / "lib64").glob("libggml-base.so")
    library = ctypes.CDLL(str(path))
    library.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
    library.ggml_get_type_traits.argtypes = (ctypes.c_int,)
    return library


def traits(type_id: int) -> tuple[str, int, int]:
    """(name, weights per block, bytes per block) of a ggml type number."""
    found = _library().ggml_get_type_traits(type_id).contents
    return found.type_name.decode(), found.block, found.bytes


def dequantize(type_id: int, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """ggml's decode of uint8[n, bytes] -> float32[n, block]."""
    found = _library().ggml_get_type_traits(type_id).contents
    assert blocks.flags.c_contiguous and blocks.shape[1] == found.bytes
    weights = np.empty((len(blocks), found.block), dtype=np.float32)
    found.to_float(blocks.ctypes.data, weights.ctypes.data, weights.size)
    return weights
