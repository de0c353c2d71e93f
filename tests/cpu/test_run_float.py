"""qgen.mul_mat with f16 and bf16 activations, in a stand-in CuPy: blocks and planes, T by T, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, FakeCupy, install
from float_cases import narrowed
from test_run_emulated import host_weight, refused, same_bits
from test_run_ladder import matrix

import qgen
from qgen import codec, contract_float, layout, run
from qgen.plan import MAX_TOKENS, plan_ksplit_float
from qgen.spec import load_formats
from qgen.weights import Weight

FORMATS = load_formats()
K, N = 512, 19
F32 = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy())


def planes(format: str, rows: int = N, columns: int = K) -> dict[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Random planes with their rows filled up, as a file has them."""
    placed = layout.matrix(FORMATS[format], rows=rows, columns=columns)
    made = codec.random_planes(FORMATS[format], rows * placed.blocks, seed=3)
    return {span.plane: made[span.plane].reshape(rows, span.row_stride) for span in placed.spans}


def weight_of(format: str, rows: int = N, columns: int = K) -> Weight:
    if FORMATS[format].split:
        return Weight.of(format, planes(format, rows, columns), rows=rows, columns=columns)
    return host_weight(format, rows=rows, columns=columns)


def expected(weight: Weight, x: Any, activation: str) -> F32:
    count = weight.columns // weight.format.block
    parts = {}
    for span in weight.planes:
        lines = weight.data.reshape(-1)[span.offset : span.offset + weight.rows * span.row_stride]
        own = lines.reshape(weight.rows, span.row_stride)[:, : count * span.block_bytes]
        parts[span.plane] = np.ascontiguousarray(own).reshape(weight.rows, count, span.block_bytes)
    packed = parts if weight.format.split else parts["block"]
    return np.stack([contract_float.mul_mat(weight.format, packed, np.ascontiguousarray(row), activation) for row in x])


CASES = [("Q4_K", "bf16"), ("Q8_0", "f16"), ("Q5G64_F16S", None), ("Q4G64_F16S", "bf16"), ("W8G32_F16S", "f16")]


@pytest.mark.parametrize(("format", "activation"), CASES)
def test_every_token_gets_the_bits_it_gets_alone(cupy: FakeCupy, format: str, activation: str | None) -> None:
    """Left out, the activation is the one of the format's file; float32 or numbers of the class, rows apart or not."""
    weight, x, chosen = weight_of(format), matrix(17, pad=3), activation or "bf16"
    wanted = expected(weight, x, chosen)
    narrow = narrowed(contract_float.rounded(np.ascontiguousarray(x), chosen), chosen)
    if chosen == "f16":
        narrow = narrow.view(np.float16)
    for tokens in (1, 2, 8, 9, 17):
        for policy in ("fastest", "invariant"):
            y = run.mul_mat(weight, Array(x[:tokens], 0), policy=policy, activation=activation)
            assert y.shape == (tokens, N) and same_bits(y, wanted[:tokens]), (tokens, policy)
            wide = 32 if weight.format.split and tokens > 16 else 16
            columns = wide if tokens > 8 and chosen == "bf16" else 8
            (arrange, _), (kernel, _) = cupy.launches[-2:]
            assert arrange.startswith(f"quantize_activation_{chosen}_") and f"_t{columns}__ksplit_mma" in kernel
        y = run.mul_mat(weight, Array(narrow[:tokens].copy(), 0), activation=activation)
        assert same_bits(y, wanted[:tokens])
    vector = run.mul_mat(weight, Array(x[3].copy(), 0), activation=activation)
    assert vector.shape == (N,) and same_bits(vector, wanted[3])


@pytest.mark.parametrize(("format", "activation"), [*CASES, ("Q5_K", "bf16"), ("MXFP4", "f16"), ("Q6G64_F16S", None)])
def test_tiles_give_the_same_bits(cupy: FakeCupy, format: str, activation: str | None) -> None:
    """A repacked weight, whatever the activation: for every T from 1 on and both policies, K not filled up."""
    native, x, chosen = weight_of(format, columns=K + 256), matrix(33, K + 256), activation or "bf16"
    if native.format.split:
        native = weight_of(format, columns=K + native.format.block)
        x = np.ascontiguousarray(x[:, : native.columns])
    wanted = expected(native, x, chosen)
    for weight in (qgen.repack(native), run.to_device(native, 0, storage="tiled")):
        for tokens, policy in ((1, "fastest"), (8, "invariant"), (9, "fastest"), (17, "invariant"), (33, "fastest")):
            y = run.mul_mat(weight, Array(x[:tokens].copy(), 0), policy=policy, activation=activation)
            assert same_bits(y, wanted[:tokens]), (tokens, policy)
            assert cupy.launches[-1][0].endswith("__ksplit_mma_tiled_w8")
    made = run.workspace(weight, 0, tokens=9, activation=activation)
    y = run.mul_mat(weight, Array(x[:9].copy(), 0), workspace=made, activation=activation)
    assert same_bits(y, wanted[:9])
    back = qgen.repack(qgen.repack(native), "native")
    assert same_bits(run.mul_mat(back, Array(x[:2].copy(), 0), activation=activation), wanted[:2])


@pytest.mark.parametrize("capability", ["80", "86", "89", "120"])
def test_tiles_on_other_architectures(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    install(monkeypatch, FakeCupy(capability=capability))
    weight, x = weight_of("Q5G64_F16S"), matrix(9)
    assert same_bits(run.mul_mat(qgen.repack(weight), Array(x, 0)), expected(weight, x, "bf16"))


def test_sm_75_refuses_tiles_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = install(monkeypatch, FakeCupy(capability="75"))
    weight = qgen.repack(weight_of("Q5G64_F16S"))
    error = refused(lambda: run.mul_mat(weight, Array(matrix(2), 0)), cupy)
    assert "m16n8k16, which sm_75 lacks" in error.found and "--storage tiled" in error.next


def test_rows_that_are_filled_up(cupy: FakeCupy) -> None:
    """K = 64 of rows of 128 columns: what fills them up is never read."""
    weight, x = weight_of("Q5G64_F16S", rows=3, columns=192), matrix(2, 192)
    assert weight.row_bytes == 4 * 42 and weight.planes[1].row_stride == 32
    for span in weight.planes:
        lines = weight.data[span.offset : span.offset + 3 * span.row_stride].reshape(3, span.row_stride)
        lines[:, 3 * span.block_bytes :] = 0xFF  # a scale of NaN
    assert same_bits(run.mul_mat(weight, Array(x, 0)), expected(weight, x, "bf16"))


def test_empty_results(cupy: FakeCupy) -> None:
    none = np.zeros(0, dtype=np.uint8)
    empty = [Weight.of(name, none, rows=0, columns=K) for name in ("Q5G64_F16S", "Q4_K")]
    assert not any(weight.nbytes or weight.planes for weight in empty)
    for weight in empty:
        assert run.mul_mat(weight, Array(matrix(3), 0), activation="bf16").shape == (3, 0)
    for weight in (weight_of("Q5G64_F16S"), host_weight("Q4_K", rows=N, columns=K)):
        assert run.mul_mat(weight, Array(matrix(3)[:0], 0), activation="f16").shape == (0, N)
    assert not cupy.launches


def test_a_workspace_does_for_fewer_tokens(cupy: FakeCupy) -> None:
    weight, x = weight_of("Q5G64_F16S"), matrix(17)
    plan = plan_ksplit_float(weight.format, "bf16")
    made = run.workspace(weight, 0, tokens=17)
    assert made.nbytes == plan.workspace_bytes(K // 64, 17)
    for tokens in (1, 9, 17):
        y = run.mul_mat(weight, Array(x[:tokens].copy(), 0), workspace=made)
        assert same_bits(y, expected(weight, x[:tokens], "bf16"))
    short = run.workspace(weight, 0, tokens=8)
    error = refused(lambda: run.mul_mat(weight, Array(x, 0), workspace=short), cupy)
    assert error.subject == "workspace" and str(made.nbytes) in error.allowed


def wide(dtype: str, columns: int = K) -> Array:
    return Array(np.zeros((3, columns), dtype=dtype), 0)


BAD: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "no such class": ("request, activation", lambda: {"activation": "f8"}, "bf16, f16"),
    "no class": ("activation", lambda: {"activation": 16}, "16"),
    "int8 of another format": ("", lambda: {"activation": "q8_g32"}, "bf16, f16"),
    "float64": ("x", lambda: {"x": wide("float64")}, "float32 or bfloat16 or uint16"),
    "the other class": ("x", lambda: {"x": wide("float16")}, "float32 or bfloat16 or uint16"),
    "bits for f16": ("x", lambda: {"x": wide("uint16"), "activation": "f16"}, "float32 or float16"),
    "too narrow": ("x", lambda: {"x": wide("uint16", K - 64)}, f"K = {K}"),
    "rows that overlap": (
        "x",
        lambda: {"x": Array(np.lib.stride_tricks.as_strided(np.zeros(4 * K, "u2"), (3, K), (2 * K - 2, 2)), 0)},
        f"at least {2 * K} = 2 x K",
    ),
    "out too narrow": ("out", lambda: {"out": Array(matrix(3, N - 1), 0)}, f"N = {N}"),
    "workspace misaligned": (
        "workspace",
        lambda: {"workspace": Array(np.zeros(1 << 16, np.uint8), 0)[(-np.zeros(1).ctypes.data) % 16 + 8 :]},
        "a multiple of 16",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_operands_are_refused_before_any_launch(cupy: FakeCupy, case: str) -> None:
    subject, make, text = BAD[case]
    operands = {"x": Array(matrix(3), 0), "activation": "bf16", **make()}
    if case == "workspace misaligned":
        scratch = np.zeros((1 << 16) + 32, np.uint8)
        operands["workspace"] = Array(scratch[(-scratch.ctypes.data) % 16 + 8 :][: 1 << 16], 0)
    weight = weight_of("Q5G64_F16S")
    error = refused(lambda: run.mul_mat(weight, **operands), cupy)
    assert (not subject or error.subject == subject) and text in str(error), error


def test_weights_that_do_not_do_are_refused(cupy: FakeCupy) -> None:
    weight, x = weight_of("Q5G64_F16S"), Array(matrix(3), 0)
    memory = np.zeros(weight.nbytes + 32, np.uint8)
    start = (-memory.ctypes.data) % 16 + 8
    shifted = Weight.of("Q5G64_F16S", Array(memory[start : start + weight.nbytes], 0), rows=N, columns=K)
    assert "multiple of 16" in refused(lambda: run.mul_mat(shifted, x), cupy).allowed
    many = Array(np.zeros((MAX_TOKENS + 1, 64), dtype=np.float32), 0)
    one = weight_of("Q5G64_F16S", rows=1, columns=64)
    assert f"at most {MAX_TOKENS} tokens" in refused(lambda: run.mul_mat(one, many), cupy).found


def test_an_architecture_without_the_instruction_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeCupy(capability="75"))
    for weight, activation in ((weight_of("Q5G64_F16S"), None), (host_weight("Q4_K", rows=N, columns=K), "f16")):
        error = refused(lambda w=weight, a=activation: run.mul_mat(w, Array(matrix(1), 0), activation=a), fake)  # type: ignore[misc]
        assert error.stage == "dispatch" and "m16n8k16" in error.found and "sm_75" in error.found
    assert not fake.code_of, "a kernel was compiled for a call that had to fail"


# ---- weights in planes -------------------------------------------------------------------------------------------


def test_planes_are_joined_as_a_file_has_them() -> None:
    parts = planes("Q5G64_F16S")
    weight = Weight.of("Q5G64_F16S", parts, rows=N, columns=K)
    assert [span.plane for span in weight.planes] == ["base", "high", "scale"] == list(parts)
    assert all(span.offset % 256 == 0 for span in weight.planes) and weight.nbytes == weight.data.size
    decoded = codec.decode_matrix(FORMATS["Q5G64_F16S"], weight.data, rows=N, columns=K)
    flat = {name: part.reshape(-1, FORMATS["Q5G64_F16S"].region_bytes(name)) for name, part in parts.items()}
    assert np.array_equal(decoded, codec.decode(FORMATS["Q5G64_F16S"], flat).reshape(N, K))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.pop("high"), "base, high, scale"),
        (lambda p: p.update(low=p["base"]), "base, high, scale"),
        (lambda p: p.update(high=p["high"][:-1]), f"{N} rows x 8 blocks x 8 bytes"),
        (lambda p: p.update(scale=p["scale"].view(np.float16)), "dtype float16"),
        (lambda p: p.update(base=b"bytes"), "a bytes"),
    ],
)
def test_planes_that_do_not_fit_are_refused(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    from qgen.errors import QgenError

    parts: dict[str, Any] = dict(planes("Q5G64_F16S"))
    change(parts)
    with pytest.raises(QgenError) as caught:
        Weight.of("Q5G64_F16S", parts, rows=N, columns=K)
    assert caught.value.stage == "weight" and words in str(caught.value)
    with pytest.raises(QgenError, match="stored in blocks"):
        Weight.of("Q4_K", parts, rows=N, columns=K)
