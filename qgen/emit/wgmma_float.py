"""What the template of the family wgmma receives for f16 and bf16: the ladder's record, and its groups in batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from qgen.emit.ksplit import ByteUse
from qgen.emit.ksplit_float import FloatKernel, Group, Term, float_kernel
from qgen.plan.wgmma_float import FloatWgmmaPlan


@dataclass(frozen=True)
class CodeScale:
    """The integer scale of a group's codes, where the text makes it: before the group's first code word."""

    block: int
    group: int
    use: ByteUse


@dataclass(frozen=True)
class Step:
    """One instruction: a code word, counted over the bundle, of group `group` of block `block`.

    scale: what is made before it
    sums:  which of the batch's sums it adds to; fresh: whether they begin with it
    """

    word: int
    block: int
    group: int
    scale: CodeScale | None
    sums: int
    fresh: bool


@dataclass(frozen=True)
class Chunk:
    """Instructions that are asked for together, once all their code words are decoded; first: of their batch."""

    steps: tuple[Step, ...]
    first: bool


@dataclass(frozen=True)
class Run:
    """What has sums of its own: a group of block `block`, or where folded the whole block.

    sums: their number in the batch; group: whose sums of x the terms take
    """

    sums: int
    block: int
    group: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class FloatBatch:
    """Runs whose sums are waited for together; first: of the bundle."""

    first: bool
    runs: tuple[Run, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class FloatVariant:
    """A bundle in batches of `width` runs, and these in chunks of two code words times `depth`.

    alone: whether it is one chunk, whose registers the next bundle's code words take
    """

    depth: int
    width: int
    batches: tuple[FloatBatch, ...]
    alone: bool


@dataclass(frozen=True)
class FloatWgmmaKernel:
    """The `k` of wgmma_float.cu.j2.

    terms:      of a run, in order: whether it takes the codes' sums
    loads_sums: whether a term takes sums of x as they lie in the record
    runs:       of eight groups, whose sums of x one instruction multiplies
    """

    header: tuple[str, ...]
    plan: FloatWgmmaPlan
    ladder: FloatKernel
    blocks: tuple[int, ...]  # of the bundle
    terms: tuple[bool, ...]
    loads_sums: bool
    runs: tuple[int, ...]
    variants: tuple[FloatVariant, ...]  # of the rungs


def float_wgmma_kernel(plan: FloatWgmmaPlan, header: tuple[str, ...]) -> FloatWgmmaKernel:
    """Regroup a plan for printing."""
    ladder = float_kernel(plan.ladder, ())
    folded, blocks = plan.ladder.contract.folded, tuple(range(plan.layout.bundle))
    each = [ladder.groups] if folded else [(group,) for group in ladder.groups]
    every = [(block, groups) for block in blocks for groups in each]
    terms = ladder.terms if folded else ladder.groups[0].terms

    def batch(first: int, width: int, depth: int) -> FloatBatch:
        own = list(enumerate(every[first : first + width]))
        return FloatBatch(
            first=first == 0,
            runs=tuple(
                Run(sums, block, groups[0].index, ladder.terms if folded else groups[0].terms)
                for sums, (block, groups) in own
            ),
            chunks=_chunks([_steps(plan, sums, *run) for sums, run in own], 2 * depth),
        )

    def variant(depth: int, width: int) -> FloatVariant:
        batches = tuple(batch(i, width, depth) for i in range(0, len(every), width))
        return FloatVariant(depth, width, batches, alone=sum(len(b.chunks) for b in batches) == 1)

    return FloatWgmmaKernel(
        header=header,
        plan=plan,
        ladder=ladder,
        blocks=blocks,
        terms=tuple(term.codes for term in terms),
        loads_sums=not plan.layout.pieced and not all(term.codes for term in terms),
        runs=tuple(range(plan.layout.groups // 8)) if plan.layout.pieced else (),
        variants=tuple(variant(depth, width) for depth, width in sorted({(r.depth, r.width) for r in plan.rungs})),
    )


def _steps(plan: FloatWgmmaPlan, sums: int, block: int, groups: tuple[Group, ...]) -> list[Step]:
    return [
        Step(
            word=block * plan.ladder.code_words + word.index,
            block=block,
            group=group.index,
            scale=CodeScale(block, group.index, group.scale) if group.scale and i == 0 else None,
            sums=sums,
            fresh=group is groups[0] and i == 0,
        )
        for group in groups
        for i, word in enumerate(group.words)
    ]


def _chunks(runs: list[list[Step]], words: int) -> tuple[Chunk, ...]:
    """In turn one of each run: neighbours add to different sums."""
    steps = [step for turn in zip_longest(*runs) for step in turn if step is not None]
    return tuple(Chunk(tuple(steps[i : i + words]), i == 0) for i in range(0, len(steps), words))
