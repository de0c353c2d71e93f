"""The machine of a benchmark, for CUDA: CuPy for memory, graphs and events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import build, run
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
from qgen.run.launching import launch_dependent, why_not_dependent
from qgen.weights import Weight

_SPARE = 1 << 30  # device memory left alone


class CudaMachine:
    """The current CUDA device, see `qgen.bench.machine.Caller`. Everything runs on one stream of its own."""

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
        self.why_no_chain = why_not_dependent(self.arch)

    def compile(self, texts: Mapping[str, str]) -> None:
        toolkit = 12 if self._driver_version < 13000 else None  # as load_module chooses
        build.compile_all(texts.items(), [self.arch.name], toolkit=toolkit)

    def put(self, array: NDArray[Any]) -> Any:
        with device_errors("an operand"), self._stream:
            copied = self._cupy.asarray(array)
            self._stream.synchronize()
            return copied

    def available(self) -> int:
        pool = self._cupy.get_default_memory_pool()
        pool.free_all_blocks()  # what earlier cases have left
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return max(0, int(free) - _SPARE)

    def filled(self, nbytes: int) -> Any:
        available = self.available()
        if nbytes > available:
            raise QgenError(
                stage="bench",
                subject="the rotating copies of the weights",
                found=f"{nbytes / 1e6:.0f} MB wanted, {available / 1e6:.0f} MB free on {self.facts.name}",
                allowed="what is free beside 1 GiB of spare memory",
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

    def part(self, buffer: Any, offset: int, nbytes: int) -> Any:
        return buffer[offset : offset + nbytes]

    def kernel(self, name: str, text: str, entry: str, *, threads: int, shared: int) -> Kernel:
        with device_errors(entry):
            function = load_module(name, text, self._device).get_function(entry)
            allow_shared(function, shared)
            _, resident = occupancy(function, threads=threads, shared=shared, device=self._device)
        return Kernel(entry=entry, function=function, threads=threads, shared=shared, resident=resident)

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any], *, chained: bool = False) -> None:
        extent = grid if isinstance(grid, tuple) else (grid, 1)
        if chained and self.why_no_chain is None:
            launch_dependent(
                kernel.function, kernel.entry, extent, kernel.threads, args, kernel.shared, self._stream.ptr
            )
        else:
            with self._stream:
                kernel.function(extent, (kernel.threads,), tuple(args), kernel.shared)

    def bind(self, weight: Weight, tokens: int) -> Any:
        with self._stream:
            return run.bind(weight, self._device, tokens=tokens)

    def call(self, bounds: Sequence[Any], x: Any, outs: Sequence[Any], workspace: Any) -> None:
        with self._stream:
            run.multiply(run.listed(bounds, outs), x, workspace=workspace)

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
