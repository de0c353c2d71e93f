"""What a run of `qgen bench --model` found: one record a format and token count."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from qgen.bench.floors import Floor
from qgen.bench.protocol import SPREAD_ALLOWED, Timing
from qgen.bench.records import Report


@dataclass(frozen=True)
class Kind:
    """The products of a step that have one shape: their roles, how many, and the kernel that ran them."""

    shape: str
    roles: tuple[str, ...]
    count: int
    kernel: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """One decode step in one format. `problem`: why there is no time ("" where there is one).

    quantisations:  launches that quantise an activation; fewer than products, for neighbours that take the same x share
                    one, and some kernels quantise by themselves
    weight_bytes:   packed bytes of all products, each read once
    layers:         of the model, the head among them; distinct: those with memory of their own
    copies:         of the whole model, which steps take in turn
    us:             microseconds a step
    read_floor:     of reading the same matrices one after another; chain_floor: as a chain of dependent launches
    stream:         bytes a second, in GB/s, of one kernel that reads all of them at once
    """

    model: str
    format: str
    tokens: int
    products: int
    quantisations: int
    weight_bytes: int
    layers: int
    distinct: int
    copies: int
    kinds: tuple[Kind, ...]
    storage: str
    problem: str = ""
    us: Timing | None = None
    read_floor: Floor | None = None
    chain_floor: Floor | None = None
    stream: float | None = None

    @property
    def tokens_a_second(self) -> float | None:
        """Of the linear part alone: T tokens a step."""
        return 1e6 * self.tokens / self.us.median if self.us else None

    @property
    def gigabytes_a_second(self) -> float | None:
        """Weight bytes over the time of a step."""
        return self.weight_bytes / self.us.median / 1e3 if self.us else None

    @property
    def limit(self) -> Floor | None:
        """The chain floor; where launches cannot be chained, the read floor."""
        return self.chain_floor or self.read_floor

    @property
    def limit_tokens_a_second(self) -> float | None:
        """What that floor would allow."""
        return 1e6 * self.tokens / self.limit.us.median if self.limit else None

    @property
    def percent_of_limit(self) -> float | None:
        """The limit's time over the step's."""
        return 100 * self.limit.us.median / self.us.median if self.limit and self.us else None

    @property
    def percent_of_stream(self) -> float | None:
        """GB/s over those of one kernel that only reads."""
        return 100 * self.gigabytes_a_second / self.stream if self.gigabytes_a_second and self.stream else None


@dataclass
class ModelReport(Report):
    """A run: `steps` of the model, and `rows` of its matrices alone where peers were asked for."""

    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every kernel gave what it must give, and the run came to its end."""
        return super().ok and not any(step.problem for step in self.steps)

    @property
    def timed(self) -> int:
        """How many figures have a spread of their own."""
        return super().timed + len(self.steps)

    @property
    def judged(self) -> bool:
        """Whether there are times of kernels, which only those with a right result get."""
        return super().judged or any(step.us for step in self.steps)

    def wide(self) -> int:
        """How many of them spread more than a comparison should trust."""
        return super().wide() + sum(step.us is not None and step.us.spread > SPREAD_ALLOWED for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dumps: everything recorded, and the derived figures."""
        derived = (
            "tokens_a_second", "gigabytes_a_second", "limit_tokens_a_second", "percent_of_limit", "percent_of_stream",
        )  # fmt: skip
        steps = [dataclasses.asdict(step) | {name: getattr(step, name) for name in derived} for step in self.steps]
        return super().to_json() | {"steps": steps}
