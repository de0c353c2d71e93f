"""Plans of family `wgmma` with f16 or bf16 activations: as qgen.plan.wgmma, in the contract of the float ladder.

Code words become numbers of the class in registers, the instructions' A; the tokens' values pass through shared memory
once for all of a CTA's warps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qgen.plan.arrange import ArrangePlan, plan_arrange
from qgen.plan.float_contract import FloatContract
from qgen.plan.ksplit import BUNDLE
from qgen.plan.ksplit_float import FloatFragments, FloatKsplitPlan, plan_ksplit_float
from qgen.plan.refuse import refuse
from qgen.plan.rungs import SHARED_LIMIT
from qgen.plan.wgmma import SHAPES, WgmmaRung, rung_that_fits
from qgen.spec.records import Format

SUMS = {8: 128, 16: 16}  # of instructions that a thread has registers for, by warps of a CTA
# Folded, a block has few sums and many scales: for those sixteen warps have too few registers.
FOLDED_SHAPES = ((16, 2, 2), (16, 1, 4), (32, 2, 1), (32, 1, 2), (48, 2, 1), (64, 2, 1))


@dataclass(frozen=True)
class FloatWgmmaPlan:
    """Everything the template needs, finished. What is decoded and multiplied, and how, is the ladder's."""

    family: str
    op: str
    format: str
    storage: str
    file: str
    ladder: FloatKsplitPlan  # with this family's layout
    quantize: ArrangePlan
    rungs: tuple[WgmmaRung, ...]

    @property
    def contract(self) -> FloatContract:
        """The ladder's."""
        return self.ladder.contract

    @property
    def layout(self) -> FloatFragments:
        """Of the arranged activation."""
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
        """Bytes of arranged activation for `tokens` tokens of `blocks` weight blocks."""
        return self.ladder.workspace_bytes(blocks, tokens)


def plan_wgmma_float(format: Format, activation: str, ladder: FloatKsplitPlan | None = None) -> FloatWgmmaPlan:
    """The kernels of `format` for activation class "f16" or "bf16" beside its ladder over tiles.

    ladder: that one, where it is at hand. Raises QgenError (stage "plan") with the reason if there are none.
    """
    ladder = ladder or plan_ksplit_float(format, activation, "tiled")
    layout = replace(
        ladder.layout,
        name=f"{activation}_{format.name.lower()}_matrices",
        matrices=True,
        # Integer scales are spread over a quad once a block.
        bundle=1 if any(ladder.scale_words) else max(1, BUNDLE // format.block),
        apart=ladder.contract.slices,
    )
    ladder = replace(ladder, layout=layout)
    runs = layout.bundle * (1 if ladder.contract.folded else layout.groups)
    stem = f"mul_mat_{format.name.lower()}_{activation}"
    slices, slot = ladder.contract.slices, layout.bundle * (ladder.tile.tile_bytes if ladder.tile else 0)

    folded = ladder.contract.folded

    def fitting(columns: int, groups: int, split: int) -> WgmmaRung | None:
        ways = [
            rung_that_fits(stem, activation, slices, layout.record_bytes, slot, columns, groups, split, kept=kept)
            for kept in (False, True)
        ]
        # Sums wait in registers where that leaves room for one more stage, which the long blocks that are folded need.
        made = max((rung for rung in ways[: 1 + folded] if rung), key=lambda rung: rung.stages, default=None)
        if made is None:
            return None
        # Sums of x, and many integer scales, take registers too; and so do, of many columns, the sums of minimums.
        crowded = made.warps == 8 and not folded and (layout.sums or len(ladder.group_words) > 9)
        most = max(1, SUMS[made.warps] // (2 if crowded else 1) // (columns // 2))
        depth = 1 if layout.pieced and columns == 64 else made.depth
        return replace(made, depth=depth, width=max(n for n in range(1, most + 1) if runs % n == 0))

    rungs = tuple(
        rung
        for columns, groups, split in (FOLDED_SHAPES if folded else SHAPES)
        if (rung := fitting(columns, groups, split) or fitting(columns, groups, split // 2))
    )
    if not rungs:
        refuse(format, "no launch shape fits shared memory", f"at most {SHARED_LIMIT} bytes")
    return FloatWgmmaPlan(
        family="wgmma",
        op="mul_mat",
        format=format.name,
        storage="tiled",
        file=f"{stem}__wgmma_tiled",
        ladder=ladder,
        quantize=plan_arrange(ladder),
        rungs=rungs,
    )
