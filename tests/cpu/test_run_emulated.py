"""The device room without a device: a stand-in CuPy runs its launches in the emulator (the real one: tests/gpu)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, FakeCupy, InterfaceOnly, Tensor, install

import qgen
from qgen import build, codec, contract, run
from qgen.errors import QgenError
from qgen.run import device as device_room
from qgen.run.bound import matvec_plans
from qgen.spec import load_formats
from qgen.weights import Weight

N, K = 5, 512


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy(devices=2))


def host_weight(format: str = "Q4_K", rows: int = N, columns: int = K, pad: int = 0) -> Weight:
    chosen = load_formats()[format]
    blocks = codec.random_blocks(chosen, rows * columns // chosen.block, seed=3)
    assert isinstance(blocks, np.ndarray)
    lines = np.pad(blocks.reshape(rows, -1), ((0, 0), (0, pad)), constant_values=0xA5)
    stride = lines.shape[1]
    return Weight.of(chosen, lines, rows=rows, columns=columns, row_stride_bytes=stride, name="w")


def vector(columns: int = K) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(5).standard_normal(columns, dtype=np.float32)


def expected(weight: Weight, x: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    lines = weight.data.reshape(weight.rows, -1)[:, : weight.row_bytes]
    blocks = np.ascontiguousarray(lines).reshape(weight.rows, -1, weight.format.bytes)
    return contract.mul_mat(weight.format, blocks, x)


def same_bits(y: Any, wanted: np.ndarray[Any, np.dtype[np.float32]]) -> bool:
    return bool(y.host.dtype == np.float32 and y.host.tobytes() == wanted.tobytes())


def refused(call: Callable[[], object], cupy: FakeCupy) -> QgenError:
    """The error of a call that must launch nothing."""
    before = len(cupy.launches)
    with pytest.raises(QgenError) as caught:
        call()
    assert len(cupy.launches) == before, "an error after a launch"
    assert caught.value.found and caught.value.allowed and caught.value.next
    return caught.value


@pytest.mark.parametrize("format", ["Q4_K", "TQ1_0", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("pad", [0, 64])
def test_both_launches_give_the_contracts_bits(cupy: FakeCupy, format: str, pad: int) -> None:
    weight, x = host_weight(format, pad=pad), vector()
    y = run.mul_mat(weight, Array(x, 0))
    assert y.shape == (N,) and same_bits(y, expected(weight, x))
    assert [name.split("_")[0] for name, _ in cupy.launches] == ["quantize", "mul"]
    row = run.mul_mat(weight, Array(x.reshape(1, K), 0))
    assert row.shape == (1, N) and same_bits(row, expected(weight, x))


def test_every_instance_gives_the_same_bits(cupy: FakeCupy) -> None:
    weight, x = host_weight(), vector()
    instances = matvec_plans(weight.format)[0].instances
    assert len(instances) > 1
    for instance in instances:
        bound = run.bind(weight, 0, instance=instance)
        assert same_bits(bound(Array(x, 0)), expected(weight, x))
        assert cupy.launches[-1] == (instance.name, 0) and cupy.shared_limits[-1] == instance.shared_bytes


def test_foreign_arrays_are_used_in_place(cupy: FakeCupy) -> None:
    weight, x = host_weight(), vector()
    for make in (Tensor, InterfaceOnly):
        on_device = Weight.of(weight.format, make(weight.data), rows=N, columns=K)
        out = np.zeros(N, dtype=np.float32)
        y = run.mul_mat(on_device, make(x), make(out))
        assert np.shares_memory(y.host, out) and same_bits(y, expected(weight, x))
    assert max(cupy.allocations) == run.bind(weight, 0).workspace_for(1), "something was copied"


def test_a_mapped_weight_is_copied_once_a_device_and_freed_with_it(cupy: FakeCupy) -> None:
    weight, x = host_weight(), vector()
    first = run.bind(weight, 0)
    assert run.bind(weight, 0) is first and run.bind(weight, 1) is not first
    assert run.bind(weight, 0, instance=first.instance)._leading[0] is first._leading[0]
    assert same_bits(run.mul_mat(weight, Array(x, 1)), expected(weight, x)) and cupy.launches[-1][1] == 1
    copy = weakref.ref(first._leading[0].host)
    del first, weight
    gc.collect()
    assert copy() is None, "the device copy outlives the weight"


def test_to_device_moves_the_bytes_and_keeps_the_stride(cupy: FakeCupy) -> None:
    weight, x = host_weight(pad=16), vector()
    moved = run.to_device(weight, 1)
    assert not moved.on_host and moved.row_stride_bytes == weight.row_stride_bytes and cupy.synchronised
    assert run.to_device(moved, 1).data.host is not None
    assert same_bits(run.mul_mat(moved, Array(x, 1)), expected(weight, x))
    assert "device 0" in refused(lambda: run.mul_mat(moved, Array(x, 0)), cupy).found


def test_a_capture_meets_no_synchronisation_and_its_workspace_lives_with_the_result(cupy: FakeCupy) -> None:
    weight, x = host_weight(), vector()
    with cupy.capture():
        assert "capture" in refused(lambda: run.mul_mat(weight, Array(x, 0)), cupy).found
    scratch = run.workspace(weight, 0)
    with cupy.capture():
        cupy.allocations.clear()
        y = run.mul_mat(weight, Array(x, 0))
        assert len(cupy.allocations) == 1 and cupy.allocations[0] >= scratch.nbytes + y.nbytes
        assert same_bits(y, expected(weight, x))
        out = Array(np.zeros(N, dtype=np.float32), 0)
        assert "workspace" in refused(lambda: run.mul_mat(weight, Array(x, 0), out), cupy).subject
        cupy.allocations.clear()
        assert run.mul_mat(weight, Array(x, 0), out, workspace=scratch) is out
        assert not cupy.allocations and same_bits(out, expected(weight, x))


BAD_X: dict[str, tuple[Callable[[], Any], str, str]] = {
    "host array": (vector, "numpy.ndarray on the host", "cupy.asarray(x)"),
    "list": (lambda: [1.0] * K, "builtins.list", "CUDA array"),
    "pinned host tensor": (lambda: Tensor(vector(), (3, 0)), "pinned host memory", "CUDA array"),
    "other vendor": (lambda: Tensor(vector(), (10, 0)), "ROCm", "CUDA array"),
    "no data": (lambda: Tensor(vector(), ()), "without a device", "with data"),  # type: ignore[arg-type]
    "needs grad": (lambda: Tensor(vector(), requires_grad=True), "require grad", "detach"),
    "float64": (lambda: Array(vector().astype(np.float64), 0), "float64", "float32"),
    "float16": (lambda: Tensor(vector().astype(np.float16)), "float16", "float32"),
    "short": (lambda: Array(vector(K - 32), 0), f"[{K - 32}]", f"K = {K}"),
    "long": (lambda: Array(vector(K + 32), 0), f"[{K + 32}]", f"K = {K}"),
    "scalar": (lambda: Array(np.zeros((), dtype=np.float32), 0), "shape []", f"K = {K}"),
    "strided": (lambda: Array(vector(2 * K)[::2], 0), "stride of 8", "ascontiguousarray"),
    "reversed": (lambda: Array(vector()[::-1], 0), "stride of -4", "ascontiguousarray"),
    "three axes": (lambda: Array(vector().reshape(1, 1, K), 0), "[1, 1, 512]", "[T, K = 512]"),
}


@pytest.mark.parametrize("case", BAD_X)
def test_bad_x_is_refused_before_any_launch_or_copy(cupy: FakeCupy, case: str) -> None:
    make, found, elsewhere = BAD_X[case]
    weight = host_weight()
    error = refused(lambda: run.mul_mat(weight, make()), cupy)
    assert error.stage == "run" and error.subject == "x"
    assert found in error.found and elsewhere in str(error)
    assert not cupy.code_of, "a kernel was compiled for a call that had to fail"


def test_bad_out_and_workspace_are_refused(cupy: FakeCupy) -> None:
    weight, x = host_weight(), Array(vector(), 0)
    scratch = run.workspace(weight, 0)
    size = scratch.size
    y = np.zeros(N, dtype=np.float32)
    misaligned = np.zeros(size + 64, dtype=np.uint8)
    misaligned = misaligned[(8 - misaligned.ctypes.data) % 16 :][:size]
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "out on host": ("out", {"out": y}),
        "out too long": ("out", {"out": Array(np.zeros(N + 1, dtype=np.float32), 0)}),
        "out of another dtype": ("out", {"out": Array(y.view(np.int32), 0)}),
        "out on another device": ("out", {"out": Array(y, 1)}),
        "workspace too short": ("workspace", {"workspace": scratch[: size - 1]}),
        "workspace of floats": ("workspace", {"workspace": Array(np.zeros(size, dtype=np.float32), 0)}),
        "workspace misaligned": ("workspace", {"workspace": Array(misaligned, 0)}),
        "workspace elsewhere": ("workspace", {"workspace": Array(np.zeros(size, dtype=np.uint8), 1)}),
    }
    for name, (subject, operands) in cases.items():
        error = refused(lambda given=operands: run.mul_mat(weight, x, **given), cupy)  # type: ignore[misc]
        assert error.subject == subject, name
    overlapping = Array(np.zeros(size + 4 * N, dtype=np.uint8), 0)
    shared: dict[str, Any] = {
        "workspace": overlapping[:size],
        "out": overlapping[size - 4 : size - 4 + 4 * N].view(np.float32),
    }
    assert "shares memory" in refused(lambda: run.mul_mat(weight, x, **shared), cupy).found


def test_bad_weights_are_refused(cupy: FakeCupy) -> None:
    weight, x = host_weight(), Array(vector(), 0)
    raw = weight.data.reshape(-1)

    def on_device(data: Any) -> Weight:
        return Weight.of(weight.format, data, rows=N, columns=K)

    shifted = np.zeros(raw.size + 32, dtype=np.uint8)
    shifted = shifted[(2 - shifted.ctypes.data) % 16 :][: raw.size]
    assert "2-byte" not in (error := refused(lambda: run.mul_mat(on_device(Array(shifted, 0)), x), cupy)).found
    assert "multiple of 16" in error.allowed
    assert "float32" in refused(lambda: run.mul_mat(on_device(Tensor(raw.view(np.float32))), x), cupy).found
    assert str(raw.size) in refused(lambda: run.mul_mat(on_device(Array(raw[:-1], 0)), x), cupy).allowed
    strided = np.zeros((raw.size, 2), dtype=np.uint8)[:, 0]
    assert "strides" in refused(lambda: run.mul_mat(on_device(Array(strided, 0)), x), cupy).found
    assert "qgen.Weight" in refused(lambda: run.mul_mat(raw, x), cupy).allowed
    assert "device 1" in refused(lambda: run.mul_mat(on_device(Array(raw, 0)), Array(vector(), 1)), cupy).found


def test_a_format_without_kernels_is_refused_with_the_planners_reason(cupy: FakeCupy) -> None:
    weight = host_weight("IQ2_XXS")
    assert "grid" in refused(lambda: run.mul_mat(weight, Array(vector(), 0)), cupy).found


def test_no_cupy_no_driver_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    device_room.cupy_module.cache_clear()
    missing = run.why_no_device()
    assert missing is not None and missing.subject == "CuPy" and "qgen[cuda13]" in missing.next
    with pytest.raises(QgenError, match="CuPy"):
        qgen.mul_mat(host_weight(), vector())
    for fake, text in (
        (FakeCupy(driver=0), "no CUDA driver"),
        (FakeCupy(devices=0), "no device"),
        (FakeCupy(devices=-1, driver=11040), "driver for CUDA 11.4, CuPy built for CUDA 13.2"),
    ):
        install(monkeypatch, fake)
        error = run.why_no_device()
        assert error is not None and text in error.found


def test_architecture_and_driver_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = host_weight(), Array(vector(), 0)
    fake = install(monkeypatch, FakeCupy(capability="61"))
    assert "6.1" in refused(lambda: run.mul_mat(weight, x), fake).subject
    fake = install(monkeypatch, FakeCupy(driver=12080))
    assert same_bits(run.mul_mat(weight, x), expected(weight, x.host)), "the compiler for CUDA 12 was not asked for"
    fake = install(monkeypatch, FakeCupy())
    cubin = SimpleNamespace(code=b"too new", path="k.cubin", compiler="nvrtc 13.9")
    monkeypatch.setattr(build, "compile", lambda *_, **__: cubin)
    error = refused(lambda: run.mul_mat(host_weight(), x), fake)
    assert "driver for CUDA 13.0" in error.found and error.next == "update the driver"


def test_device_number_and_memory_that_are_not_there(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = host_weight()
    assert "0 to 1" in refused(lambda: run.to_device(weight, 7), cupy).allowed

    def too_much(*_: object) -> None:
        raise sys_memory("Out of memory allocating 5 bytes")

    sys_memory = cupy.cuda.memory.OutOfMemoryError
    monkeypatch.setattr(cupy, "asarray", too_much)
    assert "free memory" in refused(lambda: run.to_device(weight, 0), cupy).allowed


def test_the_public_names_are_lazy() -> None:
    assert qgen.mul_mat is run.mul_mat and qgen.Weight is Weight
    with pytest.raises(AttributeError, match="no attribute 'mul_mt'"):
        _ = qgen.mul_mt
