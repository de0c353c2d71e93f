"""What a kernel of the family wgmma must do to pass, for the tests of good kernels and of broken ones alike; and the
activation records that it reads, placed by the layout record alone.

Every check raises Wrong, which says which of them failed; faults that the emulator finds arrive as its QgenError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from batch_checks import Batch
from judging import F32, U8, Order, Wrong, holes, same
from ksplit_cases import NAN_ROW, PADDING, Case, Operands, make_operands, numbers, operands, special_operands
from ksplit_checks import quantise
from numpy.typing import NDArray
from repack_checks import tiles_of

from qgen import codec, contract, emulate
from qgen.codec import bits
from qgen.emit import emit
from qgen.emulate import Buffer, Program, Report
from qgen.plan import FragmentQuantizePlan, Launch, WgmmaPlan, WgmmaRung, launch_wgmma
from qgen.plan.ksplit import FragmentLayout
from qgen.spec import Format

# ---- operands ---------------------------------------------------------------------------------------------------


@cache
def many_rows(format: Format, rows: int, blocks: int) -> Operands:
    """The rows of the ladder's operands over and over: no two row tiles of a CTA are alike, for 37 is odd."""
    usual = operands(format, blocks)
    chosen = np.arange(rows) % len(usual.packed)
    return Operands(format, usual.packed[chosen], usual.x, np.ascontiguousarray(usual.wanted[:, chosen]))


def after_nan(format: Format, rows: int, blocks: int) -> Operands:
    """37 usual rows behind `rows` rows with a NaN in a scale of every block."""
    odd, usual = special_operands(format, blocks).packed[[NAN_ROW] * rows], operands(format, blocks)
    first = np.stack([np.full(rows, contract.mul_mat(format, odd[:1], x)[0]) for x in usual.x])
    return Operands(format, np.concatenate([odd, usual.packed]), usual.x, np.concatenate([first, usual.wanted], axis=1))


@cache
def extremes(format: Format, blocks: int) -> Operands:
    """Least and greatest codes under least and greatest integer scales, times activation codes of 127 and -127."""
    packed = codec.random_blocks(format, 32 * blocks, seed=1).reshape(32, blocks, -1)
    for row in range(len(packed)):
        for field in format.fields:
            if field.kind == "float":
                continue
            ends = (0, field.levels - 1, field.levels // 2, field.levels // 2 - 1)
            number = row % 4 if any(field.name in term.factors for term in format.terms[:1]) else row // 4 % 4
            raws = np.full_like(codec.raw(format, field.name, packed[row]), ends[number])
            bits.write(field, raws, {"block": packed[row]})
    x = np.ones((5, blocks * format.block), dtype=np.float32)
    x[1] = -1
    x[2, 1::2] = -1
    x[3].reshape(-1, 16)[1::2] = -1
    x[4] = np.random.default_rng(1).choice(np.array([-1, 1, 0], dtype=np.float32), x.shape[1])
    return make_operands(format, packed, x)


# ---- activations as the layout record places them ---------------------------------------------------------------


def record_type(layout: FragmentLayout) -> np.dtype[np.void]:
    """A record of one column tile and bundle: a word of every token behind the other, as instructions read them; the
    rest as in the ladder's records, but for packed sums, whose high parts lie behind all low ones."""
    fields: dict[str, tuple[type, tuple[int, ...], int]] = {
        "codes": (np.int8, (4 * layout.chunks, 8, 4, 4), 0),  # [word][token][thread][byte]
        "scales": (np.float32, (4, layout.scales, 2), 512 * layout.chunks),
    }
    at = 512 * layout.chunks + 32 * layout.scales
    if layout.starts:
        fields["starts"] = (np.int32, (layout.units, 4, 2, 2), at)
        at += 64 * layout.units
    if layout.sums and layout.packed_sums:
        fields["sums"] = (np.int8, (2, 8, 16), at)  # [part][token][group]
    elif layout.sums:
        fields["sums"] = (np.float32, (4, layout.units, 2), at)
    names, kinds = list(fields), list(fields.values())
    return np.dtype(
        {
            "names": names,
            "formats": [(kind, shape) for kind, shape, _ in kinds],
            "offsets": [offset for _, _, offset in kinds],
            "itemsize": layout.record_bytes,
        }
    )


def first_block(layout: FragmentLayout, bundle: int) -> int:
    """The number of a bundle's first block; the others follow `apart` apart, slices of K each."""
    return bundle // layout.apart * layout.apart * layout.bundle + bundle % layout.apart


def present(layout: FragmentLayout, blocks: int) -> int:
    """Bundles with a block that is there."""
    return sum(first_block(layout, bundle) < blocks for bundle in range(layout.bundles(blocks)))


def records(
    layout: FragmentLayout, quantised: Sequence[contract.Quantised], blocks: int, fill: int
) -> NDArray[np.void]:
    """The records [bundle, column tile] of a workspace; bytes of tokens that only fill up, and that nothing has, are
    `fill`."""
    size = layout.block // layout.bundle
    shape = (layout.bundles(blocks), -(-len(quantised) // 8))
    memory = np.full((*shape, layout.record_bytes), fill, dtype=np.uint8)
    made = memory.view(record_type(layout))[..., 0]
    order = np.full((4, 4 * layout.chunks, 4), layout.block)
    for t, words in enumerate(layout.words):
        order[t, : len(words)] = words
    for token, q in enumerate(quantised):
        tile, place, t, i = token // 8, token % 8, token % 8 // 2, token % 2
        for bundle in range(shape[0]):
            own = [first_block(layout, bundle) + j * layout.apart for j in range(layout.bundle)]
            codes = np.zeros(layout.block + 1, dtype=np.int8)  # the last one stands for an empty slot
            scales = np.full((layout.bundle, layout.scales // layout.bundle), -0.0, dtype=np.float32)
            for j, block in enumerate(own):
                if block < blocks:
                    codes[j * size : (j + 1) * size] = q.codes[block * size : (block + 1) * size]
                    scales[j] = q.scales.reshape(blocks, -1)[block]
            record = made[bundle, tile]
            record["codes"][:, place] = codes[order].transpose(1, 0, 2)
            record["scales"][t, :, i] = scales.reshape(-1)
            units = codes[:-1].reshape(layout.units, -1).sum(axis=1, dtype=np.int32)
            if layout.starts:
                record["starts"][:, t, :, i] = layout.starts * units[:, None]
            if layout.sums and layout.packed_sums:
                groups = np.zeros(16, dtype=np.int32)
                sums = codes[:-1].reshape(-1, layout.sum_group).sum(axis=1, dtype=np.int32)
                groups[: len(sums)] = sums
                high = (groups + 64) >> 7
                record["sums"][:, place] = groups - 128 * high, high
            elif layout.sums:
                record["sums"][t, :, i] = units
    return made


def check_quantise(program: Program, plan: FragmentQuantizePlan, x: F32) -> None:
    """Every byte of the workspace against the contract's quantiser placed by the layout record, in three orders; what
    is nobody's keeps what it held."""
    layout = plan.layout
    blocks = x.shape[1] // plan.weight_block
    quantised = [contract.quantise(column, layout.activation) for column in x]
    orders: tuple[tuple[Order, int], ...] = (("forward", 0xA5), ("reverse", 0x5A), ("shuffle", 0xFF))
    for order, fill in orders:
        wanted = records(layout, quantised, blocks, fill)
        memory, report = quantise(program, plan, x, fill=fill, order=order)
        made = memory.view(wanted.dtype).reshape(wanted.shape)
        where = f"{blocks} blocks, {len(x)} tokens, {order}"
        for field in wanted.dtype.names or ():
            a, b = np.ascontiguousarray(made[field]), np.ascontiguousarray(wanted[field])
            right = same(a, b) if a.dtype == np.float32 else a == b
            if not right.all():
                at = tuple(np.argwhere(~right)[0].tolist())
                raise Wrong(f"{field} of a record", f"{a[at]} at {at} instead of {b[at]}; {where}")
        if not report.bytes_written["activation"] == report.written_bytes["activation"]:
            raise Wrong("records not written once", where)
        if not x.nbytes == report.read_bytes["x"] == report.bytes_touched["x"]:
            raise Wrong("x not read once", f"{report.read_bytes['x']} of {x.nbytes}; {where}")


# ---- the matmul -------------------------------------------------------------------------------------------------


class Wgmma(Batch):
    """One rung of a compiled file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: WgmmaPlan, rung: WgmmaRung) -> None:
        super().__init__(format, program, plan.ladder)
        self.plan, self.rung = plan, rung
        self.name, self.columns, self.few = rung.name, rung.columns, 3

    def cases(self) -> list[Case]:
        """Ends and tails of row tiles, warpgroups, CTAs, slices, bundles, rounds of stages, column tiles and CTAs of
        columns; `multiprocessors` decides how many CTAs share the row groups."""
        slices, columns, rows = self.plan.contract.slices, self.columns, self.rung.rows
        whole = slices * self.plan.layout.bundle  # blocks of a round of bundles
        ring = self.rung.stages * self.rung.split
        return [
            Case(1, 1, 1),
            Case(15, slices - 1, 7),
            Case(63, 5, columns + 1, y_pad=3),
            Case(127, ring + 1, 9),
            # Three groups of rows in one CTA, so that stages of one follow those of another, and end short.
            Case(2 * rows + 17, ring // 2 + 1, 3, y_pad=1),
            Case(rows + 1, 2, columns),
            # Bundles of which the first block alone is there, and others with none.
            Case(17, whole + 1, 2),
            # All but the last one of a round of bundles, and columns for three CTAs.
            Case(33, whole - 1, 5),
            Case(2, 2, 2 * columns + 3),
            # Several bundles a slice; every code at every place.
            Case(37, whole + slices + 2, 8),
            # Four groups of rows for three CTAs.
            Case(3 * rows + 5, 3, columns - 1, multiprocessors=3),
        ]

    def special_cases(self) -> list[Case]:
        return [Case(18, self.plan.contract.slices + 1, self.columns + 1)]

    def workspace(self, given: Operands, tokens: int) -> U8:
        return np.frombuffer(
            records(self.plan.layout, given.quantised(tokens), given.blocks, PADDING).tobytes(), dtype=np.uint8
        )

    def weight(self, given: Operands, case: Case, laid: U8 | None) -> list[Buffer | int]:
        tiles = tiles_of(self.format, given.packed[: case.rows]) if laid is None else laid
        return [Buffer("weight", tiles, offset_bytes=16, constant=True)]

    def weight_bytes(self, given: Operands, case: Case) -> int:
        assert self.plan.ladder.tile is not None
        return self.plan.ladder.tile.bytes(case.rows, given.blocks)

    def shape(self, case: Case) -> tuple[Launch, int]:
        return launch_wgmma(self.rung, case.rows, case.tokens, case.multiprocessors)

    def check_reads(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        layout = self.plan.layout
        column_bytes = -(-case.tokens // 8) * layout.record_bytes
        touched, read = report.bytes_touched["activation"], report.read_bytes["activation"]
        # Records of bundles that only fill up are left where they are.
        if touched != present(layout, given.blocks) * column_bytes:
            raise Wrong("activation read", f"{touched} bytes, {column_bytes} a bundle; {case}")
        groups = -(-case.rows // self.rung.rows)
        if read != groups * touched:
            raise Wrong("activation read", f"{read} bytes, {touched} for each of {groups} groups of rows; {case}")

    def operands(self, case: Case) -> Operands:
        """Whose rows are the case's."""
        return many_rows(self.format, case.rows, case.blocks)

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
            given = after_nan(self.format, rows, blocks)
            assert np.isfinite(given.wanted[:, rows:]).all()
            self.check(given, Case(len(given.packed), blocks, 5))

    def check_extremes(self) -> None:
        """The largest integers there are."""
        given = extremes(self.format, 2)
        self.check(given, Case(len(given.packed), 2, 5))

    def check_far_rows(self) -> None:
        """The last row tile begins past 2^32 bytes, the last token's y past 2^31 floats: offsets are 64-bit throughout.

        Every group of rows has a CTA; the last one alone runs.
        """
        given, there, tokens = operands(self.format, self.few), 13, 2
        tiles = tiles_of(self.format, given.packed[:there])
        each = self.rung.rows // 16
        groups = (1 << 32) // (each * tiles.size) + 1  # whole ones, before the last
        weight = holes((groups * each + 1) * tiles.size)
        weight[-tiles.size :] = tiles
        before, stride = groups * self.rung.rows, (1 << 31) + 5
        y = holes(4 * ((tokens - 1) * stride + before + there)).view(np.float32)
        shape, grid_y = launch_wgmma(self.rung, before + there, tokens, groups + 1)
        report = self.program.launch(
            self.name,
            grid=(shape.grid, grid_y, 1),
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("weight", weight, constant=True),
                before + there,
                given.blocks,
                tokens,
                Buffer("activation", self.workspace(given, tokens)),
                Buffer("y", y, writable=True),
                stride,
            ],
            dependent=True,
            ctas=range(groups, groups + 1),
        )
        found = np.stack([y[token * stride + before :][:there] for token in range(tokens)])
        if shape.grid != groups + 1 or not same(found, given.wanted[numbers(tokens), :there]).all():
            raise Wrong("rows gigabytes apart", str(found))
        if report.bytes_touched["weight"] != tiles.size or report.bytes_written["y"] != 4 * found.size:
            raise Wrong("bytes outside the packed ones are read", str(report))


@cache
def compiled(plan: WgmmaPlan | FragmentQuantizePlan, rung: WgmmaRung | None = None) -> Program:
    """A plan's file, or one rung of it, compiled for the emulator: all of them take long."""
    if isinstance(plan, WgmmaPlan):
        assert rung is not None
        return emulate.compile(emit(replace(plan, rungs=(rung,))).text, rung.name)
    return emulate.compile(emit(plan).text, plan.file)
