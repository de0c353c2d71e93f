"""Plans of op quantize_activation: x in float32 to int8 codes in the order a format's matmul kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.errors import QgenError
from qgen.plan.ksplit import FragmentLayout, KsplitPlan
from qgen.plan.matvec import Launch, MatvecPlan
from qgen.plan.records import ActivationLayout
from qgen.plan.tile import LANES

WARPS = 4  # warps a CTA, one block of columns each
NONE = 0xFFFF  # no column of x, no place in a record
MAX_TOKENS = 65535 // 8 * 8  # quantisers count tokens in the grid's y, the fragment quantiser whole column tiles


@dataclass(frozen=True)
class QuantizePlan:
    """One kernel: float32 [tokens][columns] to the three planes of `layout`, token behind token."""

    family: str
    op: str
    format: str
    file: str
    name: str
    layout: ActivationLayout
    values: int  # columns a thread quantises
    group_values: int  # of which this many share a scale
    word_count: int  # activation words of a block, all lanes, 16-byte padding included
    order: tuple[tuple[int, int], ...]  # per word: its four elements as two packed pairs of 16 bits
    warp_shared: int
    shared_bytes: int
    warps: int


def plan_quantize(plan: MatvecPlan) -> QuantizePlan:
    """The quantiser that feeds `plan`."""
    layout = plan.layout
    slots = 4 * layout.chunks
    order = []
    # Words in memory order of one block: chunk, lane, word of the chunk.
    for chunk in range(layout.chunks):
        for lane in range(layout.lanes):
            for j in range(4 * chunk, 4 * chunk + 4):
                empty = (layout.block,) * 4
                e = layout.words[lane][j] if j < len(layout.words[lane]) else empty
                order.append((e[0] | e[1] << 16, e[2] | e[3] << 16))
    name = f"quantize_activation_{layout.name}__warp_block"
    word_count = slots * layout.lanes
    # Shared memory of a warp: codes in element order, one empty code, then the sum of every word.
    warp_shared = -(-(layout.block + 1) // 16) * 16 + (4 * word_count if layout.sum_slots else 0)
    return QuantizePlan(
        family="convert",
        op="quantize_activation",
        format=plan.format,
        file=name,
        name=name,
        layout=layout,
        values=layout.block // 32,
        group_values=layout.group // 32,
        word_count=word_count,
        order=tuple(order),
        warp_shared=warp_shared,
        shared_bytes=WARPS * warp_shared,
        warps=WARPS,
    )


def launch_quantize(plan: QuantizePlan, blocks: int, tokens: int) -> tuple[Launch, int]:
    """One warp a block, the padding of the last activation tile included; the grid's y beside the launch: tokens."""
    padded = plan.layout.tiles(blocks) * plan.layout.tile_blocks
    return Launch(grid=-(-padded // plan.warps), block=32 * plan.warps, shared=plan.shared_bytes), tokens


@dataclass(frozen=True)
class Word:
    """Four columns whose codes are one activation word.

    columns: their places in x, counted from the bundle's first column; NONE for a place without a column
    place:   number of the word in a record, in memory order; NONE for no word at all
    """

    columns: tuple[int, int, int, int]
    place: int


@dataclass(frozen=True)
class Run:
    """Slots first .. end - 1, whose columns follow from the slot: no table has to come before x can be asked for.

    The first column of slot first + r is base + sum((r >> bit & mask) * factor) over terms (bit, mask, factor);
    behind: the word's four columns counted from there, NONE for none
    """

    first: int
    end: int
    base: int
    terms: tuple[tuple[int, int, int], ...]
    behind: tuple[int, int, int, int]


@dataclass(frozen=True)
class Words:
    """The words of a bundle, dealt to a warp: thread `lane` has those of slots 32 i + lane, i < own.

    Words that share a sum lie in neighbouring slots, `sum_slots` of them, and so do those that share a scale, in
    `scale_slots`: both are powers of two, so that a group is a number of whole warps or a part of one.
    sums: of a scale; where that is no power of two, the last slots of a scale have no words
    """

    slots: tuple[Word, ...]
    runs: tuple[Run, ...]
    own: int
    sums: int
    scale_slots: int
    sum_slots: int

    @property
    def sparse(self) -> bool:
        """Whether some slots have no word."""
        return any(word.place == NONE for word in self.slots)

    @property
    def partial(self) -> bool:
        """Whether some words have places without a column."""
        return any(word.place != NONE and NONE in word.columns for word in self.slots)


@dataclass(frozen=True)
class FragmentQuantizePlan:
    """One kernel: float32 [tokens][columns] to the three planes of a fragment layout."""

    family: str
    op: str
    format: str
    file: str
    name: str
    layout: FragmentLayout
    words: Words
    sum_groups: int
    weight_block: int  # columns of a weight block, of which a bundle has several
    split: int  # the blocks of a bundle lie this many apart
    shared_bytes: int
    warps: int
    requires: tuple[str, ...]  # what the matmul kernels that read its result cannot do without


def plan_quantize_fragments(plan: KsplitPlan) -> FragmentQuantizePlan:
    """The quantiser that feeds `plan`."""
    name = f"quantize_activation_{plan.layout.name}__warp_block"
    return FragmentQuantizePlan(
        family="convert",
        op="quantize_activation",
        format=plan.format,
        file=name,
        name=name,
        layout=plan.layout,
        words=deal_words(plan),
        sum_groups=plan.layout.block // plan.layout.sum_group,
        weight_block=plan.block,
        split=plan.split,
        shared_bytes=0,
        warps=WARPS,
        requires=plan.requires,
    )


def deal_words(plan: KsplitPlan) -> Words:
    """The activation words of a bundle of `plan`, by slot."""
    layout = plan.layout
    apart = plan.split * plan.block  # of the blocks of a bundle
    groups: list[list[Word]] = [[] for _ in range(layout.block // layout.sum_group)]
    spare: list[Word] = []
    # Words in memory order of one token: chunk, thread, word of the chunk.
    for place in range(16 * layout.chunks):
        lane, j = place // 4 % LANES, place // 16 * 4 + place % 4
        elements = layout.words[lane][j] if j < len(layout.words[lane]) else (layout.block,) * 4
        a, b, c, d = (NONE if e == layout.block else e // plan.block * apart + e % plan.block for e in elements)
        word = Word((a, b, c, d), place)
        there = {e // layout.sum_group for e in elements if e < layout.block}
        if len(there) > 1:
            raise QgenError(
                stage="plan",
                subject=plan.format,
                found=f"activation word {place} has columns of {len(there)} sums",
                allowed="words within one: instructions add up whole words",
                next="choose another unit, or put codes of one sum next to each other",
            )
        (groups[there.pop()] if there else spare).append(word)
    sum_slots = 1 << (max(map(len, groups)) - 1).bit_length()
    slots: list[Word] = []
    none = Word((NONE,) * 4, NONE)
    sums = layout.group // layout.sum_group
    scale_slots = sum_slots << (sums - 1).bit_length()
    for number, group in enumerate(groups):
        free = sum_slots - len(group)
        slots += [*sorted(group, key=_by_column), *spare[:free]]
        spare = spare[free:]
        slots += [none] * (-len(slots) % (sum_slots if (number + 1) % sums else scale_slots))
    slots += spare
    own = -(-len(slots) // 32)
    slots += [none] * (32 * own - len(slots))
    return Words(tuple(slots), _runs(slots), own, sums, scale_slots=scale_slots, sum_slots=sum_slots)


def _behind(word: Word) -> tuple[int, int, int, int]:
    """The word's columns counted from its first one."""
    a, b, c, d = (NONE if c == NONE else c - min(word.columns) for c in word.columns)
    return a, b, c, d


def _by_column(word: Word) -> tuple[tuple[int, int, int, int], int]:
    return _behind(word), min(word.columns)


def _runs(slots: list[Word]) -> tuple[Run, ...]:
    """The slots in as few runs as a first fit finds."""
    runs = []
    first = 0
    while first < len(slots):
        base, behind = min(slots[first].columns), _behind(slots[first])
        factors: list[int] = []  # by bit of the slot's number in the run
        end = first + 1
        while end < len(slots) and _behind(slots[end]) == behind:
            r, column = end - first, min(slots[end].columns) - base
            if r == 1 << len(factors):
                factors.append(column)
            elif column != sum(factor for bit, factor in enumerate(factors) if r >> bit & 1):
                break
            end += 1
        runs.append(Run(first, end, base, _merged(factors), behind))
        first = end
    return tuple(runs)


def _merged(factors: list[int]) -> tuple[tuple[int, int, int], ...]:
    """(bit, mask, factor) of neighbouring bits whose factors double."""
    terms: list[tuple[int, int, int]] = []
    for bit, factor in enumerate(factors):
        if terms and factor == terms[-1][2] << (bit - terms[-1][0]):
            terms[-1] = (terms[-1][0], terms[-1][1] * 2 + 1, terms[-1][2])
        else:
            terms.append((bit, 1, factor))
    return tuple(term for term in terms if term[2])


def launch_quantize_fragments(plan: FragmentQuantizePlan, blocks: int, tokens: int) -> tuple[Launch, int]:
    """One warp a bundle of blocks and token; returns the grid's y beside the launch: tokens."""
    grid = -(-plan.layout.bundles(blocks) // plan.warps)
    return Launch(grid=grid, block=32 * plan.warps, shared=plan.shared_bytes), tokens
