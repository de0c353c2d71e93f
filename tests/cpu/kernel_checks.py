"""What a kernel must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from judging import F32, GUARD, POISON, U8, Order, Wrong, far_apart, lay_out, poisoned, same
from kernel_cases import (
    X_SPECIALS,
    Case,
    Operands,
    cases,
    operands,
    place,
    special_operands,
    special_x_operands,
    wild_operands,
)

from qgen import contract
from qgen.emulate import Buffer, Program, Report
from qgen.plan import Instance, MatvecPlan, QuantizePlan, launch, launch_quantize
from qgen.spec import Format

ORDERS: tuple[tuple[Order, int], ...] = (("reverse", 0), ("shuffle", 1), ("shuffle", 2), ("forward", 0))
PAST_END = 0xFF  # every byte of the activation past the last block: codes -1, scales NaN


# ---- matvec -----------------------------------------------------------------------------------------------------


class Matvec:
    """One instance of a compiled matvec file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: MatvecPlan, instance: Instance) -> None:
        self.format = format
        self.program = program
        self.plan = plan
        self.instance = instance

    def run(
        self, given: Operands, case: Case, *, order: Order = "forward", seed: int = 0, weight: U8 | None = None
    ) -> tuple[F32, Report]:
        """y float32[rows] and the launch's report. weight: bytes to use in place of those laid out for the case."""
        laid = lay_out(given.packed[: case.rows], case.pad) if weight is None else weight
        quantised = contract.quantise(given.x, self.plan.contract.activation)
        activation = place(self.plan.layout, quantised, given.blocks, fill=PAST_END)
        memory = np.full(case.rows + 2 * GUARD, POISON)
        y = memory[GUARD : GUARD + case.rows]
        shape = launch(self.plan, self.instance, case.rows, case.multiprocessors, 1)
        report = self.program.launch(
            self.instance.name,
            grid=shape.grid,
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("weight", laid, offset_bytes=case.offset, constant=True),
                given.packed[0].size + case.pad,
                case.rows,
                given.blocks,
                Buffer("activation", activation, offset_bytes=16),
                Buffer("y", y, offset_bytes=4, writable=True),
            ],
            order=order,
            seed=seed,
            dependent=True,
        )
        guards = np.concatenate([memory[:GUARD], memory[GUARD + case.rows :]])
        if not poisoned(guards).all():
            raise Wrong("writes outside y", str(case))
        return y, report

    def check(self, given: Operands, case: Case, *, finite: bool = True) -> Report:
        """All orders of one case against the contract, and where all is finite against the oracle."""
        wanted = given.wanted[: case.rows]
        y, report = self.run(given, case)
        if poisoned(y).any():
            raise Wrong("y not written", str(case))
        right = same(y, wanted)
        if not right.all():
            row = int(np.argmin(right))
            found = f"row {row} is {y[row]!r}, the contract says {wanted[row]!r}; {(~right).sum()} wrong rows"
            raise Wrong("bits differ from the contract", f"{found}; {case}")
        for order, seed in ORDERS:
            again, _ = self.run(given, case, order=order, seed=seed)
            if not same(again, y).all():
                raise Wrong("bits depend on the thread order", f"{order} {seed}; {case}")
        if finite and not (np.abs(y - given.exact[: case.rows]) <= given.bound[: case.rows]).all():
            raise Wrong("too far from the oracle", str(case))
        self._check_traffic(given, case, report)
        return report

    def _check_traffic(self, given: Operands, case: Case, report: Report) -> None:
        packed = given.packed[: case.rows].size
        requested, touched = report.read_bytes["weight"], report.bytes_touched["weight"]
        if touched != packed:
            raise Wrong("bytes outside the packed ones are read", f"{touched} of {packed}; {case}")
        if requested != self.plan.read_factor * packed:
            raise Wrong("read factor", f"{requested} / {packed} = {requested / packed}; {case}")
        if report.written_bytes["y"] != 4 * case.rows or report.bytes_written["y"] != 4 * case.rows:
            raise Wrong("y written more than once", f"{report.written_bytes['y']} bytes; {case}")

    def check_shapes(self) -> None:
        """Every shape worth a run: see kernel_cases.cases."""
        for case in cases(self.plan, self.instance):
            self.check(operands(self.format, case.blocks), case)

    def check_far_rows(self) -> None:
        """The last of three rows begins past 2^32 bytes, the one before past 2^31: offsets are 64-bit all the way."""
        given = operands(self.format, self.instance.team_blocks + 1)
        row_bytes = given.packed[0].size
        stride = (1 << 31) + 16 * 1024 + self.plan.alignment
        case = Case(rows=3, blocks=given.blocks, pad=stride - row_bytes, offset=0, multiprocessors=1)
        y, report = self.run(given, case, weight=far_apart(given.packed[:3], stride))
        if not same(y, given.wanted[:3]).all():
            raise Wrong("rows gigabytes apart", f"{y} instead of {given.wanted[:3]}")
        self._check_traffic(given, case, report)

    def check_special(self) -> None:
        """Huge, tiny, infinite and NaN scales and numbers of x, in steps with a tail."""
        blocks = self.instance.team_blocks + 1
        in_x = [special_x_operands(self.format, blocks, special) for special in range(len(X_SPECIALS))]
        for given in (special_operands(self.format, blocks), *in_x):
            case = Case(rows=len(given.packed), blocks=blocks, pad=0, offset=0, multiprocessors=1)
            self.check(given, case, finite=False)
        given = wild_operands(self.format, self.plan.contract.slices + 1)
        self.check(given, Case(rows=19, blocks=given.blocks, pad=0, offset=0, multiprocessors=1))


# ---- quantisers -------------------------------------------------------------------------------------------------


def check_quantize(program: Program, plan: QuantizePlan, x: F32) -> None:
    """All orders, on two backgrounds, against the contract's quantiser placed by the layout record.

    Alone, and as the first of several tokens, whose rows lie apart: a token behind it is its mirror image.
    """
    placed, blocks = plan.layout, x.size // plan.layout.block
    every = (x, np.ascontiguousarray(x[::-1]), -x)
    wanted = [place(placed, contract.quantise(row, placed.activation), blocks, fill=0) for row in every]
    runs = zip((0xA5, 0x5A, 0xFF, 0x00), (1, 3, 1, 2), ORDERS, strict=True)
    for background, tokens, (order, seed) in runs:
        memory = np.full((tokens, placed.bytes(blocks)), background, dtype=np.uint8)
        laid = np.full((tokens, x.size + 3 * (tokens > 1)), np.nan, dtype=np.float32)
        laid[:, : x.size] = every[:tokens]
        shape, grid_y = launch_quantize(plan, blocks, tokens)
        report = program.launch(
            plan.name,
            grid=(shape.grid, grid_y, 1),
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("x", laid, offset_bytes=4),
                laid.shape[1],
                blocks,
                Buffer("activation", memory, offset_bytes=16, writable=True),
            ],
            order=order,
            seed=seed,
            dependent=True,
        )
        where = f"{blocks} blocks, {tokens} tokens, {order} {seed}"
        for token in range(tokens):
            for plane, begin, end in planes(plan, blocks):
                got, right_bytes = memory[token, begin:end], wanted[token][begin:end]
                if plane == "scale":
                    right = same(got.view(np.float32), right_bytes.view(np.float32))
                else:
                    right = got == right_bytes
                if not right.all():
                    at = int(np.argmin(right))
                    found = f"entry {at} of token {token}, {(~right).sum()} of {right.size} wrong; {where}"
                    raise Wrong(f"{plane} plane", found)
        written = tokens * sum(end - begin for _, begin, end in planes(plan, blocks))
        if report.bytes_written["activation"] != written or report.written_bytes["activation"] != written:
            raise Wrong("planes not written once", f"{report.bytes_written['activation']} of {written} bytes; {where}")
        size = tokens * x.nbytes
        if report.read_bytes["x"] != size or report.bytes_touched["x"] != size:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {size} bytes; {where}")


def planes(plan: QuantizePlan, blocks: int) -> list[tuple[str, int, int]]:
    """(plane, first byte, end) of a workspace; padding of the last tile included."""
    placed = plan.layout
    padded = placed.tiles(blocks) * placed.tile_blocks
    scales, sums = placed.scale_offset(blocks), placed.sums_offset(blocks)
    return [
        ("codes", 0, scales),
        ("scale", scales, scales + 4 * padded * placed.scales),
        ("sums", sums, sums + 4 * padded * placed.lanes * placed.sum_slots),
    ]


_SPIKES = (np.nan, np.inf, -np.inf, 3.4e38, -1e30, 127.0)
_SCALES = (0.0, -0.0, 1e-45, 1e-42, 1e-39, 3e-38, 3.7e-37, 1e-30, 1e30, 1e37)


def quantize_vectors(plan: QuantizePlan) -> Iterator[F32]:
    """Activations of one block, tails of a tile and several tiles: once usual, once with groups of every kind."""
    tile, block = plan.layout.tile_blocks, plan.layout.block
    for blocks in (1, tile - 1, tile, tile + 1, 2 * tile + 3):
        x = np.random.default_rng(blocks).standard_normal(blocks * block, dtype=np.float32)
        yield x
        yield _mixed(x.reshape(-1, plan.layout.group), seed=blocks).reshape(-1)


def _mixed(usual: F32, seed: int) -> F32:
    """Groups scaled from zero over subnormal to huge, negative, with one number of note, and with nothing but ties."""
    rng = np.random.default_rng(seed)
    x = usual.copy()
    with np.errstate(all="ignore"):
        for number, group in enumerate(rng.permutation(len(x))):
            kind, choice = number % 4, number // 4
            if kind == 0:
                x[group] *= np.float32(_SCALES[choice % len(_SCALES)])
            elif kind == 1:
                x[group, choice % x.shape[1]] = _SPIKES[choice % len(_SPIKES)]
            elif kind == 2:
                x[group] = -np.abs(x[group])
            else:  # 127/127 = 1: every x is its own quotient, and half of them lie between two codes
                x[group] = rng.integers(-254, 255, x.shape[1]).astype(np.float32) / 2
                x[group, 0] = -127
    return x
