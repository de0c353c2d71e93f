"""Plans of op repack: the blocks of a weight from native storage to tiles (see qgen.plan.tile), and back.

Blocks are counted as they lie in memory: of formats stored in planes, those that fill up a row are among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from qgen.plan.matvec import Launch
from qgen.plan.tile import ROWS, TileLayout, plan_tile
from qgen.spec import Format

WARPS = 8
MIN_CTAS = 4  # of a multiprocessor: the threads of sm_75, 64 registers each
ROW_BYTES = 1024  # of a row that a CTA moves at once: long enough for whole sectors, and 16 KB of shared memory
MAX_GRID_Y = 65535


@dataclass(frozen=True)
class Place:
    """Where a byte of a block lies in the tile: in row 0, and how far from one row to the next."""

    first: int
    step: int


@dataclass(frozen=True)
class NativePlane:
    """One region of native storage: its name in the kernels' text, bytes of a block, and the first of its `places`."""

    name: str
    bytes: int
    first: int


@dataclass(frozen=True)
class RepackPlan:
    """Two kernels in one file: rows of native blocks to tiles, and tiles to rows of native blocks."""

    family: str
    op: str
    format: str
    file: str
    to_tiled: str
    to_native: str
    layout: TileLayout
    block: int  # columns of a block
    planes: tuple[NativePlane, ...]  # one of formats stored in blocks
    places: tuple[Place, ...]  # of every byte of a block, in native order, planes one after the other
    tile_rows: int
    span: int  # blocks of a row that a CTA moves at once
    shared_bytes: int
    warps: int
    min_ctas: int


def plan_repack(format: Format) -> RepackPlan:
    """The repackers of a format. Raises QgenError (stage "plan") with the reason for formats without tiles."""
    layout = plan_tile(format)
    span = max(1, ROW_BYTES // format.bytes)
    name = f"repack_{format.name.lower()}"
    firsts = [layout.at(0, byte) for byte in range(format.bytes)]
    return RepackPlan(
        family="convert",
        op="repack",
        format=format.name,
        file=f"{name}__row_tile",
        to_tiled=f"{name}_to_tiled__row_tile",
        to_native=f"{name}_to_native__row_tile",
        layout=layout,
        block=format.block,
        planes=_planes(format),
        places=tuple(Place(first, layout.at(1, byte) - first) for byte, first in enumerate(firsts)),
        tile_rows=ROWS,
        span=span,
        shared_bytes=span * layout.tile_bytes,
        warps=WARPS,
        min_ctas=MIN_CTAS,
    )


def _planes(format: Format) -> tuple[NativePlane, ...]:
    names = [f"native_{plane.name}" for plane in format.planes] if format.split else ["native"]
    firsts = accumulate((plane.bytes for plane in format.planes), initial=0)
    return tuple(
        NativePlane(name, plane.bytes, first) for name, plane, first in zip(names, format.planes, firsts, strict=False)
    )


def launch_repack(plan: RepackPlan, blocks: int, row_tiles: int) -> tuple[Launch, int]:
    """One CTA for `span` blocks of a row tile, or of several where there are very many; the grid's y beside it."""
    grid = -(-blocks // plan.span)
    return Launch(grid=grid, block=32 * plan.warps, shared=plan.shared_bytes), min(row_tiles, MAX_GRID_Y)
