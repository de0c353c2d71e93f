"""Formats stored in planes, seen as blocks: every plane of a block gets its own stretch of addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qgen.plan.lanes import Names
from qgen.plan.records import LaneConstant, LaneInt, Words
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
class Origin:
    """Where a thread's addresses in one plane start, counted from where the plane's part of the block does."""

    plane: str
    constant: LaneConstant


class PlaneNames(Names):
    """Names of byte addresses, each counted from where its own plane begins, which the text calls as the plane."""

    def __init__(self, format: Format, lanes: int, planes: tuple[StagedPlane, ...]) -> None:
        super().__init__(format, lanes)
        self.planes = planes
        self.by_plane: dict[tuple[int, ...], Origin] = {}  # by plane number and slope
        self.offsets: dict[str, tuple[StagedPlane, tuple[int, ...]]] = {}  # text -> plane, offsets in it by thread

    def at(self, offset: LaneInt) -> str:
        """C text of an address of `as_blocks`. The plane's name stands for where the block begins in it."""
        number = plane_of(min(offset.values))
        plane = self.planes[number]
        local = tuple(v - plane.first for v in offset.values)
        slope = tuple(v - local[0] for v in local)
        if any(slope):
            if (number, *slope) not in self.by_plane:
                constant = self._linear(LaneInt(slope), f"from{len(self.by_plane)}")
                self.by_plane[number, *slope] = Origin(plane.name, constant)
            begin = self.by_plane[number, *slope].constant.name
        else:
            begin = plane.name
        text = f"{begin} + {local[0]}" if local[0] else begin
        self.offsets[text] = plane, local
        return text

    def widened(self, load: Words) -> Words:
        """A load as wide as its own plane's alignment allows."""
        plane, offsets = self.offsets[load.at]
        aligned = min(plane.alignment, plane.bytes & -plane.bytes)
        width = next(
            w for w in (16, 8, 4, 1) if w <= aligned and all(o % w == 0 for o in offsets) and 4 * load.count % w == 0
        )
        return replace(load, width=width if width >= 4 else 1)


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
        segments=tuple(replace(s, plane="block", digit=s.digit + first[s.plane] // 8 * digits) for s in field.segments),
    )


def plane_of(address: int) -> int:
    """The number of the plane in which a byte address of `as_blocks` lies."""
    return address // APART
