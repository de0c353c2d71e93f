"""Kernels for warpgroups with f16 and bf16 activations, in a stand-in CuPy and by themselves: named, T by T, and what
they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, FakeCupy, install
from float_cases import narrowed
from test_run_emulated import host_weight, refused, same_bits
from test_run_float import FORMATS, N, expected, planes, weight_of
from test_run_ladder import matrix

import qgen
from qgen import contract_float, run
from qgen.emulated_wgmma import EmulatedWgmma
from qgen.errors import QgenError
from qgen.plan import FloatWgmmaPlan, WgmmaRung, plan_ksplit_float, plan_wgmma, plan_wgmma_float
from qgen.run.wgmma import wgmma_plan
from qgen.weights import Weight

K = 768
# Folded with minimums, folded without, sums of x, several blocks a bundle, planes of rows that are filled up.
CASES = [
    ("Q4_K", "f16"), ("Q2_K", "bf16"), ("Q3_K", "f16"), ("Q4_K", "bf16"), ("Q4_1", "f16"), ("Q4_0", "bf16"),
    ("Q5G64_F16S", "bf16"), ("W8G32_F16S", "f16"),
]  # fmt: skip
each_case = pytest.mark.parametrize(("format", "activation"), CASES)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy())


def of_class(x: Any, activation: str) -> Any:
    """The numbers as arrays of the class hold them: float16, or the bits of bf16."""
    own = narrowed(contract_float.rounded(np.ascontiguousarray(x), activation), activation)
    return own.view(np.float16) if activation == "f16" else own


def tiles(format: str, rows: int = N, columns: int = K) -> tuple[Weight, Weight]:
    """A weight in native storage, and in tiles."""
    native = weight_of(format, rows=rows, columns=columns)
    return native, qgen.repack(native)


def kernel(format: str, activation: str, number: int = 0) -> WgmmaRung:
    return plan_wgmma_float(FORMATS[format], activation).rungs[number]


@each_case
def test_every_rung_that_is_named_takes_every_t(cupy: FakeCupy, format: str, activation: str) -> None:
    """The contract's bits from float32 and from the class, x and y with gaps, a workspace of just its size."""
    (native, weight), x = tiles(format), matrix(35, K, pad=3)
    wanted, narrow = expected(native, x, activation), of_class(x, activation)
    plan = plan_wgmma_float(FORMATS[format], activation)
    for rung in plan.rungs[CASES.index((format, activation)) % 3 :: 3]:
        bound = run.bind(weight, 0, instance=rung)
        assert isinstance(bound, run.Wgmma) and bound is run.bind(weight, 0, instance=rung)
        assert cupy.shared_limits[-1] == rung.shared_bytes
        for tokens in (1, 9, 35):
            scratch = Array(np.full(bound.workspace_for(tokens) + 16, 0xFF, dtype=np.uint8), 0)
            scratch = scratch[(-scratch.host.ctypes.data) % 16 :][: bound.workspace_for(tokens)]
            assert scratch.nbytes == plan.workspace_bytes(K // plan.block, tokens)
            wide = np.full((tokens, N + 2), np.nan, dtype=np.float32)
            bound(Array(x[:tokens], 0), Array(wide[:, :N], 0), workspace=scratch)
            assert np.array_equal(wide[:, :N], wanted[:tokens]) and np.isnan(wide[:, N:]).all(), (rung.name, tokens)
            assert cupy.launches[-2:] == [(plan.quantize.name, 0), (rung.name, 0)]
            assert same_bits(bound(Array(narrow[:tokens].copy(), 0)), wanted[:tokens]), (rung.name, tokens)
        vector = bound(Array(x[3].copy(), 0))
        assert vector.shape == (N,) and same_bits(vector, wanted[3])


@pytest.mark.parametrize(("format", "activation"), [("Q4_K", "f16"), ("Q4_0", "bf16")])
def test_bits_are_those_of_the_ladder(cupy: FakeCupy, format: str, activation: str) -> None:
    (native, weight), x = tiles(format), Array(matrix(19, K), 0)
    rung = plan_ksplit_float(FORMATS[format], activation, "tiled").rungs[0]
    ladder = run.bind(weight, 0, instance=rung)(x).host
    assert same_bits(run.bind(weight, 0, instance=kernel(format, activation))(x), ladder)
    assert same_bits(run.mul_mat(native, x, activation=activation), ladder)
    assert same_bits(run.mul_mat(weight, x, activation=activation), ladder)


@pytest.mark.parametrize(("format", "activation"), [("Q4_0", "f16"), ("Q5G64_F16S", None)])
def test_calls_get_them_by_the_dispatch(cupy: FakeCupy, format: str, activation: str | None) -> None:
    """Many rows and tokens; the ladder's bits, in a workspace that serves fewer tokens, too."""
    (_, weight), x, own = tiles(format, 5120, 128), matrix(33, 128), activation or "bf16"
    made = run.workspace(weight, 0, tokens=33, activation=activation)
    bound = run.bind(weight, 0, tokens=33, activation=activation)
    assert isinstance(bound, run.Wgmma) and bound.instance.activation == own
    assert made.nbytes == bound.workspace_for(33)
    y = run.mul_mat(weight, Array(x, 0), workspace=made, activation=activation)
    assert cupy.launches[-2:] == [(wgmma_plan(weight.format, own).quantize.name, 0), (bound.instance.name, 0)]
    ladder = run.bind(weight, 0, instance=plan_ksplit_float(weight.format, own, "tiled").rungs[0])
    assert same_bits(y, ladder(Array(x, 0)).host)
    few = run.mul_mat(weight, Array(x[:2].copy(), 0), workspace=made, activation=activation)
    assert same_bits(few, y.host[:2]) and "ksplit_mma_tiled" in cupy.launches[-1][0]
    error = refused(lambda: run.mul_mat(weight, Array(np.zeros((33, 128), "f8"), 0), activation=activation), cupy)
    assert error.subject == "x" and "float64" in error.found


def test_x_is_quantised_once_for_kernels_that_read_it_alike(cupy: FakeCupy) -> None:
    """Weights of one format and class, not with the ladder's fragments, another class or int8 between them."""
    (_, first), (_, second), x = tiles("Q4_0"), tiles("Q4_0", rows=3), Array(matrix(9, K), 0)
    rungs = kernel("Q4_0", "f16"), kernel("Q4_0", "f16", 4), kernel("Q4_0", "bf16")
    bounds = [run.bind(weight, 0, instance=rung) for weight in (first, second) for rung in rungs[:2]]
    assert run.quantisers(bounds) == [True, False, False, False]
    others: list[Any] = [rungs[2], plan_ksplit_float(FORMATS["Q4_0"], "f16", "tiled").rungs[0]]
    others.append(plan_wgmma(FORMATS["Q4_0"]).rungs[0])
    for other in others:
        own = run.bind(first, 0, instance=other)
        assert run.quantisers([bounds[0], own, bounds[1]]) == [True, True, True], other.name
    y = run.multiply(run.listed(bounds, [None] * 4), x)
    assert [name for name, _ in cupy.launches].count(wgmma_plan(FORMATS["Q4_0"], "f16").quantize.name) == 1
    assert same_bits(y[0], y[1].host) and same_bits(y[2], y[3].host)
    assert same_bits(y[0], expected(weight_of("Q4_0", columns=K), x.host, "f16"))


def test_under_capture(cupy: FakeCupy) -> None:
    (native, weight), x = tiles("Q4_0"), Array(matrix(3, K), 0)
    with cupy.capture():
        assert "capture" in refused(lambda: run.bind(weight, 0, instance=kernel("Q4_0", "f16")), cupy).found
    bound = run.bind(weight, 0, instance=kernel("Q4_0", "f16"))
    with cupy.capture():
        cupy.allocations.clear()
        assert same_bits(bound(x), expected(native, x.host, "f16")) and len(cupy.allocations) == 1


@pytest.mark.parametrize(
    ("activation", "dtype", "allowed"),
    [
        ("f16", "uint16", "float32 or float16"),
        ("f16", "float64", "float32 or float16"),
        ("bf16", "float16", "float32 or bfloat16 or uint16"),
        ("bf16", "int8", "float32 or bfloat16 or uint16"),
    ],
)
def test_an_x_of_another_class_is_refused(cupy: FakeCupy, activation: str, dtype: str, allowed: str) -> None:
    bound = run.bind(tiles("Q4_0")[1], 0, instance=kernel("Q4_0", activation))
    error = refused(lambda: bound(Array(np.zeros((2, K), dtype=dtype), 0)), cupy)
    assert error.subject == "x" and dtype in error.found and allowed in error.allowed


def test_int8_kernels_take_no_x_of_a_class(cupy: FakeCupy) -> None:
    bound = run.bind(tiles("Q4_0")[1], 0, instance=plan_wgmma(FORMATS["Q4_0"]).rungs[0])
    for dtype in ("float16", "uint16"):
        assert "float32" in refused(lambda d=dtype: bound(Array(np.zeros((2, K), dtype=d), 0)), cupy).allowed  # type: ignore[misc]


def test_rungs_of_other_weights_are_refused(cupy: FakeCupy) -> None:
    """Native storage, another format's, and one that no plan has; the error names those that would do."""
    native, weight = tiles("Q4_0")
    rung, own = kernel("Q4_0", "bf16"), kernel("Q4_0", "bf16", 2)
    error = refused(lambda: run.bind(native, 0, instance=rung), cupy)
    assert error.subject == "instance" and error.found == f"{rung.name} for native storage"
    assert "for tiled storage" in error.allowed and own.name in error.allowed
    for other in (kernel("Q4_1", "bf16"), plan_wgmma(FORMATS["Q8_0"]).rungs[0]):
        error = refused(lambda r=other: run.bind(weight, 0, instance=r), cupy)  # type: ignore[misc]
        assert error.subject == "instance" and other.name in error.found
        assert all(r.name in error.allowed for r in wgmma_plan(FORMATS["Q4_0"], other.activation).rungs)
    # A format without int8 kernels.
    assert refused(lambda: run.bind(tiles("Q5G64_F16S")[1], 0, instance=other), cupy).stage == "plan"
    assert not cupy.code_of, "a kernel was compiled for a call that had to fail"


def test_architectures_without_the_instructions_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing routes to these kernels there."""
    for capability in ("80", "89", "120"):
        fake = install(monkeypatch, FakeCupy(capability=capability))
        (native, weight), x = tiles("Q4_0"), Array(matrix(16, K), 0)
        y = run.mul_mat(weight, x, activation="f16")
        assert same_bits(y, expected(native, x.host, "f16")) and "ksplit_mma_tiled" in fake.launches[-1][0]


# ---- without CuPy ------------------------------------------------------------------------------------------------


@each_case
def test_emulated_calls(format: str, activation: str) -> None:
    """Blocks and planes as a file has them, float32 and numbers of the class, any order of threads."""
    native, x = weight_of(format, columns=K), np.ascontiguousarray(matrix(17, K))
    rows: Any = planes(format, columns=K) if native.format.split else native.data.reshape(N, -1)
    wanted = expected(native, x, activation)
    # Left out, the activation is the one of the format's file.
    emulated = EmulatedWgmma(native.format, None if native.format.activation == activation else activation)
    assert isinstance(emulated.plan, FloatWgmmaPlan) and emulated.plan.contract.activation == activation
    named = emulated.plan.rungs[-1]
    assert np.array_equal(emulated(rows, x).view("u4"), wanted.view("u4"))
    again = emulated.run(rows, of_class(x, activation), rung=named, order="shuffle", seed=2)
    assert np.array_equal(again.y.view("u4"), wanted.view("u4"))
    filled = -(-N // 16) * 16 * K // native.format.block * native.format.bytes
    assert again.report.bytes_touched["weight"] == filled


def test_what_emulated_calls_refuse() -> None:
    rows = host_weight("Q4_0", rows=2, columns=K).data.reshape(2, -1)
    emulated, x = EmulatedWgmma(FORMATS["Q4_0"], "f16"), np.zeros((1, K), dtype=np.float32)
    for other in (kernel("Q4_0", "bf16"), kernel("Q4_1", "f16"), plan_wgmma(FORMATS["Q4_0"]).rungs[0]):
        with pytest.raises(QgenError, match=f"{other.name}(.|\n)*no kernel of mul_mat_q4_0_f16__wgmma_tiled") as caught:
            emulated(rows, x, rung=other)
        assert kernel("Q4_0", "f16").name in caught.value.allowed
    with pytest.raises(QgenError, match="dtype uint16(.|\n)*float32 or float16"):
        emulated(rows, x.astype(np.uint16))
    with pytest.raises(QgenError, match="dtype float16(.|\n)*float32"):
        EmulatedWgmma(FORMATS["Q4_0"])(rows, x.astype(np.float16))
    for format, activation in (("Q4_0", "f8"), ("Q4_0", "q8_g256"), ("Q5G64_F16S", "q8_g64")):
        with pytest.raises(QgenError, match=f"activation {activation}"):
            EmulatedWgmma(FORMATS[format], activation)
    with pytest.raises(QgenError, match="coded by grid"):
        EmulatedWgmma(FORMATS["IQ2_XXS"], "f16")
