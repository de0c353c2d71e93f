"""What the tests of ksplit_mma run: operands with their answers, activations as the layout places them, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd

import numpy as np
from judging import F32, U8
from numpy.typing import NDArray

from qgen import codec, contract
from qgen.codec import bits
from qgen.plan import KsplitPlan, Rung
from qgen.plan.ksplit import FragmentLayout
from qgen.spec import Format

ROWS = 37  # of the largest operands: two fragments of rows and a tail; one pair of fragments and a tail
# Token c has the x of number c mod 5, so that tokens whose places differ by 1, 2, 3, 4 or a power of two differ.
DISTINCT = 5
PADDING = 0xFF  # every byte of a token that only fills up its tile: codes -1, scales and sums NaN, starts -1


# ---- operands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Operands:
    """Weights uint8[ROWS, blocks, bytes], x float32[DISTINCT, K], and the contract's y float32[DISTINCT, ROWS]."""

    format: Format
    packed: U8
    x: F32
    wanted: F32

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return int(self.packed.shape[1])

    def quantised(self, tokens: int) -> list[contract.Quantised]:
        """The contract's int8 form of x, token by token."""
        assert self.format.activation is not None
        made = [contract.quantise(x, self.format.activation) for x in self.x]
        return [made[token] for token in numbers(tokens)]


def numbers(tokens: int) -> NDArray[np.int64]:
    """Which x each token has."""
    return np.arange(tokens) % DISTINCT


def make_operands(format: Format, packed: U8, x: F32) -> Operands:
    """Operands with the contract's answer, taken one column at a time."""
    return Operands(format, packed, x, np.stack([contract.mul_mat(format, packed, column) for column in x]))


@cache
def operands(format: Format, blocks: int) -> Operands:
    """Random blocks with moderate scales, and x with some groups of 32 that are zero, negative, large or small."""
    packed = codec.random_blocks(format, ROWS * blocks, seed=blocks).reshape(ROWS, blocks, -1)
    rng = np.random.default_rng(blocks)
    x = rng.standard_normal((DISTINCT, blocks * format.block), dtype=np.float32)
    groups = x.reshape(-1, 32)
    for number, group in enumerate(rng.permutation(len(groups))[: len(groups) // 2]):
        if number % 4 == 1:
            groups[group] = -np.abs(groups[group])
        else:
            groups[group] *= np.float32((0, 0, 48, 1e-3)[number % 4])
    return make_operands(format, packed, x)


NAN_ROW, INF_ROW, NAN_X, INF_X = 3, 12, 1, 3  # rows of two halves of a fragment; numbers of x
_BITS = {"f16": (0x7E01, 0x7C00), "bf16": (0x7FC1, 0x7F80), "f32": (0x7FC00001, 0x7F800000)}


@cache
def special_operands(format: Format, blocks: int) -> Operands:
    """`operands` with a NaN in a scale of every block of one row, so that it would be met wherever the row's bytes are
    left lying, an Inf in one scale of another, where the format has such numbers (the greatest and the next byte
    otherwise), and both in one number of one x each."""
    usual = operands(format, blocks)
    packed, x = usual.packed.copy(), usual.x.copy()
    field = next(f for f in format.fields if f.kind == "float")
    for row, raw in zip((NAN_ROW, INF_ROW), _BITS.get(field.type or "", (0xFF, 0xFE)), strict=True):
        chosen = packed[row] if row == NAN_ROW else packed[row, blocks // 2 : blocks // 2 + 1]
        raws = codec.raw(format, field.name, chosen)
        raws[:, -1] = raw
        bits.write(field, raws, {"block": chosen})
    x[NAN_X, x.shape[1] // 2], x[INF_X, -1] = np.nan, -np.inf
    return make_operands(format, packed, x)


def missing_codes(format: Format, packed: U8) -> list[str]:
    """Integer fields of which a stored value does not occur in `packed`: uint8[..., bytes]; of digits, a byte's."""
    flat = packed.reshape(-1, packed.shape[-1])
    missing = []
    for field in format.fields:
        if field.kind == "float":
            continue
        wanted = field.base if field.segments and field.base else field.levels
        for entry, column in enumerate(codec.raw(format, field.name, flat).T):
            # 256 values of one place are too many for so few blocks; those of all places together are not.
            found = len(np.unique(column if wanted <= 64 else codec.raw(format, field.name, flat)))
            if found != wanted:
                missing.append(f"{field.name}, entry {entry}: {found} of {wanted} values")
    return missing


# ---- activations as the layout record places them ---------------------------------------------------------------

SPLIT = 8  # blocks of a bundle lie this many apart


def record_type(layout: FragmentLayout) -> np.dtype[np.void]:
    """A record of one column tile and bundle, field by field, as FragmentLayout's docstring lists them."""
    fields: list[tuple[str, type, tuple[int, ...]]] = [
        ("codes", np.int8, (layout.chunks, 8, 4, 16)),
        ("scales", np.float32, (4, layout.scales, 2)),
    ]
    if layout.starts:
        fields.append(("starts", np.int32, (layout.units, 4, 2, 2)))
    if layout.sums and layout.packed_sums:
        fields.append(("sums", np.int8, (8, 4, 2, 4)))
    elif layout.sums:
        fields.append(("sums", np.float32, (4, layout.units, 2)))
    return np.dtype(fields)


def block_of(layout: FragmentLayout, bundle: int, j: int) -> int:
    """The number of block j of a bundle."""
    return bundle // SPLIT * SPLIT * layout.bundle + bundle % SPLIT + SPLIT * j


def bundles(layout: FragmentLayout, blocks: int) -> int:
    """Bundles of a row: whole rounds of SPLIT where a bundle has several blocks."""
    return blocks if layout.bundle == 1 else -(-blocks // (SPLIT * layout.bundle)) * SPLIT


def records(layout: FragmentLayout, quantised: Sequence[contract.Quantised], blocks: int) -> NDArray[np.void]:
    """The records [column tile, bundle] of a workspace, tokens and blocks that only fill up included."""
    tokens, size = len(quantised), layout.block // layout.bundle
    made = np.zeros((-(-tokens // 8), bundles(layout, blocks)), dtype=record_type(layout))
    order = np.full((4, 4 * layout.chunks, 4), layout.block)
    for t, words in enumerate(layout.words):
        order[t, : len(words)] = words
    order = order.reshape(4, layout.chunks, 16).transpose(1, 0, 2)  # [chunk, thread, byte]
    for tile in range(made.shape[0]):
        for bundle in range(made.shape[1]):
            record = made[tile, bundle]
            own = [block_of(layout, bundle, j) for j in range(layout.bundle)]
            here = np.repeat([block < blocks for block in own], layout.scales // layout.bundle)
            record["scales"] = np.where(here, np.float32(0), np.float32(-0.0))[:, None]
            for place, q in enumerate(quantised[8 * tile : 8 * tile + 8]):
                codes = np.zeros(layout.block + 1, dtype=np.int8)  # the last one stands for an empty slot
                scales = np.where(here, np.float32(0), np.float32(-0.0)).reshape(layout.bundle, -1)
                for j, block in enumerate(own):
                    if block < blocks:
                        codes[j * size : (j + 1) * size] = q.codes[block * size : (block + 1) * size]
                        scales[j] = q.scales.reshape(blocks, -1)[block]
                _fill(layout, record, place, codes, order, scales.reshape(-1))
    return made


def _fill(
    layout: FragmentLayout,
    record: np.void,
    place: int,
    codes: NDArray[np.int8],
    order: NDArray[np.int64],
    scales: F32,
) -> None:
    """Token `place` of the tile; codes int8[elements of the bundle and one 0], scales float32[scales]."""
    t, i = place // 2, place % 2
    record["codes"][:, place] = codes[order]
    record["scales"][t, :, i] = scales
    units = codes[:-1].reshape(layout.units, -1).sum(axis=1, dtype=np.int32)
    if layout.starts:
        record["starts"][:, t, :, i] = layout.starts * units[:, None]
    if layout.sums and layout.packed_sums:
        groups = codes[:-1].reshape(-1, layout.sum_group).sum(axis=1, dtype=np.int32)
        filled = np.zeros(16, dtype=np.int32)
        filled[: len(groups)] = groups
        high = (filled + 64) >> 7
        low = filled - 128 * high
        assert abs(low).max() < 128 and abs(high).max() < 128
        record["sums"][place] = np.stack([low.reshape(4, 4), high.reshape(4, 4)], axis=1)
    elif layout.sums:
        assert layout.sum_group * layout.units == layout.block
        record["sums"][t, :, i] = units


def of_padding(layout: FragmentLayout, tokens: int) -> NDArray[np.bool_]:
    """Which bytes of a record of the last tile are of tokens that only fill it up: bool[record bytes]."""
    mask = np.zeros((), dtype=record_type(layout))
    for place in range((tokens - 1) % 8 + 1, 8):
        t, i = place // 2, place % 2
        mask["codes"][:, place] = -1
        mask["scales"].view(np.uint32)[t, :, i] = 0xFFFFFFFF
        if layout.starts:
            mask["starts"][:, t, :, i] = -1
        if layout.sums and layout.packed_sums:
            mask["sums"][place] = -1
        elif layout.sums:
            mask["sums"].view(np.uint32)[t, :, i] = 0xFFFFFFFF
    bytes_of_mask: U8 = np.frombuffer(mask.tobytes(), dtype=np.uint8)
    return bytes_of_mask.astype(np.bool_)


def workspace(layout: FragmentLayout, quantised: Sequence[contract.Quantised], blocks: int) -> U8:
    """The records as memory, every byte of a padding token PADDING, for no result may depend on those."""
    made = records(layout, quantised, blocks)
    memory = np.frombuffer(made.tobytes(), dtype=np.uint8).copy()
    assert memory.size == layout.bytes(blocks, len(quantised)), "the layout's size is that of its records"
    memory.reshape(*made.shape, -1)[-1][:, of_padding(layout, len(quantised))] = PADDING
    return memory


# ---- shapes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One launch: rows `pad` bytes apart behind each other, the first `offset` bytes past 16-byte alignment; y has
    `y_pad` floats between tokens; `multiprocessors` decides how many row tiles a CTA walks."""

    rows: int
    blocks: int
    tokens: int
    pad: int = 0
    offset: int = 0
    y_pad: int = 0
    multiprocessors: int = 1


def whole_pieces(plan: KsplitPlan) -> int:
    """The fewest blocks whose bytes are whole 16-byte pieces."""
    return 16 // gcd(16, plan.block_bytes)


def takes_bulk_copies(plan: KsplitPlan, rung: Rung, case: Case) -> bool:
    """Whether every stage of every row starts and ends on a 16-byte boundary."""
    row, stage = case.blocks * plan.block_bytes, rung.stage_blocks * plan.block_bytes
    return case.offset % 16 == (row + case.pad) % 16 == row % 16 == stage % 16 == 0


def cases(plan: KsplitPlan, rung: Rung) -> list[Case]:
    """Ends and tails of every tile in rows, blocks and tokens, over the alignments that the format allows; then some
    whose rows are whole 16-byte pieces, with one, two and many CTAs; then some that just fail to be."""
    slices, warps, columns = plan.contract.slices, rung.warps, rung.columns
    widest = columns == max(r.columns for r in plan.rungs)
    shapes = [
        (1, 1, 1),
        (15, warps - 1, 2),
        (16, slices, max(1, columns - 1)),
        (17, slices + 1, columns),
        (37, 2 * slices + 3, columns + 1),
        (37, warps - 1, max(1, columns - 1)),
        (17, 1, 97 if widest else 2 * columns + 3),
    ]
    starts = 16 // plan.alignment
    ragged = [
        Case(
            rows=rows,
            blocks=blocks,
            tokens=tokens,
            pad=plan.alignment * (number * 3 % 5),
            offset=plan.alignment * ((3 + 5 * number) % starts),
            y_pad=number * 2 % 7,
            multiprocessors=(1000, 1, 2)[number % 3],
        )
        for number, (rows, blocks, tokens) in enumerate(shapes)
    ]
    step = whole_pieces(plan)

    def up(blocks: int) -> int:
        return -(-blocks // step) * step

    row_bytes = (warps + 1) * plan.block_bytes
    near = [
        Case(rows=3, blocks=step, tokens=1, pad=16 - plan.alignment),
        Case(rows=3, blocks=step, tokens=1, offset=16 - plan.alignment),
        Case(rows=3, blocks=warps + 1, tokens=1, pad=-row_bytes % 16),
    ]
    return [
        *ragged,
        *(near if plan.alignment < 16 else []),
        # One stage a result, so that they follow each other as fast as they can.
        Case(rows=ROWS, blocks=step, tokens=5),
        # The ring goes round, and every warp has its turn; rows and blocks end in the middle of a tile.
        Case(
            rows=ROWS, blocks=up(warps * rung.rows // ROWS * rung.stage_blocks + 3), tokens=max(1, columns - 1), pad=16
        ),
        Case(rows=37, blocks=up(slices), tokens=2, pad=48, y_pad=1, multiprocessors=2),
        Case(rows=37, blocks=up(slices + 1), tokens=columns + 1, y_pad=3, multiprocessors=1000),
    ]


def leftovers(plan: KsplitPlan, rung: Rung) -> Case:
    """One CTA, whose last stage is short and comes to lie where a whole one of an earlier row tile lay."""
    whole = 1 if rung.stages % 2 else 2
    return Case(rows=ROWS, blocks=whole * rung.stage_blocks + rung.warps + 1, tokens=6)
