"""Repackers on a device: byte for byte what the host's make, there and back; bounded memory; streams."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from judging import lay_out
from repack_checks import ROWS, packed, planes, tiles_of, weight_of

import qgen
from qgen import run
from qgen.errors import QgenError
from qgen.plan import TILE_ROWS, plan_tile
from qgen.spec import load_formats
from qgen.weights import Weight

FORMATS = load_formats()


def _tiled(name: str) -> bool:
    try:
        plan_tile(FORMATS[name])
    except QgenError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in FORMATS if _tiled(name)])
def test_there_and_back(cupy: Any, name: str) -> None:
    """Row counts around whole tiles, odd strides, the host in chunks, a device source at an odd address."""
    format = FORMATS[name]
    for number, rows in enumerate((*ROWS, 500)):
        blocks, pad = (1, 7, 67)[number % 3], 0 if format.split else (0, 16, 48)[number % 3]
        parts = planes(format, rows, blocks)
        host, wanted = weight_of(format, parts, blocks), tiles_of(format, *parts)
        memory = host.data if format.split else lay_out(parts[0], pad)
        stride = host.row_bytes + pad
        sizes: dict[str, Any] = {"rows": rows, "columns": blocks * format.block, "row_stride_bytes": stride}
        # Fresh memory that holds what the kernel must write over.
        filler = cupy.full(wanted.size, 0xA5, dtype=cupy.uint8)
        del filler
        tiled = run.repack(Weight.of(format, memory, **sizes), chunk_bytes=2 * TILE_ROWS * stride)
        assert np.array_equal(cupy.asnumpy(tiled.data), wanted)
        shifted = cupy.zeros(memory.size + 1, dtype=cupy.uint8)[1:]
        shifted.set(memory.reshape(-1))
        assert np.array_equal(cupy.asnumpy(run.repack(Weight.of(format, shifted, **sizes)).data), wanted)
        back = cupy.asnumpy(run.repack(tiled, "native").data)
        for span, part in zip(host.planes, parts, strict=True):
            assert back[span.offset : span.offset + part.size].tobytes() == part.tobytes()
        if pad:
            apart = run.repack(tiled, "native", row_stride_bytes=stride)
            rows_apart = np.lib.stride_tricks.as_strided(cupy.asnumpy(apart.data), (rows, host.row_bytes), (stride, 1))
            assert rows_apart.tobytes() == parts[0].tobytes()


def test_a_large_weight_takes_little_more_than_itself(cupy: Any) -> None:
    """Uploaded chunk by chunk: at no time are native bytes and tiles on the device as wholes."""
    rows, columns, chunk = 16384, 8192, 1 << 22
    format = FORMATS["Q6_K"]
    data = np.random.default_rng(1).integers(0, 256, rows * columns // format.block * format.bytes, dtype=np.uint8)
    weight = Weight.of(format, data, rows=rows, columns=columns)
    run.repack(Weight.of(format, data[: format.bytes], rows=1, columns=format.block))  # compiled and loaded
    pool = cupy.get_default_memory_pool()
    gc.collect()
    pool.free_all_blocks()
    tiled = run.to_device(weight, storage="tiled")
    assert np.array_equal(cupy.asnumpy(tiled.data), qgen.repack(weight).data)
    del tiled
    gc.collect()
    pool.free_all_blocks()
    before = pool.total_bytes()
    tiled = run.repack(weight, chunk_bytes=chunk)
    assert pool.total_bytes() - before <= weight.nbytes + chunk + (1 << 21)
    assert np.array_equal(cupy.asnumpy(run.repack(tiled, "native").data), data)


def test_on_a_stream_of_its_own(cupy: Any) -> None:
    source = packed(FORMATS["Q4_K"], 100, 8)
    weight = Weight.of("Q4_K", source, rows=100, columns=8 * 256)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        tiled = run.repack(weight, chunk_bytes=1)
        assert stream.done
    assert np.array_equal(cupy.asnumpy(tiled.data), tiles_of(FORMATS["Q4_K"], source))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(QgenError, match="before the capture"):
            run.repack(weight)
        stream.end_capture()


def test_tiles_are_multiplied_by_no_kernel_for_rows(cupy: Any) -> None:
    weight = Weight.of("Q4_K", packed(FORMATS["Q4_K"], 32, 2), rows=32, columns=512)
    tiled = run.to_device(weight, storage="tiled")
    for tokens in (1, 8):
        with pytest.raises(QgenError, match="tiled storage"):
            run.bind(tiled, instance=run.bind(weight, tokens=tokens).instance)
        with pytest.raises(QgenError, match="native storage"):
            run.bind(weight, instance=run.bind(tiled, tokens=tokens).instance)


@pytest.mark.parametrize("rows", [33, 4100])
@pytest.mark.parametrize("name", [name for name in FORMATS if _tiled(name)])
def test_both_storages_give_the_same_bits(cupy: Any, name: str, rows: int) -> None:
    """On the same x, for every rung of the tiles' ladders and more tokens than the last holds; a graph as well."""
    format = FORMATS[name]
    weight = weight_of(format, planes(format, rows, 3 * 1024 // format.block))
    native, tiled = run.to_device(weight), run.to_device(weight, storage="tiled")
    x = cupy.random.default_rng(1).standard_normal((33, weight.columns), dtype=cupy.float32)
    for tokens, activation in itertools.product((1, 2, 8, 11, 33), (None, "bf16", "f16")):
        wanted = run.mul_mat(native, x[:tokens], activation=activation)
        for _ in range(3):
            y = cupy.full((tokens, rows), cupy.nan, dtype=cupy.float32)
            found = run.mul_mat(tiled, x[:tokens], y, activation=activation)
            assert (found.view(cupy.uint32) == wanted.view(cupy.uint32)).all()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        scratch = run.workspace(tiled, tokens=8)
        y = cupy.full((20, 8, rows), cupy.nan, dtype=cupy.float32)
        stream.begin_capture()
        for i in range(20):
            run.mul_mat(tiled, x[i : i + 8], y[i], workspace=scratch)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    for i in (0, 7, 19):
        assert (y[i].view(cupy.uint32) == run.mul_mat(native, x[i : i + 8]).view(cupy.uint32)).all()
