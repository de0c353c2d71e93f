"""qgen.mul_mat as a user calls it: files, streams, CUDA graphs, PyTorch and other exporters, bad operands."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import FileSpec, TensorSpec, write

import qgen
from qgen import codec, contract, run
from qgen.errors import QgenError
from qgen.spec import load_formats
from qgen.verify import verify
from qgen.weights import Weight

N, K = 300, 1024
FORMAT = load_formats()["Q4_K"]


@pytest.fixture
def packed() -> np.ndarray[Any, np.dtype[np.uint8]]:
    blocks = codec.random_blocks(FORMAT, N * K // FORMAT.block, seed=11)
    assert isinstance(blocks, np.ndarray)
    return blocks.reshape(N, K // FORMAT.block, FORMAT.bytes)


@pytest.fixture
def weight(cupy: Any, packed: Any) -> Weight:
    return Weight.of(FORMAT, cupy.asarray(packed), rows=N, columns=K, name="w")


def vector(seed: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(K, dtype=np.float32)


def right(y: Any, packed: Any, x: Any) -> bool:
    return bool(np.array_equal(np.asarray(y).reshape(-1), contract.mul_mat(FORMAT, packed, x)))


def test_a_file_on_disk_to_a_product(cupy: Any, tmp_path: Path, packed: Any) -> None:
    spec = FileSpec(tensors=[TensorSpec("blk.0.ffn_up.weight", [K, N], 12, packed.tobytes())])
    weight = qgen.load(write(tmp_path / "m.gguf", spec))["blk.0.ffn_up.weight"]
    x = vector()
    for shape in ((K,), (1, K)):
        y = qgen.mul_mat(weight, cupy.asarray(x).reshape(shape))
        assert y.shape == (*shape[:-1], N) and right(cupy.asnumpy(y), packed, x)
    moved = qgen.to_device(weight)
    assert right(cupy.asnumpy(qgen.mul_mat(moved, cupy.asarray(x))), packed, x)


def test_nothing_is_left_on_the_device_when_a_weight_goes(cupy: Any, packed: Any) -> None:
    host = Weight.of(FORMAT, packed, rows=N, columns=K)
    x = cupy.asarray(vector())
    pool = cupy.get_default_memory_pool()
    gc.collect()
    before = pool.used_bytes()
    qgen.mul_mat(host, x)
    assert pool.used_bytes() >= before + packed.nbytes
    del host
    gc.collect()
    assert pool.used_bytes() == before


@pytest.mark.parametrize("tokens", [0, 2, 8, 9, 17, 33])
def test_many_tokens(cupy: Any, weight: Weight, packed: Any, tokens: int) -> None:
    x = np.stack([vector(seed) for seed in range(tokens)]) if tokens else np.zeros((0, K), dtype=np.float32)
    wanted = np.array([contract.mul_mat(FORMAT, packed, row) for row in x], dtype=np.float32).reshape(tokens, N)
    wide = cupy.full((tokens, K + 5), cupy.nan, dtype=cupy.float32)
    wide[:, :K] = cupy.asarray(x)
    for policy in ("fastest", "invariant"):
        y = qgen.mul_mat(weight, wide[:, :K], policy=policy)
        assert y.shape == (tokens, N) and np.array_equal(cupy.asnumpy(y), wanted)
    if tokens:
        scratch, out = qgen.workspace(weight, tokens=tokens), cupy.zeros((tokens, N + 3), dtype=cupy.float32)
        qgen.mul_mat(weight, wide[:, :K], out[:, :N], workspace=scratch)
        assert np.array_equal(cupy.asnumpy(out[:, :N]), wanted) and not cupy.asnumpy(out[:, N:]).any()
        with pytest.raises(QgenError, match="at least"):
            qgen.mul_mat(weight, wide[:, :K], workspace=scratch[:-1])


def test_a_graph_of_many_tokens_replays(cupy: Any, weight: Weight, packed: Any) -> None:
    x = cupy.zeros((9, K), dtype=cupy.float32)
    qgen.mul_mat(weight, x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        y = qgen.mul_mat(weight, x)
        graph = stream.end_capture()
    for first in (1, 20):
        rows = np.stack([vector(first + i) for i in range(9)])
        x.set(rows)
        fillers = [cupy.full(size, 0xFF, dtype=cupy.uint8) for size in (512, 4 * 9 * N, 1 << 15, 1 << 16)]
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(cupy.asnumpy(y), np.stack([contract.mul_mat(FORMAT, packed, row) for row in rows]))
        assert all((cupy.asnumpy(filler) == 0xFF).all() for filler in fillers)


def test_the_current_stream_is_used(cupy: Any, weight: Weight, packed: Any) -> None:
    """On a stream that waits for no other, x is late: only a launch in the same stream sees it."""
    x = vector()
    late = cupy.zeros(K, dtype=cupy.float32)
    ready = cupy.asarray(x)
    y, scratch = cupy.empty(N, dtype=cupy.float32), qgen.workspace(weight)
    cupy.cuda.Device().synchronize()
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin() { long long t = clock64(); while (clock64() - t < 200000000) ; }', "spin"
    )
    with cupy.cuda.Stream(non_blocking=True) as stream:
        spin((1,), (1,), ())
        late[:] = ready
        qgen.mul_mat(weight, late, y, workspace=scratch)
        assert not stream.done, "the call waited for the device"
        stream.synchronize()
    assert right(cupy.asnumpy(y), packed, x)


def test_a_graph_replays_with_new_activations(cupy: Any, weight: Weight, packed: Any) -> None:
    x = cupy.asarray(vector())
    scratch = qgen.workspace(weight)
    given = cupy.full(N, cupy.nan, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        made = qgen.mul_mat(weight, x)
        qgen.mul_mat(weight, x, given, workspace=scratch)
        graph = stream.end_capture()
    for seed in (2, 3, 4):
        values = vector(seed)
        x.set(values)
        # Memory that the capture did not keep would be handed out here and overwritten.
        fillers = [cupy.full(size, 0xFF, dtype=cupy.uint8) for size in (scratch.size, 4 * N, 512, 4096)]
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert right(cupy.asnumpy(made), packed, values) and right(cupy.asnumpy(given), packed, values)
        assert all((cupy.asnumpy(filler) == 0xFF).all() for filler in fillers)


def test_a_first_use_under_capture_is_refused(cupy: Any, packed: Any) -> None:
    host = Weight.of(FORMAT, packed, rows=N, columns=K)
    x = cupy.asarray(vector())
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(QgenError, match="once before the capture"):
            qgen.mul_mat(host, x)
        stream.end_capture()


class DlpackOnly:
    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class InterfaceOnly:
    def __init__(self, array: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("wrap", [DlpackOnly, InterfaceOnly])
def test_other_exporters_are_used_in_place(cupy: Any, packed: Any, wrap: Callable[[Any], Any]) -> None:
    weight = Weight.of(FORMAT, wrap(cupy.asarray(packed)), rows=N, columns=K)
    x, out = vector(), cupy.zeros(N, dtype=cupy.float32)
    y = qgen.mul_mat(weight, wrap(cupy.asarray(x)), wrap(out))
    assert y.data.ptr == out.data.ptr and right(cupy.asnumpy(out), packed, x)


def test_torch_tensors_are_used_in_place(cupy: Any, packed: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    data = torch.from_numpy(packed.copy()).cuda()
    weight = Weight.of(FORMAT, data, rows=N, columns=K)
    x = vector()
    out = torch.full((1, N), float("nan"), device="cuda")
    y = qgen.mul_mat(weight, torch.from_numpy(x).cuda().reshape(1, K), out)
    assert y.data.ptr == out.data_ptr() and right(out.cpu().numpy(), packed, x)
    assert run.bind(weight).weight.data.data.ptr == data.data_ptr()
    # PyTorch's own stream is late; DLPack makes ours wait for it.
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        late = torch.from_numpy(x).cuda().mul_(2.0).mul_(0.5)
        assert right(cupy.asnumpy(qgen.mul_mat(weight, late)), packed, x)
    for tensor, text in (
        (torch.from_numpy(x), "on the host"),
        (torch.from_numpy(x).cuda().requires_grad_(), "detach"),
        (torch.from_numpy(x).cuda().half(), "float16"),
        (torch.from_numpy(x).cuda().bfloat16(), "bfloat16"),
    ):
        with pytest.raises(QgenError, match=text):
            qgen.mul_mat(weight, tensor)


def test_bad_operands_are_refused(cupy: Any, weight: Weight, packed: Any) -> None:
    x = cupy.asarray(vector())
    wide = cupy.zeros((K, 2), dtype=cupy.float32)
    bytes_ = cupy.zeros(4 * K + 8, dtype=cupy.uint8)
    shifted = cupy.zeros(packed.nbytes + 16, dtype=cupy.uint8)[8:-8]
    cases: dict[str, Callable[[], Any]] = {
        "on the host": lambda: qgen.mul_mat(weight, vector()),
        "float64": lambda: qgen.mul_mat(weight, x.astype(cupy.float64)),
        r"shape \[1023\]": lambda: qgen.mul_mat(weight, x[1:]),
        "rows that do not overlap": lambda: qgen.mul_mat(weight, cupy.broadcast_to(x, (3, K))),
        "as many tokens as x has": lambda: qgen.mul_mat(weight, x, cupy.zeros((2, N), dtype=cupy.float32)),
        "'quickest'": lambda: qgen.mul_mat(weight, x, policy="quickest"),
        "stride of 8": lambda: qgen.mul_mat(weight, wide[:, 0]),
        "multiple of 4": lambda: qgen.mul_mat(weight, bytes_[2 : 2 + 4 * K].view(cupy.float32)),
        "multiple of 16": lambda: qgen.mul_mat(Weight.of(FORMAT, shifted, rows=N, columns=K), x),
        "at least": lambda: qgen.mul_mat(Weight.of(FORMAT, cupy.asarray(packed)[:-1], rows=N, columns=K), x),
        "shares memory": lambda: qgen.mul_mat(weight, x, x[:N]),
        "on CUDA device 99": lambda: qgen.to_device(weight, 99),
    }
    for text, call in cases.items():
        with pytest.raises(QgenError, match=text):
            call()
    cupy.cuda.Device().synchronize()
    assert right(cupy.asnumpy(qgen.mul_mat(weight, x)), packed, vector())


def test_operands_on_two_devices_are_refused(cupy: Any, weight: Weight, packed: Any) -> None:
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one CUDA device only")
    with cupy.cuda.Device(1):
        x = cupy.asarray(vector())
    with pytest.raises(QgenError, match="device 1"):
        qgen.mul_mat(weight, x)
    host = Weight.of(FORMAT, packed, rows=N, columns=K)
    y = qgen.mul_mat(host, x)
    assert y.device.id == 1 and right(cupy.asnumpy(y), packed, vector())


def test_verify_runs_on_the_device(tmp_path: Path, packed: Any) -> None:
    bad = packed.copy()
    bad[7, 2, 0:2] = (0x00, 0x7E)  # a NaN
    tensors = [TensorSpec("good", [K, N], 12, packed.tobytes()), TensorSpec("bad", [K, N], 12, bad.tobytes())]
    report = verify(write(tmp_path / "m.gguf", FileSpec(tensors=tensors)), show_progress=False)
    assert report.device.startswith("cuda:") and report.sample == "all"
    good, broken = report.matrices
    assert good.ok and good.rows_compared == N
    assert len(broken.findings) == 1 and "block 2 of row 7: d = nan" in broken.findings[0]
