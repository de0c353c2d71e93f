"""Plans of op quantize_activation for f16 and bf16: x in the order of fragments, rounded to the class, with sums."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.ksplit_float import PIECE_WORDS, FloatFragments, FloatKsplitPlan
from qgen.plan.matvec import Launch
from qgen.plan.quantize import WARPS
from qgen.plan.tile import LANES


@dataclass(frozen=True)
class ArrangePlan:
    """One kernel: x [tokens][columns], float32 or of the class itself, to the planes of `layout`."""

    family: str
    op: str
    format: str
    file: str
    name: str
    layout: FloatFragments
    values: int  # columns a thread reads, of a block, or a bundle of them
    order: tuple[int, ...]  # per pair of values in memory order of a block: its two elements, 16 bits each
    group: int  # columns of a sum
    warp_shared: int
    shared_bytes: int
    warps: int
    requires: tuple[str, ...]  # what the matmul kernels that read its result cannot do without


def plan_arrange(plan: FloatKsplitPlan) -> ArrangePlan:
    """The kernel that feeds `plan`."""
    layout = plan.layout
    order = _matrices(layout) if layout.matrices else _pieces(layout)
    warp_shared = -(-2 * (layout.bundle * layout.block + 1) // 16) * 16
    name = f"quantize_activation_{layout.name}__warp_{'bundle' if layout.bundle > 1 else 'block'}"
    return ArrangePlan(
        family="convert",
        op="quantize_activation",
        format=plan.format,
        file=name,
        name=name,
        layout=layout,
        values=layout.bundle * layout.block // 32,
        order=order,
        group=layout.block // layout.groups,
        warp_shared=warp_shared,
        shared_bytes=WARPS * warp_shared,
        warps=WARPS,
        requires=plan.requires,
    )


def _pieces(layout: FloatFragments) -> tuple[int, ...]:
    empty = (layout.block,) * 4
    order: list[int] = []
    for piece in range(layout.pieces):
        for lane in range(LANES):
            for j in range(PIECE_WORDS * piece, PIECE_WORDS * (piece + 1)):
                e = layout.words[lane][j] if j < len(layout.words[lane]) else empty
                order += [e[0] | e[1] << 16, e[2] | e[3] << 16]
    return tuple(order)


def _matrices(layout: FloatFragments) -> tuple[int, ...]:
    return tuple(
        four[half] | four[half + 1] << 16
        for j in range(len(layout.words[0]))
        for half in (0, 2)
        for four in (words[j] for words in layout.words)
    )


def launch_arrange(plan: ArrangePlan, blocks: int, tokens: int) -> tuple[Launch, int]:
    """One warp a block (or bundle) and token, column tiles filled up; returns the grid's y beside the launch."""
    grid = -(-plan.layout.bundles(blocks) // plan.warps)
    return Launch(grid=grid, block=32 * plan.warps, shared=plan.shared_bytes), -(-tokens // 8) * 8
