"""What a ksplit_mma kernel and its quantiser must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

import mmap
from functools import cache
from typing import Literal

import numpy as np
from ksplit_cases import (
    DISTINCT,
    F32,
    INF_ROW,
    INF_X,
    NAN_ROW,
    NAN_X,
    ROWS,
    U8,
    Case,
    Operands,
    cases,
    lay_out,
    numbers,
    operands,
    planes,
    special_operands,
    workspace,
)
from numpy.typing import NDArray

from qgen import contract, emulate
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import FragmentQuantizePlan, KsplitPlan, Rung, launch_ksplit, launch_quantize_fragments
from qgen.plan.ksplit import FragmentLayout
from qgen.spec import Format

Order = Literal["forward", "reverse", "shuffle"]

ORDERS: tuple[tuple[Order, int], ...] = (("reverse", 0), ("shuffle", 1))
GUARD = 16  # floats on both sides of y
POISON = np.array([0xFFBADBAD], dtype=np.uint32).view(np.float32)[0]  # a NaN that no arithmetic makes


class Wrong(AssertionError):
    """A check that a kernel failed: its name and what was found."""

    def __init__(self, check: str, found: str) -> None:
        super().__init__(f"{check}: {found}")
        self.check = check


def same(a: F32, b: F32) -> NDArray[np.bool_]:
    """Where two float arrays agree bit for bit; a NaN agrees with any NaN, for payloads are no one's promise."""
    agree: NDArray[np.bool_] = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return agree


# ---- the matmul -------------------------------------------------------------------------------------------------


class Ksplit:
    """One rung of a compiled file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: KsplitPlan, rung: Rung) -> None:
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
        laid = lay_out(given, case) if weight is None else weight
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
        if not (outside.view(np.uint32) == POISON.view(np.uint32)).all():
            raise Wrong("writes outside y", str(case))
        return np.ascontiguousarray(table[:, : case.rows]), report, grid_y

    def check(self, given: Operands, case: Case) -> None:
        """All orders of one case against the contract, column by column, and its traffic."""
        wanted = given.wanted[numbers(case.tokens), : case.rows]
        y, report, grid_y = self.run(given, case)
        if (y.view(np.uint32) == POISON.view(np.uint32)).any():
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
        layout, tiles = self.plan.layout, -(-case.tokens // 8)
        # Of a token that fills up its tile only the scale and the sums are read, never the codes.
        own = given.blocks * case.tokens * layout.code_bytes // 8
        own += given.blocks * tiles * (32 * layout.scales + layout.sum_bytes)
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
        """NaN and Inf, in scales and in x: they stay in their row and their column."""
        given = special_operands(self.format, self.rung.warps + 1)
        clean = operands(self.format, given.blocks).wanted
        rest = np.delete(np.arange(ROWS), (NAN_ROW, INF_ROW))
        fine = np.delete(np.arange(DISTINCT), (NAN_X, INF_X))
        assert same(given.wanted[np.ix_(fine, rest)], clean[np.ix_(fine, rest)]).all()
        assert np.isnan(given.wanted[NAN_X]).all() and not np.isfinite(given.wanted[INF_X]).any()
        self.check(given, Case(rows=18, blocks=given.blocks, tokens=self.rung.columns + 1))

    def check_far_rows(self) -> None:
        """The last of three rows begins past 2^32 bytes, the one before past 2^31: offsets are 64-bit all the way."""
        given = operands(self.format, self.rung.warps - 1)
        row_bytes = given.packed[0].size
        stride = (1 << 31) + 16 * 1024 + self.plan.alignment
        memory = _vast()
        for row in range(3):
            memory[row * stride : row * stride + row_bytes] = given.packed[row].reshape(-1)
        case = Case(rows=3, blocks=given.blocks, tokens=2, pad=stride - row_bytes)
        y, report, grid_y = self.run(given, case, weight=memory[: 2 * stride + row_bytes])
        if not same(y, given.wanted[numbers(2), :3]).all():
            raise Wrong("rows gigabytes apart", str(y))
        self._check_traffic(given, case, report, grid_y)


@cache
def _vast() -> U8:
    """uint8[4 GiB and some]: address space that takes memory only where it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, (1 << 32) + (1 << 22), flags=flags), dtype=np.uint8)


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
