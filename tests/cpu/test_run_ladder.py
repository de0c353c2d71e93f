"""qgen.mul_mat for more than one token, in a stand-in CuPy: T by T, bit for bit, and everything it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, FakeCupy, Tensor, install
from test_run_emulated import host_weight, refused, same_bits

import qgen
from qgen import contract, run
from qgen.emulated import EmulatedLadder
from qgen.errors import QgenError
from qgen.plan import MAX_TOKENS
from qgen.run.bound import ladder_plans
from qgen.spec import load_formats
from qgen.weights import Weight

N, K = 5, 512
RUNGS = {5: 8, 8: 8, 9: 16, 16: 16, 17: 32, 33: 32}
# Who takes other columns than 32, by storage and tokens.
OTHER = {
    ("native", 17): {"Q4_K": 24, "Q3_K": 24, "TQ1_0": 24},
    ("native", 33): {"Q3_K": 24, "TQ1_0": 24},
    ("tiled", 17): {"Q4_K": 24, "Q3_K": 24, "TQ1_0": 24, "Q8_0": 24, "MXFP4": 24},
    ("tiled", 33): {"Q4_K": 24, "Q3_K": 24, "TQ1_0": 24, "Q8_0": 16},
}


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy(devices=2))


def matrix(tokens: int, columns: int = K, pad: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    wide = np.random.default_rng(7).standard_normal((tokens, columns + pad), dtype=np.float32)
    return wide[:, :columns]


def expected(weight: Weight, x: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    blocks = weight.data.reshape(weight.rows, -1, weight.format.bytes)
    return np.stack([contract.mul_mat(weight.format, blocks, np.ascontiguousarray(row)) for row in x])


@pytest.mark.parametrize("format", ["Q4_K", "Q3_K", "TQ1_0", "Q8_0", "MXFP4"])
def test_every_token_gets_the_bits_it_gets_alone(cupy: FakeCupy, format: str) -> None:
    """T = 33 tokens, the first T of them at once, and one by one: the same bits, under both policies."""
    weight, x = host_weight(format), matrix(max(RUNGS))
    wanted = expected(weight, x)
    for token in (0, 1, 7, 8, 16, 32):
        assert same_bits(run.mul_mat(weight, Array(x[token].copy(), 0)), wanted[token])
    for policy in ("fastest", "invariant"):
        for tokens, columns in RUNGS.items():
            y = run.mul_mat(weight, Array(x[:tokens].copy(), 0), policy=policy)
            assert y.shape == (tokens, N) and same_bits(y, wanted[:tokens]), (tokens, policy)
            (quantise, _), (kernel, _) = cupy.launches[-2:]
            taken = OTHER.get(("native", tokens), {}).get(format, columns)
            assert quantise == ladder_plans(weight.format, "native")[1].name and f"_t{taken}__ksplit_mma" in kernel
        for tokens in (2, 3, 4):  # by multirow or the first rung, as the format has it
            assert same_bits(run.mul_mat(weight, Array(x[:tokens].copy(), 0), policy=policy), wanted[:tokens])
        one = run.mul_mat(weight, Array(x[:1].copy(), 0), policy=policy)
        assert same_bits(one, wanted[:1]) and "matvec" in cupy.launches[-1][0]


@pytest.mark.parametrize("format", ["Q4_K", "Q3_K", "TQ1_0", "Q8_0", "MXFP4"])
def test_a_repacked_weight_gives_the_same_bits(cupy: FakeCupy, format: str) -> None:
    """Tiles made on the host, for every T from 1 on and both policies; the last row tile is not full."""
    native, x = host_weight(format), matrix(max(RUNGS))
    weight, wanted = qgen.repack(native), expected(native, x)
    for policy in ("fastest", "invariant"):
        # With so few rows no route leads to the rung for one token of long blocks.
        for tokens, columns in {1: 8, 2: 8, **RUNGS}.items():
            cupy.launches.clear()
            y = run.mul_mat(weight, Array(x[:tokens].copy(), 0), policy=policy)
            assert same_bits(y, wanted[:tokens]), (tokens, policy)
            if tokens == 1 and format != "TQ1_0":  # one launch
                ((kernel, _),) = cupy.launches
                assert "_t1__fused_tiled_" in kernel
                continue
            (quantise, _), (kernel, _) = cupy.launches
            assert quantise == ladder_plans(weight.format, "tiled")[1].name
            taken = OTHER.get(("tiled", tokens), {}).get(format, columns)
            assert f"_t{taken}__ksplit_mma_tiled" in kernel


@pytest.mark.parametrize("capability", ["80", "86", "89", "120"])
def test_a_repacked_weight_on_other_architectures(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """Q1_0's rungs leave room for two CTAs: none asks for more shared memory than the architecture gives."""
    cupy = install(monkeypatch, FakeCupy(capability=capability))
    for format in ("Q1_0", "Q6_K"):
        native, x = host_weight(format), matrix(17)
        weight, wanted = qgen.repack(native), expected(native, x)
        for tokens in (1, 8, 9, 17):
            y = run.mul_mat(weight, Array(x[:tokens].copy(), 0))
            assert same_bits(y, wanted[:tokens]), (format, tokens)
            assert "__ksplit_mma_tiled_" in cupy.launches[-1][0]


def test_tiles_are_refused_where_the_instructions_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeCupy(capability="75"))
    weight = qgen.repack(host_weight("Q4_K"))
    with pytest.raises(QgenError, match="m16n8k32, which sm_75 lacks: repack the weight to native"):
        run.mul_mat(weight, Array(matrix(1), 0))


def test_every_rung_takes_every_t(cupy: FakeCupy) -> None:
    weight, x = host_weight(rows=18, columns=256), matrix(41, 256)
    wanted = expected(weight, x)
    for rung in ladder_plans(weight.format, weight.storage)[0].rungs:
        bound = run.bind(weight, 0, instance=rung)
        for tokens in (1, 8, 9, 41):
            assert same_bits(bound(Array(x[:tokens].copy(), 0)), wanted[:tokens])
            assert cupy.launches[-1] == (rung.name, 0)
        assert cupy.shared_limits[-1] == rung.shared_bytes
    vector = run.bind(weight, 0, instance=rung)(Array(x[0].copy(), 0))
    assert vector.shape == (18,) and same_bits(vector, wanted[0])


def test_rows_of_x_and_out_may_lie_apart(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(9, pad=3)
    assert x.strides == (4 * (K + 3), 4)
    wide = np.full((9, N + 2), np.nan, dtype=np.float32)
    y = run.mul_mat(weight, Array(x, 0), Array(wide[:, :N], 0))
    assert np.array_equal(wide[:, :N], expected(weight, x)) and np.isnan(wide[:, N:]).all()
    assert np.shares_memory(y.host, wide)
    # x and out as the halves of one buffer: their spans overlap, their rows do not.
    fused = np.zeros((9, K + N), dtype=np.float32)
    fused[:, :K] = x
    run.mul_mat(weight, Array(fused[:, :K], 0), Array(fused[:, K:], 0))
    assert np.array_equal(fused[:, K:], expected(weight, x)) and np.array_equal(fused[:, :K], x)
    # One row has no stride to go wrong.
    single = np.lib.stride_tricks.as_strided(x[:1].copy(), (1, K), (4, 4))
    assert same_bits(run.mul_mat(weight, Array(single, 0)), expected(weight, x[:1]))


def test_foreign_tensors_are_used_in_place(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(4)
    out = np.zeros((4, N), dtype=np.float32)
    y = run.mul_mat(weight, Tensor(x), Tensor(out))
    assert np.shares_memory(y.host, out) and same_bits(y, expected(weight, x))


@pytest.mark.parametrize("policy", ["fastest", "invariant"])
def test_nothing_times_something_is_empty(cupy: FakeCupy, policy: str) -> None:
    weight = host_weight()
    none = run.mul_mat(weight, Array(matrix(2)[:0], 0), policy=policy)
    assert none.shape == (0, N) and none.dtype == np.float32
    out = Array(np.zeros((0, N), dtype=np.float32), 0)
    assert run.mul_mat(weight, Array(matrix(2)[:0], 0), out) is out
    empty = Weight.of("Q4_K", np.zeros(0, dtype=np.uint8), rows=0, columns=K)
    assert empty.nbytes == 0
    for shape in ((K,), (1, K), (3, K), (0, K)):
        x = Array(np.zeros(shape, dtype=np.float32), 0)
        assert run.mul_mat(empty, x, policy=policy).shape == (*shape[:-1], 0)
    assert not cupy.launches and not cupy.code_of
    assert "T = 1" in refused(lambda: run.mul_mat(weight, Array(matrix(0), 0), Array(matrix(1, N), 0)), cupy).found
    assert "float64" in refused(lambda: run.mul_mat(empty, Array(np.zeros((2, K)), 0)), cupy).found
    kernelless = host_weight("IQ2_XXS")
    assert "grid" in refused(lambda: run.mul_mat(kernelless, Array(matrix(0), 0)), cupy).found


def test_a_workspace_grows_with_the_tokens(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(33)
    sizes = {tokens: run.workspace(weight, 0, tokens=tokens).nbytes for tokens in (1, 2, 8, 9, 33)}
    ladder = ladder_plans(weight.format, weight.storage)[0]
    assert sizes[33] == ladder.workspace_bytes(2, 33) and sizes[2] == sizes[8] < sizes[9] < sizes[33]
    for tokens, nbytes in sizes.items():
        for count in sorted({1, 2, tokens}):
            if count > tokens:
                continue
            # Exactly the bytes promised: the emulator would report one written beside them.
            scratch = Array(np.zeros(nbytes + 16, dtype=np.uint8), 0)
            scratch = scratch[(-scratch.host.ctypes.data) % 16 :][:nbytes]
            y = run.mul_mat(weight, Array(x[:count].copy(), 0), workspace=scratch)
            assert same_bits(y, expected(weight, x[:count]))
    short = run.workspace(weight, 0, tokens=9)
    error = refused(lambda: run.mul_mat(weight, Array(x[:17].copy(), 0), workspace=short), cupy)
    assert error.subject == "workspace" and str(ladder.workspace_bytes(2, 17)) in error.allowed
    assert "tokens=T" in error.next


def test_bindings_are_made_once_a_kernel(cupy: FakeCupy) -> None:
    weight = host_weight()
    assert run.bind(weight, 0, tokens=2) is run.bind(weight, 0, tokens=8, policy="invariant")
    assert run.bind(weight, 0, tokens=9) is not run.bind(weight, 0, tokens=8)
    assert run.bind(weight, 1, tokens=2) is not run.bind(weight, 0, tokens=2)
    assert run.bind(weight, 0, tokens=33) is run.bind(weight, 0, tokens=25)
    assert run.bind(weight, 0)._leading[0] is run.bind(weight, 0, tokens=33)._leading[0], "two copies of a weight"


def test_captures(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(9)
    run.mul_mat(weight, Array(x[:2].copy(), 0))
    with cupy.capture():
        assert "capture" in refused(lambda: run.mul_mat(weight, Array(x, 0)), cupy).found
        # Another T of a rung that is loaded is no first use.
        cupy.allocations.clear()
        y = run.mul_mat(weight, Array(x[:5].copy(), 0))
        assert len(cupy.allocations) == 1 and same_bits(y, expected(weight, x[:5]))
    scratch = run.workspace(weight, 0, tokens=9)
    out = Array(np.zeros((9, N), dtype=np.float32), 0)
    with cupy.capture():
        assert "workspace" in refused(lambda: run.mul_mat(weight, Array(x, 0), out), cupy).subject
        cupy.allocations.clear()
        assert run.mul_mat(weight, Array(x, 0), out, workspace=scratch) is out
        assert not cupy.allocations and same_bits(out, expected(weight, x))


def strided(stride: int) -> Array:
    return Array(np.lib.stride_tricks.as_strided(matrix(4).copy(), (3, K), (stride, 4)), 0)


BAD: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "rows that overlap": ("x", lambda: {"x": strided(4 * (K - 1))}, f"at least {4 * K}"),
    "one row again and again": ("x", lambda: {"x": strided(0)}, "a stride of 0 bytes from row to row"),
    "rows half an element apart": ("x", lambda: {"x": strided(4 * K + 2)}, "a multiple of 4"),
    "rows backwards": ("x", lambda: {"x": Array(matrix(3)[::-1], 0)}, "from row to row"),
    "columns apart": ("x", lambda: {"x": Array(matrix(3, 2 * K)[:, ::2], 0)}, "stride of 8"),
    "turned": ("x", lambda: {"x": Array(np.asfortranarray(matrix(3)), 0)}, "between neighbours"),
    "too wide": ("x", lambda: {"x": Array(matrix(3, K + 32), 0)}, f"K = {K}"),
    "another dtype": ("x", lambda: {"x": Array(matrix(3).astype(np.float16), 0)}, "float32"),
    "out too few": ("out", lambda: {"out": Array(matrix(2, N), 0)}, "T = 2 tokens"),
    "out too many": ("out", lambda: {"out": Array(matrix(4, N), 0)}, "as many tokens as x has"),
    "out a vector": ("out", lambda: {"out": Array(matrix(1, N)[0], 0)}, "T = 1 tokens"),
    "out turned": ("out", lambda: {"out": Array(np.asfortranarray(matrix(3, N)), 0)}, "between neighbours"),
    "out too narrow": ("out", lambda: {"out": Array(matrix(3, N - 1), 0)}, f"N = {N}"),
    "out elsewhere": ("out", lambda: {"out": Array(matrix(3, N), 1)}, "device 1"),
    "policy": ("request, policy", lambda: {"policy": "fast"}, "'fast'"),
    "no policy": ("policy", lambda: {"policy": None}, "None"),
}


@pytest.mark.parametrize("bound", [False, True], ids=["first use", "used before"])
@pytest.mark.parametrize("case", BAD)
def test_bad_operands_are_refused_before_any_launch(cupy: FakeCupy, case: str, bound: bool) -> None:
    subject, make, text = BAD[case]
    weight, operands = host_weight(), {"x": Array(matrix(3), 0), **make()}
    if bound:
        run.mul_mat(weight, Array(matrix(3), 0))
    error = refused(lambda: run.mul_mat(weight, **operands), cupy)
    assert error.subject == subject and text in str(error)


def test_operands_that_share_bytes_are_refused(cupy: FakeCupy) -> None:
    weight = host_weight()
    buffer = np.zeros((9, K + N), dtype=np.float32)
    x = Array(buffer[:, :K], 0)
    for out in (buffer[:, K - 1 : K - 1 + N], buffer[:, :N]):
        assert "shares memory" in refused(lambda out=out: run.mul_mat(weight, x, Array(out, 0)), cupy).found  # type: ignore[misc]


def test_more_tokens_than_a_grid_counts_are_refused(cupy: FakeCupy) -> None:
    weight = host_weight(rows=1, columns=256)
    x = Array(np.zeros((MAX_TOKENS + 1, 256), dtype=np.float32), 0)
    assert f"at most {MAX_TOKENS} tokens" in refused(lambda: run.mul_mat(weight, x), cupy).found
    bound = run.bind(weight, 0, tokens=33)
    assert "T = 1 to" in refused(lambda: bound(x), cupy).allowed
    assert "qgen.mul_mat" in refused(lambda: run.bind(weight, 0)(Array(matrix(2, 256), 0)), cupy).next


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_the_order_of_threads_changes_no_bit(order: Any) -> None:
    format = load_formats()["Q6_K"]
    weight, x = host_weight("Q6_K", rows=18, columns=2 * 256), matrix(10)
    y = EmulatedLadder(format)(weight.data.reshape(18, -1), x, order=order, seed=3)
    assert y.tobytes() == expected(weight, x).tobytes()
