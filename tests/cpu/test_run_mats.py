"""qgen.mul_mats in a stand-in CuPy: the bits of separate calls, how often x is quantised, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, FakeCupy, Tensor, install
from test_run_emulated import host_weight, refused, same_bits
from test_run_float import weight_of
from test_run_ladder import matrix

import qgen
from qgen import run
from qgen.emit import emit
from qgen.plan import FragmentQuantizePlan, QuantizePlan, plan_all
from qgen.spec import load_formats
from qgen.weights import Weight

K = 512


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return install(monkeypatch, FakeCupy(devices=2))


def array(rows: int, columns: int = K, device: int = 0) -> Array:
    return Array(np.full((rows, columns), np.nan, dtype=np.float32), device)


def given(tokens: int, columns: int = K) -> Array:
    return Array(matrix(tokens, columns).copy(), 0)


def kinds(cupy: FakeCupy) -> str:
    """The launches since the last look, in order: q for a quantiser, m for a matmul."""
    found = "".join("q" if name.startswith("quantize") else "m" for name, _ in cupy.launches)
    cupy.launches.clear()
    return found


def check(cupy: FakeCupy, weights: Sequence[Weight], x: Array, order: str, **options: Any) -> None:
    """One call gives what a call for each weight gives, by launches in this order."""
    wanted = [run.mul_mat(weight, x, **options).host for weight in weights]
    cupy.launches.clear()
    found = run.mul_mats(weights, x, **options)
    assert kinds(cupy) == order
    assert [y.shape for y in found] == [y.shape for y in wanted]
    assert all(same_bits(y, bits) for y, bits in zip(found, wanted, strict=True))


@pytest.mark.parametrize("tokens", [1, 8, 17])
@pytest.mark.parametrize("storage", ["native", "tiled"])
@pytest.mark.parametrize("format", ["Q4_K", "Q8_0", "TQ1_0", "Q5G64_F16S"])
def test_weights_of_one_format_share_one_quantiser(cupy: FakeCupy, format: str, storage: str, tokens: int) -> None:
    weights = [weight_of(format, rows) for rows in (5, 19, 5)]
    if storage == "tiled":
        weights = [qgen.repack(weight) for weight in weights]
    # One token of some formats over tiles is one launch, which quantises x by itself.
    order = "mmm" if storage == "tiled" and tokens == 1 and format in ("Q4_K", "Q8_0") else "qmmm"
    for policy in ("fastest", "invariant"):
        check(cupy, weights, given(tokens), order, policy=policy)


def test_a_vector_and_a_class_of_activations(cupy: FakeCupy) -> None:
    weights = [host_weight("Q4_K", rows=rows) for rows in (5, 3)]
    check(cupy, weights, Array(matrix(1)[0].copy(), 0), "qmm")
    check(cupy, weights, given(3), "qmm", activation="bf16")
    check(cupy, weights, Array(matrix(3).astype(np.float16), 0), "qmm", activation="f16")


@pytest.mark.parametrize("tokens", [1, 8])
def test_a_quantiser_of_another_kind_is_launched_in_between(cupy: FakeCupy, tokens: int) -> None:
    """Neighbours share; one between them that reads x otherwise overwrites the workspace, so x is quantised anew."""
    k, t = host_weight("Q4_K"), host_weight("TQ1_0")
    check(cupy, [k, k, t], given(tokens), "qmmqm")
    check(cupy, [k, t, k], given(tokens), "qmqmqm")
    if tokens == 1:  # native weights by matvec, tiles by a rung, or by a kernel that leaves the workspace as it is
        check(cupy, [t, qgen.repack(t)], given(1), "qmqm")
        check(cupy, [k, qgen.repack(k), k], given(1), "qmmm")
        check(cupy, [qgen.repack(k), k, k], given(1), "mqmm")


@pytest.mark.parametrize(("formats", "tokens", "order"), [
    ("Q4_0 Q4_1 Q5_0 Q8_0", 1, "qmmmqm"), ("Q4_K Q5_K Q4_K", 1, "qmmm"), ("Q2_K Q3_K Q6_K Q4_K", 1, "qmmmqm"),
    ("Q4_0 Q4_1 Q5_1", 8, "qmqmm"), ("Q4_K Q5_K Q6_K", 9, "qmmqm"), ("IQ4_NL MXFP4", 9, "qmm"),
])  # fmt: skip
def test_formats_whose_kernels_read_x_alike_share_it(cupy: FakeCupy, formats: str, tokens: int, order: str) -> None:
    check(cupy, [host_weight(format) for format in formats.split()], given(tokens), order)


def test_quantisers_of_layouts_that_differ_by_name_alone_are_the_same_text() -> None:
    """What lets two formats share: but for its comments and names, one quantiser is the other."""
    texts: dict[object, set[str]] = {}
    shared = 0
    for made in plan_all(load_formats())[0]:
        if isinstance(made, QuantizePlan | FragmentQuantizePlan):
            body = "\n".join(line for line in emit(made).text.splitlines() if not line.startswith("//"))
            key = (type(made), replace(made.layout, name=""))
            shared += key in texts
            texts.setdefault(key, set()).add(body.replace(made.name, "").replace(made.layout.name, ""))
    assert shared >= 8 and all(len(bodies) == 1 for bodies in texts.values())


def test_one_weight_and_none(cupy: FakeCupy) -> None:
    check(cupy, [host_weight()], given(2), "qm")
    assert run.mul_mats([], given(2)) == [] == run.mul_mats((), given(2), []) and not cupy.launches


def test_one_weight_twice(cupy: FakeCupy) -> None:
    weight = host_weight()
    check(cupy, [weight, weight], given(2), "qmm")


def test_nothing_times_something_is_empty(cupy: FakeCupy) -> None:
    weight = host_weight()
    empty = Weight.of("Q4_K", np.zeros(0, dtype=np.uint8), rows=0, columns=K)
    check(cupy, [weight, weight], given(0), "")
    check(cupy, [empty, weight, empty, weight], given(3), "qmm")
    out, none = array(3, 5), array(3, 0)
    found = run.mul_mats([empty, weight], given(3), [none, out])
    assert found[0] is none and found[1] is out and not np.isnan(out.host).any()
    error = refused(lambda: run.mul_mats([weight, empty], given(3), [None, array(2, 0)]), cupy)
    assert error.subject == "outs[1]" and "T = 2 tokens" in error.found
    error = refused(lambda: run.mul_mats([empty, weight], given(3), [None, array(3, 4)]), cupy)
    assert error.subject == "outs[1]", "counted as in the list that was passed"


def test_results_go_where_they_are_wanted(cupy: FakeCupy) -> None:
    """A fused buffer for two of them, one new, one of another library."""
    weights, x = [host_weight(rows=rows) for rows in (5, 3, 5, 3)], given(9)
    fused, foreign = np.zeros((9, 8), dtype=np.float32), np.zeros((9, 3), dtype=np.float32)
    scratch = run.workspace(weights[1], 0, tokens=9)
    cupy.allocations.clear()
    outs = [Array(fused[:, :5], 0), Array(fused[:, 5:], 0), None, Tensor(foreign)]
    found = run.mul_mats(weights, x, outs, workspace=scratch)
    assert cupy.allocations == [4 * 9 * 5]
    assert np.array_equal(fused, np.hstack([found[2].host, foreign])) and fused.all()
    assert found[0] is outs[0] and found[1] is outs[1] and np.shares_memory(found[3].host, foreign)


def test_a_workspace_does_for_every_weight(cupy: FakeCupy) -> None:
    weights, x = [host_weight("Q4_K"), host_weight("TQ1_0")], given(9)
    sizes = [run.workspace(weight, 0, tokens=9) for weight in weights]
    large = max(sizes, key=lambda made: int(made.nbytes))
    check(cupy, weights, x, "qmqm", workspace=large)
    error = refused(lambda: run.mul_mats(weights, x, workspace=large[:-1]), cupy)
    assert error.subject == "workspace" and error.allowed == f"at least {large.nbytes} bytes"


def test_captures(cupy: FakeCupy) -> None:
    weights, x = [host_weight("Q4_K"), host_weight("TQ1_0", rows=3)], given(9)
    wanted = [run.mul_mat(weights[0], x).host]
    with cupy.capture():
        error = refused(lambda: run.mul_mats(weights, x), cupy)
        assert "first use" in error.found
    wanted.append(run.mul_mat(weights[1], x).host)
    out = array(9, 3)
    scratch = max((run.workspace(weight, 0, tokens=9) for weight in weights), key=lambda made: int(made.nbytes))
    with cupy.capture():
        for outs in (None, [None, out]):
            cupy.allocations.clear()
            found = run.mul_mats(weights, x, outs)
            new = [y for y in found if y is not out]
            assert len(cupy.allocations) == 1, "the scratch and the results are one allocation"
            assert cupy.allocations[0] >= scratch.nbytes + sum(y.nbytes for y in new)
            assert all(same_bits(y, bits) for y, bits in zip(found, wanted, strict=True))
        error = refused(lambda: run.mul_mats(weights, x, [array(9, 5), out]), cupy)
        assert error.subject == "workspace" and "`outs[0]`, `outs[1]` given" in error.found
        cupy.allocations.clear()
        run.mul_mats(weights, x, [array(9, 5), out], workspace=scratch)
        assert not cupy.allocations
        found = run.mul_mats(weights, x, workspace=scratch)
        assert len(cupy.allocations) == 1 and same_bits(found[1], wanted[1])


W, OTHER = host_weight(), host_weight(columns=256)
BAD: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "a weight alone": ("weights", lambda: {"weights": W}, "qgen.mul_mat"),
    "no list": ("weights", lambda: {"weights": iter([W])}, "a list of qgen.Weight"),
    "bytes": ("weights[1]", lambda: {"weights": [W, W.data]}, "qgen.Weight"),
    "other columns": ("weights[2]", lambda: {"weights": [W, W, OTHER]}, "K = 512, as weights[0] has"),
    "x of other columns": ("x", lambda: {"x": given(3, 256)}, "K = 512"),
    "x on the host": ("x", lambda: {"x": matrix(3)}, "cupy.asarray(x)"),
    "x of another dtype": ("x", lambda: {"x": Array(matrix(3).astype(np.float16), 0)}, "float32"),
    "policy": ("policy", lambda: {"policy": None}, "invariant"),
    "activation": ("activation", lambda: {"activation": 16}, "bf16"),
    "too few outs": ("outs", lambda: {"outs": [None]}, "1 arrays for 2 weights"),
    "outs for nothing": ("outs", lambda: {"weights": [], "outs": [None]}, "1 arrays for 0 weights"),
    "outs one array": ("outs", lambda: {"outs": array(2, 5)}, "a Array for 2 weights"),
    "a weight elsewhere": ("weights[1]", lambda: {"weights": [W, run.to_device(W, 1)]}, "on CUDA device 0, where x is"),
    "an out too narrow": ("outs[1]", lambda: {"outs": [None, array(3, 4)]}, "N = 5"),
    "an out elsewhere": ("outs[0]", lambda: {"outs": [array(3, 5, device=1), None]}, "device 1"),
}


@pytest.mark.parametrize("used", [False, True], ids=["first use", "used before"])
@pytest.mark.parametrize("case", BAD)
def test_bad_operands_are_refused_before_any_launch(cupy: FakeCupy, case: str, used: bool) -> None:
    subject, make, text = BAD[case]
    if used:
        run.mul_mat(W, given(3))
    operands: dict[str, Any] = {"weights": [W, W], "x": given(3), **make()}
    error = refused(lambda: run.mul_mats(**operands), cupy)
    assert error.subject == subject and text in str(error)


def test_results_that_share_bytes_are_refused(cupy: FakeCupy) -> None:
    """With each other, with x, with the scratch, with the other weight; weights may share theirs."""
    packed = Array(np.concatenate([W.data.reshape(-1)] * 2), 0)
    halves = [Weight.of("Q4_K", packed[i * W.nbytes :][: W.nbytes], rows=5, columns=K) for i in (0, 1)]
    x, scratch, y = given(1), run.workspace(W, 0), array(1, 5)
    same = [packed[W.nbytes :][:20].view(np.float32), None]
    for outs in ([y, y], [Array(x.host[:, :5], 0), None], [scratch[:20].view(np.float32), None], same):
        error = refused(lambda outs=outs: run.mul_mats(halves, x, outs, workspace=scratch), cupy)  # type: ignore[misc]
        assert "shares memory with" in error.found
    check(cupy, [halves[0], halves[0], halves[1]], x, "qmmm")


def test_the_public_name() -> None:
    assert qgen.mul_mats is run.mul_mats
