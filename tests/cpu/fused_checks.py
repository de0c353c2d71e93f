"""What a kernel of the family fused must do to pass, for the tests of good kernels and of broken ones alike.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np
from judging import F32, GUARD, POISON, U8, Order, Wrong, holes, poisoned, same
from ksplit_cases import INF_X, NAN_X, special_operands
from repack_checks import tiles_of

from qgen import codec, contract, emulate
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.errors import QgenError
from qgen.plan import FusedInstance, FusedPlan, launch_fused
from qgen.spec import Format

ORDERS: tuple[tuple[Order, int], ...] = (("reverse", 0), ("shuffle", 1))
ROWS = 149  # ten row tiles and a tail in the last: three rounds for some of four teams, two for the others
QUANTISING = 16  # warps of a CTA, a bundle each at a time


@dataclass(frozen=True)
class Case:
    """One launch; `multiprocessors` decides how many CTAs share the row tiles."""

    rows: int
    blocks: int
    multiprocessors: int = 1


@dataclass(frozen=True, eq=False)
class Operands:
    """Weights uint8[rows, blocks, bytes], their tiles, x float32[K], and the contract's y float32[rows]."""

    packed: U8
    tiles: U8
    x: F32
    wanted: F32

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return int(self.packed.shape[1])


def make_operands(format: Format, packed: U8, x: F32) -> Operands:
    """Operands with the contract's answer."""
    return Operands(packed, tiles_of(format, packed), x, contract.mul_mat(format, packed, x))


@cache
def operands(format: Format, rows: int, blocks: int) -> Operands:
    """Random blocks with moderate scales, and x with some groups of 32 that are zero, negative, large or small."""
    packed = codec.random_blocks(format, rows * blocks, seed=rows + blocks)
    assert isinstance(packed, np.ndarray)
    rng = np.random.default_rng(blocks)
    x = rng.standard_normal(blocks * format.block, dtype=np.float32)
    groups = x.reshape(-1, 32)
    for number, group in enumerate(rng.permutation(len(groups))[: len(groups) // 2]):
        if number % 4 == 1:
            groups[group] = -np.abs(groups[group])
        else:
            groups[group] *= np.float32((0, 0, 48, 1e-3)[number % 4])
    return make_operands(format, packed.reshape(rows, blocks, -1), x)


@cache
def special(format: Format, blocks: int) -> tuple[Operands, ...]:
    """NaN and Inf in scales of some rows of every team's tiles, under an x of numbers, one with a NaN, one with -Inf;
    and numbers alone under an x of zeros, of -0, of one huge value, one so large that its sums are infinite, the least
    subnormals, and of numbers too small to divide by."""
    given = special_operands(format, blocks)
    odd = np.concatenate([given.packed] * 4)
    made = [make_operands(format, odd, given.x[number]) for number in (0, NAN_X, INF_X)]
    usual = operands(format, 37, blocks)
    columns = usual.x.size
    alone = np.zeros((2, columns), dtype=np.float32)
    alone[0, columns // 3], alone[1, -1] = -1e30, np.float32(3.4e38)
    small = np.full(columns, 1e-45, dtype=np.float32), usual.x * np.float32(1e-38)
    zeros = np.zeros(columns, dtype=np.float32)
    made += [make_operands(format, usual.packed, x) for x in (zeros, -zeros, *alone, *small)]
    return tuple(made)


class Fused:
    """One instance of a compiled file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: FusedPlan, instance: FusedInstance) -> None:
        self.format, self.program, self.plan, self.instance = format, program, plan, instance

    @property
    def round_blocks(self) -> int:
        """Blocks that all warps of a CTA quantise at a time."""
        return QUANTISING * self.plan.ladder.layout.bundle

    def cases(self) -> list[Case]:
        """Ends and tails of row tiles, CTAs, stages, rounds of quantising and bundles, by one CTA and by several; of
        three that share ten row tiles two leave some teams without a tile in their last round, of ten each has one."""
        cta, stage, turn = self.instance.rows, self.instance.stage_blocks, self.round_blocks
        most, bundle = self.plan.most_blocks, self.plan.ladder.layout.bundle
        shapes = [
            Case(1, 1),
            Case(16, max(1, stage - 1)),
            Case(17, stage, 2),
            Case(cta - 1, stage + 1),
            Case(cta, turn - 1),
            Case(cta + 1, turn),
            # One stage a row tile, so that they follow each other as fast as they can.
            Case(ROWS, 1),
            # The ring goes round, and stages end short where whole ones lay.
            Case(ROWS, turn + 1),
            Case(ROWS, min(most, 2 * stage + 3)),
            Case(ROWS, stage + 1, 3),
            Case(ROWS, turn + 1, 10),
            Case(ROWS, 3, 2),
            Case(2, most),
            Case(33, most - 1, 2),
        ]
        # All first blocks of the bundles, one more, and all but the last one.
        ends = (8, 9, 8 * bundle - 1, 8 * bundle + 1) if bundle > 1 else ()
        return [*shapes, *(Case(17, blocks) for blocks in ends)]

    def run(
        self, given: Operands, case: Case, *, order: Order = "forward", seed: int = 0, grid: int = 0
    ) -> tuple[F32, Report, int]:
        """y float32[rows], the launch's report and its CTAs. grid: so many instead of the case's."""
        memory = np.full(case.rows + 2 * GUARD, POISON)
        shape = launch_fused(self.instance, case.rows, case.multiprocessors)
        report = self.program.launch(
            self.instance.name,
            grid=grid or shape.grid,
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("weight", given.tiles, offset_bytes=16, constant=True),
                case.rows,
                given.blocks,
                Buffer("x", given.x, offset_bytes=4),
                Buffer("y", memory[GUARD:-GUARD], offset_bytes=4, writable=True),
            ],
            order=order,
            seed=seed,
            dependent=True,
        )
        if not poisoned(np.concatenate([memory[:GUARD], memory[-GUARD:]])).all():
            raise Wrong("writes outside y", str(case))
        return memory[GUARD:-GUARD].copy(), report, grid or shape.grid

    def check(self, given: Operands, case: Case, orders: tuple[tuple[Order, int], ...] = ORDERS) -> None:
        """One case against the contract, in more thread orders than one, and its traffic."""
        y, report, grid = self.run(given, case)
        if poisoned(y).any():
            raise Wrong("y not written", str(case))
        right = same(y, given.wanted)
        if not right.all():
            row = np.flatnonzero(~right)[0]
            found = f"row {row} is {y[row]!r}, the contract says {given.wanted[row]!r}"
            raise Wrong("bits differ from the contract", f"{found}; {(~right).sum()} of {y.size} wrong; {case}")
        self._check_traffic(given, case, report, grid)
        for order, seed in orders:
            if not same(self.run(given, case, order=order, seed=seed)[0], y).all():
                raise Wrong("bits depend on the thread order", f"{order} {seed}; {case}")

    def _check_traffic(self, given: Operands, case: Case, report: Report, grid: int) -> None:
        tile = self.plan.ladder.tile
        assert tile is not None and tile.bytes(case.rows, given.blocks) == given.tiles.size
        if report.bytes_touched["weight"] != given.tiles.size:
            raise Wrong("bytes outside the packed ones are read", f"{report.bytes_touched['weight']}; {case}")
        if report.read_bytes["weight"] != given.tiles.size:
            raise Wrong("read factor", f"{report.read_bytes['weight']} / {given.tiles.size}; {case}")
        if not report.read_bytes["x"] == grid * given.x.nbytes == grid * report.bytes_touched["x"]:
            raise Wrong("x not read once by every CTA", f"{report.read_bytes['x']} of {given.x.nbytes}; {case}")
        if not 4 * case.rows == report.written_bytes["y"] == report.bytes_written["y"]:
            raise Wrong("y written more than once", f"{report.written_bytes['y']} of {4 * case.rows} bytes; {case}")

    def check_shapes(self) -> None:
        """Every shape worth a run; one of them twice."""
        for case in self.cases():
            self.check(operands(self.format, case.rows, case.blocks), case)
        case = self.cases()[-1]
        given = operands(self.format, case.rows, case.blocks)
        if not same(self.run(given, case)[0], self.run(given, case)[0]).all():
            raise Wrong("a second launch differs", str(case))

    def special_blocks(self) -> list[int]:
        """Less than a stage; and so many that a short stage comes to lie where a whole one of an earlier tile lay."""
        stage, stages = self.instance.stage_blocks, self.instance.stages
        whole = 1 if stages % 2 else 2
        return [self.instance.warps + 1, min(self.plan.most_blocks, whole * stage + 1)]

    def check_special(self) -> None:
        """Numbers that are none, very small or very large; of one x in another thread order, too."""
        for blocks in self.special_blocks():
            for number, given in enumerate(special(self.format, blocks)):
                self.check(given, Case(len(given.packed), blocks), ORDERS[1:] if number == 1 else ())

    def check_far_rows(self) -> None:
        """The last row tile begins past 2^32 bytes: offsets are 64-bit. Every row tile has a CTA; the last one alone
        runs."""
        tile = self.plan.ladder.tile
        assert tile is not None
        given = operands(self.format, 13, 3)
        number = (1 << 32) // given.tiles.size + 1  # of the last row tile
        weight, rows = holes((number + 1) * given.tiles.size), 16 * number + 13
        weight[-given.tiles.size :] = given.tiles
        y = holes(4 * rows).view(np.float32)
        shape = launch_fused(self.instance, rows, number + 1)
        assert shape.grid == number + 1
        report = self.program.launch(
            self.instance.name,
            grid=shape.grid,
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("weight", weight, constant=True),
                rows,
                given.blocks,
                Buffer("x", given.x),
                Buffer("y", y, writable=True),
            ],
            dependent=True,
            ctas=range(number, number + 1),
        )
        if not same(y[-13:], given.wanted).all() or report.bytes_written["y"] != 4 * 13:
            raise Wrong("rows gigabytes apart", str(y[-13:]))
        if report.bytes_touched["weight"] != given.tiles.size:
            raise Wrong("bytes outside the packed ones are read", str(report))

    def check_too_long(self) -> None:
        """The fewest blocks that shared memory has no records for, and a round more: a fault, whatever the rows."""
        room = (self.instance.shared_bytes - self.instance.records_at) // self.plan.record.record_bytes
        least = next(b for b in count(self.plan.most_blocks + 1) if self.plan.ladder.layout.bundles(b) > room)
        for more in (0, self.round_blocks):
            for rows in (1, 17):
                given = operands(self.format, rows, least + more)
                try:
                    self.run(given, Case(rows, given.blocks))
                except QgenError as error:
                    if "shared memory" not in error.found:
                        raise Wrong("rows that are too long", f"not seen in shared memory: {error.found}") from error
                else:
                    raise Wrong("rows that are too long", f"{given.blocks} blocks passed")


@cache
def compiled(plan: FusedPlan, arch: int = 900) -> Program:
    """The plan's file, compiled for the emulator."""
    return emulate.compile(emit(plan).text, plan.file, arch=arch)
