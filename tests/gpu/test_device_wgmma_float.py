"""Kernels of the family wgmma with f16 and bf16 activations on the device: bit for bit what the ladder gives.

Its results over the same tiles are near the exact ones. One kernel of every format and class has its turn, so that
every launch shape has.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_device_kernels import FORMATS, GUARD, same
from test_device_wgmma import CALLS, able, leave_nan, ordinary

import qgen
from qgen import codec, contract_float, layout, run
from qgen.emulated_wgmma import EmulatedWgmma
from qgen.plan import CLASSES, FloatKsplitPlan, FloatRung, FloatWgmmaPlan, WgmmaRung, plan_all
from qgen.run import device
from qgen.weights import Weight

__all__ = ["able"]  # the fixture, which skips every test where the device has no such instructions

F32 = NDArray[np.float32]
Kernel = tuple[FloatWgmmaPlan, WgmmaRung]
MADE = plan_all(FORMATS)[0]
PLANS = {(plan.format, plan.contract.activation): plan for plan in MADE if isinstance(plan, FloatWgmmaPlan)}
LADDERS = {(p.format, p.contract.activation): p for p in MADE if isinstance(p, FloatKsplitPlan) and p.tile}
ROUTED = [plan for plan in PLANS.values() if any(run.written(plan, rung.name) for rung in plan.rungs)]
# On both sides of where the dispatch may change its mind about rows and about tokens.
ROWS = (3071, 3072, 5119, 5120, 8448, 8449, 14336)
TOKENS = (8, 9, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 96, 97, 130)
DISTINCT = 211  # rows, which lie in turn: no two row tiles of a CTA are alike


def kind(plan: FloatWgmmaPlan, rung: WgmmaRung) -> tuple[object, ...]:
    """What its text and launch shape depend on, but for the format."""
    return plan.contract.activation, plan.contract.folded, rung.columns, rung.row_groups, rung.split


def some() -> list[Kernel]:
    """One of every format and class, its rungs in turn; and one of every kind that is not among those."""
    names = list(dict.fromkeys(format for format, _ in PLANS))
    found = []
    for (format, activation), plan in PLANS.items():
        number = names.index(format) + 3 * CLASSES.index(activation)
        found.append((plan, plan.rungs[number % len(plan.rungs)]))
    there = {kind(*kernel) for kernel in found}
    others = {kind(plan, rung): (plan, rung) for plan in PLANS.values() for rung in plan.rungs}
    return [*found, *(kernel for name, kernel in others.items() if name not in there)]


SOME = some()
ONE = SOME[: len(PLANS)]
KINDS = list({kind(plan, rung): (plan, rung) for plan, rung in SOME}.values())
each_kernel = pytest.mark.parametrize(("plan", "rung"), SOME, ids=[rung.name for _, rung in SOME])
one_of_a_plan = pytest.mark.parametrize(("plan", "rung"), ONE, ids=[rung.name for _, rung in ONE])
one_of_a_kind = pytest.mark.parametrize(("plan", "rung"), KINDS, ids=[rung.name for _, rung in KINDS])


@cache
def planes(format: str, blocks: int) -> dict[str, NDArray[np.uint8]]:
    """By plane uint8[DISTINCT, blocks, bytes], a row filled up where the format wants it."""
    chosen = FORMATS[format]
    filled = layout.matrix(chosen, rows=1, columns=blocks * chosen.block).blocks
    make = codec.random_planes if chosen.split else lambda *a, **k: {"block": codec.random_blocks(*a, **k)}
    return {n: p.reshape(DISTINCT, filled, -1) for n, p in make(chosen, DISTINCT * filled, seed=blocks).items()}


def tiled(format: str, rows: int, blocks: int) -> Weight:
    """The weight on the device, in tiles."""
    chosen, own = FORMATS[format], {n: p[np.arange(rows) % DISTINCT] for n, p in planes(format, blocks).items()}
    data: Any = {n: p.reshape(-1) for n, p in own.items()} if chosen.split else own["block"].reshape(-1)
    return qgen.to_device(Weight.of(chosen, data, rows=rows, columns=blocks * chosen.block), storage="tiled")


@cache
def many(columns: int, tokens: int) -> F32:
    """float32[tokens, K] of mixed sizes; a group of zeros."""
    rng = np.random.default_rng(columns + tokens)
    x = rng.standard_normal((tokens, columns), dtype=np.float32)
    x *= np.exp2(rng.integers(-8, 8, x.shape)).astype(np.float32)
    x[0, : min(columns, 256) // 2] = 0
    return x


def of_class(x: F32, activation: str) -> NDArray[Any]:
    """The numbers as arrays of the class hold them: float16, or the bits of bf16."""
    own = contract_float.rounded(x, activation)
    return own.astype(np.float16) if activation == "f16" else (own.view(np.uint32) >> 16).astype(np.uint16)


def ladder_rung(plan: FloatWgmmaPlan) -> FloatRung:
    """One of the ladder over tiles that is generated, where there is one: it is compiled with others, once."""
    ladder = LADDERS[plan.format, plan.contract.activation]
    return next((rung for rung in ladder.rungs if run.written(ladder, rung.name)), ladder.rungs[0])


def by_the_ladder(cupy: Any, plan: FloatWgmmaPlan, weight: Weight, x: Any) -> F32:
    """y float32[tokens, rows], from whatever x is given."""
    return np.asarray(cupy.asnumpy(run.bind(weight, instance=ladder_rung(plan))(cupy.asarray(x))))


def check_near(plan: FloatWgmmaPlan, blocks: int, x: F32, y: F32) -> None:
    """A sample of y against exact results and the contract's bound."""
    few = np.unique(np.linspace(0, min(y.shape[1], DISTINCT) - 1, 24).astype(int))
    own = {name: part[few, :blocks] for name, part in planes(plan.format, blocks).items()}
    format = FORMATS[plan.format]
    for token in {0, len(x) - 1}:
        packed = own if format.split else own["block"]
        exact, near = contract_float.reference(format, packed, x[token], plan.contract.activation)
        assert (np.abs(y[token, few] - exact) <= near).all(), f"token {token} of {blocks} blocks"


@each_kernel
def test_float_wgmma(cupy: Any, monkeypatch: pytest.MonkeyPatch, plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """Ragged shapes, x and y with gaps: the ladder's bits, twice and by ordinary launches, whatever lay in memory, from
    float32 and from numbers of the class, and nothing beside y."""
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    whole, columns = plan.contract.slices * plan.layout.bundle, rung.columns
    for number, (rows, blocks, tokens) in enumerate(
        (
            (1, 1, 1),
            (rung.rows - 1, whole - 1, columns - 1),
            (1031, whole + 1, columns + 1),
            (15, whole, columns),
            # More groups of rows than multiprocessors, in several columns of CTAs.
            (multiprocessors * rung.rows + 17, 3, 2 * columns + 3),
        )
    ):
        weight, x = tiled(plan.format, rows, blocks), many(blocks * plan.block, tokens)
        wanted = by_the_ladder(cupy, plan, weight, x)
        check_near(plan, blocks, x, wanted)
        bound = run.bind(weight, instance=rung)
        assert isinstance(bound, run.Wgmma) and bound.instance is rung
        for fill, given, dependent in (
            (0xFF, x, True),
            (0x7E, x, True),
            (0xFF, of_class(x, plan.contract.activation), False),
        ):
            nan = 0x7FFF if given.dtype == np.uint16 else np.nan
            padded = np.full((tokens, x.shape[1] + number), nan, dtype=given.dtype)
            padded[:, : x.shape[1]] = given
            memory = cupy.asarray(np.full((tokens + 2, rows + GUARD), np.nan, dtype=np.float32))
            scratch = cupy.asarray(np.full(bound.workspace_for(tokens), fill, dtype=np.uint8))
            with monkeypatch.context() as patch:
                if not dependent:
                    ordinary(patch)
                bound(cupy.asarray(padded)[:, : x.shape[1]], memory[1:-1, :rows], workspace=scratch)
            y = cupy.asnumpy(memory)
            where = f"{rows} rows of {blocks} blocks, T = {tokens}, x {given.dtype}"
            assert np.isnan(y[[0, -1]]).all() and np.isnan(y[:, rows:]).all(), f"writes outside y: {where}"
            wrong = np.argwhere(~same(np.ascontiguousarray(y[1:-1, :rows]), wanted))
            assert not len(wrong), f"{where}: token and row {wrong[0]}, {len(wrong)} wrong"


@each_kernel
def test_shared_memory_of_others_is_no_part_of_the_result(cupy: Any, plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """NaN in all of it; K ends in bundles of which no block is there."""
    for blocks in (5, plan.contract.slices * plan.layout.bundle + 1):
        weight, x = tiled(plan.format, 300, blocks), many(blocks * plan.block, 9)
        wanted = by_the_ladder(cupy, plan, weight, x)
        bound, given = run.bind(weight, instance=rung), cupy.asarray(x)
        leave_nan(cupy)
        assert np.isfinite(wanted).all() and same(cupy.asnumpy(bound(given)), wanted).all(), f"{blocks} blocks"


@one_of_a_plan
def test_arranged_x_is_the_emulators(cupy: Any, plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """Byte for byte, from float32 and from the class."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ for the emulator")
    emulated = EmulatedWgmma(FORMATS[plan.format], plan.contract.activation)
    for blocks, tokens in ((1, 1), (plan.contract.slices * plan.layout.bundle + 3, 9)):
        bound = run.bind(tiled(plan.format, 16, blocks), instance=rung)
        x = many(blocks * plan.block, tokens)
        for given in (x, of_class(x, plan.contract.activation)):
            scratch = cupy.asarray(np.zeros(bound.workspace_for(tokens), dtype=np.uint8))
            bound(cupy.asarray(given), workspace=scratch)
            np.testing.assert_array_equal(cupy.asnumpy(scratch), emulated.activation(given), err_msg=str(given.dtype))


@each_kernel
def test_activations_that_are_no_numbers_or_very_small_or_large(
    cupy: Any, plan: FloatWgmmaPlan, rung: WgmmaRung
) -> None:
    """A token of Inf or NaN is the ladder's, and its neighbours in the same tile are untouched."""
    blocks, values = plan.contract.slices + 1, (0.0, 1e-44, 1e-38, 6e-8, 3e38, np.inf, -np.inf, np.nan)
    x = np.stack([many(blocks * plan.block, 1)[0]] * (len(values) + 3))
    x[: len(values), -1] = values
    x[-2:] = 0
    x[-1] *= -1
    weight = tiled(plan.format, 150, blocks)
    y = cupy.asnumpy(run.bind(weight, instance=rung)(cupy.asarray(x)))
    assert same(y, by_the_ladder(cupy, plan, weight, x)).all()
    assert np.isfinite(y[[0, 1, 2, 3, -3, -2, -1]]).all()


@one_of_a_kind
def test_x_written_just_before(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, plan: FloatWgmmaPlan, rung: WgmmaRung
) -> None:
    """A chain: x is written by an ordinary kernel, then by the one in front, whose result it is the end of. As
    dependent launches, captured in a graph that runs twice, and one by one."""
    columns, rows, tokens = 1024, 1100, rung.columns + 1
    weight = tiled(plan.format, rows, columns // plan.block)
    bound = run.bind(weight, instance=rung)
    # So large that products of two are near 1, whatever the size of the format's numbers.
    own = np.random.default_rng(2).standard_normal((tokens, columns), dtype=np.float32)
    size = np.float32(1 / by_the_ladder(cupy, plan, weight, own).std())
    seed = cupy.asarray(own * size)
    x = cupy.empty((tokens, columns), dtype=cupy.float32)
    kept = cupy.empty((2 * CALLS, tokens, rows), dtype=cupy.float32)
    scratch = cupy.empty(bound.workspace_for(tokens), dtype=cupy.uint8)

    def chain() -> None:
        x[...] = seed
        for i in range(CALLS):
            bound(x, kept[2 * i], workspace=scratch)
            bound(kept[2 * i, :, rows - columns :], kept[2 * i + 1], workspace=scratch)
            # Ordinary kernels keep what comes next small.
            cupy.multiply(kept[2 * i + 1, :, :columns], size, out=x)
            cupy.tanh(x, out=x)
            cupy.multiply(x, size, out=x)

    def cleared(issue: Callable[[], None]) -> Any:
        for memory in (kept, x):
            memory.fill(cupy.nan)
        scratch.fill(0xFF)
        issue()
        return cupy.asnumpy(kept)

    results = cleared(chain)
    assert np.isfinite(results).all() and len(np.unique(results[-1])) > rows
    for i in (0, CALLS - 1):
        between = np.ascontiguousarray(results[2 * i, :, rows - columns :])
        assert same(results[2 * i + 1], by_the_ladder(cupy, plan, weight, between)).all(), f"call {i} of a chain"
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        chain()
        graph = stream.end_capture()

        def replay() -> None:
            graph.launch(stream)
            graph.launch(stream)

        found = cleared(replay)
        assert np.array_equal(found.view(np.uint32), results.view(np.uint32)), "a graph of dependent launches"
    ordinary(monkeypatch)
    found = cleared(chain)
    assert np.array_equal(found.view(np.uint32), results.view(np.uint32)), "ordinary launches"


@pytest.mark.parametrize("plan", ROUTED, ids=[plan.file for plan in ROUTED])
def test_routed_calls(cupy: Any, plan: FloatWgmmaPlan) -> None:
    """At thresholds of rows and tokens: the bits of calls of one token and of the ladder's rungs."""
    activation, blocks, routed = plan.contract.activation, max(4, 1024 // plan.block), set()
    x = many(blocks * plan.block, max(TOKENS))
    given = cupy.asarray(x)
    for rows in ROWS:
        weight = tiled(plan.format, rows, blocks)
        ladder = run.bind(weight, instance=ladder_rung(plan))(given)
        check_near(plan, blocks, x, cupy.asnumpy(ladder))
        for token in (0, len(x) - 1):
            y = qgen.mul_mat(weight, given[token], activation=activation)
            assert (y.view("u4") == ladder[token].view("u4")).all(), f"{rows} rows"
        for tokens in TOKENS:
            # Rows of x and of y apart, and y of NaN.
            wide = cupy.full((tokens, x.shape[1] + 4), cupy.nan, dtype=cupy.float32)
            wide[:, : x.shape[1]] = given[:tokens]
            out = cupy.full((tokens, rows + 3), cupy.nan, dtype=cupy.float32)
            qgen.mul_mat(weight, wide[:, : x.shape[1]], out[:, :rows], activation=activation)
            assert cupy.isnan(out[:, rows:]).all(), f"writes outside y: {rows} rows, T = {tokens}"
            y = cupy.ascontiguousarray(out[:, :rows])
            assert (y.view("u4") == ladder[:tokens].view("u4")).all(), f"{rows} rows, T = {tokens}"
            bound = run.bind(weight, tokens=tokens, activation=activation)
            routed |= {bound.instance.name} if isinstance(bound, run.Wgmma) else set()
    if device.arch_of_device(cupy.cuda.Device().id).name == "sm_90":
        assert routed == {r.name for r in plan.rungs if run.written(plan, r.name)}, "all that are generated"
