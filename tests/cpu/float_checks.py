"""What a kernel with f16 or bf16 activations must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from batch_checks import ORDERS
from float_cases import Operands, cases, narrowed, operands, special_operands, workspace
from judging import F32, GUARD, POISON, U8, Order, Wrong, poisoned, same
from ksplit_cases import DISTINCT, INF_ROW, INF_X, NAN_ROW, NAN_X, ROWS, Case, numbers
from ksplit_checks import SM_90
from numpy.typing import NDArray

from qgen import contract_float, emulate
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import (
    ArrangePlan,
    FloatFragments,
    FloatKsplitPlan,
    FloatRung,
    Launch,
    launch_arrange,
    launch_ksplit_float,
)
from qgen.spec import Format


class Float:
    """One rung of a compiled file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: FloatKsplitPlan, rung: FloatRung) -> None:
        self.format, self.program, self.plan, self.rung = format, program, plan, rung

    def run(
        self, given: Operands, case: Case, *, order: Order = "forward", seed: int = 0, activation: U8 | None = None
    ) -> tuple[F32, Report, int]:
        """y float32[tokens, rows], the launch's report and the grid's y. activation: in place of the case's."""
        if activation is None:
            activation = self.workspace(given.x[numbers(case.tokens)])
        stride = case.rows + case.y_pad
        memory = np.full((case.tokens - 1) * stride + case.rows + 2 * GUARD, POISON)
        shape, grid_y = self.shape(case)
        report = self.program.launch(
            self.rung.name,
            grid=(shape.grid, grid_y, 1),
            block=shape.block,
            shared=shape.shared,
            args=[
                *self.weight(given, case), case.rows, given.blocks, case.tokens,
                Buffer("activation", activation, offset_bytes=16),
                Buffer("y", memory[GUARD:-GUARD], offset_bytes=4, writable=True), stride,
            ],
            order=order,
            seed=seed,
            dependent=True,
        )  # fmt: skip
        padded = np.full(case.tokens * stride, POISON)
        padded[: memory.size - 2 * GUARD] = memory[GUARD:-GUARD]
        table = padded.reshape(case.tokens, stride)
        outside = np.concatenate([memory[:GUARD], memory[-GUARD:], table[:, case.rows :].reshape(-1)])
        if not poisoned(outside).all():
            raise Wrong("writes outside y", str(case))
        return np.ascontiguousarray(table[:, : case.rows]), report, grid_y

    def cases(self) -> list[Case]:
        """Every shape worth a run."""
        return cases(self.plan, self.rung)

    def shape(self, case: Case) -> tuple[Launch, int]:
        """Launch numbers and the grid's y."""
        return launch_ksplit_float(self.plan, self.rung, case.rows, case.tokens, case.multiprocessors, 1, SM_90)

    def workspace(self, x: F32) -> U8:
        """x float32[tokens, K] as the kernel reads it."""
        return workspace(self.plan.layout, x)

    def weight(self, given: Operands, case: Case) -> list[Buffer | int]:
        """The kernel's first arguments."""
        weights: list[Buffer | int] = []
        for plane, part in zip(self.plan.planes, given.planes.values(), strict=True):
            pad = plane.alignment * case.pad
            lines = part[: case.rows].reshape(case.rows, -1)
            # Rows of a plane begin aligned whatever K is: k_pad columns fill them up.
            pad += -lines.shape[1] % plane.alignment
            laid = np.full((case.rows, lines.shape[1] + pad), 0xA5, dtype=np.uint8)
            laid[:, : lines.shape[1]] = lines
            offset = plane.alignment * case.offset % 16
            weights += [
                Buffer(plane.name, laid.reshape(-1)[: laid.size - pad], offset_bytes=offset, constant=True),
                lines.shape[1] + pad,
            ]
        return weights

    def weight_bytes(self, given: Operands, case: Case) -> dict[str, int]:
        """By buffer the bytes of the weight that the kernel is to read."""
        parts = zip(self.plan.planes, given.planes.values(), strict=True)
        return {plane.name: part[: case.rows].size for plane, part in parts}

    def check(self, given: Operands, case: Case, *, orders: bool = True) -> None:
        """One case against the contract, column by column, and its traffic; `orders`: in other thread orders too."""
        wanted = given.wanted[numbers(case.tokens), : case.rows]
        y, report, grid_y = self.run(given, case)
        if poisoned(y).any():
            raise Wrong("y not written", str(case))
        right = same(y, wanted)
        if not right.all():
            token, row = np.argwhere(~right)[0]
            found = f"token {token}, row {row} is {y[token, row]!r}, the contract says {wanted[token, row]!r}"
            raise Wrong("bits differ from the contract", f"{found}; {(~right).sum()} of {y.size} wrong; {case}")
        self.check_traffic(given, case, report, grid_y)
        for order, seed in ORDERS if orders else ():
            if not same(self.run(given, case, order=order, seed=seed)[0], y).all():
                raise Wrong("bits depend on the thread order", f"{order} {seed}; {case}")

    def check_traffic(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        """That weights and activation are read, and y is written, as often as they are meant to be."""
        for name, packed in self.weight_bytes(given, case).items():
            if report.bytes_touched[name] != packed:
                raise Wrong("bytes outside the packed ones are read", f"{report.bytes_touched[name]}; {case}")
            if report.read_bytes[name] != self.plan.read_factor * packed * grid_y:
                raise Wrong("read factor", f"{report.read_bytes[name]} / {packed} / {grid_y}; {case}")
        self.check_reads(given, case, report)
        size = 4 * case.rows * case.tokens
        if not size == report.written_bytes["y"] == report.bytes_written["y"]:
            raise Wrong("y written more than once", f"{report.written_bytes['y']} of {size} bytes; {case}")

    def check_reads(self, given: Operands, case: Case, report: Report) -> None:
        """That of the activation what is needed is read."""
        layout, tiles = self.plan.layout, -(-case.tokens // 8)
        # Of a token that fills up its tile only the sums are read, never the values.
        own = given.blocks * case.tokens * layout.value_bytes // 8 + given.blocks * tiles * layout.sum_bytes
        if report.bytes_touched["activation"] != own:
            raise Wrong("activation read", f"{report.bytes_touched['activation']} of {own} bytes; {case}")

    def check_shapes(self) -> None:
        """Every shape worth a run; the longest one in several thread orders, the others in one."""
        found = self.cases()
        for number, case in enumerate(found):
            given = operands(self.format, self.plan.contract.activation, case.blocks)
            self.check(given, case, orders=number == 2)

    def check_special(self) -> None:
        """NaN and Inf, in scales and in x: they stay in their row and their column."""
        activation = self.plan.contract.activation
        given = special_operands(self.format, activation, self.rung.warps + 1)
        clean = operands(self.format, activation, given.blocks).wanted
        rest = np.delete(np.arange(ROWS), (NAN_ROW, INF_ROW))
        fine = np.delete(np.arange(DISTINCT), (NAN_X, INF_X))
        assert same(given.wanted[np.ix_(fine, rest)], clean[np.ix_(fine, rest)]).all()
        assert np.isnan(given.wanted[NAN_X]).all() and not np.isfinite(given.wanted[INF_X]).any()
        self.check(given, Case(rows=18, blocks=given.blocks, tokens=self.rung.columns + 1), orders=False)


# ---- the kernel that arranges x ---------------------------------------------------------------------------------


def arrange(
    program: Program,
    plan: ArrangePlan,
    x: F32,
    *,
    narrow: bool,
    pad: int = 3,
    fill: int = 0xA5,
    order: Order = "forward",
) -> tuple[U8, Report]:
    """The workspace made from x float32[tokens, K], rows `pad` numbers apart; narrow: handed over as the class."""
    tokens, columns = x.shape
    blocks = columns // plan.layout.block
    memory = np.full(plan.layout.bytes(blocks, tokens), fill, dtype=np.uint8)
    laid = np.full((tokens, columns + pad), np.nan, dtype=np.float32)
    laid[:, :columns] = x
    given = narrowed(laid, plan.layout.activation) if narrow else laid
    shape, grid_y = launch_arrange(plan, blocks, tokens)
    report = program.launch(
        plan.name,
        grid=(shape.grid, grid_y, 1),
        block=shape.block,
        shared=shape.shared,
        args=[
            Buffer("x", given.reshape(-1)[: given.size - pad], offset_bytes=given.itemsize), columns + pad,
            given.itemsize, blocks, tokens, Buffer("activation", memory, offset_bytes=16, writable=True),
        ],
        order=order,
        seed=1,
        dependent=True,
    )  # fmt: skip
    return memory, report


def check_arrange(program: Program, plan: ArrangePlan, x: F32) -> None:
    """Every plane against the contract's rounding and sums, placed by the layout record, from both kinds of x."""
    layout, tokens = plan.layout, len(x)
    blocks = x.shape[1] // layout.block
    at = layout.sums_offset(blocks, tokens)
    tiles = -(-tokens // 8)
    own = np.arange(8 * tiles).reshape(tiles, 8) < tokens
    rounded = np.stack([contract_float.rounded(column, layout.activation) for column in x])
    runs: tuple[tuple[Order, int, bool], ...] = (
        ("forward", 0xA5, False),
        ("reverse", 0x5A, True),
        ("shuffle", 0xFF, False),
    )
    for order, fill, narrow in runs:
        given = rounded if narrow else x
        memory, report = arrange(program, plan, given, narrow=narrow, fill=fill, order=order)
        wanted = workspace(layout, given)
        where = f"{blocks} blocks, {tokens} tokens, {order}"
        shape = (tiles, blocks, layout.pieces, 8, 32)
        values, right = (np.moveaxis(m[:at].view(np.uint16).reshape(shape), 3, 1) for m in (memory, wanted))
        # A NaN may have any bits.
        nan = 0x7C00 if layout.activation == "f16" else 0x7F80
        both = ((values & 0x7FFF) > nan) & ((right & 0x7FFF) > nan)
        if not (both | (values == right))[own].all():
            raise Wrong("values plane", where)
        if not (values[~own].view(np.uint8) == fill).all():
            raise Wrong("values of no token written", where)
        if layout.sums and not same(*(_sums_of(layout, m[at:], own) for m in (memory, wanted))).all():
            raise Wrong("sums plane", where)
        written = at // (8 * tiles) * tokens + memory.size - at
        if not written == report.bytes_written["activation"] == report.written_bytes["activation"]:
            raise Wrong("planes not written once", f"{report.written_bytes['activation']} of {written}; {where}")
        nbytes = x.size * (2 if narrow else 4)
        if not nbytes == report.read_bytes["x"] == report.bytes_touched["x"]:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {nbytes}; {where}")


def _sums_of(layout: FloatFragments, plane: U8, own: NDArray[np.bool_]) -> F32:
    """The numbers of a sums plane, 0 for those of tokens that only fill up a tile. own: bool[tiles, 8 tokens]."""
    shape = (len(own), -1, 8, 16 if layout.pieced else 1)
    if layout.pieced:
        plane = (plane.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.uint8)
    sums = plane.view(np.float32).reshape(shape)
    used = np.broadcast_to(own[:, np.newaxis, :, np.newaxis], sums.shape)
    return np.ascontiguousarray(np.where(used, sums, 0), dtype=np.float32)


@cache
def compiled(plan: FloatKsplitPlan | ArrangePlan, arch: int = 900) -> Program:
    """The plan's file, compiled for the emulator."""
    return emulate.compile(emit(plan).text, plan.file, arch=arch)
