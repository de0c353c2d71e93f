"""Where every bit and digit of a format lies: pure integer arithmetic over the records of `qgen.spec`."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.errors import QgenError
from qgen.spec.check import check
from qgen.spec.records import TENSOR, Field, Format

__all__ = [
    "Digit",
    "Matrix",
    "Piece",
    "Span",
    "check",
    "code_range",
    "digit",
    "entry_of",
    "matrix",
    "pieces",
    "region_of",
]


@dataclass(frozen=True)
class Piece:
    """`width` bits at bit address `bit` of a block's region `plane`; they land at code bit `shl`."""

    plane: str
    bit: int
    width: int
    shl: int


@dataclass(frozen=True)
class Digit:
    """Digit `index` (0 = first, most significant) of byte `byte` of a block's region `plane`."""

    plane: str
    byte: int
    index: int


def entry_of(field: Field, element: int) -> tuple[int, int]:
    """(entry, lane) that serve weight `element` of the block; lane is 0 for fields of one lane."""
    entry = 0 if field.entries == 1 and field.lanes == 1 else element // field.per
    return entry, element % field.per if field.lanes > 1 else 0


def pieces(field: Field, entry: int) -> tuple[Piece, ...]:
    """Where the bits of entry `entry` of a bit field lie, one piece per part. Empty for digit and sibling fields.

    Raises IndexError when the field has no such entry.
    """
    _check_entry(field, entry)
    element = entry * field.per
    return tuple(Piece(part.plane, part.address(element // part.per), part.width, part.shl) for part in field.parts)


def digit(field: Field, entry: int) -> Digit:
    """Which digit of which byte holds entry `entry` of a digit field.

    Raises IndexError when the field has no such entry, ValueError when it is no digit field.
    """
    _check_entry(field, entry)
    if field.digits is None:
        raise ValueError(f"field {field.name} is not stored as digits")
    local = entry
    for segment in field.segments:
        if local < segment.entries:
            byte, index = divmod(segment.address(local), field.digits)
            return Digit(segment.plane, byte, index)
        local -= segment.entries
    raise IndexError(f"field {field.name}: no segment holds entry {entry}")


def _check_entry(field: Field, entry: int) -> None:
    if not 0 <= entry < field.entries:
        raise IndexError(f"field {field.name} has entries 0 to {field.entries - 1}, not {entry}")


def region_of(field: Field) -> str | None:
    """The one region ("block", a plane, "row", "tensor") that holds all of a field; None if several or a sibling."""
    regions = {part.plane for part in field.parts} | {segment.plane for segment in field.segments}
    return regions.pop() if len(regions) == 1 else None


def code_range(format: Format, field: Field) -> tuple[float, float]:
    """Least and greatest number an entry of a code, table, grid or sign field can mean.

    Raises ValueError for float-typed fields, whose range the format does not bound.
    """
    if field.kind == "float":
        raise ValueError(f"field {field.name} is a {field.type} number: unbounded by the format")
    if field.kind == "sign":
        return -1.0, 1.0
    name = field.table or field.grid
    if name is not None:
        values = format.codebook(name).numbers
        return float(min(values)), float(max(values))
    low, high = 0, field.levels - 1
    if field.signed is not None:
        low, high = -(1 << (field.signed - 1)), (1 << (field.signed - 1)) - 1
    ends = (field.mul * low + field.add, field.mul * high + field.add)
    return min(ends), max(ends)


@dataclass(frozen=True)
class Span:
    """One plane of a tensor: block b of row r is at offset + r*row_stride + b*block_bytes."""

    plane: str
    offset: int
    row_stride: int
    block_bytes: int


@dataclass(frozen=True)
class Matrix:
    """A tensor of N rows by K columns in bytes.

    blocks:        blocks of a row, padded columns included
    spans:         one per plane; a row's metadata are the format's row_bytes in front of its first block in spans[0]
    tensor_offset: where the tensor's own metadata is
    total:         bytes of the whole tensor
    """

    rows: int
    columns: int
    blocks: int
    spans: tuple[Span, ...]
    tensor_offset: int
    total: int


def matrix(format: Format, *, rows: int, columns: int) -> Matrix:
    """How a tensor of `rows` by `columns` weights lies in bytes: row metadata, then the row's blocks, planes in order.

    Raises QgenError when the columns are no multiple of the block (formats without k_pad), or a size is not positive.
    """
    if rows < 1 or columns < 1:
        raise _bad_size(format, f"{rows} rows by {columns} columns", "at least 1 by 1")
    if columns % format.block and not format.split:
        rest = columns % format.block
        raise _bad_size(format, f"K = {columns}: {columns} % {format.block} = {rest}", f"multiples of {format.block}")
    blocks = -(-columns // format.k_pad) * format.k_pad // format.block
    spans = []
    offset = 0
    for plane in format.planes:
        offset = -(-offset // format.plane_align) * format.plane_align
        row_stride = format.row_bytes * (plane is format.planes[0]) + blocks * plane.bytes
        first = format.row_bytes if plane is format.planes[0] else 0
        spans.append(Span(plane.name, offset + first, row_stride, plane.bytes))
        offset += rows * row_stride
    return Matrix(rows, columns, blocks, tuple(spans), offset, offset + format.region_bytes(TENSOR))


def _bad_size(format: Format, found: str, allowed: str) -> QgenError:
    return QgenError(
        stage="layout",
        subject=f"a {format.name} tensor",
        found=found,
        allowed=allowed,
        next="check the tensor's shape; K is the contiguous dimension (GGUF ne[0])",
    )
