"""The integer sums of a block and what is made of them, as the templates of the dp4a families print them."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.matvec import MatvecPlan
from qgen.plan.multirow import MultirowPlan
from qgen.plan.records import FloatScale, IntScale


@dataclass(frozen=True)
class Part:
    """One summand of an integer total: an optional integer scale times a sum variable."""

    scale: IntScale | None
    sum: str


@dataclass(frozen=True)
class Total:
    """One integer result of block_sums."""

    label: str
    slot: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class FloatStep:
    """One fused multiply-add of the canonical order."""

    negative: bool
    floats: tuple[FloatScale, ...]
    scale: int
    slot: int


def block_sums(
    plan: MatvecPlan | MultirowPlan, units: tuple[int, ...]
) -> tuple[tuple[Total, ...], tuple[FloatStep, ...]]:
    """The integer totals of these units of a block and the additions they end in, in the contract's order."""
    totals, steps = [], []
    for place, unit in enumerate(units):
        groups = [g for g in range(plan.groups) if plan.unit_of_group[g] == unit]
        for i, term in enumerate(plan.terms):
            slot = place * len(plan.terms) + i
            parts = tuple(
                Part(scale=term.scales[g][0] if term.scales[g] else None, sum=f"g{g}" if term.codes else f"a[{g}]")
                for g in groups
            )
            label = f"{term.label}, unit {unit}" if plan.units > 1 else term.label
            totals.append(Total(label=label, slot=slot, parts=parts))
            scale = unit * plan.contract.unit // plan.layout.group
            steps.append(FloatStep(negative=term.negative, floats=term.floats[unit], scale=scale, slot=slot))
    return tuple(totals), tuple(steps)
