"""The oracle: NumPy decode and encode derived from the spec alone. Slow, obvious, and exact to the bit.

It never sees a plan or a template, so that it can judge them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgen.codec import bits, numbers
from qgen.codec.bits import Bytes, Raw
from qgen.codec.numbers import F32, I32
from qgen.codec.operands import Blocks, outer_values, refused, regions_of
from qgen.codec.sample import random_blocks, random_planes
from qgen.codec.write import encode, encode_planes
from qgen.layout import matrix
from qgen.spec.expr import Expression, Name, Negate, Number
from qgen.spec.records import ROW, TENSOR, Field, Format

__all__ = [
    "Blocks",
    "codes",
    "decode",
    "decode_matrix",
    "encode",
    "encode_planes",
    "random_blocks",
    "random_planes",
    "raw",
    "scalars",
]

_CHUNK = 1 << 22  # weights decoded at a time: bounds the memory of the temporaries


def decode(format: Format, blocks: Blocks, *, outer: Mapping[str, ArrayLike] | None = None) -> F32:
    """The weights of `blocks`: float32[n, block].

    blocks: uint8[n, format.bytes], or for formats with planes {plane: uint8[n, bytes of the plane]}
    outer:  numbers of row, tensor and sibling fields, one for all or one a block (formats that have such fields)

    `value` is evaluated in float32 in the association the file writes. Raises QgenError for operands that do not fit.
    """
    regions = regions_of(format, blocks)
    count = len(next(iter(regions.values())))
    outside = outer_values(format, outer or {}, count)
    weights = np.empty((count, format.block), dtype=np.float32)
    step = max(1, _CHUNK // format.block)
    for first in range(0, count, step):
        part = slice(first, first + step)
        weights[part] = _decode(
            format, {name: array[part] for name, array in regions.items()}, {k: v[part] for k, v in outside.items()}
        )
    return weights


def _decode(format: Format, regions: dict[str, Bytes], outside: dict[str, F32]) -> F32:
    values = dict(outside)
    for field in format.fields:
        if field.scope == "block":
            values[field.name] = _spread(field, numbers.floats(format, field, bits.read(field, regions)))
    with np.errstate(all="ignore"):  # NaN and Inf scales are legal input: they decode to what float32 makes of them
        return evaluate(format.expression, lambda name: values[name])


def _spread(field: Field, entries: F32) -> F32:
    """[n, entries] -> [n, weights], each entry repeated over the weights it serves; per-block entries stay [n, 1]."""
    if field.lanes > 1 or field.per == 1 or field.entries == 1:
        return entries
    return np.repeat(entries, field.per, axis=1)


def evaluate(tree: Expression, value_of: Callable[[str], F32]) -> F32:
    """`tree` in float32, operation by operation as written; arrays broadcast."""
    if isinstance(tree, Number):
        return np.full((1, 1), tree.value, dtype=np.float32)
    if isinstance(tree, Name):
        return value_of(tree.name)
    if isinstance(tree, Negate):
        return -evaluate(tree.operand, value_of)
    left, right = evaluate(tree.left, value_of), evaluate(tree.right, value_of)
    if tree.operator == "*":
        return left * right
    return left + right if tree.operator == "+" else left - right


def raw(format: Format, field: str, blocks: Blocks) -> Raw:
    """uint32[n, entries]: the bits (or digits) of a block field as stored. KeyError for an unknown field."""
    return bits.read(_block_field(format, field), regions_of(format, blocks))


def codes(format: Format, field: str, blocks: Blocks) -> I32:
    """int32 numbers of a code, table, grid or sign field: [n, entries], or [n, block] for grids and sign7.

    signed, mul, add and the codebook are applied. Raises QgenError where these are no integers, KeyError for an
    unknown field.
    """
    chosen = _block_field(format, field)
    return numbers.integers(format, chosen, bits.read(chosen, regions_of(format, blocks)))


def scalars(format: Format, field: str, blocks: Blocks) -> F32:
    """float32 numbers of any block field, shaped as `codes` says. KeyError for an unknown field."""
    chosen = _block_field(format, field)
    return numbers.floats(format, chosen, bits.read(chosen, regions_of(format, blocks)))


def _block_field(format: Format, name: str) -> Field:
    field = format.field(name)
    if field.scope != "block":
        raise refused(format, name, f"a field of scope {field.scope}", "fields of the block", "use decode_matrix")
    return field


def decode_matrix(
    format: Format,
    data: Bytes,
    *,
    rows: int,
    columns: int,
    siblings: Mapping[str, float] | None = None,
) -> F32:
    """A whole tensor: uint8[total bytes] -> float32[rows, columns], row, tensor and plane layout included.

    siblings: numbers of the sibling fields, by field name. Raises QgenError for a wrong size or a missing number.
    """
    placed = matrix(format, rows=rows, columns=columns)
    if data.dtype != np.uint8 or data.shape != (placed.total,):
        found = f"{data.dtype}{list(data.shape)}"
        raise refused(format, f"a {rows}x{columns} tensor", found, f"uint8[{placed.total}]", "pass the tensor's bytes")
    outer: dict[str, ArrayLike] = dict(siblings or {})
    metadata: dict[str, NDArray[np.uint8]] = {}
    planes: dict[str, Bytes] = {}
    for span in placed.spans:
        begin = span.offset - (format.row_bytes if span is placed.spans[0] else 0)
        lines = data[begin : begin + rows * span.row_stride].reshape(rows, span.row_stride)
        own = lines[:, span.row_stride - placed.blocks * span.block_bytes :]
        planes[span.plane] = own.reshape(rows * placed.blocks, span.block_bytes)
        if span is placed.spans[0]:
            metadata[ROW] = np.repeat(lines[:, : format.row_bytes], placed.blocks, axis=0)
    tail = data[placed.tensor_offset :]
    metadata[TENSOR] = np.broadcast_to(tail, (rows * placed.blocks, tail.size))
    for field in format.fields:
        if field.scope in (ROW, TENSOR):
            outer[field.name] = numbers.floats(format, field, bits.read(field, metadata))
    weights = decode(format, planes if format.split else planes["block"], outer=outer)
    return weights.reshape(rows, -1)[:, :columns]
