"""The checks an operand of a kernel passes before anything is launched. No device library is needed to make them.

An array here is whatever `qgen.run` has turned into a CuPy array, or in tests anything with the same attributes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from qgen.errors import QgenError

# Device types of the DLPack standard.
_DLPACK_NAMES = {1: "the host", 2: "CUDA", 3: "pinned host memory", 10: "ROCm", 13: "CUDA managed memory"}
_DLPACK_CUDA = (2, 13)
_SHAPES = "[{0}] or [1, {0}]"


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


def check_vector(name: str, array: DeviceArray, *, length: int, what: str, device: int) -> None:
    """That `array` is a float32 vector of `length` on `device`, dense along it: shape [length] or [1, length].

    what: how messages name the length ("K" or "N"). Raises QgenError (stage "run").
    """
    check_device(name, array, device)
    shapes = _SHAPES.format(f"{what} = {length}")
    if array.dtype != np.float32:
        raise refusal(name, f"dtype {array.dtype}", "float32", f"convert it: {name}.astype('float32')")
    if not array.shape or len(array.shape) > 2 or array.shape[-1] != length:
        raise refusal(name, f"shape {list(array.shape)}", shapes, f"pass one vector with {what} = {length} elements")
    if len(array.shape) == 2 and array.shape[0] != 1:
        raise refusal(
            name,
            f"shape {list(array.shape)}: T = {array.shape[0]} tokens",
            f"T = 1: {shapes}",
            "call once per token; kernels for T > 1 are not built yet",
        )
    if length > 1 and array.strides[-1] != 4:
        raise refusal(
            name,
            f"a stride of {array.strides[-1]} bytes between neighbours of shape {list(array.shape)}",
            "4 bytes: contiguous data",
            f"copy it: cupy.ascontiguousarray({name})",
        )
    check_aligned(name, array, 4, "float32 data")


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
    hint = "get one with qgen.workspace(weight)"
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


def check_apart(arrays: dict[str, DeviceArray]) -> None:
    """That no two of the arrays share a byte. Raises QgenError (stage "run")."""
    spans = sorted((int(a.data.ptr), int(a.data.ptr) + a.nbytes, name) for name, a in arrays.items() if a.nbytes)
    for (_, end, name), (begin, _, other) in zip(spans, spans[1:], strict=False):
        if begin < end:
            raise refusal(
                other,
                f"shares memory with {name}: it begins {end - begin} bytes before {name} ends",
                "operands that do not overlap",
                f"give {other} memory of its own",
            )
