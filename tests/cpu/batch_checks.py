"""What a kernel for several tokens must do to pass, whatever its family: for the tests of ksplit_mma and multirow.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

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
    numbers,
    operands,
    special_operands,
)

from qgen.emulate import Buffer, Program, Report
from qgen.plan import KsplitPlan, Launch, MultirowPlan
from qgen.spec import Format

ORDERS: tuple[tuple[Order, int], ...] = (("reverse", 0), ("shuffle", 1))


class Batch(ABC):
    """One kernel of a compiled file, ready to be judged.

    name: its entry; columns: tokens of a CTA; few: blocks of a row, fewer than a whole step of the kernel
    """

    name: str
    columns: int
    few: int

    def __init__(self, format: Format, program: Program, plan: KsplitPlan | MultirowPlan) -> None:
        self.format = format
        self.program = program
        self.batch_plan = plan

    @abstractmethod
    def cases(self) -> list[Case]:
        """Every shape worth a run."""

    @abstractmethod
    def special_cases(self) -> list[Case]:
        """Shapes worth a run with special numbers."""

    @abstractmethod
    def workspace(self, given: Operands, tokens: int) -> U8:
        """The quantised activation as the layout record places it."""

    def weight(self, given: Operands, case: Case, laid: U8 | None) -> list[Buffer | int]:
        """The kernel's first arguments; laid: the weight's memory in place of the case's."""
        if laid is None:
            laid = lay_out(given.packed[: case.rows], case.pad)
        return [Buffer("weight", laid, offset_bytes=case.offset, constant=True), given.packed[0].size + case.pad]

    def weight_bytes(self, given: Operands, case: Case) -> int:
        """Bytes of the weight that the case has."""
        return given.packed[: case.rows].size

    @abstractmethod
    def shape(self, case: Case) -> tuple[Launch, int]:
        """Launch numbers and the grid's y."""

    @abstractmethod
    def check_reads(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        """That the activation is read as often as it is meant to be, and the weights in the way they are."""

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
        if activation is None:
            activation = self.workspace(given, case.tokens)
        stride = case.rows + case.y_pad
        memory = np.full((case.tokens - 1) * stride + case.rows + 2 * GUARD, POISON)
        shape, grid_y = self.shape(case)
        report = self.program.launch(
            self.name,
            grid=(shape.grid, grid_y, 1),
            block=shape.block,
            shared=shape.shared,
            args=[
                *self.weight(given, case, weight),
                case.rows,
                given.blocks,
                case.tokens,
                Buffer("activation", activation, offset_bytes=16),
                Buffer("y", memory[GUARD:-GUARD], offset_bytes=4, writable=True),
                stride,
            ],
            order=order,
            seed=seed,
            dependent=True,
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
        packed = self.weight_bytes(given, case)
        if report.bytes_touched["weight"] != packed:
            raise Wrong("bytes outside the packed ones are read", f"{report.bytes_touched['weight']}; {case}")
        if report.read_bytes["weight"] != self.batch_plan.read_factor * packed * grid_y:
            raise Wrong("read factor", f"{report.read_bytes['weight']} / {packed} / {grid_y}; {case}")
        self.check_reads(given, case, report, grid_y)
        size = 4 * case.rows * case.tokens
        if not size == report.written_bytes["y"] == report.bytes_written["y"]:
            raise Wrong("y written more than once", f"{report.written_bytes['y']} of {size} bytes; {case}")

    def check_shapes(self) -> None:
        """Every shape worth a run."""
        for case in self.cases():
            self.check(operands(self.format, case.blocks), case)

    def check_special(self) -> None:
        """NaN and Inf, in scales and in x: they stay in their row and their column, and nothing is left of them."""
        for case in self.special_cases():
            given = special_operands(self.format, case.blocks)
            clean = operands(self.format, given.blocks).wanted
            rest = np.delete(np.arange(ROWS), (NAN_ROW, INF_ROW))
            fine = np.delete(np.arange(DISTINCT), (NAN_X, INF_X))
            assert same(given.wanted[np.ix_(fine, rest)], clean[np.ix_(fine, rest)]).all()
            assert np.isnan(given.wanted[NAN_X]).all() and not np.isfinite(given.wanted[INF_X]).any()
            self.check(given, case)

    def check_far_rows(self) -> None:
        """The last of three rows begins past 2^32 bytes, the one before past 2^31: offsets are 64-bit all the way."""
        self.check_rows_apart(3, self.few, (1 << 31) + 16 * 1024 + self.batch_plan.alignment)

    def check_rows_apart(self, rows: int, blocks: int, stride: int) -> None:
        """Rows gigabytes apart, and what is read of them."""
        given = operands(self.format, blocks)
        case = Case(rows=rows, blocks=blocks, tokens=2, pad=stride - given.packed[0].size)
        y, report, grid_y = self.run(given, case, weight=far_apart(given.packed[:rows], stride))
        if not same(y, given.wanted[numbers(2), :rows]).all():
            raise Wrong("rows gigabytes apart", str(y))
        self._check_traffic(given, case, report, grid_y)
