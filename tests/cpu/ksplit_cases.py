"""What the tests of ksplit_mma run: operands with their answers, activations as the layout places them, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from qgen import codec, contract
from qgen.codec import bits
from qgen.plan import KsplitPlan, Rung
from qgen.plan.ksplit import FragmentLayout
from qgen.spec import Format

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

ROWS = 37  # of the largest operands: two whole tiles of rows and a tail
# Token c has the x of number c mod 5, so that tokens whose places differ by 1, 2, 3, 4 or a power of two differ.
DISTINCT = 5
PADDING = 0xFF  # every byte of a token that only fills up its tile: codes -1, scales NaN, sums of -1 - 128


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
    """`operands` with a NaN and an Inf in one scale of one row each, where the format has such numbers (the greatest
    and the next byte otherwise), and in one number of one x each."""
    usual = operands(format, blocks)
    packed, x = usual.packed.copy(), usual.x.copy()
    field = next(f for f in format.fields if f.kind == "float")
    for row, raw in zip((NAN_ROW, INF_ROW), _BITS.get(field.type or "", (0xFF, 0xFE)), strict=True):
        chosen = packed[row, blocks // 2 : blocks // 2 + 1]
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


@dataclass(frozen=True, eq=False)
class Planes:
    """A workspace by its planes; tokens filled up to whole tiles with zeros.

    codes  int8 [tiles, blocks, chunks, 8, 4, 4 * piece_words]
    scales float32 [tiles, blocks, scales, 8]
    sums   int32 [tiles, blocks, units or groups, 8], empty where the layout has none
    """

    codes: NDArray[np.int8]
    scales: F32
    sums: NDArray[np.int32]


def planes(layout: FragmentLayout, quantised: Sequence[contract.Quantised], blocks: int) -> Planes:
    """The planes of a workspace by the words and sizes of the layout record."""
    tiles = -(-len(quantised) // 8)
    order = np.full((4, layout.chunks * layout.piece_words, 4), layout.block)
    for t, words in enumerate(layout.words):
        order[t, : len(words)] = words
    order = order.reshape(4, layout.chunks, 4 * layout.piece_words).transpose(1, 0, 2)
    count = layout.block // layout.sum_group if layout.sums else 0
    codes = np.zeros((8 * tiles, blocks, *order.shape), dtype=np.int8)
    scales = np.zeros((8 * tiles, blocks, layout.scales), dtype=np.float32)
    sums = np.zeros((8 * tiles, blocks, count), dtype=np.int32)
    for token, q in enumerate(quantised):
        own = np.zeros((blocks, layout.block + 1), dtype=np.int8)  # the last one stands for an empty slot
        own[:, :-1] = q.codes.reshape(blocks, layout.block)
        codes[token] = own[:, order]
        scales[token] = q.scales.reshape(blocks, layout.scales)
        if count:
            sums[token] = q.codes.reshape(blocks, count, -1).sum(axis=2, dtype=np.int32)

    def tiled(a: NDArray[np.generic]) -> NDArray[np.generic]:
        return a.reshape(tiles, 8, *a.shape[1:])

    return Planes(
        codes=tiled(codes).transpose(0, 2, 3, 1, 4, 5),  # type: ignore[arg-type]
        scales=tiled(scales).transpose(0, 2, 3, 1),  # type: ignore[arg-type]
        sums=tiled(sums).transpose(0, 2, 3, 1),  # type: ignore[arg-type]
    )


def workspace(layout: FragmentLayout, quantised: Sequence[contract.Quantised], blocks: int) -> U8:
    """The planes as memory, every byte of a padding token PADDING."""
    made = planes(layout, quantised, blocks)
    tokens = len(quantised)
    codes, scales, sums = made.codes.copy(), made.scales.copy(), _stored_sums(layout, made.sums)
    if tokens % 8:
        for plane, axis in ((codes, 2), (scales, 2), (sums, 1 if layout.packed_sums else 2)):
            if plane.size:
                tail = np.moveaxis(plane[-1], axis, 0)[tokens % 8 :]
                tail[...] = np.full(tail.dtype.itemsize, PADDING, dtype=np.uint8).view(tail.dtype)[0]
    parts = [np.ascontiguousarray(plane).reshape(-1).view(np.uint8) for plane in (codes, scales, sums)]
    memory = np.concatenate(parts)
    starts = [0, layout.scale_offset(blocks, tokens), layout.sums_offset(blocks, tokens), layout.bytes(blocks, tokens)]
    assert starts == [0, *np.cumsum([part.size for part in parts])], "the record's offsets are those of its planes"
    return memory


def _stored_sums(layout: FragmentLayout, sums: NDArray[np.int32]) -> NDArray[np.generic]:
    if not layout.packed_sums:
        return sums.copy()
    tiles, blocks, groups, _ = sums.shape
    filled = np.zeros((tiles, blocks, 16 if layout.sums else 0, 8), dtype=np.int32)
    filled[:, :, :groups] = sums
    high = (filled + 64) >> 7
    low = filled - 128 * high
    assert abs(low).max(initial=0) < 128 and abs(high).max(initial=0) < 128
    pairs = np.stack([low, high], axis=-1).astype(np.int8)  # [tiles, blocks, 16, 8, 2]
    return pairs.reshape(tiles, blocks, -1, 4, 8, 2).transpose(0, 1, 4, 2, 5, 3).copy()  # [.., 8, 4 words, 2, 4 bytes]


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


def cases(plan: KsplitPlan, rung: Rung) -> list[Case]:
    """Ends and tails of every tile in rows, blocks and tokens, over the alignments that the format allows."""
    slices, warps, columns = plan.contract.slices, rung.warps, rung.columns
    widest = columns == max(r.columns for r in plan.rungs)
    shapes = [
        (1, 1, 1),
        (15, warps - 1, 2),
        (16, slices, columns - 1),
        (17, slices + 1, columns),
        (37, 2 * slices + 3, columns + 1),
        (37, warps - 1, columns - 1),
        (17, 1, 97 if widest else 2 * columns + 3),
    ]
    starts = 16 // plan.alignment
    return [
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


def lay_out(given: Operands, case: Case) -> U8:
    """The rows of a case in memory, which ends with the last row; the bytes between rows are 0xA5."""
    lines = given.packed[: case.rows].reshape(case.rows, -1)
    memory = np.full((case.rows, lines.shape[1] + case.pad), 0xA5, dtype=np.uint8)
    memory[:, : lines.shape[1]] = lines
    return memory.reshape(-1)[: memory.size - case.pad]
