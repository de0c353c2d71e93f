"""What a ksplit_mma kernel and its quantiser must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from batch_checks import Batch, Order, Wrong, same
from ksplit_cases import F32, U8, Case, Operands, cases, planes, workspace
from numpy.typing import NDArray

from qgen import contract, emulate
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import FragmentQuantizePlan, KsplitPlan, Launch, Rung, launch_ksplit, launch_quantize_fragments
from qgen.plan.ksplit import FragmentLayout
from qgen.spec import Format

# ---- the matmul -------------------------------------------------------------------------------------------------


class Ksplit(Batch):
    """One rung of a compiled file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: KsplitPlan, rung: Rung) -> None:
        super().__init__(format, program, plan)
        self.plan, self.rung = plan, rung
        self.name, self.columns = rung.name, rung.columns
        self.special, self.few = rung.warps + 1, rung.warps - 1

    def cases(self) -> list[Case]:
        return cases(self.plan, self.rung)

    def workspace(self, given: Operands, tokens: int) -> U8:
        return workspace(self.plan.layout, given.quantised(tokens), given.blocks)

    def shape(self, case: Case) -> tuple[Launch, int]:
        return launch_ksplit(self.plan, self.rung, case.rows, case.tokens, case.multiprocessors, 1)

    def check_activation(self, given: Operands, case: Case, report: Report) -> None:
        layout, tiles = self.plan.layout, -(-case.tokens // 8)
        # Of a token that fills up its tile only the scale and the sums are read, never the codes.
        own = given.blocks * case.tokens * layout.code_bytes // 8
        own += given.blocks * tiles * (32 * layout.scales + layout.sum_bytes)
        if report.bytes_touched["activation"] != own:
            raise Wrong("activation read", f"{report.bytes_touched['activation']} of {own} bytes; {case}")


# ---- the quantiser ----------------------------------------------------------------------------------------------


def quantise(
    program: Program, plan: FragmentQuantizePlan, x: F32, *, pad: int = 3, fill: int = 0xA5, order: Order = "forward"
) -> tuple[U8, Report]:
    """The workspace made from x float32[tokens, K], rows `pad` floats apart with NaN between, over bytes of `fill`."""
    tokens, columns = x.shape
    blocks = columns // plan.layout.block
    memory = np.full(plan.layout.bytes(blocks, tokens), fill, dtype=np.uint8)
    laid = np.full((tokens, columns + pad), np.nan, dtype=np.float32)
    laid[:, :columns] = x
    shape, grid_y = launch_quantize_fragments(plan, blocks, tokens)
    report = program.launch(
        plan.name,
        grid=(shape.grid, grid_y, 1),
        block=shape.block,
        shared=shape.shared,
        args=[
            Buffer("x", laid.reshape(-1)[: laid.size - pad], offset_bytes=4),
            columns + pad,
            blocks,
            tokens,
            Buffer("activation", memory, offset_bytes=16, writable=True),
        ],
        order=order,
        seed=1,
    )
    return memory, report


def check_quantise(program: Program, plan: FragmentQuantizePlan, x: F32) -> None:
    """Every plane against the contract's quantiser placed by the layout record, in three orders."""
    layout, tokens = plan.layout, len(x)
    blocks = x.shape[1] // layout.block
    made = planes(layout, [contract.quantise(column, layout.activation) for column in x], blocks)
    first, last = layout.scale_offset(blocks, tokens), layout.sums_offset(blocks, tokens)
    own = np.arange(8 * made.codes.shape[0]).reshape(-1, 8) < tokens  # [tiles, 8]
    orders: tuple[tuple[Order, int], ...] = (("forward", 0xA5), ("reverse", 0x5A), ("shuffle", 0xFF))
    for order, fill in orders:
        memory, report = quantise(program, plan, x, fill=fill, order=order)
        where = f"{blocks} blocks, {tokens} tokens, {order}"
        codes = np.moveaxis(memory[:first].view(np.int8).reshape(made.codes.shape), 3, 1)
        if not np.array_equal(codes[own], np.moveaxis(made.codes, 3, 1)[own]):
            raise Wrong("codes plane", where)
        if not (codes[~own].view(np.uint8) == fill).all():
            raise Wrong("codes of no token written", where)
        if not same(
            memory[first:last].view(np.float32).reshape(made.scales.shape), np.ascontiguousarray(made.scales)
        ).all():
            raise Wrong("scale plane", where)
        if not np.array_equal(_read_sums(layout, memory[last:], made.sums.shape), made.sums):
            raise Wrong("sums plane", where)
        written = first // (8 * len(own)) * tokens + memory.size - first
        if not written == report.bytes_written["activation"] == report.written_bytes["activation"]:
            raise Wrong("planes not written once", f"{report.written_bytes['activation']} of {written}; {where}")
        if not x.nbytes == report.read_bytes["x"] == report.bytes_touched["x"]:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {x.nbytes}; {where}")


def _read_sums(layout: FragmentLayout, memory: U8, shape: tuple[int, ...]) -> NDArray[np.int32]:
    if not layout.packed_sums:
        return memory.view(np.int32).reshape(shape)
    pairs = memory.view(np.int8).reshape(*shape[:2], 8, -1, 2, 4).astype(np.int32)  # [tiles, blocks, 8, words, 2, 4]
    sums = (pairs[:, :, :, :, 0] + 128 * pairs[:, :, :, :, 1]).reshape(*shape[:2], 8, -1).transpose(0, 1, 3, 2)
    if sums[:, :, shape[2] :].any():
        raise Wrong("sums plane", "sums of groups that are not there")
    return sums[:, :, : shape[2]]


# ---- compiled files ---------------------------------------------------------------------------------------------


@cache
def compiled(plan: KsplitPlan | FragmentQuantizePlan) -> Program:
    """The plan's file, compiled for the emulator."""
    return emulate.compile(emit(plan).text, plan.file)
