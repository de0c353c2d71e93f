"""Formats stored in planes, seen as blocks: every plane of a block gets its own stretch of addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qgen.plan.records import Words
from qgen.plan.refuse import refuse
from qgen.spec import Field, Format
from qgen.spec.records import Plane

APART = 4096  # bytes from one plane's stretch to the next, so that no word reaches from plane to plane


@dataclass(frozen=True)
class StagedPlane:
    """One region of a tensor that a kernel stages for itself.

    name:        what the kernel's text calls it
    bytes:       of a block
    alignment:   bytes that its rows are aligned to, at most 16
    first:       address of a block's first byte as the plan's records count
    """

    name: str
    bytes: int
    alignment: int
    first: int

    @property
    def whole(self) -> bool:
        """Whether any number of blocks is whole aligned pieces of 16 bytes."""
        return self.alignment == 16 and self.bytes % 16 == 0


@dataclass(frozen=True)
class PlanedWords:
    """A load from the plane number `plane`."""

    plane: int
    words: Words


def as_blocks(format: Format) -> tuple[Format, tuple[StagedPlane, ...]]:
    """The format with all its planes in one block, plane p from byte p * APART on, and what there is to stage.

    Raises QgenError (stage "plan") for bytes in front of rows or behind the tensor, and for blocks of APART bytes.
    """
    if format.row_bytes or format.tensor_bytes:
        refuse(format, f"{format.row_bytes} row and {format.tensor_bytes} tensor bytes", "blocks and planes alone")
    if format.bytes >= APART:
        refuse(format, f"blocks of {format.bytes} bytes", f"less than {APART}")
    if not format.split:
        return format, (StagedPlane("weight", format.bytes, format.alignment, 0),)
    # A row holds whole multiples of k_pad columns, and planes are aligned as a whole.
    blocks = format.k_pad // format.block
    planes = tuple(
        StagedPlane(f"weight_{p.name}", p.bytes, _aligned(blocks * p.bytes, format.plane_align), APART * number)
        for number, p in enumerate(format.planes)
    )
    first = {p.name: 8 * staged.first for p, staged in zip(format.planes, planes, strict=True)}
    fields = tuple(_moved(field, first) for field in format.fields)
    return replace(format, planes=(Plane("block", format.alignment),), fields=fields, plane_align=1), planes


def _aligned(row_bytes: int, plane_align: int) -> int:
    return min(16, row_bytes & -row_bytes, plane_align & -plane_align)


def _moved(field: Field, first: dict[str, int]) -> Field:
    digits = field.digits or 0
    return replace(
        field,
        parts=tuple(replace(p, plane="block", bit=p.bit + first[p.plane]) for p in field.parts),
        segments=tuple(
            replace(s, plane="block", digit=s.digit + first[s.plane] // 8 * digits) for s in field.segments
        ),
    )


def plane_of(address: int) -> int:
    """The number of the plane in which a byte address of `as_blocks` lies."""
    return address // APART
