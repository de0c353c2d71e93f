"""The checks an operand of a kernel passes before anything is launched. No device library is needed to make them.

An array here is whatever `qgen.run` has turned into a CuPy array, or in tests anything with the same attributes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qgen.errors import QgenError

# Device types of the DLPack standard.
_DLPACK_NAMES = {1: "the host", 2: "CUDA", 3: "pinned host memory", 10: "ROCm", 13: "CUDA managed memory"}
_DLPACK_CUDA = (2, 13)


class DeviceArray(Protocol):
    """What is asked of an array: the part of CuPy's ndarray that the checks look at."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    nbytes: int
    data: Any  # has .ptr
    device: Any  # has .id


def refusal(name: str, found: str, allowed: str, next: str) -> QgenError:
    """The error for operand `name` of a call."""
    return QgenError(stage="run", subject=name, found=found, allowed=allowed, next=next)


def check_on_device(name: str, operand: object) -> None:
    """That an operand claims to be in CUDA memory: by DLPack's device or by having a CUDA array interface.

    Raises QgenError (stage "run") for host arrays, other devices and objects that are no arrays.
    """
    kind = type(operand)
    label = f"a {kind.__module__}.{kind.__qualname__}"
    allowed = "a CUDA array: CuPy, or anything with __dlpack__ or __cuda_array_interface__"
    asks = getattr(operand, "__dlpack_device__", None)
    if asks is not None:
        try:
            device = int(asks()[0])
        except Exception as error:  # whatever a foreign type raises where its data has no device
            raise refusal(name, f"{label} without a device: {error}", allowed, "pass an array with data") from error
        if device not in _DLPACK_CUDA:
            where = _DLPACK_NAMES.get(device, f"a device of DLPack type {device}")
            raise refusal(name, f"{label} on {where}", allowed, f"move it to the GPU, for example cupy.asarray({name})")
    elif not has_cuda_interface(operand):
        raise refusal(name, label, allowed, f"make it a GPU array, for example cupy.asarray({name})")


def has_cuda_interface(operand: object) -> bool:
    """Whether the object offers __cuda_array_interface__ (which some raise on reading: then it does not)."""
    try:
        return hasattr(operand, "__cuda_array_interface__")
    except Exception:  # property of a foreign type; whatever it raises, the interface is not there
        return False


def check_matrix(
    name: str,
    array: DeviceArray,
    *,
    length: int,
    what: str,
    device: int,
    tokens: int | None = None,
    dtypes: tuple[str, ...] = ("float32",),
) -> int:
    """That `array` holds vectors of `length` on `device`: shape [T, length], or [length] for T = 1.

    Each must be dense, and they must lie apart by a whole number of elements and at least their length.
    what: how messages name the length ("K" or "N"); tokens: the T it must have, None for any; dtypes: those allowed.
    Returns T. Raises QgenError (stage "run").
    """
    check_device(name, array, device)
    shapes = f"[{what} = {length}] or [T, {what} = {length}]"
    if str(array.dtype) not in dtypes:
        raise refusal(name, f"dtype {array.dtype}", " or ".join(dtypes), f"convert it: {name}.astype('float32')")
    size = int(array.dtype.itemsize)
    if not array.shape or len(array.shape) > 2 or array.shape[-1] != length:
        raise refusal(name, f"shape {list(array.shape)}", shapes, f"pass vectors with {what} = {length} elements")
    count = array.shape[0] if len(array.shape) == 2 else 1
    if tokens is not None and count != tokens:
        raise refusal(
            name,
            f"shape {list(array.shape)}: T = {count} tokens",
            f"[{tokens}, {what} = {length}]: as many tokens as x has" + (f", or [{length}]" if tokens == 1 else ""),
            f"give {name} one row for each row of x",
        )
    if array.size == 0:
        return count
    if length > 1 and array.strides[-1] != size:
        raise refusal(
            name,
            f"a stride of {array.strides[-1]} bytes between neighbours of shape {list(array.shape)}",
            f"{size} bytes: contiguous data",
            f"copy it: cupy.ascontiguousarray({name})",
        )
    if count > 1 and (array.strides[0] < size * length or array.strides[0] % size):
        raise refusal(
            name,
            f"a stride of {array.strides[0]} bytes from row to row of shape {list(array.shape)}",
            f"a multiple of {size}, and at least {size * length} = {size} x {what}: rows that do not overlap",
            f"copy it: cupy.ascontiguousarray({name})",
        )
    check_aligned(name, array, size, f"{array.dtype} data")
    return count


def row_stride(array: DeviceArray) -> int:
    """Elements from one row of a checked matrix to the next; the length of a row where there is only one."""
    single = len(array.shape) < 2 or array.shape[0] == 1
    return array.shape[-1] if single else array.strides[0] // int(array.dtype.itemsize)


def check_device(name: str, array: DeviceArray, device: int) -> None:
    """That the array is on CUDA device `device`. Raises QgenError (stage "run")."""
    if int(array.device.id) != device:
        raise refusal(
            name,
            f"on CUDA device {array.device.id}",
            f"on CUDA device {device}, where the weight is",
            "move it to the weight's device",
        )


def check_aligned(name: str, array: DeviceArray, alignment: int, why: str) -> None:
    """That the array's first byte is aligned. Raises QgenError (stage "run")."""
    pointer = int(array.data.ptr)
    if pointer % alignment:
        raise refusal(
            name,
            f"data at address 0x{pointer:x} = {alignment} x {pointer // alignment} + {pointer % alignment}",
            f"an address that is a multiple of {alignment}: {why}",
            "copy it to a new array, which CuPy aligns to 512 bytes",
        )


def check_workspace(array: DeviceArray, *, nbytes: int, alignment: int, device: int) -> None:
    """That the scratch array can hold the quantised activation: uint8, dense, aligned. Raises QgenError ("run")."""
    name = "workspace"
    check_device(name, array, device)
    hint = "get one with qgen.workspace(weight, tokens=T), of several weights the largest"
    if array.dtype != np.uint8 or len(array.shape) != 1 or (array.size > 1 and array.strides[0] != 1):
        raise refusal(
            name,
            f"dtype {array.dtype}, shape {list(array.shape)}, strides {list(array.strides)}",
            "one dense dimension of uint8",
            hint,
        )
    if array.size < nbytes:
        raise refusal(name, f"{array.size} bytes", f"at least {nbytes} bytes", hint)
    check_aligned(name, array, alignment, "the quantised activation is read in vectors")


def check_apart(arrays: dict[str, DeviceArray], read: dict[str, DeviceArray]) -> None:
    """That no two of the arrays share a byte, and none a byte with one of `read`, which may with each other.

    Rows of two matrices may take turns in memory, as the halves of a fused buffer do. Raises QgenError (stage "run").
    """
    only_read = [(_span(a), name, a) for name, a in read.items() if a.size]
    found = [*only_read, *((_span(a), name, a) for name, a in arrays.items() if a.size)]
    for i, ((begin, end), name, a) in enumerate(found[len(only_read) :], len(only_read)):
        for (other_begin, other_end), other, b in found[:i]:
            if begin < other_end and other_begin < end and _rows_meet(a, b):
                first, second = (name, other) if begin <= other_begin else (other, name)
                shared = min(end, other_end) - max(begin, other_begin)
                raise refusal(
                    second,
                    f"shares memory with {first}: {shared} bytes lie within both",
                    "operands that do not overlap",
                    f"give {second} memory of its own",
                )


def _span(array: DeviceArray) -> tuple[int, int]:
    """From the first byte to behind the last one."""
    begin = int(array.data.ptr)
    steps = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    return begin, begin + steps + int(array.dtype.itemsize)


def _rows_meet(a: DeviceArray, b: DeviceArray) -> bool:
    """Whether a row of one shares a byte with a row of the other, for matrices whose own rows lie apart."""
    rows = np.concatenate([_rows(a), _rows(b)])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return bool(np.any(rows[1:, 0] < rows[:-1, 1]))


def _rows(array: DeviceArray) -> NDArray[np.int64]:
    """[begin, end) of every row in bytes; of the whole where it is one vector."""
    begin, end = _span(array)
    if len(array.shape) < 2:
        return np.array([[begin, end]], dtype=np.int64)
    begins = begin + np.arange(array.shape[0], dtype=np.int64) * array.strides[0]
    return np.stack([begins, begins + array.shape[-1] * int(array.dtype.itemsize)], axis=1)
