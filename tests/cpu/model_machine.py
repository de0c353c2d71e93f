"""A device for the bench of models without a device: calls go through qgen.run over a stand-in for CuPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from bench_machine import EmulatedMachine
from fake_cupy import Array, FakeCupy
from numpy.typing import NDArray

from qgen import run
from qgen.bench.machine import Grid, Kernel
from qgen.weights import Weight

Launches = list[tuple[str, Callable[[], object]]]


class ModelMachine(EmulatedMachine):
    """`memory`: bytes that `filled` gives. Replaying a graph runs its products, in the emulator, but no ruler."""

    def __init__(self, fake: FakeCupy, *, memory: int = 1 << 22, chain: bool = True) -> None:
        super().__init__(chain=chain)
        self.fake, self.memory = fake, memory

    def put(self, array: NDArray[Any]) -> Any:
        return Array(array.copy(), 0)

    def available(self) -> int:
        return self.memory

    def filled(self, nbytes: int) -> Any:
        assert nbytes <= self.memory
        backing = np.empty(nbytes + 256, dtype=np.uint8)  # as aligned as an allocator's
        begin = -backing.ctypes.data % 256
        return Array(backing[begin : begin + nbytes], 0)

    def repeat(self, buffer: Any, pattern: NDArray[np.uint8]) -> None:
        super().repeat(buffer.host, pattern)

    def poison(self, array: Any) -> None:
        super().poison(array.host)

    def fetch(self, array: Any) -> NDArray[Any]:
        return super().fetch(array.host)

    def part(self, buffer: Any, offset: int, nbytes: int) -> Any:
        return buffer[offset : offset + nbytes]

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any], *, chained: bool = False) -> None:
        if self._recording is not None:  # a ruler's
            self.launches.append((kernel.entry, chained))
            self._recorded().append((kernel.entry, lambda: None))
            return
        super().launch(kernel, grid, [a.host if isinstance(a, Array) else a for a in args], chained=chained)

    def bind(self, weight: Weight, tokens: int) -> Any:
        return run.bind(weight, 0, tokens=tokens)

    def call(self, bounds: Sequence[Any], x: Any, outs: Sequence[Any], workspace: Any) -> None:
        run.multiply(run.listed(bounds, outs), x, workspace=workspace)
        if self.fake.recording is None:
            for bound, out in zip(bounds, outs, strict=True):
                self.corrupt(bound.instance.name, out.host)

    def _recorded(self) -> Launches:
        assert self.fake.recording is not None
        return self.fake.recording

    def capture(self, issue: Callable[[int], None], launches: int) -> Any:
        self._recording, self.fake.recording = [], []
        try:
            for i in range(launches):
                issue(i)
            return self._recorded()
        finally:
            self._recording = self.fake.recording = None

    def lap(self, graphs: Sequence[Any]) -> list[float]:
        self.laps += 1
        for graph in graphs:
            for _, thunk in graph:
                thunk()
        return [sum(self._cost(entry) for entry, _ in graph) for graph in graphs]
