"""What the template of the family wgmma receives: the ladder's record, and its instructions in order."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.emit.ksplit import ByteUse, KsplitKernel, Step, SumProduct, Unit, ksplit_kernel
from qgen.plan.in_place import Pair
from qgen.plan.wgmma import WgmmaPlan


@dataclass(frozen=True)
class Batch:
    """Instructions that are waited for together, and what becomes of their sums.

    pairs:    of code words; () where it is a scale word and the activation's sums that are multiplied: `sums`
    scale:    what the sums are multiplied by before they are added to the unit's total; None without scales
    starts:   whether the sums begin with what the layout has for them
    first:    whether the total begins with it
    decodes:  whether it is the first of its block
    kept:     whether its sums are the unit's total, which a later batch's steps take
    steps:    float steps to take once it is in
    """

    number: int
    unit: Unit
    pairs: tuple[Pair, ...]
    sums: SumProduct | None
    scale: ByteUse | None
    starts: bool
    first: bool
    decodes: bool
    kept: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Variant:
    """How many batches are on their way at once."""

    depth: int


@dataclass(frozen=True)
class WgmmaKernel:
    """The `k` of wgmma.cu.j2."""

    header: tuple[str, ...]
    plan: WgmmaPlan
    ladder: KsplitKernel
    batches: tuple[Batch, ...]
    variants: tuple[Variant, ...]  # of the rungs
    total: bool  # whether units have a total beside the sums of their instructions
    folded: tuple[ByteUse, ...]  # by code word the scale that it is multiplied by before the instruction; () without


def wgmma_kernel(plan: WgmmaPlan, header: tuple[str, ...]) -> WgmmaKernel:
    """Regroup a plan for printing."""
    ladder = ksplit_kernel(plan.ladder, ())
    batches: list[Batch] = []
    starts = bool(plan.layout.starts) and plan.ladder.code_mul == 1
    for unit in ladder.units:
        batches += _batches(unit, len(batches), starts, plan)
    scales: dict[int, ByteUse] = {}
    for group in ladder.units[0].groups if plan.folded else ():
        for pair in group.pairs:
            scales |= {word: group.scale for word in (pair.first, pair.second) if word >= 0 and group.scale}
    return WgmmaKernel(
        header=header,
        plan=plan,
        ladder=ladder,
        batches=tuple(batches),
        variants=tuple(map(Variant, sorted({rung.depth for rung in plan.rungs}))),
        total=any(b.kept or b.scale is not None for b in batches),
        folded=tuple(scales[word] for word in sorted(scales)),
    )


def wgmma_launch() -> list[str]:
    """The lines of the header that say how the kernels are compiled and launched."""
    return [
        "target      sm_90a: for sm_90 it is refused, and compiled for others its instructions do nothing",
        "launch      weight and activation aligned to 16 bytes, y_stride in floats; threads and dynamic shared memory",
        "            as said at each kernel; the grid's y is the tokens over a kernel's capacity, rounded up, no more",
        "            and no less; its x any number of CTAs, which share the rows: at best so many that all are there",
        "            at once, one a multiprocessor",
    ]


_Made = tuple[tuple[Pair, ...], SumProduct | None, ByteUse | None, bool]


def _batches(unit: Unit, number: int, starts: bool, plan: WgmmaPlan) -> list[Batch]:
    """A unit's: each group's sums on their own where they are multiplied by integer scales, else all together."""
    made: list[_Made] = []
    if plan.folded:
        words = plan.ladder.code_words
        pairs = tuple(Pair(first=j, second=j + 1 if j + 1 < words else -1) for j in range(0, words, 2))
        made.append((pairs, None, None, True))
    elif unit.scaled:
        made += [(group.pairs, None, group.scale, i == 0) for i, group in enumerate(unit.groups)]
    else:
        made.append((tuple(pair for group in unit.groups for pair in group.pairs), None, None, True))
    made += [((), product, None, False) for product in unit.sum_products]
    return _finished(unit, number, made, starts and not unit.scaled, plan.ladder.units)


def _finished(unit: Unit, number: int, made: list[_Made], starts: bool, units: int) -> list[Batch]:
    """With the float steps, in their order, where their integers are complete."""
    done = {"sums": 0, "total": max(i for i, m in enumerate(made) if m[1] is None or m[1].into_total)}
    done |= {m[1].name: i for i, m in enumerate(made) if m[1] is not None}
    at: list[list[Step]] = [[] for _ in made]
    last = last_total = 0
    for step in unit.steps:
        last = max(last, done[step.integer])
        last_total = last if step.integer == "total" else last_total
        at[last].append(step)
    return [
        Batch(
            number=number + i,
            unit=unit,
            pairs=pairs,
            sums=sums,
            scale=scale,
            starts=starts and sums is None,
            first=first,
            decodes=i == 0 and unit.index % units == 0,
            kept=sums is None and scale is None and last_total > i,
            steps=tuple(at[i]),
        )
        for i, (pairs, sums, scale, first) in enumerate(made)
    ]
