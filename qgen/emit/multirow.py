"""What multirow.cu.j2 receives: the finished plan, regrouped in the order it is printed."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.emit.sums import FloatStep, block_sums
from qgen.plan.multirow import BlockPart, MultirowPlan
from qgen.plan.records import FloatScale, IntScale


@dataclass(frozen=True)
class Group:
    """One group of a part: its number there, its number in the block, and its activation words."""

    index: int
    number: int
    first: int
    end: int


@dataclass(frozen=True)
class ScaleLoad:
    """`count` activation scales of a block from number `first` on, into place `place` of the part's."""

    place: int
    first: int
    count: int


@dataclass(frozen=True)
class Product:
    """One summand of an integer total: scale number `scale` of the row (-1 for none) times a sum variable."""

    scale: int
    sum: str


@dataclass(frozen=True)
class Total:
    """One integer total of a part."""

    label: str
    slot: int
    products: tuple[Product, ...]


@dataclass(frozen=True)
class Addition:
    """One fused multiply-add: factor number `factor` of the row (-1 for none) times the activation scale."""

    negative: bool
    factor: int
    scale: int
    slot: int


@dataclass(frozen=True)
class PrintedPart:
    """One part of a block: what its functions are made of."""

    index: int
    plan: BlockPart
    groups: tuple[Group, ...]
    scale_loads: tuple[ScaleLoad, ...]
    scales: tuple[IntScale, ...]  # integer scales of a row
    factors: tuple[tuple[FloatScale, ...], ...]  # float factors of a row, each a product
    float_slots: int  # places for them; one where there are none
    totals: tuple[Total, ...]
    additions: tuple[Addition, ...]


@dataclass(frozen=True)
class MultirowKernel:
    """The `k` of multirow.cu.j2."""

    header: tuple[str, ...]
    plan: MultirowPlan
    parts: tuple[PrintedPart, ...]
    whole: bool  # the block is one part


def multirow_kernel(plan: MultirowPlan, header: tuple[str, ...]) -> MultirowKernel:
    """Regroup a plan for printing."""
    parts = tuple(_part(plan, number, part) for number, part in enumerate(plan.parts))
    return MultirowKernel(header=header, plan=plan, parts=parts, whole=len(parts) == 1)


def _part(plan: MultirowPlan, index: int, part: BlockPart) -> PrintedPart:
    sums, steps = block_sums(plan, part.units)
    place = {number: i for i, number in enumerate(part.groups)}
    # The same scale may serve several terms, the same factors several units.
    scales = tuple(dict.fromkeys(p.scale for total in sums for p in total.parts if p.scale is not None))
    factors = tuple(dict.fromkeys(step.floats for step in steps if step.floats))
    totals = tuple(
        Total(
            label=total.label,
            slot=total.slot,
            products=tuple(
                Product(scale=scales.index(p.scale) if p.scale is not None else -1, sum=p.sum) for p in total.parts
            ),
        )
        for total in sums
    )
    return PrintedPart(
        index=index,
        plan=part,
        groups=tuple(
            Group(index=i, number=number, first=part.group_words[i], end=part.group_words[i + 1])
            for number, i in place.items()
        ),
        scale_loads=_scale_loads(part, plan.layout.scales),
        scales=scales,
        factors=factors,
        float_slots=max(1, len(factors)),
        totals=totals,
        additions=tuple(_addition(step, factors, part.first_scale) for step in steps),
    )


def _scale_loads(part: BlockPart, stored: int) -> tuple[ScaleLoad, ...]:
    """All at once where every block has them on a multiple of their count, for a vector load; else one by one."""
    if part.first_scale % part.scales == 0 and stored % part.scales == 0:
        return (ScaleLoad(place=0, first=part.first_scale, count=part.scales),)
    return tuple(ScaleLoad(place=i, first=part.first_scale + i, count=1) for i in range(part.scales))


def _addition(step: FloatStep, factors: tuple[tuple[FloatScale, ...], ...], first_scale: int) -> Addition:
    return Addition(
        negative=step.negative,
        factor=factors.index(step.floats) if step.floats else -1,
        scale=step.scale - first_scale,
        slot=step.slot,
    )
