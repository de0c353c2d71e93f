"""Plans of op quantize_activation: x in float32 to int8 codes in the order a format's matmul kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.ksplit import FragmentLayout, KsplitPlan
from qgen.plan.matvec import Launch, MatvecPlan
from qgen.plan.records import ActivationLayout
from qgen.plan.tile import LANES

WARPS = 4  # warps a CTA, one block of columns each
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
class FragmentQuantizePlan:
    """One kernel: float32 [tokens][columns] to the three planes of a fragment layout."""

    family: str
    op: str
    format: str
    file: str
    name: str
    layout: FragmentLayout
    values: int
    group_values: int
    order: tuple[tuple[int, int], ...]
    sum_groups: int
    sum_lanes: int  # threads that share the sum of a group
    weight_block: int  # columns of a weight block, of which a bundle has several
    split: int  # the blocks of a bundle lie this many apart
    warp_shared: int
    shared_bytes: int
    warps: int
    requires: tuple[str, ...]  # what the matmul kernels that read its result cannot do without


def plan_quantize_fragments(plan: KsplitPlan) -> FragmentQuantizePlan:
    """The quantiser that feeds `plan`."""
    layout = plan.layout
    empty = (layout.block,) * 4
    order = []
    # Words in memory order of one token: chunk, thread, word of the chunk.
    for chunk in range(layout.chunks):
        for lane in range(LANES):
            for j in range(4 * chunk, 4 * chunk + 4):
                e = layout.words[lane][j] if j < len(layout.words[lane]) else empty
                order.append((e[0] | e[1] << 16, e[2] | e[3] << 16))
    warp_shared = -(-(layout.block + 1) // 16) * 16
    groups = layout.block // layout.sum_group
    name = f"quantize_activation_{layout.name}__warp_block"
    return FragmentQuantizePlan(
        family="convert",
        op="quantize_activation",
        format=plan.format,
        file=name,
        name=name,
        layout=layout,
        values=layout.block // 32,
        group_values=layout.group // 32,
        order=tuple(order),
        sum_groups=groups,
        sum_lanes=1 << (32 // groups).bit_length() - 1,
        weight_block=plan.block,
        split=plan.split,
        warp_shared=warp_shared,
        shared_bytes=WARPS * warp_shared,
        warps=WARPS,
        requires=plan.requires,
    )


def launch_quantize_fragments(plan: FragmentQuantizePlan, blocks: int, tokens: int) -> tuple[Launch, int]:
    """One warp a bundle of blocks and token; returns the grid's y beside the launch: tokens."""
    grid = -(-plan.layout.bundles(blocks) // plan.warps)
    return Launch(grid=grid, block=32 * plan.warps, shared=plan.shared_bytes), tokens
