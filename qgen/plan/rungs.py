"""Rungs of the family `ksplit_mma`: what one instance of a ladder keeps in shared memory, in what steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qgen.archs import Arch
from qgen.plan.matvec import PIECE, Launch
from qgen.plan.records import Contract
from qgen.plan.tile import ROWS
from qgen.spec import Format

SPLIT = 8  # warps that share rows, the blocks of K dealt to them in turn
LADDER = (8, 16, 24, 32)  # column capacities worth having on the H200; more tokens tile over the grid's y
MIDDLE = 24  # of those, the one whose warps always take one row tile: three column tiles are enough to do
STAGE_LIMIT = 28 * 1024  # bytes of a stage of 16 rows
RING_LIMIT = 84 * 1024  # of all stages of 16 rows: with the partial sums two CTAs fit a multiprocessor of sm_90
NARROW_RING = 96 * 1024  # the same for the narrowest rung, whose activation needs less cache
SHARED_LIMIT = 227 * 1024  # what sm_90 gives a CTA
TILED_STAGE = 20 * 1024  # bytes of a stage of one row tile, tiled storage
TILED_BUNDLES = 4  # a warp's of a stage, at most: they are one straight piece of code
TILED_RING = 80 * 1024  # bytes of a ring of four stages
SINGLE_SLICES, SINGLE_COLUMNS = 32, 8  # of K, for one token: a warp's slices are the columns of an instruction
SINGLE_RING = 44 * 1024  # bytes of a ring there: with it four CTAs leave a multiprocessor cache for the activation
TOGETHER = 205 * 1024  # bytes of shared memory that they take at most, all of them
TOKEN_WARPS = 4  # for one token of long blocks: fewer sums to add at the end of a row tile than SPLIT
DENSE_TILED = 3.0  # bits a weight below which decoding tiles takes longer than reading them
DENSE = 2.1  # bits a weight below which decoding takes longer than reading


@dataclass(frozen=True)
class Rung:
    """One compiled instance: its column capacity and launch shape."""

    name: str
    columns: int
    column_tiles: int
    row_tiles: int  # fragments of rows a warp
    rows: int  # of a CTA
    warps: int
    stage_blocks: int  # blocks of a stage, all warps
    warp_bundles: int  # of which each warp takes this many bundles
    substeps: int  # slices a warp owns
    stages: int
    pieces: int
    slot_bytes: int
    barriers_at: int  # byte offset of the ring's barriers in shared memory
    shared_bytes: int
    min_ctas: int


def native_rung(
    format: Format, agreed: Contract, stem: str, columns: int, run: int, two: bool, row_tiles: int, bundle: int
) -> Rung:
    """run: words of the longest load; two: CTAs share a multiprocessor; row_tiles: fragments of rows a warp."""
    tiles = columns // 8
    rows = ROWS * row_tiles
    substeps = agreed.slices // SPLIT
    # As many slices in one stage as it has room for, so that the work around a stage is spread over many blocks.
    room = STAGE_LIMIT // (ROWS * SPLIT * bundle * format.bytes)
    warp_bundles = max(1, min(room, substeps // bundle))
    while substeps % (warp_bundles * bundle):
        warp_bundles -= 1
    stage_blocks = SPLIT * bundle * warp_bundles
    step_bytes = stage_blocks * format.bytes
    ragged = 0 if step_bytes % PIECE == 0 and format.alignment == PIECE else PIECE - format.alignment
    pieces = -(-(step_bytes + ragged) // PIECE)
    # Rows lie so that the eight rows of a fragment fall into different banks.
    slot = pieces * PIECE
    want = min(64, 16 * run)
    slot += (want - slot) % 128
    # Four stages keep memory busy. More requests in flight than it needs keep the activation's waiting, so one stage
    # fewer where decoding is what takes the time: for dense formats and for many columns.
    most = 3 if not two or 8 * format.bytes <= DENSE * format.block else 4
    stages = max(3, min(most, (RING_LIMIT if columns > LADDER[0] else NARROW_RING) // (ROWS * slot)))
    barriers = stages * rows * slot + SPLIT * columns * (rows + 4) * 4
    return Rung(
        name=f"{stem}_t{columns}__ksplit_mma_native_w{SPLIT}",
        columns=columns,
        column_tiles=tiles,
        row_tiles=row_tiles,
        rows=rows,
        warps=SPLIT,
        stage_blocks=stage_blocks,
        warp_bundles=warp_bundles,
        substeps=substeps,
        stages=stages,
        pieces=pieces,
        slot_bytes=slot,
        barriers_at=barriers,
        shared_bytes=barriers + 16 * stages + 16,
        min_ctas=2 if two else 1,
    )


def tiled_rungs(
    format: Format, agreed: Contract, stem: str, columns: int, two: bool, row_tiles: int, bundle: int
) -> tuple[Rung, ...]:
    """As native_rung, of whole tiles: nothing is ragged.

    A rung of two row tiles a warp comes after one of one, which takes half of its shared memory: sm_90's compiler alone
    has the registers for two.
    """
    name = f"{stem}_t{columns}__ksplit_mma_tiled"
    if row_tiles == 1:
        return (_tiled_rung(format, agreed, f"{name}_w{SPLIT}", columns, two, 1, bundle),)
    return (
        _tiled_rung(format, agreed, f"{name}_r1w{SPLIT}", columns, two, 1, bundle),
        _tiled_rung(format, agreed, f"{name}_w{SPLIT}", columns, two, row_tiles, bundle),
    )


def _tiled_rung(
    format: Format, agreed: Contract, name: str, columns: int, two: bool, row_tiles: int, bundle: int
) -> Rung:
    rows, substeps = ROWS * row_tiles, agreed.slices // SPLIT
    block_bytes = SPLIT * bundle * ROWS * format.bytes  # of a row tile, every warp one bundle
    # A stage ends where the warp's slices do, or in time for a whole number of stages to.
    warp_bundles = max(1, min(TILED_BUNDLES, TILED_STAGE // block_bytes))
    while substeps % (warp_bundles * bundle) and warp_bundles * bundle % substeps:
        warp_bundles -= 1
    slot = warp_bundles * block_bytes * row_tiles
    partial = SPLIT * columns * (rows + 4) * 4
    # What the ring leaves of shared memory is cache for the activation, which more columns need more of. A fourth stage
    # pays where reading takes longer than decoding.
    deep = columns == LADDER[0] and 8 * format.bytes > DENSE_TILED * format.block and 4 * slot <= TILED_RING
    stages = 4 if deep else 3
    barriers = stages * slot + partial
    return Rung(
        name=name,
        columns=columns,
        column_tiles=columns // 8,
        row_tiles=row_tiles,
        rows=rows,
        warps=SPLIT,
        stage_blocks=SPLIT * bundle * warp_bundles,
        warp_bundles=warp_bundles,
        substeps=substeps,
        stages=stages,
        pieces=slot // PIECE,
        slot_bytes=slot,
        barriers_at=barriers,
        shared_bytes=barriers + 16 * stages + 16,
        min_ctas=2 if two else 1,
    )


def single_rung(format: Format, stem: str) -> Rung:
    """One token: eight blocks of K in the columns of an instruction, so that few float steps are made in vain."""
    return _one_token_rung(format, stem, SINGLE_SLICES // SINGLE_COLUMNS, SINGLE_SLICES, 1, SINGLE_COLUMNS)


def token_rung(format: Format, agreed: Contract, stem: str) -> Rung:
    """One token of blocks that fill a bundle each: as the narrowest of tiled_rung, in half as many warps."""
    # Whatever is done once a stage is spread over as many blocks as three stages have room for.
    warp_blocks = next(n for n in (4, 2, 1) if n == 1 or 3 * TOKEN_WARPS * n * ROWS * format.bytes <= SINGLE_RING)
    return _one_token_rung(
        format, stem, TOKEN_WARPS, TOKEN_WARPS * warp_blocks, warp_blocks, agreed.slices // TOKEN_WARPS
    )


def _one_token_rung(format: Format, stem: str, warps: int, stage_blocks: int, warp_bundles: int, substeps: int) -> Rung:
    """A rung for one token, whose CTAs take a row tile at a time."""
    slot = stage_blocks * ROWS * format.bytes
    stages = 4 if 4 * slot <= SINGLE_RING else 3
    barriers = stages * slot + 4 * warps * ROWS
    return Rung(
        name=f"{stem}_t1__ksplit_mma_tiled_w{warps}",
        columns=1,
        column_tiles=1,
        row_tiles=1,
        rows=ROWS,
        warps=warps,
        stage_blocks=stage_blocks,
        warp_bundles=warp_bundles,
        substeps=substeps,
        stages=stages,
        pieces=slot // PIECE,
        slot_bytes=slot,
        barriers_at=barriers,
        shared_bytes=barriers + 16 * stages + 16,
        # A fifth CTA a multiprocessor where that still leaves cache for the activation.
        min_ctas=5 if 5 * barriers <= TOGETHER else 4,
    )


class Shape(Protocol):
    """What of a rung decides a launch."""

    @property
    def columns(self) -> int:
        """Its column capacity."""

    @property
    def warps(self) -> int:
        """Of a CTA."""

    @property
    def shared_bytes(self) -> int:
        """Of a CTA."""


def launch_over_tiles(
    rung: Shape, rows: int, tokens: int, multiprocessors: int, ctas_per_multiprocessor: int, arch: Arch
) -> tuple[Launch, int]:
    """Launch numbers and the grid's y over tiled storage; x is persistent over row tiles.

    Where launches may begin early, and fewer CTAs are launched than there are places for, they ask for so much of the
    shared memory of `arch` that no multiprocessor takes more than its share: they would pile up on the first ones free.
    """
    tiles = -(-rows // ROWS)
    columns = -(-tokens // rung.columns)
    # CTAs of neighbouring numbers lie on different multiprocessors: those with one tile more are spread over them.
    resident = max(1, multiprocessors * ctas_per_multiprocessor // columns)
    grid = max(1, min(tiles, resident))
    if rung.columns == 1 and arch.instructions.pdl:
        grid = _even(tiles, grid, multiprocessors)
    share = -(-grid * columns // multiprocessors)
    alone = arch.instructions.pdl and share < ctas_per_multiprocessor
    # One CTA more than the share does not fit: each takes what it asks for and the driver's part.
    shared = max(rung.shared_bytes, arch.shared_per_sm // (share + 1)) if alone else rung.shared_bytes
    return Launch(grid=grid, block=32 * rung.warps, shared=shared), columns


def _even(tiles: int, ctas: int, multiprocessors: int) -> int:
    """CTAs for `tiles` row tiles: fewer than `ctas`, with two each, where some would take two and others one.

    A launch that begins early takes places as they come free, so that CTAs of two tiles gather on some multiprocessors.
    Equal ones cannot; but their own remainder must not cost more: a fifth over the mean on any multiprocessor.
    """
    pairs = -(-tiles // 2)
    most = 2 * -(-pairs // multiprocessors)
    return pairs if ctas < tiles <= 2 * ctas and 5 * most * multiprocessors <= 6 * tiles else ctas
