"""Plans of family `wgmma`: mul_mat of many tokens over tiles on the asynchronous tensor cores of sm_90.

A warpgroup owns 64 rows, a row tile each warp; the tokens' activation records pass through shared memory once for all
of a CTA's warps, where instructions of the whole warpgroup read them. Warps take slices of K one after the other, so
that the contract's slices are added by halving as they become ready. The bits are those of the ladder over tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qgen.plan.fused import ALONE
from qgen.plan.ksplit import FragmentLayout, KsplitPlan, plan_ksplit
from qgen.plan.matvec import Launch
from qgen.plan.quantize import FragmentQuantizePlan, plan_quantize_fragments
from qgen.plan.records import Contract
from qgen.plan.refuse import refuse
from qgen.plan.rungs import SHARED_LIMIT
from qgen.plan.terms import code_field, code_offset, scale_fields
from qgen.plan.tile import ROWS
from qgen.spec.records import Format

WARPS = 4  # of a warpgroup, a row tile each
# Columns of an instruction, and warpgroups of rows and of slices of K of a CTA. Of few columns a thread keeps so few
# sums that sixteen warps fit a multiprocessor.
SHAPES = ((16, 2, 2), (16, 1, 4), (32, 2, 2), (32, 1, 4), (48, 2, 1), (64, 2, 1))
STAGES = 6  # at most
FEWEST_WARPS = 8  # that multiply


@dataclass(frozen=True)
class WgmmaRung:
    """One compiled instance: its column capacity and launch shape."""

    name: str
    activation: str
    columns: int
    column_tiles: int
    row_groups: int  # of 64 rows
    split: int  # warpgroups that share rows, the slices of K dealt to them in turn
    rows: int  # of a CTA
    warps: int  # that multiply
    threads: int  # theirs, and of a warpgroup that fetches
    stages: int  # of a bundle, for each part
    depth: int  # sets of integer sums on their way at once; with f16 and bf16 pairs of code words asked for together
    kept: bool  # a slice's sums wait for those of the next one in registers, not in shared memory
    shared_bytes: int
    width: int = 1  # groups of f16 or bf16 whose sums lie side by side


@dataclass(frozen=True)
class WgmmaPlan:
    """Everything the template needs, finished. What is decoded and multiplied, and how, is the ladder's."""

    family: str
    op: str
    format: str
    storage: str
    file: str
    ladder: KsplitPlan  # with this family's layout and order of blocks
    quantize: FragmentQuantizePlan
    folded: bool  # instructions multiply codes times their integer scales, which fit a byte
    rungs: tuple[WgmmaRung, ...]

    @property
    def contract(self) -> Contract:
        """The ladder's."""
        return self.ladder.contract

    @property
    def layout(self) -> FragmentLayout:
        """Of the quantised activation."""
        return self.ladder.layout

    @property
    def block(self) -> int:
        """Columns of a weight block."""
        return self.ladder.block

    @property
    def alignment(self) -> int:
        """Bytes the weights must be aligned to."""
        return self.ladder.alignment

    @property
    def requires(self) -> tuple[str, ...]:
        """Instructions (fields of qgen.archs.Instructions) its text cannot do without."""
        return (*self.ladder.requires, "tma", "wgmma")

    def workspace_bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of quantised activation for `tokens` tokens of `blocks` weight blocks."""
        return self.ladder.workspace_bytes(blocks, tokens)


def plan_wgmma(format: Format, ladder: KsplitPlan | None = None) -> WgmmaPlan:
    """The kernels of `format` beside its ladder over tiles. Raises QgenError (stage "plan") with the reason if none.

    ladder: that one, where it is at hand
    """
    ladder = ladder or plan_ksplit(format, "tiled")
    slices = ladder.contract.slices
    # A warp takes one slice after the other: a bundle's blocks are neighbours in a slice.
    layout = replace(
        ladder.layout, name=f"{ladder.layout.activation}_{format.name.lower()}_matrices", matrices=True, apart=slices
    )
    ladder = replace(ladder, layout=layout, split=slices)
    for group in ladder.pairs:
        for pair in group:
            if pair.second not in (-1, pair.first + 1):
                refuse(format, f"words {pair.first} and {pair.second} in one instruction", "neighbours")
    if layout.packed_sums and layout.bundle > 1:
        refuse(
            format,
            f"integer scales in blocks of {format.block}",
            "longer blocks, or codes without integer scales",
        )
    stem = f"mul_mat_{format.name.lower()}_{ladder.contract.activation}"
    slot = layout.bundle * ROWS * ladder.block_bytes

    def fitting(columns: int, groups: int, split: int) -> WgmmaRung | None:
        return rung_that_fits(stem, layout.activation, slices, layout.record_bytes, slot, columns, groups, split)

    rungs = tuple(
        rung
        for columns, groups, split in SHAPES
        # Half as many warps where the sums of all of them leave no room.
        if (rung := fitting(columns, groups, split) or fitting(columns, groups, split // 2))
    )
    if not rungs:
        refuse(format, "no launch shape fits shared memory", f"at most {SHARED_LIMIT} bytes")
    return WgmmaPlan(
        family="wgmma",
        op="mul_mat",
        format=format.name,
        storage="tiled",
        file=f"{stem}__wgmma_tiled",
        ladder=ladder,
        quantize=plan_quantize_fragments(ladder),
        folded=layout.packed_sums and _fold(format),
        rungs=rungs,
    )


def _fold(format: Format) -> bool:
    """Whether codes times the scale in front of them are bytes: then no group's sum is multiplied by itself."""
    codes = code_field(format)
    scales = [f for term in format.terms if codes.name in term.factors for f in scale_fields(format, term, codes)]
    if codes.table or codes.base or code_offset(codes) or len(scales) != 1 or scales[0].signed or scales[0].add:
        return False
    code = (1 << sum(part.width for part in codes.parts)) - 1
    scale = ((1 << sum(part.width for part in scales[0].parts)) - 1) * int(scales[0].mul)
    return code * scale <= 255


def rung_that_fits(
    stem: str,
    activation: str,
    slices: int,
    record_bytes: int,
    slot_bytes: int,
    columns: int,
    groups: int,
    split: int,
    *,
    kept: bool = True,
) -> WgmmaRung | None:
    """The rung of a launch shape with as much in flight as fits; None where too little does.

    slices: of the contract; record_bytes: of a bundle's activation of eight tokens; slot_bytes: of its row tile
    kept: whether sums may wait in registers
    """
    tiles, warps = columns // 8, WARPS * groups * split
    if warps < FEWEST_WARPS:
        return None
    # Eight warps have registers for another set of sums; sixteen, with less than half of them, have not.
    kept = kept and warps == 8
    levels = (slices // split).bit_length() - 1 - kept
    pending = max(levels, split > 1) * 32 * warps * 16 * tiles
    stage = tiles * record_bytes + WARPS * groups * slot_bytes
    room = SHARED_LIMIT - pending - 8
    stages = min(STAGES, room // (split * (stage + 16)))
    if stages < 2:
        return None
    return WgmmaRung(
        name=f"{stem}_t{columns}__wgmma_tiled_g{groups}s{split}",
        activation=activation,
        columns=columns,
        column_tiles=tiles,
        row_groups=groups,
        split=split,
        rows=WARPS * ROWS * groups,
        warps=warps,
        threads=32 * (warps + WARPS),
        stages=stages,
        # Sixteen warps hide each other's waiting; eight need a second set of sums on its way.
        depth=2 if warps == 8 else 1,
        kept=kept,
        shared_bytes=max(stages * split * (stage + 16) + pending + 8, ALONE),
    )


def launch_wgmma(rung: WgmmaRung, rows: int, tokens: int, multiprocessors: int) -> tuple[Launch, int]:
    """Launch numbers and the grid's y: a CTA a multiprocessor, persistent over its rows, fewer where rows are few."""
    columns = -(-tokens // rung.columns)
    grid = max(1, min(-(-rows // rung.rows), max(1, multiprocessors // columns)))
    return Launch(grid=grid, block=rung.threads, shared=rung.shared_bytes), columns
