"""qgen.mul_mat where dp4a multiplies several tokens (sm_75), in a stand-in CuPy: bit for bit, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, FakeCupy, install
from test_run_emulated import host_weight, refused, same_bits
from test_run_ladder import BAD, K, N, expected, matrix

from qgen import run
from qgen.emulated import EmulatedMultirow
from qgen.plan import MAX_TOKENS
from qgen.run.bound import multirow_plans
from qgen.spec import load_formats
from qgen.weights import Weight

COLUMNS = {2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 8, 17: 8}


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy(devices=2, capability="75"))


@pytest.mark.parametrize("format", ["Q4_K", "NVFP4"])
def test_every_token_gets_the_bits_it_gets_alone(cupy: FakeCupy, format: str) -> None:
    weight, x = host_weight(format), matrix(max(COLUMNS))
    wanted = expected(weight, x)
    for token in (0, 1, 8, 16):
        assert same_bits(run.mul_mat(weight, Array(x[token].copy(), 0)), wanted[token])
    for policy in ("fastest", "invariant"):
        for tokens, columns in COLUMNS.items():
            y = run.mul_mat(weight, Array(x[:tokens].copy(), 0), policy=policy)
            assert y.shape == (tokens, N) and same_bits(y, wanted[:tokens]), (tokens, policy)
            (quantise, _), (kernel, _) = cupy.launches[-2:]
            assert quantise == multirow_plans(weight.format)[1].name and f"_t{columns}__multirow" in kernel


def test_unrouted_variants_take_every_t_on_any_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeCupy())
    weight, x = host_weight(rows=18, columns=256), matrix(9, 256)
    wanted = expected(weight, x)
    for instance in multirow_plans(weight.format)[0].instances:
        if (instance.rows, instance.columns) in ((1, 1), (8, 4), (4, 8)):
            bound = run.bind(weight, 0, instance=instance)
            for tokens in (1, 3, 9):
                assert same_bits(bound(Array(x[:tokens].copy(), 0)), wanted[:tokens])
                assert fake.launches[-1] == (instance.name, 0)
            assert fake.shared_limits[-1] == instance.shared_bytes


def test_rows_of_x_and_out_may_lie_apart(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(9, pad=3)
    wide = np.full((9, N + 2), np.nan, dtype=np.float32)
    y = run.mul_mat(weight, Array(x, 0), Array(wide[:, :N], 0))
    assert np.array_equal(wide[:, :N], expected(weight, x)) and np.isnan(wide[:, N:]).all()
    assert np.shares_memory(y.host, wide)


def test_nothing_times_something_is_empty(cupy: FakeCupy) -> None:
    weight = host_weight()
    assert run.mul_mat(weight, Array(matrix(2)[:0], 0)).shape == (0, N)
    empty = Weight.of("Q4_K", np.zeros(0, dtype=np.uint8), rows=0, columns=K)
    assert run.mul_mat(empty, Array(matrix(3), 0)).shape == (3, 0)
    assert not cupy.launches and not cupy.code_of


def test_a_workspace_grows_with_the_tokens(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(9)
    sizes = {tokens: run.workspace(weight, 0, tokens=tokens).nbytes for tokens in (1, 2, 9)}
    assert sizes == {tokens: tokens * multirow_plans(weight.format)[0].layout.bytes(2) for tokens in sizes}
    for tokens, nbytes in sizes.items():
        # Exactly the bytes promised: the emulator would report one written beside them.
        scratch = Array(np.zeros(nbytes + 16, dtype=np.uint8), 0)
        scratch = scratch[(-scratch.host.ctypes.data) % 16 :][:nbytes]
        y = run.mul_mat(weight, Array(x[:tokens].copy(), 0), workspace=scratch)
        assert same_bits(y, expected(weight, x[:tokens]))
    short = run.workspace(weight, 0, tokens=2)
    error = refused(lambda: run.mul_mat(weight, Array(x[:3].copy(), 0), workspace=short), cupy)
    assert error.subject == "workspace" and str(3 * sizes[1]) in error.allowed and "tokens=T" in error.next


@pytest.mark.parametrize("case", BAD)
def test_bad_operands_are_refused_before_any_launch(cupy: FakeCupy, case: str) -> None:
    subject, make, text = BAD[case]
    weight = host_weight()
    operands: dict[str, Any] = {"x": Array(matrix(3), 0), **make()}
    error = refused(lambda: run.mul_mat(weight, **operands), cupy)
    assert error.subject == subject and text in str(error)


def misaligned(size: int, dtype: Any, off: int) -> Any:
    memory = np.zeros(size + 64, dtype=np.uint8)
    start = (-memory.ctypes.data) % 64 + off
    return memory[start : start + size].view(dtype)


WRONG: dict[str, tuple[str, Callable[[Weight], Callable[[], Any]], str]] = {
    "scratch": (
        "workspace",
        lambda weight: (
            lambda: run.mul_mat(weight, Array(matrix(2), 0), workspace=Array(misaligned(1 << 14, np.uint8, 4), 0))
        ),
        "a multiple of 16",
    ),
    "too many tokens": (
        "x",
        lambda weight: lambda: run.bind(weight, 0, tokens=2)(Array(np.zeros((MAX_TOKENS + 1, K), np.float32), 0)),
        f"T = 1 to {MAX_TOKENS}",
    ),
    "no tokens": ("x", lambda weight: lambda: run.bind(weight, 0, tokens=2)(Array(matrix(2)[:0], 0)), "T = 0 tokens"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_calls_are_refused_before_any_launch(cupy: FakeCupy, case: str) -> None:
    subject, make, text = WRONG[case]
    error = refused(make(host_weight()), cupy)
    assert error.subject == subject and text in str(error)


def test_a_weight_less_aligned_than_its_blocks_is_refused(cupy: FakeCupy) -> None:
    good = host_weight()
    data = misaligned(good.nbytes, np.uint8, 2)
    data[:] = good.data.reshape(-1)
    weight = Weight.of("Q4_K", Array(data, 0), rows=N, columns=K)
    assert "16" in refused(lambda: run.mul_mat(weight, Array(matrix(2), 0)), cupy).allowed


def test_a_graph_of_a_loaded_kernel(cupy: FakeCupy) -> None:
    weight, x = host_weight(), matrix(8)
    run.mul_mat(weight, Array(x[:5].copy(), 0))
    with cupy.capture():
        assert "capture" in refused(lambda: run.mul_mat(weight, Array(x[:2].copy(), 0)), cupy).found
        assert same_bits(run.mul_mat(weight, Array(x, 0)), expected(weight, x))


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_the_order_of_threads_changes_no_bit(order: Any) -> None:
    format = load_formats()["Q6_K"]
    weight, x = host_weight("Q6_K", rows=18, columns=2 * 256), matrix(5)
    y = EmulatedMultirow(format)(weight.data.reshape(18, -1), x, order=order, seed=3)
    assert y.tobytes() == expected(weight, x).tobytes()
