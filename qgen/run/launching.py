"""Launches that may begin before the kernel in front of them has ended (programmatic dependent launch).

CuPy has no such launch, so it goes to the driver's cuLaunchKernelEx. The kernel launched so must wait by itself for
what it reads of its predecessors (`qgen_wait_for_inputs`); qgen's matmuls do, after asking for their first weights.
What makes that sound: a kernel begins only once its predecessor has begun and says so; quantisers say so at once,
and nobody who writes weights does before they are written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from qgen.archs import Arch
from qgen.errors import QgenError

_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):  # the layouts are cuda.h's
    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint64 * 8)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    ]


@cache
def why_not_dependent(arch: Arch) -> str | None:
    """Why kernels cannot be launched so on this architecture, or with this driver; None where they can."""
    if not arch.instructions.pdl:
        return f"{arch.name} has no programmatic dependent launch"
    try:
        _launcher()
    except (OSError, AttributeError) as error:
        return f"the driver offers no cuLaunchKernelEx: {error}"
    return None


def spreads(ctas: int, multiprocessors: int, resident: int) -> bool:
    """Whether a dependent launch of so many CTAs, `resident` of which fit a multiprocessor, spreads over all of them.

    While its predecessor still runs, some multiprocessors take new CTAs and others do not yet. A grid that leaves more
    than half of all places free then piles up on the first, which has cost up to 1.8 times the time on an H200.
    """
    return 2 * ctas >= multiprocessors * resident


@cache
def _launcher() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.restype = ctypes.c_int
    return function


def launch_dependent(
    function: Any, name: str, grid: tuple[int, int], threads: int, args: Sequence[Any], shared: int, stream: int
) -> None:
    """One launch of a CuPy function on the stream of this address; args as for `pack_arguments`.

    Raises QgenError (stage "run") with the driver's error number. Ask `why_not_dependent` first.
    """
    attribute = _Attribute(id=_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    config = _Config(
        grid=(*grid, 1),
        block=(threads, 1, 1),
        shared=shared,
        stream=stream,
        attributes=ctypes.pointer(attribute),
        count=1,
    )
    values, pointers = pack_arguments(args)
    status = _launcher()(ctypes.byref(config), ctypes.c_void_p(int(function.ptr)), pointers, None)
    del values  # the driver has copied them
    if status:
        raise QgenError(
            stage="run",
            subject=name,
            found=f"cuLaunchKernelEx returns error {status}",
            allowed="a dependent launch",
            next="an earlier fault on this device may be the cause: run again under compute-sanitizer",
        )


def pack_arguments(args: Sequence[Any]) -> tuple[list[ctypes.Array[ctypes.c_char]], Any]:
    """Kernel arguments as the driver takes them: the bytes of each, and the array of pointers to those.

    args: NumPy scalars, and arrays that have a device address (`.data.ptr`).
    """
    values = [
        ctypes.create_string_buffer(arg.tobytes() if isinstance(arg, np.generic) else _address(arg)) for arg in args
    ]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return values, pointers


def _address(array: Any) -> bytes:
    return int(array.data.ptr).to_bytes(8, "little")
