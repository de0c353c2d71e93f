"""A device for benchmarks without a device: launches run in the emulator, those of a graph cost a set time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qgen import emulate
from qgen.bench import floors, protocol, session
from qgen.bench.machine import Facts, Grid, Kernel
from qgen.bench.records import Report
from qgen.errors import QgenError
from qgen.plan import MatvecPlan, plan_matvec
from qgen.spec import load_formats

# Microseconds of a launch in a graph, by how its entry begins; the longest match counts.
COSTS = {"quantize": 1.0, "mul_mat": 4.0, "read_": 2.0, "read_chain": 1.0}
DRIFT = (0.0, 0.05, 0.1)  # added to a whole lap, in turn


class EmulatedMachine:
    """Two multiprocessors. `launches` lists (entry, chained) as issued; `corrupt` changes the y of an entry."""

    def __init__(self, *, chain: bool = True, name: str = "NVIDIA H200 (emulated)") -> None:
        self.facts = Facts(
            name=name,
            arch="sm_90",
            multiprocessors=2,
            l2_bytes=2048,
            memory_bytes=1 << 20,
            bus="none",
            runtime="emulator",
        )
        self.why_no_chain: str | None = None if chain else "sm_75 has no programmatic dependent launch"
        self.compiled: dict[str, str] = {}
        self.launches: list[tuple[str, bool]] = []
        self.corrupt: Callable[[str, NDArray[Any]], None] = lambda entry, y: None
        self.fail_at = ""  # launching an entry that contains this raises
        self.costs = dict(COSTS)
        self.laps = 0
        self._recording: list[str] | None = None

    def compile(self, texts: Mapping[str, str]) -> None:
        self.compiled |= texts

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.copy()

    def filled(self, nbytes: int) -> NDArray[np.uint8]:
        return np.full(nbytes, 0xAA, dtype=np.uint8)

    def repeat(self, buffer: NDArray[np.uint8], pattern: NDArray[np.uint8]) -> None:
        buffer[:] = np.resize(pattern.reshape(-1), buffer.size)

    def poison(self, array: NDArray[Any]) -> None:
        array.view(np.uint8).fill(0xFF)

    def fetch(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.copy()

    def at(self, buffer: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
        return buffer[offset:]

    def kernel(self, name: str, text: str, entry: str, *, threads: int, shared: int) -> Kernel:
        assert self.compiled[name] == text, "compiled together, before the first is loaded"
        # sm_89 for the rulers: the emulator has no griddepcontrol, and they leave it out there.
        program = emulate.compile(text, name, arch=890 if name == floors.FILE else 900)
        assert entry in program.parameters
        return Kernel(entry=entry, function=program, threads=threads, shared=shared, resident=2)

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any], *, chained: bool = False) -> None:
        if self.fail_at and self.fail_at in kernel.entry:
            raise QgenError(stage="run", subject=kernel.entry, found="CUDA refuses", allowed="a device", next="look")
        self.launches.append((kernel.entry, chained and self.why_no_chain is None))
        if self._recording is not None:
            self._recording.append(kernel.entry)
            return
        buffers = [
            emulate.Buffer(f"argument{i}", arg, writable=True) if isinstance(arg, np.ndarray) else arg
            for i, arg in enumerate(args)
        ]
        extent = (*grid, 1) if isinstance(grid, tuple) else grid
        kernel.function.launch(kernel.entry, grid=extent, block=kernel.threads, shared=kernel.shared, args=buffers)
        if kernel.entry.startswith("mul_mat"):
            self.corrupt(kernel.entry, next(arg for arg in reversed(args) if isinstance(arg, np.ndarray)))

    def capture(self, issue: Callable[[int], None], launches: int) -> list[str]:
        graph: list[str] = []
        self._recording = graph
        try:
            for i in range(launches):
                issue(i)
        finally:
            self._recording = None
        return graph

    def lap(self, graphs: Sequence[list[str]]) -> list[float]:
        self.laps += 1
        drift = DRIFT[self.laps % len(DRIFT)]
        return [sum(self._cost(entry) for entry in graph) + drift for graph in graphs]

    def _cost(self, entry: str) -> float:
        return self.costs[max((begin for begin in self.costs if entry.startswith(begin)), key=len)]


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few KB are cold enough for a cache that is not there; nobody asks for nvidia-smi."""
    monkeypatch.setattr(protocol, "COLD_BYTES", 4096)
    monkeypatch.setattr(protocol, "MIN_LAUNCHES", 2)
    monkeypatch.setattr(floors, "SIZES", (4096, 16384))
    monkeypatch.setattr(session, "read_state", lambda bus, meanwhile=None: None)
    monkeypatch.setattr(session, "other_processes", lambda bus, own: ())


def matvec(format: str) -> MatvecPlan:
    """The plan of a format."""
    return plan_matvec(load_formats()[format])


def run(machine: EmulatedMachine, *, shapes: tuple[str, ...] = ("70x512",), **options: Any) -> Report:
    """A short run: TQ1_0, three passes, unless told otherwise."""
    defaults: dict[str, Any] = {"formats": ("TQ1_0",), "passes": 3}
    chosen = session.Options(shapes=shapes, **(defaults | options))
    return session.bench(chosen, machine, show_progress=False)
