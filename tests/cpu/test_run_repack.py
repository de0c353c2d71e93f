"""Repacking on a device, without one: a stand-in CuPy runs the launches in the emulator (the real one: tests/gpu)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import repack_checks
from fake_cupy import Array, FakeCupy, InterfaceOnly, Tensor, install
from judging import U8, lay_out
from repack_checks import packed, tiles_of

import qgen
from qgen import run
from qgen.errors import QgenError
from qgen.plan import TILE_ROWS, plan_repack
from qgen.spec import load_formats
from qgen.weights import Weight

FORMAT = load_formats()["MXFP4"]
ROWS, BLOCKS, PAD = 37, 3, 5
SOURCE = packed(FORMAT, ROWS, BLOCKS)
STRIDE = BLOCKS * FORMAT.bytes + PAD
TILES = tiles_of(FORMAT, SOURCE)
TO_TILED, TO_NATIVE = plan_repack(FORMAT).to_tiled, plan_repack(FORMAT).to_native


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy(devices=2))


def weight_of(data: Any, **more: Any) -> Weight:
    return Weight.of(FORMAT, data, rows=ROWS, columns=BLOCKS * FORMAT.block, name="w", **more)


def native(make: Callable[[U8], Any] = lambda data: data) -> Weight:
    return weight_of(make(lay_out(SOURCE, PAD)), row_stride_bytes=STRIDE)


def on_device(weight: Weight) -> Array:
    assert isinstance(weight.data, Array)
    return weight.data


@pytest.mark.parametrize("each", [1, 2, 100])
def test_a_host_weight_is_uploaded_in_chunks(cupy: FakeCupy, tmp_path: Path, each: int) -> None:
    path = tmp_path / "w.bin"
    lay_out(SOURCE, PAD).tofile(path)
    weight = native(lambda _: np.memmap(path, dtype=np.uint8, mode="r"))
    chunk = each * TILE_ROWS * STRIDE
    tiled = run.repack(weight, chunk_bytes=chunk)
    assert (tiled.storage, tiled.row_stride_bytes, tiled.rows) == ("tiled", BLOCKS * FORMAT.bytes, ROWS)
    assert np.array_equal(on_device(tiled).host, TILES) and cupy.synchronised
    launches = -(-3 // each)
    assert cupy.launches == [(TO_TILED, 0)] * launches
    assert len(cupy.allocations) == 2, "more than the result and one staging buffer"
    assert TILES.size in cupy.allocations and min(cupy.allocations) <= chunk


def test_data_on_the_device_is_repacked_in_place_of_a_copy_and_back(cupy: FakeCupy) -> None:
    for make in (lambda data: Array(data, 1), Tensor, InterfaceOnly):
        weight = native(make)
        cupy.current = 1 if make is not Tensor else 0
        tiled = run.repack(weight)
        back = run.repack(tiled, "native", row_stride_bytes=STRIDE)
        assert cupy.allocations[-2:] == [TILES.size, weight.nbytes]
        assert np.array_equal(on_device(tiled).host, TILES) and back.row_stride_bytes == STRIDE
        for row in range(ROWS):
            begin = row * STRIDE
            assert np.array_equal(on_device(back).host[begin : begin + SOURCE[0].size], SOURCE[row].reshape(-1))
    assert [name for name, _ in cupy.launches] == [TO_TILED, TO_NATIVE] * 3
    assert [device for _, device in cupy.launches] == [1, 1, 0, 0, 1, 1]


def test_tiles_on_the_host_come_back_in_chunks(cupy: FakeCupy) -> None:
    tiled = qgen.repack(native())
    back = run.repack(tiled, "native", chunk_bytes=1)
    assert on_device(back).host.tobytes() == SOURCE.tobytes() and cupy.launches == [(TO_NATIVE, 0)] * 3


def test_to_device_takes_the_storage_it_is_to_have(cupy: FakeCupy) -> None:
    tiled = run.to_device(native(), 1, storage="tiled")
    assert np.array_equal(on_device(tiled).host, TILES) and on_device(tiled).device.id == 1
    assert run.to_device(tiled, 1, storage="tiled").data.host is not None and len(cupy.launches) == 1
    moved = run.to_device(qgen.repack(native()), 0)
    assert moved.storage == "tiled" and np.array_equal(on_device(moved).host, TILES)
    assert run.to_device(native(), 0, storage="native").row_stride_bytes == STRIDE


def test_no_rows(cupy: FakeCupy) -> None:
    empty = Weight.of(FORMAT, np.zeros(0, np.uint8), rows=0, columns=FORMAT.block)
    assert run.repack(empty).data.size == 0 and not cupy.launches


def test_tiles_are_never_read_as_rows(cupy: FakeCupy) -> None:
    """For a variant of one's choice by the storage itself."""
    weight, tiled = native(), run.to_device(native(), 0, storage="tiled")
    before = len(cupy.launches)
    rows = Weight.of(FORMAT, SOURCE, rows=ROWS, columns=weight.columns)
    for tokens, activation in ((1, None), (2, None), (9, None), (1, "bf16"), (9, "bf16"), (2, "f16")):
        with pytest.raises(QgenError, match="tiled storage"):
            run.bind(tiled, instance=run.bind(rows, tokens=tokens, activation=activation).instance)
        with pytest.raises(QgenError, match="for native storage"):
            run.bind(rows, instance=run.bind(tiled, tokens=tokens, activation=activation).instance)
    assert len(cupy.launches) == before


@pytest.mark.parametrize("name", [name for name, format in load_formats().items() if format.split])
def test_planes_there_and_back(cupy: FakeCupy, name: str) -> None:
    """Chunk by chunk from the host, and on the device; with what fills up their rows."""
    format = load_formats()[name]
    weight = repack_checks.weight_of(format, repack_checks.planes(format, ROWS, BLOCKS), BLOCKS)
    wanted, planned = qgen.repack(weight).data, plan_repack(format)
    for chunk in (1, 1 << 20):
        before = len(cupy.launches)
        tiled = run.repack(weight, chunk_bytes=chunk)
        assert np.array_equal(on_device(tiled).host, wanted) and wanted.size in cupy.allocations
        assert cupy.launches[before:] == [(planned.to_tiled, 0)] * (3 if chunk == 1 else 1)
        again = run.repack(run.to_device(weight, 0))
        assert np.array_equal(on_device(again).host, wanted)
        for source in (tiled, qgen.repack(weight)):
            back = run.repack(source, "native", chunk_bytes=chunk)
            assert on_device(back).host.size == weight.nbytes
            for span in weight.planes:
                part = slice(span.offset, span.offset + ROWS * span.row_stride)
                assert np.array_equal(on_device(back).host[part], weight.data[part])


def test_what_does_not_fit_is_refused_before_anything_is_allocated(cupy: FakeCupy) -> None:
    tiled = np.zeros(TILES.size + 32, dtype=np.uint8)
    shifted = tiled[(8 - tiled.ctypes.data) % 16 :][: TILES.size]
    short = lay_out(SOURCE, PAD)[:-1]
    big = Weight.of(FORMAT, Array(np.zeros(17, np.uint8), 0), rows=1, columns=1 << 40)
    cases: dict[str, Callable[[], object]] = {
        "multiple of 16": lambda: run.repack(weight_of(Array(shifted, 0), storage="tiled"), "native"),
        "at least": lambda: run.repack(weight_of(Array(short, 0), row_stride_bytes=STRIDE)),
        "on CUDA device 0": lambda: run.repack(native(lambda data: Array(data, 0)), device=1),
        "0 to 1": lambda: run.repack(native(), device=7),
        "'native' asked for": lambda: run.repack(native(), "native"),
        "1 or more": lambda: run.repack(native(), chunk_bytes=0),
        "no tiles have|tiles have no rows": lambda: run.repack(native(), row_stride_bytes=STRIDE),
        "coded by grid": lambda: run.repack(Weight.of("IQ1_S", np.zeros(4096, np.uint8), rows=4, columns=256)),
        "at least 584": lambda: run.repack(big),
    }
    for text, call in cases.items():
        with pytest.raises(QgenError, match=text) as caught:
            call()
        assert caught.value.next
    with cupy.capture(), pytest.raises(QgenError, match="capture"):
        run.repack(native())
    assert not cupy.allocations and not cupy.launches


def test_a_size_without_a_kernel_is_refused_with_the_gates_reason(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qgen.run.repacking.check_bytes", lambda *_: None)
    big = Weight.of(FORMAT, Array(np.zeros(17, np.uint8), 0), rows=1 << 31, columns=FORMAT.block)
    with pytest.raises(QgenError, match="count rows") as caught:
        run.repack(big)
    assert "--op repack" in caught.value.next and not cupy.allocations
