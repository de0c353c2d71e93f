"""What a ksplit_mma kernel and its quantiser must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from batch_checks import Batch
from judging import F32, U8, Order, Wrong, same
from ksplit_cases import (
    Case,
    Operands,
    block_of,
    bundles,
    cases,
    leftovers,
    of_padding,
    record_type,
    records,
    takes_bulk_copies,
    whole_pieces,
    workspace,
)
from numpy.typing import NDArray

from qgen import contract, emulate
from qgen.archs import load_archs
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import FragmentQuantizePlan, KsplitPlan, Launch, Rung, launch_ksplit, launch_quantize_fragments
from qgen.spec import Format

# ---- the matmul -------------------------------------------------------------------------------------------------


SM_90 = load_archs()["sm_90"]


class Ksplit(Batch):
    """One rung of a compiled file, ready to be judged; bulk: whether the architecture has bulk copies."""

    def __init__(self, format: Format, program: Program, plan: KsplitPlan, rung: Rung, *, bulk: bool = True) -> None:
        super().__init__(format, program, plan)
        self.plan, self.rung, self.bulk = plan, rung, bulk
        self.name, self.columns = rung.name, rung.columns
        self.few = rung.warps - 1

    def cases(self) -> list[Case]:
        return cases(self.plan, self.rung)

    def special_cases(self) -> list[Case]:
        some = Case(rows=18, blocks=self.rung.warps + 1, tokens=self.rung.columns + 1)
        return [some, leftovers(self.plan, self.rung)]

    def workspace(self, given: Operands, tokens: int) -> U8:
        return workspace(self.plan.layout, given.quantised(tokens), given.blocks)

    def shape(self, case: Case) -> tuple[Launch, int]:
        return launch_ksplit(self.plan, self.rung, case.rows, case.tokens, case.multiprocessors, 1, SM_90)

    def check_reads(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        # A bulk copy counts once a sector, 32 bytes; others move 16 at most.
        bulk = self.bulk and takes_bulk_copies(self.plan, self.rung, case)
        if bulk != (report.read_requests["weight"] < given.packed[: case.rows].size * grid_y / 16):
            raise Wrong("way of copying", f"{report.read_requests['weight']} requests; {case}")
        layout, tiles = self.plan.layout, -(-case.tokens // 8)
        # Whole records, of all bundles with a block in them.
        used = sum(block_of(layout, u, 0) < given.blocks for u in range(bundles(layout, given.blocks)))
        own = tiles * used * record_type(layout).itemsize
        if report.bytes_touched["activation"] != own:
            raise Wrong("activation read", f"{report.bytes_touched['activation']} of {own} bytes; {case}")

    def check_far_rows(self) -> None:
        """The first row of a CTA's second tile begins past 2^32 bytes: offsets are 64-bit all the way."""
        far = (1 << 32) // self.rung.rows + 16 * 1024
        for blocks, stride in ((self.few, far + self.plan.alignment), (whole_pieces(self.plan), far)):
            self.check_rows_apart(self.rung.rows + 1, blocks, stride)


# ---- the quantiser ----------------------------------------------------------------------------------------------


def quantise(
    program: Program, plan: FragmentQuantizePlan, x: F32, *, pad: int = 3, fill: int = 0xA5, order: Order = "forward"
) -> tuple[U8, Report]:
    """The workspace made from x float32[tokens, K], rows `pad` floats apart with NaN between, over bytes of `fill`."""
    tokens, columns = x.shape
    blocks = columns // plan.weight_block
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
            Buffer("activation", memory, offset_bytes=16, writable=True),
        ],
        order=order,
        seed=1,
        dependent=True,
    )
    return memory, report


def check_quantise(program: Program, plan: FragmentQuantizePlan, x: F32) -> None:
    """Every record against the contract's quantiser placed by the layout record, in three orders; blocks that only fill
    up, too, and of tokens that do not a byte."""
    layout, tokens = plan.layout, len(x)
    blocks = x.shape[1] // plan.weight_block
    wanted = records(layout, [contract.quantise(column, layout.activation) for column in x], blocks)
    orders: tuple[tuple[Order, int], ...] = (("forward", 0xA5), ("reverse", 0x5A), ("shuffle", 0xFF))
    for order, fill in orders:
        memory, report = quantise(program, plan, x, fill=fill, order=order)
        padding = of_padding(layout, tokens)
        absent = memory.reshape(*wanted.shape, -1)[-1][:, padding]
        where = f"{blocks} blocks, {tokens} tokens, {order}"
        if not (absent == fill).all():
            raise Wrong("tokens that are not there", where)
        absent_of = np.frombuffer(wanted.tobytes(), dtype=np.uint8).reshape(memory.shape)
        memory = np.where(_mask(wanted.shape, padding), absent_of, memory)
        made = memory.view(wanted.dtype).reshape(wanted.shape)
        for field in wanted.dtype.names or ():
            a, b = np.ascontiguousarray(made[field]), np.ascontiguousarray(wanted[field])
            right = same(a, b) if a.dtype == np.float32 else a == b
            if not right.all():
                at = tuple(np.argwhere(~right)[0].tolist())
                raise Wrong(f"{field} of a record", f"{a[at]} at {at} instead of {b[at]}; {where}")
        own = memory.size - wanted.shape[1] * int(padding.sum())
        if not own == report.bytes_written["activation"] == report.written_bytes["activation"]:
            raise Wrong("records not written once", f"{report.written_bytes['activation']} of {own}; {where}")
        if not x.nbytes == report.read_bytes["x"] == report.bytes_touched["x"]:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {x.nbytes}; {where}")


def _mask(shape: tuple[int, ...], padding: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which bytes of the records [column tile, bundle] are of tokens that only fill up the last tile, flat."""
    mask = np.zeros((*shape, padding.size), dtype=np.bool_)
    mask[-1] = padding
    return mask.reshape(-1)


# ---- compiled files ---------------------------------------------------------------------------------------------


@cache
def compiled(plan: KsplitPlan | FragmentQuantizePlan, arch: int = 900) -> Program:
    """The plan's file, compiled for the emulator."""
    return emulate.compile(emit(plan).text, plan.file, arch=arch)
