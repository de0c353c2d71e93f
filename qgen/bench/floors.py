"""The two rulers: how fast the bytes of a matrix can be read at all, kernel by kernel and as a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from qgen import paths
from qgen.bench.machine import Kernel, Machine
from qgen.bench.protocol import Rotation, Timing
from qgen.errors import QgenError

FILE = "read_floor"
PIECE = 16  # bytes of a load
CHECKED = 4_000_016  # bytes over which a ruler is checked; no multiple of any launch shape
SIZES = (4_000_000, 8_000_000, 16_000_000, 33_000_000, 66_000_000, 132_000_000, 512_000_000)


@dataclass(frozen=True)
class Variant:
    """One launch shape of a ruler: pieces a thread asks for at once, threads a CTA, CTAs a multiprocessor."""

    unroll: int
    threads: int
    ctas: int
    chained: bool

    @property
    def entry(self) -> str:
        return f"read_chain_u{self.unroll}" if self.chained else f"read_u{self.unroll}"

    @property
    def name(self) -> str:
        return f"{'chain' if self.chained else 'read'} {self.unroll} x 16 B, {self.threads} threads, {self.ctas} CTAs"


# The best differs with the size: few bytes want many small requests at once, many bytes a steady stream.
READS = (
    Variant(1, 1024, 2, False),
    Variant(2, 512, 4, False),
    Variant(2, 1024, 2, False),
    Variant(4, 256, 2, False),
    Variant(4, 256, 4, False),
    Variant(4, 256, 8, False),
    Variant(8, 256, 4, False),
    Variant(8, 512, 1, False),
)
# Half of each multiprocessor is left free, so that the next kernel of the chain fits beside this one.
CHAINS = (
    Variant(4, 256, 2, True),
    Variant(4, 256, 4, True),
    Variant(4, 512, 2, True),
    Variant(8, 256, 1, True),
    Variant(8, 256, 2, True),
    Variant(8, 512, 1, True),
)


@dataclass(frozen=True)
class Floor:
    """The fastest variant of a ruler for `nbytes` bytes."""

    nbytes: int
    variant: str
    us: Timing


@cache
def text() -> str:
    """The rulers' CUDA text."""
    return (paths.data_dir("templates") / "bench" / f"{FILE}.cu").read_text(encoding="utf-8")


class Rulers:
    """The loaded rulers of a machine."""

    def __init__(self, machine: Machine) -> None:
        """Raises QgenError when they do not compile or load."""
        self.machine = machine
        self.kernels: dict[Variant, Kernel] = {
            v: machine.kernel(FILE, text(), v.entry, threads=v.threads, shared=0) for v in READS + CHAINS
        }
        words = max(self._grid(v) * v.threads for v in self.kernels)
        self.out = machine.put(np.zeros(words, dtype=np.uint32))
        machine.why_no_chain = machine.why_no_chain or self._try_chain()
        self.no_chain = machine.why_no_chain
        if self.no_chain:
            self.kernels = {v: kernel for v, kernel in self.kernels.items() if not v.chained}

    def _try_chain(self) -> str | None:
        """Why a graph of dependent launches does not work here; None when it does."""
        variant = CHAINS[0]

        def issue(_: int) -> None:
            args = self._args(self.out, 0, check=0)
            self.machine.launch(self.kernels[variant], self._grid(variant), args, chained=True)

        try:
            self.machine.lap([self.machine.capture(issue, 2)])
        except QgenError as error:
            return f"a graph of dependent launches fails: {error.found}"
        return None

    def _grid(self, variant: Variant) -> int:
        return variant.ctas * self.machine.facts.multiprocessors

    def check(self, buffer: Any, nbytes: int) -> None:
        """That every ruler reads each of the first `nbytes` bytes once. Raises QgenError for one that does not."""
        host = self.machine.fetch(buffer)[: nbytes // PIECE * PIECE]
        wanted = int(np.bitwise_xor.reduce(host.view(np.uint32)))
        for variant, kernel in self.kernels.items():
            grid = self._grid(variant)
            self.machine.launch(kernel, grid, self._args(buffer, nbytes, check=1), chained=variant.chained)
            sums = self.machine.fetch(self.out)[: grid * variant.threads]
            if int(np.bitwise_xor.reduce(sums)) != wanted:
                raise QgenError(
                    stage="bench",
                    subject=f"ruler {variant.name}",
                    found=f"it does not read all of {nbytes} bytes once",
                    allowed="every byte, once",
                    next="mend templates/bench/read_floor.cu; no floor of this run would be true",
                )

    def _args(self, buffer: Any, nbytes: int, *, check: int) -> tuple[Any, ...]:
        return buffer, np.int64(nbytes // PIECE), np.int32(check), self.out

    def graphs(self, buffer: Any, nbytes: int, turn: Rotation) -> dict[str, tuple[Any, int]]:
        """Subjects for `protocol.measure`, one a variant, over the same copies that the kernels read."""
        reads = [(turn.offset(i), nbytes) for i in range(turn.launches)]
        return {name: (graph, turn.launches) for name, graph in self.walks(buffer, reads).items()}

    def walks(self, buffer: Any, reads: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """A graph of each variant that reads (offset, bytes) after (offset, bytes) of the buffer."""

        def graph(variant: Variant, kernel: Kernel) -> Any:
            def issue(i: int) -> None:
                offset, nbytes = reads[i]
                args = self._args(self.machine.at(buffer, offset), nbytes, check=0)
                self.machine.launch(kernel, self._grid(variant), args, chained=variant.chained)

            return self.machine.capture(issue, len(reads))

        return {v.name: graph(v, kernel) for v, kernel in self.kernels.items()}

    def best(self, times: Mapping[str, Timing], nbytes: int) -> tuple[Floor, Floor | None]:
        """The read floor and, where launches can be chained, the chain floor."""

        def fastest(variants: tuple[Variant, ...]) -> Floor:
            winner = min(variants, key=lambda v: times[v.name].median)
            return Floor(nbytes=nbytes, variant=winner.name, us=times[winner.name])

        return fastest(READS), None if self.no_chain else fastest(CHAINS)
