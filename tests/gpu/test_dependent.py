"""Dependent launches: the same bits as ordinary ones, whatever runs just before on the stream, in graphs too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qgen
from qgen import codec, contract
from qgen.run import device, launching
from qgen.spec import load_formats
from qgen.weights import Weight

N, K = 8208, 1024  # enough rows for grids that fill more than half of a large device
CALLS = 24
FORMATS = load_formats()


def _weight(cupy: Any, name: str, seed: int) -> tuple[Weight, Any]:
    format = FORMATS[name]
    packed = codec.random_blocks(format, N * K // format.block, seed=seed)
    assert isinstance(packed, np.ndarray)
    packed = packed.reshape(N, K // format.block, format.bytes)
    return Weight.of(format, cupy.asarray(packed), rows=N, columns=K, name=f"w{seed}"), packed


@pytest.mark.parametrize("tokens", [1, 5, 16, 33])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q4_0", "MXFP4", "TQ1_0"])
def test_x_written_just_before(cupy: Any, monkeypatch: pytest.MonkeyPatch, name: str, tokens: int) -> None:
    """A chain in which every x is made of the result before it: a launch that does not wait takes the wrong one."""
    weight, packed = _weight(cupy, name, 1)
    seeds = cupy.asarray(np.random.default_rng(2).standard_normal((CALLS, tokens, K), dtype=np.float32))
    scratch = qgen.workspace(weight, tokens=tokens)
    x, y = cupy.empty((tokens, K), dtype=cupy.float32), cupy.empty((tokens, N), dtype=cupy.float32)
    kept = cupy.empty((CALLS, tokens, N), dtype=cupy.float32)
    given = cupy.empty((CALLS, tokens, K), dtype=cupy.float32)

    def chain() -> None:
        x[...] = seeds[0]
        for i in range(CALLS):
            given[i] = x
            qgen.mul_mat(weight, x, y, workspace=scratch)
            kept[i] = y
            cupy.multiply(y[:, :K], 1e-3, out=x)
            x[...] += seeds[(i + 1) % CALLS]

    def check(results: Any, operands: Any) -> None:
        for i in (0, 1, CALLS - 1):
            wanted = contract.mul_mat(FORMATS[name], packed, operands[i, tokens - 1])
            assert np.array_equal(results[i, tokens - 1].view(np.uint32), wanted.view(np.uint32))

    chain()
    check(first := cupy.asnumpy(kept), cupy.asnumpy(given))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kept.fill(cupy.nan)
        stream.begin_capture()
        chain()
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert np.array_equal(cupy.asnumpy(kept).view(np.uint32), first.view(np.uint32)), "a graph of dependent launches"
    monkeypatch.setattr(launching, "why_not_dependent", lambda arch: "a test")
    kept.fill(cupy.nan)
    chain()
    assert np.array_equal(cupy.asnumpy(kept).view(np.uint32), first.view(np.uint32)), "ordinary launches"


def test_weights_written_just_before(cupy: Any) -> None:
    """A matmul asks for weights before it waits: they must be there all the same when a kernel in front writes them."""
    if launching.why_not_dependent(device.arch_of_device(device.current_device())):
        pytest.skip("no dependent launches on this device")
    weight, first = _weight(cupy, "Q4_K", 3)
    _, second = _weight(cupy, "Q4_K", 4)
    x = np.random.default_rng(5).standard_normal((8, K), dtype=np.float32)
    on_device = cupy.asarray(x)
    filler = cupy.empty(64 << 20, dtype=cupy.float32)
    for turn in range(6):
        filler.fill(turn)  # keeps the device busy while what follows is queued
        weight.data[...] = cupy.asarray(second if turn % 2 else first).reshape(weight.data.shape)
        y = cupy.asnumpy(qgen.mul_mat(weight, on_device))
        wanted = contract.mul_mat(FORMATS["Q4_K"], second if turn % 2 else first, x[7])
        assert np.array_equal(y[7].view(np.uint32), wanted.view(np.uint32))
