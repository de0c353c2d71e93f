"""Tiled storage: the bytes of a block interleaved over sixteen rows, so that shared memory is read aligned and wide.

A tile holds one block of ROWS neighbouring rows: `pieces` one after the other, of each piece the sixteen rows one
after the other. A piece is a fixed list of the block's bytes, so that a tile has the bytes of the blocks in another
order. Tiles lie as [row tile][block]; the last row tile is filled up with zero rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from qgen import layout
from qgen.plan.lanes import LaneProgram, Names, plan_lanes
from qgen.plan.matvec import contract
from qgen.plan.refuse import refuse
from qgen.plan.terms import FLOAT_READERS, code_field, group_size
from qgen.spec import Format

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
        """Bytes of a tensor of `rows` rows of `blocks` blocks."""
        return -(-rows // ROWS) * blocks * self.tile_bytes

    def at(self, row: int, byte: int) -> int:
        """Where byte `byte` of the block of row `row` of a tile lies, counted from the tile's start."""
        for piece in self.pieces:
            if byte in piece.sources:
                return ROWS * piece.start + row * piece.bytes + piece.sources.index(byte)
        raise IndexError(f"byte {byte} of a block of {self.block_bytes}")


def tile_layout(format: Format, program: LaneProgram) -> TileLayout:
    """The tile that suits a fragment program: words that one thread alone reads lie so that it reads four at once.

    program: of four threads a block, as of plan_ksplit.
    """
    words = [tuple(o + 4 * i for o in load.offsets) for load in program.loads for i in range(load.count)]
    taken: dict[int, int] = {}
    for word in words:
        for byte in {o + i for o in word for i in range(4)}:
            taken[byte] = taken.get(byte, 0) + 1
    own = [w for w in words if len(set(w)) == len(w) and all(taken[o + i] == 1 for o in w for i in range(4))]
    # Overlapping words of different threads are no one's own.
    own = [w for w in own if len({o + i for o in w for i in range(4)}) == 4 * len(w)]
    lists: list[tuple[int, ...]] = []
    while own:
        count = next(n for n in (4, 2, 1) if n <= len(own))
        quad, own = own[:count], own[count:]
        lists.append(tuple(w[t] + i for t in range(len(quad[0])) for w in quad for i in range(4)))
    rest = sorted(set(range(format.bytes)) - {b for sources in lists for b in sources})
    for run in _runs(rest):
        lists += [tuple(range(a, b)) for a, b in _split(format, *run)]
    pieces = []
    start = 0
    for sources in sorted(lists, key=len, reverse=True):
        pieces.append(Piece(start=start, sources=sources))
        start += len(sources)
    return TileLayout(format=format.name, block_bytes=format.bytes, pieces=tuple(pieces))


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
    """The tiled storage of a format. Raises QgenError (stage "plan") with the reason for formats without one."""
    if format.split or format.row_bytes or format.tensor_bytes:
        refuse(format, "planes, row or tensor bytes", "blocks in one plane, without row or tensor metadata")
    codes = code_field(format)
    group = group_size(format, codes, contract(format).unit)
    return tile_layout(format, plan_lanes(format, codes, LANES, group, Names(format, LANES), uniform=True))
