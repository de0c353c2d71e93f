"""Native rows to tiles and back, in host memory. Where a byte goes is the planner's (qgen.plan.tile)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qgen.errors import QgenError
from qgen.plan import TILE_ROWS, TileLayout
from qgen.weights import STORAGES, Weight, check_bytes, tile_layout

CHUNK_BYTES = 1 << 22  # of native blocks at once: some megabytes of scratch, whatever the weight's size
U8: TypeAlias = NDArray[np.uint8]


def repack(
    weight: Weight,
    storage: str = "tiled",
    out: Any = None,
    *,
    row_stride_bytes: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Weight:
    """The same matrix in the other storage, in host memory: "tiled" or "native", each from the other, byte for byte.

    weight:           its data in host memory; of a mapped file, bytes are read a chunk at a time. It stays as it is
    out:              uint8, C-contiguous, writable, apart from the weight's data, as many bytes as the result has or
                      more: where the result goes; left out, new memory. Bytes between native rows and planes are left
                      alone
    row_stride_bytes: from one native row to the next, for storage "native"; left out, rows lie back to back
    chunk_bytes:      the scratch memory, twice that of planes; but at least what a row tile (sixteen rows) takes

    A weight in tiles has the same bytes in another order; only its last row tile is filled up with zero rows.
    Raises QgenError (stage "repack" or "weight") before anything is written: a format without tiles, the storage that
    the weight has already, data on a device, truncated data, an `out` that will not do.
    """
    check_change(weight, storage, row_stride_bytes, chunk_bytes)
    if not isinstance(weight.data, np.ndarray):
        kind = type(weight.data)
        raise refusal(
            weight.name,
            f"data in a {kind.__module__}.{kind.__qualname__}",
            "a NumPy array",
            "repack data on a device there: qgen.run.repack",
        )
    check_bytes(weight, weight.data)
    made = changed(weight, storage, None, row_stride_bytes)
    if out is None:
        # Bytes between rows and between planes are written by nobody.
        gaps = made.storage == "native" and made.nbytes > made.rows * made.row_bytes
        out = (np.zeros if gaps else np.empty)(made.nbytes, dtype=np.uint8)
    else:
        _check_out(weight, out, made.nbytes)
    made = replace(made, data=out)
    convert = _to_tiled if storage == "tiled" else _to_native
    convert(weight, made, chunk_bytes)
    return made


def check_change(weight: Weight, storage: str, row_stride_bytes: int | None, chunk_bytes: int) -> None:
    """That a weight can be brought to this storage. Raises QgenError with what is wrong."""
    if storage not in STORAGES or storage == weight.storage:
        other = next(name for name in STORAGES if name != weight.storage)
        raise refusal(
            weight.name,
            f"storage {storage!r} asked for, of a weight in {weight.storage} storage",
            f"{other!r}",
            "use the weight as it is" if storage == weight.storage else "name the storage",
        )
    if row_stride_bytes is not None and storage != "native":
        found = f"a row stride of {row_stride_bytes} bytes for storage {storage!r}"
        raise refusal(weight.name, found, "none: tiles have no rows apart", "leave row_stride_bytes out")
    if chunk_bytes < 1:
        raise refusal("chunk_bytes", f"{chunk_bytes}", "1 or more", f"leave it out for {CHUNK_BYTES}")


def changed(weight: Weight, storage: str, data: Any, row_stride_bytes: int | None) -> Weight:
    """The record of the weight in the other storage over `data`. Raises QgenError where they do not fit."""
    stride = weight.row_bytes if row_stride_bytes is None else row_stride_bytes
    return replace(weight, storage=storage, data=data, row_stride_bytes=stride)


def chunks(weight: Weight, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """The weight's row tiles as (first, count), so many at a time as chunk_bytes hold, but at least one."""
    row_tiles = -(-weight.rows // TILE_ROWS)
    each = max(1, chunk_bytes // (TILE_ROWS * max(weight.row_bytes, weight.row_stride_bytes)))
    for first in range(0, row_tiles, each):
        yield first, min(each, row_tiles - first)


def refusal(subject: str, found: str, allowed: str, next: str) -> QgenError:
    """The error of a repacker."""
    return QgenError(stage="repack", subject=subject, found=found, allowed=allowed, next=next)


# ---- inside -----------------------------------------------------------------------------------------------------


def _check_out(weight: Weight, out: object, nbytes: int) -> None:
    next = "leave out `out`, or pass numpy.empty(nbytes, dtype='uint8')"
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
        kind = f"dtype {out.dtype}" if isinstance(out, np.ndarray) else f"a {type(out).__qualname__}"
        raise refusal("out", kind, "a NumPy array of uint8", next)
    if not out.flags.c_contiguous or not out.flags.writeable:
        found = "a read-only array" if out.flags.c_contiguous else f"strides {out.strides} of shape {out.shape}"
        raise refusal("out", found, "a C-contiguous array that can be written", next)
    if out.size < nbytes:
        raise refusal("out", f"{out.size} bytes", f"at least {nbytes} bytes", next)
    if np.may_share_memory(out.reshape(-1)[:nbytes], weight.data.reshape(-1)[: weight.nbytes]):
        raise refusal("out", "shares memory with the weight's data", "memory of its own", next)


def _planes(weight: Weight, *, writeable: bool = False) -> list[U8]:
    """uint8[rows, blocks, bytes of a block] over the data of each plane of a native weight, one for blocks."""
    flat, blocks = weight.data.reshape(-1), weight.row_blocks
    return [
        np.lib.stride_tricks.as_strided(
            flat[span.offset :],
            (weight.rows, blocks, span.block_bytes),
            (span.row_stride, span.block_bytes, 1),
            writeable=writeable,
        )
        for span in weight.planes
    ]


def _tiles(weight: Weight, layout: TileLayout) -> U8:
    """uint8[row tiles, blocks, tile bytes] over the data of a tiled weight."""
    flat: U8 = weight.data.reshape(-1)[: weight.nbytes]
    return flat.reshape(-(-weight.rows // TILE_ROWS), weight.row_blocks, layout.tile_bytes)


def _scratch(weight: Weight, chunk_bytes: int) -> U8:
    """uint8[row tiles, rows of one, blocks, block bytes] for the largest chunk."""
    most = max((count for _, count in chunks(weight, chunk_bytes)), default=0)
    return np.empty((most, TILE_ROWS, weight.row_blocks, weight.format.bytes), dtype=np.uint8)


def _order(layout: TileLayout) -> NDArray[np.intp]:
    """The bytes of a block in the order of its pieces."""
    return np.array([byte for piece in layout.pieces for byte in piece.sources], dtype=np.intp)


def _pieces(tiles: U8, scratch: U8, layout: TileLayout) -> Iterator[tuple[U8, U8]]:
    """Of each piece the bytes in the tiles, and in `scratch`, where those of a block lie in the order of the pieces.

    Both as uint8[row tiles, blocks, rows, bytes].
    """
    for piece in layout.pieces:
        in_tiles = tiles[..., TILE_ROWS * piece.start : TILE_ROWS * (piece.start + piece.bytes)]
        in_blocks = scratch[..., piece.start : piece.start + piece.bytes]
        yield in_tiles.reshape(*tiles.shape[:2], TILE_ROWS, piece.bytes), in_blocks.transpose(0, 2, 1, 3)


def _to_tiled(native: Weight, tiled: Weight, chunk_bytes: int) -> None:
    layout = tile_layout(native.format)
    planes, tiles, scratch, order = (
        _planes(native),
        _tiles(tiled, layout),
        _scratch(native, chunk_bytes),
        _order(layout),
    )
    for first, count in chunks(native, chunk_bytes):
        parts = [plane[TILE_ROWS * first : TILE_ROWS * (first + count)] for plane in planes]
        part = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
        blocks = scratch[:count].reshape(-1, *scratch.shape[2:])
        blocks[len(part) :] = 0
        # mode="clip" because "raise" goes through a buffer of its own.
        np.take(part, order, axis=2, out=blocks[: len(part)], mode="clip")
        for to, source in _pieces(tiles[first : first + count], scratch[:count], layout):
            to[...] = source


def _to_native(tiled: Weight, native: Weight, chunk_bytes: int) -> None:
    layout = tile_layout(native.format)
    planes, tiles, scratch = _planes(native, writeable=True), _tiles(tiled, layout), _scratch(native, chunk_bytes)
    back = np.argsort(_order(layout))
    ends = np.cumsum([plane.shape[2] for plane in planes])
    for first, count in chunks(native, chunk_bytes):
        for source, to in _pieces(tiles[first : first + count], scratch[:count], layout):
            to[...] = source
        parts = [plane[TILE_ROWS * first : TILE_ROWS * (first + count)] for plane in planes]
        blocks = scratch[:count].reshape(-1, *scratch.shape[2:])[: len(parts[0])]
        for part, bytes in zip(parts, np.split(back, ends[:-1]), strict=True):
            part[...] = np.take(blocks, bytes, axis=2)
