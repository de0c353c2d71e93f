"""How time is taken: which copy of the weights a launch reads, how passes are spread, what is kept of them.

Arithmetic only; the machine that runs graphs is handed in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qgen.bench.machine import Machine

COLD_BYTES = 300_000_000  # weights rotate over at least this much, and over twice the L2
MIN_LAUNCHES = 24  # of a graph, so that the ends of a pass do not weigh
ALIGNMENT = 256  # of every copy, as an allocator gives
WARM_UP = 3  # passes thrown away: module load, instruction cache, clocks
SPREAD_ALLOWED = 0.05  # a wider interquartile range, relative to the median, is said in the report


@dataclass(frozen=True)
class Rotation:
    """Copies of one matrix in a row: launch i reads the copy at byte `offset(i)`. Sizes in bytes."""

    stride: int
    copies: int
    launches: int

    @property
    def nbytes(self) -> int:
        """All copies together."""
        return self.stride * self.copies

    def offset(self, launch: int) -> int:
        """Where the copy of this launch begins."""
        return launch % self.copies * self.stride


def cold_bytes(l2_bytes: int) -> int:
    """Bytes that must be read between two reads of a matrix for the second to be cold."""
    return max(COLD_BYTES, 2 * l2_bytes + 1)


def turns(nbytes: int, cold: int) -> tuple[int, int]:
    """Copies of a matrix, so many that each is cold when its turn comes; and launches of a graph, whole rounds."""
    copies = 1 + -(-cold // nbytes)
    return copies, copies * -(-MIN_LAUNCHES // copies)


def rotation(nbytes: int, block_bytes: int, l2_bytes: int) -> Rotation:
    """Between two reads of a copy lie COLD_BYTES and twice the L2 of other copies; a graph walks whole rounds of them.

    Copies begin on whole blocks of `block_bytes`, so that a repeating pattern of blocks fills all of them rightly.
    """
    unit = math.lcm(block_bytes, ALIGNMENT)
    stride = -(-nbytes // unit) * unit
    copies, launches = turns(stride, cold_bytes(l2_bytes))
    return Rotation(stride=stride, copies=copies, launches=launches)


@dataclass(frozen=True)
class Timing:
    """Microseconds a launch, over the passes of one subject."""

    median: float
    low: float
    high: float
    quarter: float
    three_quarters: float
    passes: int

    @property
    def spread(self) -> float:
        """Interquartile range over the median: what a comparison can be trusted to."""
        return (self.three_quarters - self.quarter) / self.median if self.median else 0.0


def timing(laps: Sequence[float]) -> Timing:
    """Of microseconds a launch, one a pass; at least one."""
    ordered = sorted(laps)
    if len(ordered) > 1:
        quarter, _, three_quarters = statistics.quantiles(ordered, n=4, method="inclusive")
    else:
        quarter = three_quarters = ordered[0]
    return Timing(
        median=statistics.median(ordered),
        low=ordered[0],
        high=ordered[-1],
        quarter=quarter,
        three_quarters=three_quarters,
        passes=len(ordered),
    )


def measure(
    machine: Machine,
    graphs: Mapping[str, tuple[Any, int]],
    passes: int,
    others: Mapping[str, Callable[[], float | None]] | None = None,
) -> dict[str, Timing]:
    """One pass a subject and round, `passes` rounds, each beginning with the next subject so that drift spreads.

    graphs: subject -> (graph, launches in it)
    others: subjects that are not the machine's, which follow its in each round: microseconds a launch of one pass, or
            None from one that has failed, which then has no time
    Returns subject -> microseconds a launch.
    """
    names = list(graphs)
    laps: dict[str, list[float]] = {name: [] for name in names}
    failed: set[str] = set()
    for number in range(-WARM_UP, passes):
        first = number % len(names)
        order = names[first:] + names[:first]
        for name, us in zip(order, machine.lap([graphs[name][0] for name in order]), strict=True):
            if number >= 0:
                laps[name].append(us / graphs[name][1])
        for name, lap in (others or {}).items():
            taken = lap()
            if taken is None:
                failed.add(name)
            elif number >= 0:
                laps.setdefault(name, []).append(taken)
    return {name: timing(times) for name, times in laps.items() if name not in failed}
