"""What a repacker must do: every byte where the tile's layout puts it, each read and written once, none outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from judging import U8, Order, Wrong, far_apart, holes, lay_out

from qgen import codec, emulate, plan, storage
from qgen.plan import TILE_ROWS, RepackPlan
from qgen.spec import Format
from qgen.weights import Weight

POISON = 0xA5
ROWS = (1, 15, 16, 17, 33)
ORDERS: tuple[tuple[Order, int], ...] = (("forward", 0), ("reverse", 0), ("shuffle", 1), ("shuffle", 2))


@dataclass(frozen=True)
class Case:
    """A weight and how it is repacked: `pad` bytes between rows, at an address of a multiple of 256 plus `offset`,
    so many row tiles a launch, by CTAs that take more than one where grid_y is given."""

    rows: int
    blocks: int
    pad: int = 0
    offset: int = 0
    chunk: int = 1 << 20
    grid_y: int | None = None
    order: Order = "forward"
    seed: int = 0


def cases(planned: RepackPlan) -> list[Case]:
    """Every row count and thread order, one block and more than a CTA takes, odd strides and addresses, chunks."""
    made = []
    for number, rows in enumerate(ROWS):
        order, seed = ORDERS[number % len(ORDERS)]
        blocks = (1, planned.span + 2)[number % 2]
        made.append(
            Case(rows, blocks, pad=(0, 1, 7)[number % 3], offset=(0, 3, 2, 1)[number % 4], order=order, seed=seed)
        )
    made.append(Case(33, planned.span + 2, pad=5, offset=1, chunk=2, order="reverse"))
    made += [Case(65, 2, pad=3, grid_y=2, order=order, seed=seed) for order, seed in ORDERS]
    return made


def packed(format: Format, rows: int, blocks: int) -> U8:
    """uint8[rows, blocks, block bytes] in which no byte is like its neighbours' by chance alone; no planes."""
    (made,) = planes(format, rows, blocks)
    return made


def planes(format: Format, rows: int, blocks: int) -> list[U8]:
    """The same of every plane, or of blocks alone; blocks that fill up a row of planes are made up, too."""
    blocks = -(-blocks * format.block // format.k_pad) * format.k_pad // format.block
    seed = rows + blocks
    if format.split:
        return [made.reshape(rows, blocks, -1) for made in codec.random_planes(format, rows * blocks, seed).values()]
    return [codec.random_blocks(format, rows * blocks, seed).reshape(rows, blocks, -1)]


def weight_of(format: Format, parts: list[U8], blocks: int | None = None) -> Weight:
    """Planes uint8[rows, blocks, bytes] as a native weight, or blocks. blocks: of a row without those that fill it."""
    columns = (parts[0].shape[1] if blocks is None else blocks) * format.block
    data = {p.name: part for p, part in zip(format.planes, parts, strict=True)} if format.split else parts[0]
    return Weight.of(format, data, rows=len(parts[0]), columns=columns)


def tiles_of(format: Format, *parts: U8) -> U8:
    """The tiles of packed rows, or of planes, by the host."""
    tiled: U8 = storage.repack(weight_of(format, list(parts))).data
    return tiled


def check_to_tiled(format: Format, planned: RepackPlan, program: emulate.Program, case: Case, stride: int = 0) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel. stride: rows as far apart, in memory made of holes."""
    sources = planes(format, case.rows, case.blocks)
    memories = [far_apart(s, stride) if stride else lay_out(s, _pad(case, n)) for n, s in enumerate(sources)]
    strides = [stride or s[0].size + _pad(case, n) for n, s in enumerate(sources)]
    blocks = sources[0].shape[1]
    wanted = tiles_of(format, *sources)
    tiled = np.full(wanted.size, POISON, dtype=np.uint8)
    read = written = 0
    for first, count in _chunks(case):
        native: list[emulate.Buffer | int] = []
        for n, (plane, source) in enumerate(zip(planned.planes, sources, strict=True)):
            last = min(TILE_ROWS * (first + count), case.rows) - 1
            part = memories[n][TILE_ROWS * first * strides[n] : last * strides[n] + source[0].size]
            native += [emulate.Buffer(plane.name, part, offset_bytes=_offset(case, n)), strides[n]]
        launch, grid_y = plan.launch_repack(planned, blocks, count)
        report = program.launch(
            planned.to_tiled,
            grid=(launch.grid, case.grid_y or grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[*native, case.rows, blocks, first, count, emulate.Buffer("tiled", tiled, writable=True)],
            order=case.order,
            seed=case.seed,
        )
        written += report.written_bytes["tiled"]
        for plane in planned.planes:
            read += report.read_bytes[plane.name]
            _same("bytes read", report.bytes_touched[plane.name], report.read_bytes[plane.name])
        _same("bytes written", report.bytes_written["tiled"], report.written_bytes["tiled"])
    _equal("tiles", tiled, wanted)
    _same("bytes read", read, sum(source.size for source in sources))
    _same("bytes written", written, tiled.size)


def check_to_native(format: Format, planned: RepackPlan, program: emulate.Program, case: Case) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel."""
    sources = planes(format, case.rows, case.blocks)
    tiled, blocks = tiles_of(format, *sources), sources[0].shape[1]
    wanted = [lay_out(source, _pad(case, n)) for n, source in enumerate(sources)]
    natives = [np.full(memory.size, POISON, dtype=np.uint8) for memory in wanted]
    each = TILE_ROWS * blocks * format.bytes
    read = written = 0
    for first, count in _chunks(case):
        native: list[emulate.Buffer | int] = []
        for n, (plane, source) in enumerate(zip(planned.planes, sources, strict=True)):
            native.append(emulate.Buffer(plane.name, natives[n], offset_bytes=_offset(case, n), writable=True))
            native.append(source[0].size + _pad(case, n))
        launch, grid_y = plan.launch_repack(planned, blocks, count)
        part = emulate.Buffer("tiled", tiled[each * first : each * (first + count)])
        report = program.launch(
            planned.to_native,
            grid=(launch.grid, case.grid_y or grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[part, case.rows, blocks, first, count, *native],
            order=case.order,
            seed=case.seed,
        )
        read += report.read_bytes["tiled"]
        for plane in planned.planes:
            written += report.written_bytes[plane.name]
            _same("bytes written", report.bytes_written[plane.name], report.written_bytes[plane.name])
    for found, right in zip(natives, wanted, strict=True):
        _equal("rows", found, right)  # POISON between them, too
    _same("bytes read", read, tiled.size)
    _same("bytes written", written, sum(source.size for source in sources))


def _pad(case: Case, plane: int) -> int:
    """Bytes between rows: other ones in every plane."""
    return case.pad + (plane if case.pad else 0)


def _offset(case: Case, plane: int) -> int:
    """Where a plane begins, past a multiple of 256."""
    return (case.offset + plane) % 4 if case.offset else 0


# ---- far tiles -------------------------------------------------------------------------------------------------------

THERE = 13  # rows of the last row tile


def _far(planned: RepackPlan) -> Iterator[tuple[int, int, int]]:
    """(first, last, blocks): a launch of row tiles first .. last, the last of which begins past 2^32 bytes in both
    storages, of planes in the widest: where the launch begins with it, and where it begins with the first of all."""
    each, whole = TILE_ROWS * max(plane.bytes for plane in planned.planes), planned.layout.row_blocks
    blocks = -(-3 // whole) * whole
    last = (1 << 32) // (blocks * each) + 1
    yield last, last, blocks
    yield 0, 65534, -(-((1 << 32) // (65534 * each) + 2) // whole) * whole


def _run_last(
    program: emulate.Program,
    entry: str,
    planned: RepackPlan,
    case: tuple[int, int, int],
    natives: list[U8],
    strides: list[int],
    tiled: U8,
) -> emulate.Report:
    """The launch's last row tile alone: that of the last row of the grid."""
    first, last, blocks = case
    sizes = (TILE_ROWS * last + THERE, blocks, first, last + 1 - first)
    launch, grid_y = plan.launch_repack(planned, blocks, last + 1 - first)
    assert grid_y == last + 1 - first, "a CTA for every row tile"
    to_tiled = entry == planned.to_tiled
    native: list[emulate.Buffer | int] = []
    for plane, memory, stride in zip(planned.planes, natives, strides, strict=True):
        native += [emulate.Buffer(plane.name, memory, writable=not to_tiled), stride]
    tiles = emulate.Buffer("tiled", tiled, writable=to_tiled)
    return program.launch(
        entry,
        grid=(launch.grid, grid_y, 1),
        block=launch.block,
        shared=launch.shared,
        args=[*native, *sizes, tiles] if to_tiled else [tiles, *sizes, *native],
        ctas=range((grid_y - 1) * launch.grid, grid_y * launch.grid),
    )


def _last_rows(native: U8, stride: int, row_bytes: int) -> U8:
    """The last rows of memory that ends with one, uint8[THERE, row_bytes]."""
    begin = native.size - (THERE - 1) * stride - row_bytes
    return np.lib.stride_tricks.as_strided(native[begin:], (THERE, row_bytes), (stride, 1))


def _far_rows(sources: list[U8], rows_before: int) -> tuple[list[U8], list[int]]:
    """Memory for `rows_before` rows and those of every plane, and its rows' distances."""
    strides = [source[0].size + 3 for source in sources]
    sizes = [(rows_before + THERE - 1) * s + source[0].size for s, source in zip(strides, sources, strict=True)]
    return [holes(size) for size in sizes], strides


def check_far_to_tiled(format: Format, planned: RepackPlan, program: emulate.Program) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel, which takes rows from the first of the launch on."""
    for first, last, blocks in _far(planned):
        sources = planes(format, THERE, blocks)
        wanted = tiles_of(format, *sources)
        natives, strides = _far_rows(sources, TILE_ROWS * (last - first))
        for native, stride, source in zip(natives, strides, sources, strict=True):
            _last_rows(native, stride, source[0].size)[:] = source.reshape(THERE, -1)
        tiled = holes((last + 1) * wanted.size)
        report = _run_last(program, planned.to_tiled, planned, (first, last, blocks), natives, strides, tiled)
        _equal("tiles", tiled[-wanted.size :], wanted)
        for plane, source in zip(planned.planes, sources, strict=True):
            _same("bytes read", report.bytes_touched[plane.name], source.size)
        _same("bytes written", report.written_bytes["tiled"], wanted.size)


def check_far_to_native(format: Format, planned: RepackPlan, program: emulate.Program) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel, which takes tiles from the first of the launch on."""
    for first, last, blocks in _far(planned):
        sources = planes(format, THERE, blocks)
        tiles = tiles_of(format, *sources)
        tiled = holes((last + 1 - first) * tiles.size)
        tiled[-tiles.size :] = tiles
        natives, strides = _far_rows(sources, TILE_ROWS * last)
        report = _run_last(program, planned.to_native, planned, (first, last, blocks), natives, strides, tiled)
        for native, stride, source in zip(natives, strides, sources, strict=True):
            _equal("rows", _last_rows(native, stride, source[0].size), source.reshape(THERE, -1))
        _same("bytes read", report.bytes_touched["tiled"], tiles.size)
        for plane, source in zip(planned.planes, sources, strict=True):
            _same("bytes written", report.written_bytes[plane.name], source.size)


# ---- what they share -------------------------------------------------------------------------------------------------


def _chunks(case: Case) -> Iterator[tuple[int, int]]:
    tiles = -(-case.rows // TILE_ROWS)
    for first in range(0, tiles, case.chunk):
        yield first, min(case.chunk, tiles - first)


def _same(check: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise Wrong(check, f"{found}, not {wanted}")


def _equal(check: str, found: U8, wanted: U8) -> None:
    wrong = np.flatnonzero(found != wanted)
    if wrong.size:
        raise Wrong(check, f"{wrong.size} of {wanted.size} bytes, the first at {wrong[0]}")
