"""Tiled storage: the bytes of a block interleaved over sixteen rows, so that shared memory is read aligned and wide.

A tile holds one block of ROWS neighbouring rows: `pieces` one after the other, of each piece the sixteen rows one
after the other. A piece is a fixed list of the block's bytes, so that a tile has the bytes of the blocks in another
order. Tiles lie as [row tile][block]; the last row tile is filled up with zero rows. Of a format stored in planes, a
block's bytes are those of its planes, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

from qgen import layout
from qgen.plan.float_contract import group_of
from qgen.plan.lanes import LaneProgram, Names, plan_lanes
from qgen.plan.matvec import contract
from qgen.plan.planes import StagedPlane, as_blocks
from qgen.plan.records import LaneConstant, LaneInt, TermPlan
from qgen.plan.refuse import refuse
from qgen.plan.terms import FLOAT_READERS, code_field, group_size, scale_fields
from qgen.spec import Field, Format, load_activation

ROWS = 16  # of a tile: those of a tensor-core fragment
LANES = 4  # threads that share a row of a fragment
WIDEST = 16  # bytes of the widest load from shared memory


@dataclass(frozen=True)
class Piece:
    """Bytes of a block that lie together: byte i of the piece of row r is byte sources[i] of the block."""

    start: int  # bytes of a row in the pieces before
    sources: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one row."""
        return len(self.sources)


@dataclass(frozen=True)
class TileLayout:
    """Where the bytes of a block lie in its tile."""

    format: str
    block_bytes: int
    row_blocks: int  # a row is filled up to whole multiples of so many blocks
    planes: tuple[StagedPlane, ...]  # where planners count the bytes of a block from; one of formats stored in blocks
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        """What the manifest calls it."""
        return f"tiled_{self.format.lower()}"

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return ROWS * self.block_bytes

    def bytes(self, rows: int, blocks: int) -> int:
        """Bytes of a tensor of `rows` rows of `blocks` blocks, which are filled up."""
        return -(-rows // ROWS) * (-(-blocks // self.row_blocks) * self.row_blocks) * self.tile_bytes

    def byte(self, address: int) -> int:
        """The byte of a block at a planner's address, see qgen.plan.planes."""
        before = 0
        for plane in self.planes:
            if plane.first <= address < plane.first + plane.bytes:
                return before + address - plane.first
            before += plane.bytes
        raise IndexError(f"address {address} of a block of {self.block_bytes} bytes")

    def at(self, row: int, byte: int) -> int:
        """Where byte `byte` of the block of row `row` of a tile lies, counted from the tile's start."""
        for piece in self.pieces:
            if byte in piece.sources:
                return ROWS * piece.start + row * piece.bytes + piece.sources.index(byte)
        raise IndexError(f"byte {byte} of a block of {self.block_bytes}")

    def piece(self, offsets: tuple[int, ...]) -> tuple[Piece, tuple[int, ...]] | None:
        """The piece that holds all these bytes of a block, and their places in it; None where they lie in several."""
        for piece in self.pieces:
            if all(o in piece.sources for o in offsets):
                return piece, tuple(map(piece.sources.index, offsets))
        return None


class TileNames(Names):
    """Names of byte addresses in a tile that starts at `b`, for row `row` + 8 * `half` of it."""

    def __init__(self, format: Format, lanes: int, tile: TileLayout) -> None:
        super().__init__(format, lanes)
        self.tile = tile

    def at(self, offset: LaneInt) -> str:
        """C text of where the threads' bytes of a block lie in shared memory."""
        piece, places = self._places(offset.values)
        slope = tuple(p - places[0] for p in places)
        key = (piece.bytes, *slope)
        if key not in self.origins:
            lanes = self._linear(LaneInt(slope), "").terms if any(slope) else ()
            name = f"from{len(self.origins)}"
            self.origins[key] = LaneConstant(name=name, base=0, terms=((piece.bytes, "row"), *lanes))
        return f"{self.origins[key].name} + {ROWS * piece.start + places[0]} + half * {ROWS // 2 * piece.bytes}"

    def aligned(self, offset: LaneInt, size: int) -> bool:
        """Whether every thread's byte is a multiple of `size` into shared memory."""
        piece, places = self._places(offset.values)
        return piece.bytes % size == 0 and all(p % size == 0 for p in places)

    def follows(self, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
        """Whether the words at `second` lie right behind those at `first` in one piece."""
        a, at = self._places(first)
        b, behind = self._places(second)
        return a == b and behind == tuple(p + 4 for p in at)

    def _places(self, offsets: tuple[int, ...]) -> tuple[Piece, tuple[int, ...]]:
        found = self.tile.piece(tuple(map(self.tile.byte, offsets)))
        if found is None:
            refuse(self.format, f"bytes {offsets} by thread lie in several pieces of a tile", "bytes in one piece")
        return found


def in_tile(term: TermPlan, names: TileNames) -> TermPlan:
    """The term with its float factors where they lie in a tile."""
    floats = tuple(
        tuple(replace(f, at=names.at(LaneInt((int(f.at),) * LANES))) for f in factors) for factors in term.floats
    )
    return replace(term, floats=floats)


def tile_layout(format: Format, row_blocks: int, planes: tuple[StagedPlane, ...], program: LaneProgram) -> TileLayout:
    """The tile that suits a fragment program: words that one thread alone reads lie so that it reads four at once.

    format, planes: of as_blocks; program: of four threads a block, as of plan_ksplit.
    """
    every = [plane.first + i for plane in planes for i in range(plane.bytes)]
    words = [tuple(o + 4 * i for o in load.offsets) for load in program.loads for i in range(load.count)]
    taken: dict[int, int] = {}
    for word in words:
        for byte in {o + i for o in word for i in range(4)}:
            taken[byte] = taken.get(byte, 0) + 1
    own = [w for w in words if len(set(w)) == len(w) and all(taken[o + i] == 1 for o in w for i in range(4))]
    # Overlapping words of different threads are no one's own, nor are words that reach past the end of a plane.
    own = [w for w in own if len({o + i for o in w for i in range(4)}.intersection(every)) == 4 * len(w)]
    lists: list[tuple[int, ...]] = []
    while own:
        count = next(n for n in (4, 2, 1) if n <= len(own))
        quad, own = own[:count], own[count:]
        lists.append(tuple(w[t] + i for t in range(len(quad[0])) for w in quad for i in range(4)))
    rest = sorted(set(every).difference(*lists))
    for run in _runs(rest):
        lists += [tuple(range(a, b)) for a, b in _split(format, *run)]
    # Integer scales come first: a word at any byte is read as two, of which the second may lie past their piece.
    scales = _bytes_of(f for term in format.terms for f in scale_fields(format, term, code_field(format)))
    pieces = []
    start = 0
    for sources in sorted(lists, key=lambda sources: (scales.isdisjoint(sources), -len(sources))):
        pieces.append(Piece(start=start, sources=tuple(map(every.index, sources))))
        start += len(sources)
    return TileLayout(
        format=format.name, block_bytes=len(every), row_blocks=row_blocks, planes=planes, pieces=tuple(pieces)
    )


def _bytes_of(fields: Iterable[Field]) -> set[int]:
    """The bytes of a block that hold these fields."""
    return {p.bit // 8 for field in fields for e in range(field.entries) for p in layout.pieces(field, e)}


def _runs(rest: list[int]) -> list[tuple[int, int]]:
    """Neighbouring bytes as [begin, end)."""
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(rest)) if b != a + 1), len(rest)]
    return [(rest[a], rest[b - 1] + 1) for a, b in pairwise(cuts) if b > a]


def _split(format: Format, begin: int, end: int) -> list[tuple[int, int]]:
    """[begin, end), cut where a float scale begins or ends if what is left is better aligned then."""
    cuts = {begin, end}
    for field in format.fields:
        if field.type in FLOAT_READERS:
            bits = [p.bit // 8 for e in range(field.entries) for p in layout.pieces(field, e)]
            size = FLOAT_READERS[field.type][2]
            cuts |= {min(bits), max(bits) + size}
    best = [(begin, end)]
    for cut in sorted(cuts):
        if begin < cut < end:
            ways = [(begin, cut), (cut, end)]
            if max(_alignment(b - a) for a, b in ways) > max(_alignment(b - a) for a, b in best):
                best = ways
    return best


def _alignment(bytes: int) -> int:
    return gcd(bytes, WIDEST)


def plan_tile(format: Format) -> TileLayout:
    """The tiled storage of a format. Raises QgenError (stage "plan") with the reason for formats without one.

    It suits the kernels with int8 activations; those with f16 and bf16 read the same tiles, and of formats that take no
    int8 activation the tiles are theirs.
    """
    flat, planes = as_blocks(format)
    codes = code_field(flat)
    if format.activation is not None and load_activation(format.activation).kind == "float":
        group = group_of(flat, codes)
    else:
        group = group_size(flat, codes, contract(flat).unit)
    row_blocks = format.k_pad // format.block
    return tile_layout(
        flat, row_blocks, planes, plan_lanes(flat, codes, LANES, group, Names(flat, LANES), uniform=True)
    )
