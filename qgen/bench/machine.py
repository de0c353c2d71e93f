"""What a benchmark needs of a device. `qgen.bench.cuda` is the real one; tests bring one that runs the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qgen.weights import Weight

Grid = int | tuple[int, int]  # CTAs along x, or along x and y


@dataclass(frozen=True)
class Facts:
    """A device as it says of itself; l2_bytes and memory_bytes in bytes."""

    name: str
    arch: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    bus: str  # PCI address, as nvidia-smi takes it
    runtime: str  # CUDA versions of driver and runtime, CuPy


@dataclass(frozen=True)
class Kernel:
    """An entry that is loaded: threads a CTA, dynamic shared bytes, and how many CTAs fit on a multiprocessor."""

    entry: str
    function: Any
    threads: int
    shared: int
    resident: int


class Machine(Protocol):
    """Arrays are opaque: made by `put` and `filled`, read by `fetch`, and passed to `launch` as arguments."""

    @property
    def facts(self) -> Facts: ...

    # Why launches cannot be made programmatically dependent; None when they can. Set by who finds that a graph of them
    # fails; launches are ordinary ones from then on.
    why_no_chain: str | None

    def compile(self, texts: Mapping[str, str]) -> None:
        """Compile kernel files (name -> text) for this device, all at once; `kernel` then finds them ready."""

    def put(self, array: NDArray[Any]) -> Any:
        """A copy of `array` on the device."""

    def filled(self, nbytes: int) -> Any:
        """uint8[nbytes] on the device, of any content. Raises QgenError when it does not fit."""

    def repeat(self, buffer: Any, pattern: NDArray[np.uint8]) -> None:
        """Fill `buffer` with copies of `pattern`, the last one cut off."""

    def poison(self, array: Any) -> None:
        """Set every byte to 0xFF: NaN in any float."""

    def fetch(self, array: Any) -> NDArray[Any]:
        """A copy on the host, after everything launched so far."""

    def at(self, buffer: Any, offset: int) -> Any:
        """The part of a uint8 buffer from byte `offset` on."""

    def kernel(self, name: str, text: str, entry: str, *, threads: int, shared: int) -> Kernel:
        """Load one entry of a kernel file."""

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any], *, chained: bool = False) -> None:
        """One launch on the benchmark's stream; `chained`: it may start before the one in front of it has ended."""

    def capture(self, issue: Callable[[int], None], launches: int) -> Any:
        """A graph of issue(0), issue(1) ... issue(launches - 1)."""

    def lap(self, graphs: Sequence[Any]) -> list[float]:
        """Run the graphs one after another; microseconds of each, by events of the device."""


class Caller(Machine, Protocol):
    """A machine that also makes the calls that users make."""

    def available(self) -> int:
        """Bytes that `filled` would give."""

    def part(self, buffer: Any, offset: int, nbytes: int) -> Any:
        """`nbytes` of a uint8 buffer from byte `offset` on."""

    def bind(self, weight: Weight, tokens: int) -> Any:
        """What `qgen.mul_mat` runs for a weight on this device and so many tokens: a `qgen.run.Bound`."""

    def call(self, bounds: Sequence[Any], x: Any, outs: Sequence[Any], workspace: Any) -> None:
        """One call on the benchmark's stream: the products of all `bounds` with one x, as in `qgen.mul_mats`."""
