"""What a run found, as records: one row a case and kernel, and the figures derived from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from qgen.bench.cases import Skipped
from qgen.bench.conditions import Conditions
from qgen.bench.floors import Floor
from qgen.bench.peers import Figure
from qgen.bench.protocol import SPREAD_ALLOWED, Timing


@dataclass(frozen=True)
class Times:
    """Microseconds a call: with the quantisation of the activation, the product alone, the quantiser alone.

    product, quantise: None for a kernel that does both
    """

    total: Timing
    product: Timing | None = None
    quantise: Timing | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel on one case. `problem`: why there are no times ("" where there are).

    activation: "f16" or "bf16"; "" for int8 as the format's file says
    read_floor, chain_floor: of the same bytes, in the same rounds; None where they could not be taken
    """

    format: str
    rows: int
    columns: int
    tokens: int
    storage: str
    family: str
    kernel: str
    launch: str
    routed: bool
    grid: int
    resident: int
    bits_per_weight: float
    weight_bytes: int
    grid_y: int = 1
    activation: str = ""
    problem: str = ""
    times: Times | None = None
    read_floor: Floor | None = None
    chain_floor: Floor | None = None
    peers: tuple[Figure, ...] = ()

    @property
    def operands(self) -> str:
        """The format, and the activation where it is not the format's own int8."""
        return self.format + (f" x {self.activation}" if self.activation else "")

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def us(self) -> float | None:
        """What a call costs, quantisation included: the figure that comparisons use."""
        return self.times.total.median if self.times else None

    @property
    def alone(self) -> Timing | None:
        """The product without the quantisation; None where one kernel does both."""
        return self.times.product if self.times else None

    @property
    def quantise(self) -> Timing | None:
        """The quantiser; None where there is none."""
        return self.times.quantise if self.times else None

    @property
    def gigabytes_a_second(self) -> float | None:
        """Weight bytes over the time of a call."""
        return self.weight_bytes / self.us / 1e3 if self.us else None

    def percent(self, floor: Floor | None) -> float | None:
        """Floor time over the time of a call, in percent."""
        return 100 * floor.us.median / self.us if floor and self.us else None

    def live(self, peer: str) -> Figure | None:
        """What a peer took in the same run."""
        return next((f for f in self.peers if f.peer == peer and f.live), None)

    def ratio(self, figure: Figure) -> float | None:
        """How many times faster than the peer."""
        return figure.us / self.us if self.us else None


@dataclass(frozen=True)
class About:
    """A peer that took part in a run. tolerance: the largest normalised mean square error that it may have."""

    name: str
    version: str
    how: str
    tolerance: float


@dataclass
class Report:
    """A whole run. `aborted`: the error that ended it early, in one line; `live`: the peers of the same run."""

    conditions: Conditions
    rows: list[Row] = field(default_factory=list)
    floors: list[tuple[Floor, Floor | None]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    no_chain: str | None = None
    peers_device: str = ""
    live: list[About] = field(default_factory=list)
    aborted: str = ""

    @property
    def ok(self) -> bool:
        """Whether every kernel gave the bits it must give, and the run came to its end."""
        return not self.aborted and not any(row.problem for row in self.rows)

    def case_of(self, row: Row) -> list[Row]:
        """The rows of the same case, in the order they were taken."""
        key = (row.format, row.shape, row.tokens)
        return [r for r in self.rows if (r.format, r.shape, r.tokens) == key]

    def routed(self) -> list[Row]:
        """The rows of the kernels that a user gets."""
        return [row for row in self.rows if row.routed]

    def best(self) -> list[Row]:
        """The fastest row of every case, in the order of the cases."""
        found: dict[tuple[str, str, int], Row] = {}
        for row in self.rows:
            key = (row.format, row.shape, row.tokens)
            held = found.get(key)
            if row.us is not None and (held is None or held.us is None or row.us < held.us):
                found[key] = row
        return list(found.values())

    @property
    def judged(self) -> bool:
        """Whether there are times of kernels, which only those with a right result get."""
        return any(row.times for row in self.rows)

    def wide(self) -> int:
        """How many of them spread more than a comparison should trust."""
        taken = [row.times.total for row in self.rows if row.times] + [read.us for read, _ in self.floors]
        return sum(timing.spread > SPREAD_ALLOWED for timing in taken)

    @property
    def timed(self) -> int:
        """How many figures have a spread of their own."""
        return len(self.rows) + len(self.floors)

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dumps: everything recorded, and the derived figures."""
        rows = []
        for row in self.rows:
            rows.append(
                dataclasses.asdict(row)
                | {
                    "us": row.us,
                    "gigabytes_a_second": row.gigabytes_a_second,
                    "percent_of_read_floor": row.percent(row.read_floor),
                    "percent_of_chain_floor": row.percent(row.chain_floor),
                }
            )
        return {
            "ok": self.ok,
            "aborted": self.aborted,
            "conditions": dataclasses.asdict(self.conditions),
            "no_chain": self.no_chain,
            "live_peers": [dataclasses.asdict(about) for about in self.live],
            "rows": rows,
            "floors": [
                {"read": dataclasses.asdict(read), "chain": dataclasses.asdict(chain) if chain else None}
                for read, chain in self.floors
            ],
            "skipped": [dataclasses.asdict(entry) for entry in self.skipped],
        }


def geometric_mean(values: Iterable[float]) -> float | None:
    """Of positive numbers; None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
