"""What a kernel of the family wgmma with f16 or bf16 activations must do to pass: the contract's bits, its traffic."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from float_cases import Operands, make, narrowed, operands, special_operands
from float_checks import Float, arrange
from judging import F32, U8, Order, Wrong, same
from ksplit_cases import NAN_ROW, PADDING, Case
from numpy.typing import NDArray
from repack_checks import weight_of

from qgen import contract_float, emulate
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import ArrangePlan, FloatFragments, FloatWgmmaPlan, Launch, WgmmaRung, launch_wgmma
from qgen.spec import Format
from qgen.storage import repack


@cache
def many_rows(format: Format, activation: str, rows: int, blocks: int) -> Operands:
    """The usual rows over and over: no two row tiles of a CTA are alike, for there are 37 of them."""
    return chosen_rows(operands(format, activation, blocks), np.arange(rows) % 37)


def chosen_rows(given: Operands, rows: NDArray[np.int64]) -> Operands:
    """The same x for these rows."""
    planes = {name: part[rows] for name, part in given.planes.items()}
    return replace(given, planes=planes, wanted=np.ascontiguousarray(given.wanted[:, rows]))


def after_nan(format: Format, activation: str, rows: int, blocks: int) -> Operands:
    """The usual rows behind `rows` rows with a NaN in a scale of every block."""
    odd = special_operands(format, activation, blocks)
    usual = operands(format, activation, blocks)
    planes = {
        name: np.concatenate([np.tile(part[NAN_ROW, blocks // 2], (rows, blocks, 1)), usual.planes[name]])
        for name, part in odd.planes.items()
    }
    first = make(format, activation, {name: part[:1] for name, part in planes.items()}, usual.x)
    wanted = np.concatenate([np.repeat(first.wanted, rows, axis=1), usual.wanted], axis=1)
    return replace(usual, planes=planes, wanted=np.ascontiguousarray(wanted))


def first_block(layout: FloatFragments, bundle: int) -> int:
    """The number of a bundle's first block; the others follow `apart` apart."""
    return bundle // layout.apart * layout.apart * layout.bundle + bundle % layout.apart


def present(layout: FloatFragments, blocks: int) -> int:
    """Bundles with a block that is there."""
    return sum(first_block(layout, bundle) < blocks for bundle in range(layout.bundles(blocks)))


def records(layout: FloatFragments, x: F32, fill: int = PADDING) -> U8:
    """x float32[tokens, K] as the layout record places it: uint8[bundle, column tile, record]; bytes of a token that
    only fills up its tile, and those that nothing has, are `fill`."""
    tokens, blocks = len(x), x.shape[1] // layout.block
    bundles = layout.bundles(blocks)
    memory = np.full((bundles, -(-tokens // 8), layout.record_bytes), fill, dtype=np.uint8)
    words = np.array(layout.words)  # [thread, word, 4]
    for token, column in enumerate(x):
        narrow = contract_float.rounded(column, layout.activation)
        values = np.zeros((bundles * layout.bundle, layout.block + 1), dtype=np.uint16)
        values[:blocks, :-1] = narrowed(narrow, layout.activation).reshape(blocks, -1)
        sums = np.zeros((bundles * layout.bundle, layout.groups), dtype=np.float32)
        sums[:blocks] = contract_float.group_sums(narrow, layout.block // layout.groups).reshape(blocks, -1)
        for bundle in range(bundles):
            own = [first_block(layout, bundle) + j * layout.apart for j in range(layout.bundle)]
            record = memory[bundle, token // 8]
            placed = record[: layout.sums_at].view(np.uint16).reshape(layout.bundle, -1, 2, 8, 4, 2)
            # [block, thread, word, half, two] to [block, word, half, thread, two]
            of_words = values[own][:, words].reshape(layout.bundle, 4, -1, 2, 2)
            placed[:, :, :, token % 8] = of_words.transpose(0, 2, 3, 1, 4)
            if layout.sums:
                end = layout.sums_at + layout.bundle * layout.sum_bytes
                _place_sums(layout, record[layout.sums_at : end], token % 8, sums[own])
    return memory


def _place_sums(layout: FloatFragments, part: U8, place: int, sums: F32) -> None:
    """Sums float32[block, group] of one token of the tile, in a record's part behind its values."""
    if not layout.pieced:
        part.view(np.float32).reshape(layout.bundle, -1, 8)[..., place] = sums
        return
    # [block, run of eight groups, high or low, token, thread, two]
    to = part.view(np.uint16).reshape(layout.bundle, -1, 2, 8, 4, 2)
    for number, piece in enumerate(contract_float.pieces(sums)):
        to[:, :, number, place] = narrowed(piece, "bf16").reshape(layout.bundle, -1, 4, 2)


class FloatWgmma(Float):
    """One rung of a compiled file, ready to be judged."""

    plan: FloatWgmmaPlan  # type: ignore[assignment]
    rung: WgmmaRung  # type: ignore[assignment]

    def __init__(self, format: Format, program: Program, plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
        self.format, self.program, self.plan, self.rung = format, program, plan, rung

    def cases(self) -> list[Case]:
        """Ends and tails of row tiles, warpgroups, CTAs, slices, bundles, rounds of stages, column tiles and CTAs of
        columns; `multiprocessors` decides how many CTAs share the row groups."""
        slices, columns, rows = self.plan.contract.slices, self.rung.columns, self.rung.rows
        whole = slices * self.plan.layout.bundle  # blocks of a round of bundles
        ring = self.rung.stages * self.rung.split
        return [
            Case(1, 1, 1),
            Case(63, 5, columns + 1, y_pad=3),
            Case(127, first_block(self.plan.layout, ring) + 1, 9),
            # Three groups of rows in one CTA, so that stages of one follow those of another, and end short.
            Case(2 * rows + 17, first_block(self.plan.layout, ring // 2) + 1, 3, y_pad=1),
            # Bundles of which the first block alone is there, and others with none.
            Case(17, whole + 1, 2),
            # All but the last one of a round of bundles, and columns for three CTAs.
            Case(33, whole - 1, 2 * columns + 3),
            # Several bundles a slice; every code at every place.
            Case(37, whole + slices + 2, 8),
            # Four groups of rows for three CTAs.
            Case(3 * rows + 5, 3, columns - 1, multiprocessors=3),
        ]

    def shape(self, case: Case) -> tuple[Launch, int]:
        return launch_wgmma(self.rung, case.rows, case.tokens, case.multiprocessors)

    def workspace(self, x: F32) -> U8:
        return records(self.plan.layout, x).reshape(-1)

    def weight(self, given: Operands, case: Case) -> list[Buffer | int]:
        """Tiles, of rows filled up by bytes of no meaning."""
        fill = -given.blocks % (self.format.k_pad // self.format.block)
        parts = [
            np.pad(p[: case.rows], ((0, 0), (0, fill), (0, 0)), constant_values=0xA5) for p in given.planes.values()
        ]
        return [Buffer("weight", repack(weight_of(self.format, parts)).data, offset_bytes=16, constant=True)]

    def weight_bytes(self, given: Operands, case: Case) -> dict[str, int]:
        """Blocks that only fill up a row are not read; rows that only fill up a tile are."""
        return {"weight": -(-case.rows // 16) * 16 * given.blocks * self.plan.ladder.block_bytes}

    def check_traffic(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        (packed,) = self.weight_bytes(given, case).values()
        found = report.bytes_touched["weight"], report.read_bytes["weight"]
        if found != (packed, packed * grid_y):
            raise Wrong("weights read", f"{found} for {packed} bytes and {grid_y} CTAs of columns; {case}")
        layout = self.plan.layout
        own = present(layout, given.blocks) * -(-case.tokens // 8) * layout.record_bytes
        groups = -(-case.rows // self.rung.rows)
        found = report.bytes_touched["activation"], report.read_bytes["activation"]
        if found != (own, groups * own):
            raise Wrong("activation read", f"{found}, {own} for each of {groups} groups of rows; {case}")
        size = 4 * case.rows * case.tokens
        if not size == report.written_bytes["y"] == report.bytes_written["y"]:
            raise Wrong("y written more than once", f"{report.written_bytes['y']} of {size} bytes; {case}")

    def operands(self, case: Case) -> Operands:
        return many_rows(self.format, self.plan.contract.activation, case.rows, case.blocks)

    def check_shapes(self, start: int = 0, step: int = 1) -> None:
        """Every shape worth a run, or each step-th of them from one on; the last one of them twice."""
        chosen = self.cases()[start::step]
        for case in chosen:
            self.check(self.operands(case), case)
        first, second = (self.run(self.operands(chosen[-1]), chosen[-1])[0] for _ in range(2))
        if not same(first, second).all():
            raise Wrong("a second launch differs", str(chosen[-1]))

    def check_leftovers(self) -> None:
        """Behind rows of NaN, in every place of the stages: nothing of them is left in rows of numbers."""
        rows, layout = self.rung.rows, self.plan.layout
        whole = layout.apart * layout.bundle
        for blocks in (3, whole + 1) if layout.bundle > 1 else (3,):
            given = after_nan(self.format, self.plan.contract.activation, rows, blocks)
            assert np.isfinite(given.wanted[:, rows:]).all()
            self.check(given, Case(given.wanted.shape[1], blocks, 5), orders=False)


def check_arranged(program: Program, plan: ArrangePlan, x: F32) -> None:
    """Every byte of the records, from both kinds of x; what is nobody's keeps what it held."""
    layout, tokens, blocks = plan.layout, len(x), x.shape[1] // plan.layout.block
    rounded = np.stack([contract_float.rounded(column, layout.activation) for column in x])
    runs: tuple[tuple[Order, int, bool], ...] = (
        ("forward", 0xA5, False),
        ("reverse", 0x5A, True),
        ("shuffle", 0xFF, False),
    )
    for order, fill, narrow in runs:
        given = rounded if narrow else x
        memory, report = arrange(program, plan, given, narrow=narrow, fill=fill, order=order)
        where = f"{blocks} blocks, {tokens} tokens, {order}"
        wanted = records(layout, given, fill)
        made = memory.reshape(wanted.shape)
        values, right = (np.ascontiguousarray(m[..., : layout.sums_at]).view(np.uint16) for m in (made, wanted))
        # A NaN may have any bits.
        nan = 0x7C00 if layout.activation == "f16" else 0x7F80
        both = ((values & 0x7FFF) > nan) & ((right & 0x7FFF) > nan)
        if not (both | (values == right)).all():
            raise Wrong("values of a record", where)
        end = layout.sums_at + layout.bundle * layout.sum_bytes
        if layout.sums:
            sums, right_sums = (_sums_of(layout, m[..., layout.sums_at : end]) for m in (made, wanted))
            own = np.arange(8) + 8 * np.arange(wanted.shape[1])[:, np.newaxis] < tokens
            expected = np.where(own[:, np.newaxis, :, np.newaxis], right_sums, np.float32(0)).astype(np.float32)
            if not same(sums, expected).all():
                raise Wrong("sums of a record", where)
        if not (made[..., end:] == fill).all():
            raise Wrong("bytes behind a record's sums written", where)
        if not report.bytes_written["activation"] == report.written_bytes["activation"]:
            raise Wrong("records not written once", where)
        nbytes = x.size * (2 if narrow else 4)
        if not nbytes == report.read_bytes["x"] == report.bytes_touched["x"]:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {nbytes}; {where}")


def _sums_of(layout: FloatFragments, part: U8) -> F32:
    """The numbers float32[bundle, column tile, ..., token, ...] of sums uint8[bundle, column tile, bytes]."""
    part = np.ascontiguousarray(part)
    if layout.pieced:
        part = (part.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.uint8)
    return part.view(np.float32).reshape(*part.shape[:2], -1, 8, 8 if layout.pieced else 1)


@cache
def compiled(plan: FloatWgmmaPlan | ArrangePlan, rung: WgmmaRung | None = None) -> Program:
    """A plan's file, or one rung of it, compiled for the emulator: all of them take long."""
    if isinstance(plan, FloatWgmmaPlan):
        assert rung is not None
        return emulate.compile(emit(replace(plan, rungs=(rung,))).text, rung.name)
    return emulate.compile(emit(plan).text, plan.file)
