"""Rungs of the family `ksplit_mma` with f16 or bf16 activations: what one instance keeps in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.float_contract import SLICES, FloatContract
from qgen.plan.matvec import PIECE
from qgen.plan.planes import StagedPlane
from qgen.plan.rungs import DENSE_TILED, TILED_RING, TILED_STAGE
from qgen.plan.tile import ROWS, TileLayout

WARPS = SLICES  # a slice each
LADDER = ((8, 1), (16, 1), (32, 1), (8, 2), (16, 2), (32, 2))  # columns and row tiles of the instances there can be
TILED_LADDER = (8, 16, 32)  # columns of those over tiles, which take one row tile
STAGE_ELEMENTS = 2048  # of a row: what is done about a stage is spread over so many
STAGE_LIMIT = 40 * 1024  # bytes of a stage: two of them and two CTAs fit every architecture since sm_80
SHARED_LIMIT = 99 * 1024  # what sm_86, sm_89 and sm_120 give a CTA
WARP_ELEMENTS = 512  # of a row and stage of tiles, at most a warp's: its blocks are one straight piece of code


@dataclass(frozen=True)
class PlaneStage:
    """How one plane is staged: 16-byte pieces and bytes of a row's slot, and where the plane's slots begin.

    Of tiles, which are one plane: the pieces and bytes of a whole stage.
    """

    pieces: int
    slot_bytes: int
    at: int


@dataclass(frozen=True)
class FloatRung:
    """One compiled instance: its column capacity and launch shape."""

    name: str
    activation: str
    columns: int
    column_tiles: int
    row_tiles: int
    warps: int
    stage_blocks: int  # blocks of a stage, all warps
    warp_blocks: int  # of which each warp takes this many, one after the other
    stages: int
    planes: tuple[PlaneStage, ...]
    stage_bytes: int
    shared_bytes: int
    min_ctas: int

    @property
    def rows(self) -> int:
        """Output rows of a CTA's tile."""
        return 16 * self.row_tiles


def native_float_rung(
    planes: tuple[StagedPlane, ...],
    block: int,
    agreed: FloatContract,
    stem: str,
    columns: int,
    row_tiles: int,
    run: int,
    paired: int,
) -> FloatRung:
    """run: words of the longest load; paired: columns up to which two CTAs share a multiprocessor's registers."""
    tiles, rows = columns // 8, 16 * row_tiles
    block_bytes = sum(plane.bytes for plane in planes)
    warp_blocks = max(1, STAGE_ELEMENTS // (WARPS * block))
    while warp_blocks > 1 and rows * WARPS * warp_blocks * block_bytes > STAGE_LIMIT:
        warp_blocks //= 2
    staged, at = [], 0
    for plane in planes:
        step_bytes = WARPS * warp_blocks * plane.bytes
        ragged = 0 if step_bytes % PIECE == 0 and plane.alignment == PIECE else PIECE - plane.alignment
        pieces = -(-(step_bytes + ragged) // PIECE)
        # Rows lie so that the eight rows of a fragment fall into different banks.
        slot = pieces * PIECE
        slot += (min(64, 16 * run) - slot) % 128
        staged.append(PlaneStage(pieces=pieces, slot_bytes=slot, at=at))
        at += rows * slot
    stages = 4
    while stages > 2 and (stages - 1) * at > STAGE_LIMIT:
        stages -= 1
    return FloatRung(
        name=f"{stem}_t{columns}__ksplit_mma_native_r{row_tiles}w{WARPS}",
        activation=agreed.activation,
        columns=columns,
        column_tiles=tiles,
        row_tiles=row_tiles,
        warps=WARPS,
        stage_blocks=WARPS * warp_blocks,
        warp_blocks=warp_blocks,
        stages=stages,
        planes=tuple(staged),
        stage_bytes=at,
        shared_bytes=stages * at + WARPS * columns * (rows + 4) * 4 + PIECE,
        min_ctas=2 if row_tiles == 1 and columns <= paired else 1,
    )  # the last word of a block may look 4 bytes ahead


def tiled_float_rung(
    tile: TileLayout, block: int, agreed: FloatContract, stem: str, columns: int, paired: int
) -> FloatRung:
    """As native_float_rung, of whole tiles of one row tile: nothing is ragged. Rings are small, see qgen.plan.rungs."""
    block_bytes = WARPS * tile.tile_bytes  # of a stage, every warp one block
    warp_blocks = max(1, min(WARP_ELEMENTS // block, TILED_STAGE // block_bytes))
    stage = warp_blocks * block_bytes
    deep = columns == TILED_LADDER[0] and 8 * tile.block_bytes > DENSE_TILED * block and 4 * stage <= TILED_RING
    stages = 4 if deep else 3
    partial = WARPS * columns * (ROWS + 4) * 4
    barriers = 16 * stages + 16  # two of 8 bytes a stage, and two for the sums
    if stages * stage + partial + barriers > SHARED_LIMIT:
        stages = 2
    return FloatRung(
        name=f"{stem}_t{columns}__ksplit_mma_tiled_w{WARPS}",
        activation=agreed.activation,
        columns=columns,
        column_tiles=columns // 8,
        row_tiles=1,
        warps=WARPS,
        stage_blocks=WARPS * warp_blocks,
        warp_blocks=warp_blocks,
        stages=stages,
        planes=(PlaneStage(pieces=stage // PIECE, slot_bytes=stage, at=0),),
        stage_bytes=stage,
        shared_bytes=stages * stage + partial + barriers,
        min_ctas=2 if columns <= paired else 1,
    )
