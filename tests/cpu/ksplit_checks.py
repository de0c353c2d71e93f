"""What a ksplit_mma kernel and its quantiser must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from judging import F32, GUARD, POISON, U8, Order, Wrong, far_apart, lay_out, poisoned, same
from ksplit_cases import (
    DISTINCT,
    INF_ROW,
    INF_X,
    NAN_ROW,
    NAN_X,
    ROWS,
    Case,
    Operands,
    block_of,
    bundles,
    cases,
    leftovers,
    numbers,
    operands,
    record_type,
    records,
    special_operands,
    takes_bulk_copies,
    whole_pieces,
    workspace,
)

from qgen import contract, emulate
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import FragmentQuantizePlan, KsplitPlan, Rung, launch_ksplit, launch_quantize_fragments
from qgen.spec import Format

ORDERS: tuple[tuple[Order, int], ...] = (("reverse", 0), ("shuffle", 1))


# ---- the matmul -------------------------------------------------------------------------------------------------


class Ksplit:
    """One rung of a compiled file, ready to be judged; bulk: whether the architecture has bulk copies."""

    def __init__(self, format: Format, program: Program, plan: KsplitPlan, rung: Rung, *, bulk: bool = True) -> None:
        self.bulk = bulk
        self.format = format
        self.program = program
        self.plan = plan
        self.rung = rung

    def run(
        self,
        given: Operands,
        case: Case,
        *,
        order: Order = "forward",
        seed: int = 0,
        weight: U8 | None = None,
        activation: U8 | None = None,
    ) -> tuple[F32, Report, int]:
        """y float32[tokens, rows], the launch's report and the grid's y. weight, activation: in place of the case's."""
        laid = lay_out(given.packed[: case.rows], case.pad) if weight is None else weight
        if activation is None:
            activation = workspace(self.plan.layout, given.quantised(case.tokens), given.blocks)
        stride = case.rows + case.y_pad
        memory = np.full((case.tokens - 1) * stride + case.rows + 2 * GUARD, POISON)
        shape, grid_y = launch_ksplit(self.plan, self.rung, case.rows, case.tokens, case.multiprocessors, 1)
        report = self.program.launch(
            self.rung.name,
            grid=(shape.grid, grid_y, 1),
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("weight", laid, offset_bytes=case.offset),
                given.packed[0].size + case.pad,
                case.rows,
                given.blocks,
                case.tokens,
                Buffer("activation", activation, offset_bytes=16),
                Buffer("y", memory[GUARD:-GUARD], offset_bytes=4, writable=True),
                stride,
            ],
            order=order,
            seed=seed,
        )
        padded = np.full(case.tokens * stride, POISON)
        padded[: memory.size - 2 * GUARD] = memory[GUARD:-GUARD]
        table = padded.reshape(case.tokens, stride)
        outside = np.concatenate([memory[:GUARD], memory[-GUARD:], table[:, case.rows :].reshape(-1)])
        if not poisoned(outside).all():
            raise Wrong("writes outside y", str(case))
        return np.ascontiguousarray(table[:, : case.rows]), report, grid_y

    def check(self, given: Operands, case: Case) -> None:
        """All orders of one case against the contract, column by column, and its traffic."""
        wanted = given.wanted[numbers(case.tokens), : case.rows]
        y, report, grid_y = self.run(given, case)
        if poisoned(y).any():
            raise Wrong("y not written", str(case))
        right = same(y, wanted)
        if not right.all():
            token, row = np.argwhere(~right)[0]
            found = f"token {token}, row {row} is {y[token, row]!r}, the contract says {wanted[token, row]!r}"
            raise Wrong("bits differ from the contract", f"{found}; {(~right).sum()} of {y.size} wrong; {case}")
        self._check_traffic(given, case, report, grid_y)
        for order, seed in ORDERS:
            if not same(self.run(given, case, order=order, seed=seed)[0], y).all():
                raise Wrong("bits depend on the thread order", f"{order} {seed}; {case}")

    def _check_traffic(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        packed = given.packed[: case.rows].size
        if report.bytes_touched["weight"] != packed:
            raise Wrong("bytes outside the packed ones are read", f"{report.bytes_touched['weight']}; {case}")
        if report.read_bytes["weight"] != self.plan.read_factor * packed * grid_y:
            raise Wrong("read factor", f"{report.read_bytes['weight']} / {packed} / {grid_y}; {case}")
        # A bulk copy counts once a sector, 32 bytes; others move 16 at most.
        bulk = self.bulk and takes_bulk_copies(self.plan, self.rung, case)
        if bulk != (report.read_requests["weight"] < packed * grid_y / 16):
            raise Wrong("way of copying", f"{report.read_requests['weight']} requests; {case}")
        layout, tiles = self.plan.layout, -(-case.tokens // 8)
        # Whole records, of all bundles with a block in them.
        used = sum(block_of(layout, u, 0) < given.blocks for u in range(bundles(layout, given.blocks)))
        own = tiles * used * record_type(layout).itemsize
        if report.bytes_touched["activation"] != own:
            raise Wrong("activation read", f"{report.bytes_touched['activation']} of {own} bytes; {case}")
        size = 4 * case.rows * case.tokens
        if not size == report.written_bytes["y"] == report.bytes_written["y"]:
            raise Wrong("y written more than once", f"{report.written_bytes['y']} of {size} bytes; {case}")

    def check_shapes(self) -> None:
        """Every shape worth a run."""
        for case in cases(self.plan, self.rung):
            self.check(operands(self.format, case.blocks), case)

    def check_special(self) -> None:
        """NaN and Inf, in scales and in x: they stay in their row and their column, and nothing is left of them."""
        last = leftovers(self.plan, self.rung)
        for case in (Case(rows=18, blocks=self.rung.warps + 1, tokens=self.rung.columns + 1), last):
            given = special_operands(self.format, case.blocks)
            clean = operands(self.format, given.blocks).wanted
            rest = np.delete(np.arange(ROWS), (NAN_ROW, INF_ROW))
            fine = np.delete(np.arange(DISTINCT), (NAN_X, INF_X))
            assert same(given.wanted[np.ix_(fine, rest)], clean[np.ix_(fine, rest)]).all()
            assert np.isnan(given.wanted[NAN_X]).all() and not np.isfinite(given.wanted[INF_X]).any()
            self.check(given, case)

    def check_far_rows(self) -> None:
        """The first row of a CTA's second tile begins past 2^32 bytes: offsets are 64-bit all the way."""
        rows = self.rung.rows + 1
        far = (1 << 32) // self.rung.rows + 16 * 1024
        for blocks, stride in ((self.rung.warps - 1, far + self.plan.alignment), (whole_pieces(self.plan), far)):
            given = operands(self.format, blocks)
            case = Case(rows=rows, blocks=blocks, tokens=2, pad=stride - given.packed[0].size)
            y, report, grid_y = self.run(given, case, weight=far_apart(given.packed[:rows], stride))
            if not same(y, given.wanted[numbers(2), :rows]).all():
                raise Wrong("rows gigabytes apart", str(y))
            self._check_traffic(given, case, report, grid_y)


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
            tokens,
            Buffer("activation", memory, offset_bytes=16, writable=True),
        ],
        order=order,
        seed=1,
    )
    return memory, report


def check_quantise(program: Program, plan: FragmentQuantizePlan, x: F32) -> None:
    """Every record against the contract's quantiser placed by the layout record, in three orders; padding too."""
    layout, tokens = plan.layout, len(x)
    blocks = x.shape[1] // plan.weight_block
    wanted = records(layout, [contract.quantise(column, layout.activation) for column in x], blocks)
    orders: tuple[tuple[Order, int], ...] = (("forward", 0xA5), ("reverse", 0x5A), ("shuffle", 0xFF))
    for order, fill in orders:
        memory, report = quantise(program, plan, x, fill=fill, order=order)
        where = f"{blocks} blocks, {tokens} tokens, {order}"
        made = memory.view(wanted.dtype).reshape(wanted.shape)
        for field in wanted.dtype.names or ():
            a, b = np.ascontiguousarray(made[field]), np.ascontiguousarray(wanted[field])
            right = same(a, b) if a.dtype == np.float32 else a == b
            if not right.all():
                at = tuple(np.argwhere(~right)[0].tolist())
                raise Wrong(f"{field} of a record", f"{a[at]} at {at} instead of {b[at]}; {where}")
        if not memory.size == report.bytes_written["activation"] == report.written_bytes["activation"]:
            raise Wrong("records not written once", f"{report.written_bytes['activation']} of {memory.size}; {where}")
        if not x.nbytes == report.read_bytes["x"] == report.bytes_touched["x"]:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {x.nbytes}; {where}")


# ---- compiled files ---------------------------------------------------------------------------------------------


@cache
def compiled(plan: KsplitPlan | FragmentQuantizePlan, arch: int = 900) -> Program:
    """The plan's file, compiled for the emulator."""
    return emulate.compile(emit(plan).text, plan.file, arch=arch)
