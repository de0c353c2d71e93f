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
    """uint8[rows, blocks, block bytes] in which no byte is like its neighbours' by chance alone."""
    made = codec.random_blocks(format, rows * blocks, seed=rows + blocks)
    assert isinstance(made, np.ndarray)
    return made.reshape(rows, blocks, -1)


def tiles_of(format: Format, rows: U8) -> U8:
    """The tiles of packed rows, by the host."""
    weight = Weight.of(format, rows, rows=len(rows), columns=rows.shape[1] * format.block)
    tiled: U8 = storage.repack(weight).data
    return tiled


def check_to_tiled(format: Format, planned: RepackPlan, program: emulate.Program, case: Case, stride: int = 0) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel. stride: rows as far apart, in memory made of holes."""
    source = packed(format, case.rows, case.blocks)
    memory = far_apart(source, stride) if stride else lay_out(source, case.pad)
    stride = stride or source[0].size + case.pad
    wanted = tiles_of(format, source)
    tiled = np.full(wanted.size, POISON, dtype=np.uint8)
    read = written = 0
    for first, count in _chunks(case):
        begin, end = TILE_ROWS * first * stride, (min(TILE_ROWS * (first + count), case.rows) - 1) * stride
        native = memory[begin : end + source[0].size]
        launch, grid_y = plan.launch_repack(planned, case.blocks, count)
        report = program.launch(
            planned.to_tiled,
            grid=(launch.grid, case.grid_y or grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("native", native, offset_bytes=case.offset),
                stride,
                case.rows,
                case.blocks,
                first,
                count,
                emulate.Buffer("tiled", tiled, writable=True),
            ],
            order=case.order,
            seed=case.seed,
        )
        read += report.read_bytes["native"]
        written += report.written_bytes["tiled"]
        _same("bytes read", report.bytes_touched["native"], report.read_bytes["native"])
        _same("bytes written", report.bytes_written["tiled"], report.written_bytes["tiled"])
    _equal("tiles", tiled, wanted)
    _same("bytes read", read, source.size)
    _same("bytes written", written, tiled.size)


def check_to_native(format: Format, planned: RepackPlan, program: emulate.Program, case: Case) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel."""
    source = packed(format, case.rows, case.blocks)
    tiled = tiles_of(format, source)
    wanted = lay_out(source, case.pad)
    native = np.full(wanted.size, POISON, dtype=np.uint8)
    stride = source[0].size + case.pad
    each = TILE_ROWS * source[0].size
    read = written = 0
    for first, count in _chunks(case):
        launch, grid_y = plan.launch_repack(planned, case.blocks, count)
        report = program.launch(
            planned.to_native,
            grid=(launch.grid, case.grid_y or grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("tiled", tiled[each * first : each * (first + count)]),
                case.rows,
                case.blocks,
                first,
                count,
                emulate.Buffer("native", native, offset_bytes=case.offset, writable=True),
                stride,
            ],
            order=case.order,
            seed=case.seed,
        )
        read += report.read_bytes["tiled"]
        written += report.written_bytes["native"]
        _same("bytes written", report.bytes_written["native"], report.written_bytes["native"])
    _equal("rows", native, wanted)  # POISON between them, too
    _same("bytes read", read, tiled.size)
    _same("bytes written", written, source.size)


# ---- far tiles -------------------------------------------------------------------------------------------------------

THERE = 13  # rows of the last row tile


def _far(planned: RepackPlan) -> Iterator[tuple[int, int, int]]:
    """(first, last, blocks): a launch of row tiles first .. last, the last of which begins past 2^32 bytes in both
    storages: where the launch begins with it, and where it begins with the first of all."""
    tile_bytes = planned.layout.tile_bytes
    last = (1 << 32) // (3 * tile_bytes) + 1
    yield last, last, 3
    yield 0, 65534, (1 << 32) // (65534 * tile_bytes) + 2


def _run_last(
    program: emulate.Program,
    entry: str,
    planned: RepackPlan,
    case: tuple[int, int, int],
    native: emulate.Buffer,
    stride: int,
    tiled: emulate.Buffer,
) -> emulate.Report:
    """The launch's last row tile alone: that of the last row of the grid."""
    first, last, blocks = case
    sizes = (TILE_ROWS * last + THERE, blocks, first, last + 1 - first)
    launch, grid_y = plan.launch_repack(planned, blocks, last + 1 - first)
    assert grid_y == last + 1 - first, "a CTA for every row tile"
    return program.launch(
        entry,
        grid=(launch.grid, grid_y, 1),
        block=launch.block,
        shared=launch.shared,
        args=[native, stride, *sizes, tiled] if entry == planned.to_tiled else [tiled, *sizes, native, stride],
        ctas=range((grid_y - 1) * launch.grid, grid_y * launch.grid),
    )


def _last_rows(native: U8, stride: int, row_bytes: int) -> U8:
    """The last rows of memory that ends with one, uint8[THERE, row_bytes]."""
    begin = native.size - (THERE - 1) * stride - row_bytes
    return np.lib.stride_tricks.as_strided(native[begin:], (THERE, row_bytes), (stride, 1))


def check_far_to_tiled(format: Format, planned: RepackPlan, program: emulate.Program) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel, which takes rows from the first of the launch on."""
    for first, last, blocks in _far(planned):
        source = packed(format, THERE, blocks)
        wanted, row_bytes, stride = tiles_of(format, source), source[0].size, source[0].size + 3
        native = holes((TILE_ROWS * (last - first) + THERE - 1) * stride + row_bytes)
        _last_rows(native, stride, row_bytes)[:] = source.reshape(THERE, -1)
        tiled = holes((last + 1) * wanted.size)
        buffers = emulate.Buffer("native", native), stride, emulate.Buffer("tiled", tiled, writable=True)
        report = _run_last(program, planned.to_tiled, planned, (first, last, blocks), *buffers)
        _equal("tiles", tiled[-wanted.size :], wanted)
        _same("bytes read", report.bytes_touched["native"], source.size)
        _same("bytes written", report.written_bytes["tiled"], wanted.size)


def check_far_to_native(format: Format, planned: RepackPlan, program: emulate.Program) -> None:
    """Raises Wrong, or QgenError for a fault of the kernel, which takes tiles from the first of the launch on."""
    for first, last, blocks in _far(planned):
        source = packed(format, THERE, blocks)
        tiles, row_bytes, stride = tiles_of(format, source), source[0].size, source[0].size + 3
        tiled = holes((last + 1 - first) * tiles.size)
        tiled[-tiles.size :] = tiles
        native = holes((TILE_ROWS * last + THERE - 1) * stride + row_bytes)
        buffers = emulate.Buffer("native", native, writable=True), stride, emulate.Buffer("tiled", tiled)
        report = _run_last(program, planned.to_native, planned, (first, last, blocks), *buffers)
        _equal("rows", _last_rows(native, stride, row_bytes), source.reshape(THERE, -1))
        _same("bytes read", report.bytes_touched["tiled"], tiles.size)
        _same("bytes written", report.written_bytes["native"], source.size)


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
