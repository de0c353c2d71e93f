"""Tiled storage on the host: the record, and the repackers between native rows and tiles."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging import U8, lay_out
from numpy.typing import NDArray
from repack_checks import ROWS, packed, planes, weight_of

import qgen
from qgen import storage
from qgen.errors import QgenError
from qgen.plan import TILE_ROWS, plan_tile
from qgen.spec import Format, load_formats
from qgen.verify import bad_scales
from qgen.verify.verdict import row_bytes
from qgen.weights import Weight

FORMATS = load_formats()


def _tiled(format: Format) -> bool:
    try:
        plan_tile(format)
    except QgenError:
        return False
    return True


TILED = [name for name, format in FORMATS.items() if _tiled(format)]


PLANES = [name for name in TILED if FORMATS[name].split]


def native(name: str, rows: int, blocks: int, pad: int = 0) -> Weight:
    """Rows `pad` bytes apart; of planes, which lie back to back, with 0xA5 between and in what fills up a row."""
    format = FORMATS[name]
    if format.split:
        parts = planes(format, rows, blocks)
        for part in parts:
            part[:, blocks:] = 0xA5
        weight = weight_of(format, parts, blocks)
        weight.data[~inside(weight)] = 0xA5
        return weight
    source = packed(format, rows, blocks)
    return Weight.of(
        format, lay_out(source, pad), rows=rows, columns=blocks * format.block,
        row_stride_bytes=blocks * format.bytes + pad, name="w",
    )  # fmt: skip


def inside(weight: Weight) -> NDArray[np.bool_]:
    """Which bytes of a native weight are of a row."""
    mask = np.zeros(weight.data.size, dtype=np.bool_)
    for span in weight.planes:
        for row in range(weight.rows):
            begin = span.offset + row * span.row_stride
            mask[begin : begin + weight.row_blocks * span.block_bytes] = True
    return mask


def slowly(weight: Weight) -> U8:
    """The tiles of a native weight, byte by byte from the layout record."""
    layout = plan_tile(weight.format)
    blocks = weight.row_blocks
    tiles = np.zeros(layout.bytes(weight.rows, blocks), dtype=np.uint8)
    at = np.array([[layout.at(r, byte) for byte in range(layout.block_bytes)] for r in range(TILE_ROWS)])
    assert sorted(at.reshape(-1)) == list(range(layout.tile_bytes)), "the layout is no reordering"
    for row in range(weight.rows):
        for block in range(blocks):
            tile = (row // TILE_ROWS * blocks + block) * layout.tile_bytes
            parts = [(span.offset + row * span.row_stride + block * span.block_bytes, span) for span in weight.planes]
            whole = [weight.data[begin : begin + span.block_bytes] for begin, span in parts]
            tiles[tile + at[row % TILE_ROWS]] = np.concatenate(whole)
    return tiles


@pytest.mark.parametrize("name", TILED)
def test_there_and_back(name: str) -> None:
    """Row counts around whole tiles, one block and several, strides, chunks of one row tile and of all."""
    for number, rows in enumerate(ROWS):
        blocks = (1, 3)[number % 2]
        weight = native(name, rows, blocks, pad=(0, 16, 48)[number % 3])
        before, own = weight.data.copy(), inside(weight)
        tiled = qgen.repack(weight, chunk_bytes=(1, 1 << 20)[number % 2])
        assert (tiled.storage, tiled.rows, tiled.columns, tiled.name) == ("tiled", rows, weight.columns, weight.name)
        assert tiled.row_stride_bytes == tiled.row_bytes == weight.row_bytes
        assert tiled.nbytes == tiled.data.size == -(-rows // TILE_ROWS) * TILE_ROWS * weight.row_bytes
        assert np.array_equal(tiled.data, slowly(weight)) and np.array_equal(weight.data, before)
        back = qgen.repack(tiled, "native", chunk_bytes=(1 << 20, 1)[number % 2])
        apart = inside(back)
        assert np.array_equal(back.data[apart], before[own]) and not back.data[~apart].any()
        # Back into the very memory layout it came from: what lies between rows and planes is left alone.
        out = np.full(weight.data.size, 0xA5, dtype=np.uint8)
        back = qgen.repack(tiled, "native", out, row_stride_bytes=weight.row_stride_bytes)
        assert back.data is out and np.array_equal(out, before)


@pytest.mark.parametrize("name", [*PLANES, "MXFP4"])
def test_any_size_comes_back(name: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(25):
        rows, blocks, chunk = int(rng.integers(1, 70)), int(rng.integers(1, 10)), int(1 << rng.integers(0, 15))
        weight = native(name, rows, blocks)
        tiled = qgen.repack(weight, chunk_bytes=chunk)
        back = qgen.repack(tiled, "native", np.full(weight.nbytes, 0xA5, np.uint8), chunk_bytes=3 * chunk)
        assert np.array_equal(back.data, weight.data), (rows, blocks, chunk)
        zero = qgen.repack(tiled, "native").data[~inside(weight)]
        assert not zero.any(), "memory of no one is handed out as it was"


def test_no_rows_and_a_stride_of_its_own() -> None:
    empty = Weight.of("Q8_0", np.zeros(0, np.uint8), rows=0, columns=64)
    assert qgen.repack(empty).data.size == 0 and qgen.repack(qgen.repack(empty), "native").data.size == 0
    apart = qgen.repack(qgen.repack(native("Q8_0", 3, 2)), "native", row_stride_bytes=100).data
    assert apart.size == 2 * 100 + 68 and not apart.reshape(-1)[68:100].any()


@pytest.mark.parametrize("each", [1, 2, 3, 7])
def test_chunks_meet_at_row_tiles(each: int) -> None:
    weight = native("Q4_K", 70, 2, pad=16)
    chunk_bytes = each * TILE_ROWS * weight.row_stride_bytes
    parts = list(storage.chunks(weight, chunk_bytes))
    assert [first for first, _ in parts] == list(range(0, 5, each)) and sum(count for _, count in parts) == 5
    assert np.array_equal(qgen.repack(weight, chunk_bytes=chunk_bytes).data, slowly(weight))


@pytest.mark.parametrize("name", ["Q4_K", "Q5G64_F16S"])
def test_a_mapped_weight_is_repacked_with_little_memory(tmp_path: Path, name: str) -> None:
    """The result, and scratch for a chunk: never a second copy of the file's bytes."""
    rows, columns = 4096, 2048
    path = tmp_path / "w.bin"
    nbytes = rows * columns // FORMATS[name].block * FORMATS[name].bytes
    source = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    source.tofile(path)
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    weight = Weight.of(name, mapped, rows=rows, columns=columns)
    out = np.empty(weight.nbytes, dtype=np.uint8)
    tracemalloc.start()
    tiled = qgen.repack(weight, out=out, chunk_bytes=1 << 18)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 << 18 < weight.nbytes // 4
    assert np.array_equal(qgen.repack(tiled, "native").data, source)


# ---- what is refused ---------------------------------------------------------------------------------------------


def tiled_q8(**changes: Any) -> Weight:
    given: dict[str, Any] = {"data": np.zeros(32 * 68, np.uint8), "rows": 17, "columns": 64, "storage": "tiled"}
    given |= changes
    return Weight.of(given.pop("format", "Q8_0"), given.pop("data"), **given)


BAD_WEIGHTS: dict[str, tuple[dict[str, Any], str]] = {
    "no such storage": ({"storage": "tile"}, "storage 'tile'"),
    "bytes of the rows alone": ({"data": np.zeros(17 * 68, np.uint8)}, "at least 2176 = 2 row tiles x 16 rows x 68"),
    "a stride": ({"row_stride_bytes": 70}, "68: in tiles there is nothing between the rows"),
    "planes": ({"format": "Q4G64_F16S", "data": {"base": None, "scale": None}}, "one array of tiles"),
    "tiles of rows not filled up": ({"format": "Q4G64_F16S", "data": np.zeros(32 * 34, np.uint8)}, "at least 2176"),
    "codes in a grid": ({"format": "IQ2_XXS", "columns": 256, "data": np.zeros(9999, np.uint8)}, "grid"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_tiles_that_do_not_fit_are_refused(case: str) -> None:
    changes, text = BAD_WEIGHTS[case]
    with pytest.raises(QgenError) as caught:
        tiled_q8(**changes)
    assert caught.value.stage == "weight" and text in str(caught.value)


def test_tiles_are_not_read_as_rows() -> None:
    tiled = tiled_q8()
    calls: list[Callable[[], object]] = [
        lambda: tiled.planes,
        lambda: row_bytes(tiled, np.arange(3)),
        lambda: list(bad_scales(tiled)),
    ]
    for call in calls:
        with pytest.raises(QgenError, match="tiled storage") as caught:
            call()
        assert "qgen.repack" in caught.value.next


def _frozen(array: U8) -> U8:
    array.flags.writeable = False
    return array


BAD_CALLS: dict[str, tuple[Callable[[Weight, U8], object], str]] = {
    "out too small": (lambda w, out: qgen.repack(w, out=out[1:]), "at least 2176 bytes"),
    "out of signed bytes": (lambda w, out: qgen.repack(w, out=out.view(np.int8)), "dtype int8"),
    "out is a list": (lambda w, out: qgen.repack(w, out=[0] * 2176), "a list"),
    "out cannot be written": (lambda w, out: qgen.repack(w, out=_frozen(out)), "read-only"),
    "out is strided": (lambda w, out: qgen.repack(w, out=np.tile(out, 2)[::2]), "strides"),
    "out is the source": (lambda w, out: qgen.repack(w, out=out.base), "shares memory"),
    "out overlaps the source": (lambda w, out: qgen.repack(w, out=np.asarray(out.base)[1000:]), "shares memory"),
    "native already": (lambda w, out: qgen.repack(w, "native", out), "'native' asked for"),
    "no such storage": (lambda w, out: qgen.repack(w, "planes", out), "'planes' asked for"),
    "a stride for tiles": (lambda w, out: qgen.repack(w, out=out, row_stride_bytes=70), "none: tiles have"),
    "no chunk": (lambda w, out: qgen.repack(w, out=out, chunk_bytes=0), "1 or more"),
    "a stride below the row": (
        lambda w, out: qgen.repack(qgen.repack(w), "native", out, row_stride_bytes=66), "at least 68",
    ),
    "a misaligned stride": (
        lambda w, out: qgen.repack(qgen.repack(w), "native", out, row_stride_bytes=69), "a multiple of 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_before_anything_is_written(case: str) -> None:
    call, text = BAD_CALLS[case]
    source = native("Q8_0", 17, 2)
    memory = np.full(source.nbytes + 2176, 0xA5, dtype=np.uint8)
    memory[: source.nbytes] = source.data
    before = memory.copy()
    weight = Weight.of("Q8_0", memory[: source.nbytes], rows=17, columns=64)
    with pytest.raises(QgenError) as caught:
        call(weight, memory[source.nbytes :])
    assert text in str(caught.value) and caught.value.next
    assert np.array_equal(memory, before), "something was written"


def test_truncated_data_and_data_elsewhere_are_refused() -> None:
    weight = native("Q8_0", 17, 2)
    object.__setattr__(weight, "data", weight.data[:-1])
    with pytest.raises(QgenError, match="at least 1156"):
        qgen.repack(weight)
    elsewhere = Weight.of("Q8_0", object(), rows=17, columns=64)
    with pytest.raises(QgenError, match="qgen.run.repack"):
        qgen.repack(elsewhere)
    other = Weight.of("IQ2_XXS", np.zeros(1 << 14, np.uint8), rows=4, columns=256)
    with pytest.raises(QgenError, match="tiled storage of IQ2_XXS"):
        qgen.repack(other)
