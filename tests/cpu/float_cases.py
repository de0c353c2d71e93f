"""What the tests of f16 and bf16 activations run: operands with their answers, workspaces by the layout, shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from judging import F32, U8
from ksplit_cases import DISTINCT, INF_ROW, INF_X, NAN_ROW, NAN_X, PADDING, ROWS, Case, numbers
from numpy.typing import NDArray

from qgen import codec, contract_float
from qgen.codec import bits
from qgen.plan import FloatFragments, FloatKsplitPlan, FloatRung
from qgen.spec import Format

__all__ = ["Case", "Operands", "cases", "make", "missing_codes", "numbers", "operands", "special_operands", "workspace"]


@dataclass(frozen=True, eq=False)
class Operands:
    """Weights by plane uint8[ROWS, blocks, bytes], x float32[DISTINCT, K], the contract's y float32[DISTINCT, ROWS]."""

    format: Format
    activation: str
    planes: dict[str, U8]
    x: F32
    wanted: F32

    @property
    def packed(self) -> contract_float.Packed:
        """The weights as the contract takes them."""
        return self.planes if self.format.split else self.planes["block"]

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return int(next(iter(self.planes.values())).shape[1])


def make(format: Format, activation: str, planes: dict[str, U8], x: F32) -> Operands:
    """These weights and x, with the contract's answer."""
    packed = planes if format.split else planes["block"]
    wanted = np.stack([contract_float.mul_mat(format, packed, column, activation) for column in x])
    return Operands(format, activation, planes, x, wanted)


def missing_codes(given: Operands) -> list[str]:
    """Integer fields of which a stored value does not occur."""
    flat = {name: part.reshape(-1, part.shape[2]) for name, part in given.planes.items()}
    missing = []
    for field in given.format.fields:
        if field.kind != "float":
            raws = codec.raw(given.format, field.name, flat if given.format.split else flat["block"])
            wanted = field.base if field.segments and field.base else field.levels
            missing += [field.name] if len(np.unique(raws)) != wanted else []
    return missing


@cache
def operands(format: Format, activation: str, blocks: int) -> Operands:
    """Random blocks with moderate scales, and x with some groups of 32 that are zero, negative, large or small."""
    flat = (
        codec.random_planes(format, ROWS * blocks, seed=blocks)
        if format.split
        else {"block": codec.random_blocks(format, ROWS * blocks, seed=blocks)}
    )
    planes = {name: part.reshape(ROWS, blocks, -1) for name, part in flat.items()}
    rng = np.random.default_rng(blocks)
    x = rng.standard_normal((DISTINCT, blocks * format.block), dtype=np.float32)
    groups = x.reshape(-1, 32)
    for number, group in enumerate(rng.permutation(len(groups))[: len(groups) // 2]):
        if number % 4 == 1:
            groups[group] = -np.abs(groups[group])
        else:
            groups[group] *= np.float32((0, 0, 48, 1e-3)[number % 4])
    return make(format, activation, planes, x)


_BITS = {"f16": (0x7E01, 0x7C00), "bf16": (0x7FC1, 0x7F80), "f32": (0x7FC00001, 0x7F800000)}


@cache
def special_operands(format: Format, activation: str, blocks: int) -> Operands:
    """`operands` with a NaN and an Inf in one scale of one row each, where the format has such numbers (the greatest
    and the next byte otherwise), and in one number of one x each."""
    usual = operands(format, activation, blocks)
    planes, x = {name: part.copy() for name, part in usual.planes.items()}, usual.x.copy()
    field = next(f for f in format.fields if f.kind == "float")
    for row, raw in zip((NAN_ROW, INF_ROW), _BITS.get(field.type or "", (0xFF, 0xFE)), strict=True):
        chosen = {name: part[row, blocks // 2 : blocks // 2 + 1] for name, part in planes.items()}
        raws = codec.raw(format, field.name, chosen if format.split else chosen["block"])
        raws[:, -1] = raw
        bits.write(field, raws, chosen)
    x[NAN_X, x.shape[1] // 2], x[INF_X, -1] = np.nan, -np.inf
    return make(format, activation, planes, x)


def workspace(layout: FloatFragments, x: F32) -> U8:
    """x float32[tokens, K] as the layout record places it, every byte of a token that fills up a tile PADDING."""
    tokens, blocks = len(x), x.shape[1] // layout.block
    tiles = -(-tokens // 8)
    order = np.full((4, 2 * layout.pieces, 4), layout.block)
    for t, words in enumerate(layout.words):
        order[t, : len(words)] = words
    order = order.reshape(4, layout.pieces, 8).transpose(1, 0, 2)  # [piece, thread, value]
    values = np.full((8 * tiles, blocks, *order.shape), PADDING * 257, dtype=np.uint16)
    sums = np.full((8 * tiles, blocks, layout.groups), PADDING * 0x1010101, dtype=np.uint32).view(np.float32)
    for token, column in enumerate(x):
        narrow = contract_float.rounded(column, layout.activation)
        own = np.zeros((blocks, layout.block + 1), dtype=np.uint16)
        own[:, :-1] = narrowed(narrow, layout.activation).reshape(blocks, -1)
        values[token] = own[:, order]
        sums[token] = contract_float.group_sums(narrow, layout.block // layout.groups).reshape(blocks, -1)
    placed = values.reshape(tiles, 8, blocks, layout.pieces, 4, 8).transpose(0, 2, 3, 1, 4, 5)
    parts = [np.ascontiguousarray(placed).reshape(-1).view(np.uint8)]
    if layout.sums:
        by_group = sums.reshape(tiles, 8, blocks, -1).transpose(0, 2, 3, 1)
        placed_sums = _pieced(sums, tiles) if layout.pieced else by_group
        parts.append(np.ascontiguousarray(placed_sums).reshape(-1).view(np.uint8))
    memory = np.concatenate(parts)
    assert (parts[0].size, memory.size) == (layout.sums_offset(blocks, tokens), layout.bytes(blocks, tokens))
    return memory


def _pieced(sums: F32, tiles: int) -> NDArray[np.uint16]:
    """Sums float32[8 * tiles, blocks, groups] as bf16 [tile][block][run][token][thread][high, high, low, low]."""
    high, low = (narrowed(part, "bf16") for part in contract_float.pieces(sums))
    both = np.stack([high, low], axis=2).reshape(tiles, 8, sums.shape[1], 2, -1, 4, 2)
    return both.transpose(0, 2, 4, 1, 5, 3, 6)


def narrowed(x: F32, activation: str) -> NDArray[np.uint16]:
    """The 16 bits of numbers that are of the class already."""
    with np.errstate(all="ignore"):
        return x.astype(np.float16).view(np.uint16) if activation == "f16" else (x.view(np.uint32) >> 16).astype("u2")


def cases(plan: FloatKsplitPlan, rung: FloatRung) -> list[Case]:
    """Ends and tails of every tile in rows, blocks and tokens, over the alignments that the format allows."""
    stage, columns = rung.stage_blocks, rung.columns
    shapes = [
        (1, 1, 1),
        (15, rung.warps - 1, 2),
        (17, stage + 1, columns - 1),
        (37, stage + rung.warps + 3, columns + 1),
        (16, 1, 33 if columns == 8 else 17),
    ]
    return [
        Case(rows=rows, blocks=blocks, tokens=tokens, pad=number % 3, offset=number, y_pad=number * 2 % 7,
             multiprocessors=1 if rows == ROWS else 2)
        for number, (rows, blocks, tokens) in enumerate(shapes)
    ]  # fmt: skip
