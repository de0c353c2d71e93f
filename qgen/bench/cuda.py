"""The machine of a benchmark, for CUDA: CuPy for memory, graphs and events, and the driver for dependent launches."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import build
from qgen.bench.machine import Facts, Grid, Kernel
from qgen.errors import QgenError
from qgen.run.device import (
    allow_shared,
    arch_of_device,
    cupy_module,
    current_device,
    device_errors,
    load_module,
    occupancy,
)

_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_SPARE = 1 << 30  # device memory left alone


# ---- cuLaunchKernelEx, which CuPy does not offer; the layouts are cuda.h's --------------------------------------


class _Attribute(ctypes.Structure):
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


class CudaMachine:
    """The current CUDA device, see `qgen.bench.machine.Machine`. Everything runs on one stream of its own."""

    def __init__(self) -> None:
        """Raises QgenError when there is no CuPy, no device, or no architecture file for it."""
        self._device = current_device()
        cupy = self._cupy = cupy_module()
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self._device)
        self._driver_version = int(runtime.driverGetVersion())
        self.arch = arch_of_device(self._device)
        self.facts = Facts(
            name=properties["name"].decode(),
            arch=self.arch.name,
            multiprocessors=int(properties["multiProcessorCount"]),
            l2_bytes=int(properties["l2CacheSize"]),
            memory_bytes=int(properties["totalGlobalMem"]),
            bus=str(cupy.cuda.Device(self._device).pci_bus_id),
            runtime=f"CUDA {self._driver_version} (driver) and {runtime.runtimeGetVersion()}, CuPy {cupy.__version__}",
        )
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._libcuda: Any = None
        self.why_no_chain = self._find_chain()

    def _find_chain(self) -> str | None:
        if not self.arch.instructions.pdl:
            return f"{self.arch.name} has no programmatic dependent launch"
        try:
            self._libcuda = ctypes.CDLL("libcuda.so.1")
            self._libcuda.cuLaunchKernelEx.restype = ctypes.c_int
        except (OSError, AttributeError) as error:
            return f"the driver offers no cuLaunchKernelEx: {error}"
        return None

    def compile(self, texts: Mapping[str, str]) -> None:
        toolkit = 12 if self._driver_version < 13000 else None  # as load_module chooses
        build.compile_all(texts.items(), [self.arch.name], toolkit=toolkit)

    def put(self, array: NDArray[Any]) -> Any:
        with device_errors("an operand"), self._stream:
            copied = self._cupy.asarray(array)
            self._stream.synchronize()
            return copied

    def filled(self, nbytes: int) -> Any:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        if nbytes + _SPARE > free:
            raise QgenError(
                stage="bench",
                subject="the rotating copies of the weights",
                found=f"{nbytes / 1e6:.0f} MB wanted, {free / 1e6:.0f} MB free on {self.facts.name}",
                allowed="what fits beside 1 GiB of spare memory",
                next="choose a smaller --shape, or free the device",
            )
        with device_errors("the weights"):
            return self._cupy.empty(nbytes, dtype=np.uint8)

    def repeat(self, buffer: Any, pattern: NDArray[np.uint8]) -> None:
        with device_errors("the weights"), self._stream:
            source = self._cupy.asarray(pattern.reshape(-1))
            whole = buffer.size // source.size
            buffer[: whole * source.size].reshape(whole, source.size)[:] = source
            buffer[whole * source.size :] = source[: buffer.size - whole * source.size]
            self._stream.synchronize()

    def poison(self, array: Any) -> None:
        with device_errors("an operand"), self._stream:
            array.view(np.uint8).fill(0xFF)

    def fetch(self, array: Any) -> NDArray[Any]:
        with device_errors("a result"), self._stream:
            host: NDArray[Any] = self._cupy.asnumpy(array, stream=self._stream)
            self._stream.synchronize()
            return host

    def at(self, buffer: Any, offset: int) -> Any:
        return buffer[offset:]

    def kernel(self, name: str, text: str, entry: str, *, threads: int, shared: int) -> Kernel:
        with device_errors(entry):
            function = load_module(name, text, self._device).get_function(entry)
            allow_shared(function, shared)
            _, resident = occupancy(function, threads=threads, shared=shared, device=self._device)
        return Kernel(entry=entry, function=function, threads=threads, shared=shared, resident=resident)

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any], *, chained: bool = False) -> None:
        extent = grid if isinstance(grid, tuple) else (grid, 1)
        if chained and self._libcuda is not None:
            self._launch_chained(kernel, extent, args)
        else:
            with self._stream:
                kernel.function(extent, (kernel.threads,), tuple(args), kernel.shared)

    def _launch_chained(self, kernel: Kernel, extent: tuple[int, int], args: Sequence[Any]) -> None:
        attribute = _Attribute(id=_STREAM_SERIALIZATION)
        attribute.value[0] = 1
        config = _Config(
            grid=(*extent, 1),
            block=(kernel.threads, 1, 1),
            shared=kernel.shared,
            stream=self._stream.ptr,
            attributes=ctypes.pointer(attribute),
            count=1,
        )
        values, pointers = pack_arguments(args)
        status = self._libcuda.cuLaunchKernelEx(
            ctypes.byref(config), ctypes.c_void_p(int(kernel.function.ptr)), pointers, None
        )
        del values  # the driver has copied them
        if status:
            raise QgenError(
                stage="bench",
                subject=kernel.entry,
                found=f"cuLaunchKernelEx returns error {status}",
                allowed="a dependent launch",
                next="an earlier fault on this device may be the cause: run again under compute-sanitizer",
            )

    def capture(self, issue: Callable[[int], None], launches: int) -> Any:
        with device_errors("a graph"), self._stream:
            self._stream.begin_capture()
            try:
                for i in range(launches):
                    issue(i)
            except BaseException:
                with contextlib.suppress(Exception):  # what broke the capture is the error to tell
                    self._stream.end_capture()
                raise
            graph = self._stream.end_capture()
            graph.upload(self._stream)
        return graph

    def lap(self, graphs: Sequence[Any]) -> list[float]:
        event = self._cupy.cuda.Event
        with device_errors("a graph"):
            marks = []
            for graph in graphs:
                begin, end = event(), event()
                begin.record(self._stream)
                graph.launch(self._stream)
                end.record(self._stream)
                marks.append((begin, end))
            self._stream.synchronize()
            return [1000.0 * float(self._cupy.cuda.get_elapsed_time(begin, end)) for begin, end in marks]
