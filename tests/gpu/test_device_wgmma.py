"""Kernels of the family wgmma on the device: bit for bit the contract's results, one token's and the ladder's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_device_kernels import FORMATS, GUARD, many, operands, same

import qgen
from qgen import codec, contract, run
from qgen.archs import load_archs
from qgen.plan import KsplitPlan, WgmmaPlan, WgmmaRung, plan_all
from qgen.plan.rungs import SHARED_LIMIT
from qgen.run import device, launching
from qgen.weights import Weight

MADE = plan_all(FORMATS)[0]
PLANS = {plan.format: plan for plan in MADE if isinstance(plan, WgmmaPlan)}
LADDERS = {plan.format: plan for plan in MADE if isinstance(plan, KsplitPlan) and plan.tile}
KERNELS = [(plan, rung) for plan in PLANS.values() for rung in plan.rungs]
# On both sides of where the dispatch may change its mind about rows and about tokens.
ROWS = (3072, 4096, 4224, 4225, 8448, 8449, 14336)
TOKENS = (9, 16, 17, 24, 32, 33, 48, 49, 64, 65, 96, 97, 130)
# Columns of rungs that rows of more than 8191 columns alone are routed to.
LONG_ROWS = {"Q1_0": {16}, "Q3_K": {16}}
SAMPLE = 24  # rows of each that are held against the contract; all of them are held against other kernels
CALLS = 3

each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
each_kernel = pytest.mark.parametrize(("plan", "rung"), KERNELS, ids=[rung.name for _, rung in KERNELS])


@pytest.fixture(autouse=True)
def able(cupy: Any) -> None:
    """Skips where the device's architecture has no such instructions."""
    arch = device.arch_of_device(cupy.cuda.Device().id)
    if not load_archs()[arch.name].instructions.wgmma:
        pytest.skip(f"{arch.name} has no instructions of warpgroups")


def tiled(cupy: Any, format: str, packed: Any) -> Weight:
    """The weight on the device, in tiles."""
    columns = packed.shape[1] * FORMATS[format].block
    weight = Weight.of(FORMATS[format], cupy.asarray(packed.reshape(-1)), rows=len(packed), columns=columns)
    return qgen.to_device(weight, storage="tiled")


@cache
def large(format: str, blocks: int) -> Any:
    """uint8[14336, blocks, bytes], of which smaller weights are the first rows."""
    packed = codec.random_blocks(FORMATS[format], max(ROWS) * blocks, seed=blocks)
    assert isinstance(packed, np.ndarray)
    return packed.reshape(max(ROWS), blocks, -1)


def multiplied(format: str, packed: Any, x: Any) -> Any:
    """The contract's y float32[tokens, rows]."""
    return np.stack([contract.mul_mat(FORMATS[format], packed, row) for row in x])


def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches from here on begin when what is in front of them has ended."""
    monkeypatch.setattr(launching, "why_not_dependent", lambda arch: "a test")


def leave_nan(cupy: Any) -> None:
    """Fills the shared memory of every multiprocessor with NaN, as a kernel in front may leave it."""
    kernel = cupy.RawKernel(
        'extern "C" __global__ void leave(int words) { extern __shared__ unsigned shared[];'
        " for (int i = threadIdx.x; i < words; i += blockDim.x) ((volatile unsigned*)shared)[i] = 0x7fff7fffu; }",
        "leave",
    )
    kernel.max_dynamic_shared_size_bytes = SHARED_LIMIT
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    kernel((multiprocessors,), (1024,), (SHARED_LIMIT // 4,), shared_mem=SHARED_LIMIT)


@each_kernel
def test_wgmma(cupy: Any, plan: WgmmaPlan, rung: WgmmaRung) -> None:
    """Ragged shapes, x and y with gaps: the contract's bits, twice, whatever lay in memory, and nothing beside y."""
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    whole, columns = plan.contract.slices * plan.layout.bundle, rung.columns
    for number, (rows, blocks, tokens) in enumerate(
        (
            (1, 1, 1),
            (rung.rows - 1, whole - 1, columns - 1),
            (1031, whole + 1, columns + 1),
            # More groups of rows than multiprocessors, in several columns of CTAs.
            (multiprocessors * rung.rows + 17, 3, 2 * columns + 3),
        )
    ):
        packed, _ = operands(plan.format, rows, blocks)
        x = many(plan.format, blocks, tokens)
        few = np.unique(np.linspace(0, rows - 1, 100).astype(int))
        wanted = multiplied(plan.format, packed[few], x)
        bound = run.bind(tiled(cupy, plan.format, packed), instance=rung)
        assert isinstance(bound, run.Wgmma) and bound.instance is rung
        padded = cupy.full((tokens, x.shape[1] + number), cupy.nan, dtype=cupy.float32)
        padded[:, : x.shape[1]] = cupy.asarray(x)
        for fill in (0xFF, 0x7E):
            memory = cupy.full((tokens + 2, rows + GUARD), cupy.nan, dtype=cupy.float32)
            scratch = cupy.full(bound.workspace_for(tokens), fill, dtype=cupy.uint8)
            bound(padded[:, : x.shape[1]], memory[1:-1, :rows], workspace=scratch)
            y = cupy.asnumpy(memory)
            where = f"{rows} rows of {blocks} blocks, T = {tokens}"
            assert np.isnan(y[[0, -1]]).all() and np.isnan(y[:, rows:]).all(), f"writes outside y: {where}"
            wrong = np.argwhere(~same(np.ascontiguousarray(y[1:-1, few]), wanted))
            assert not len(wrong), f"{where}: token and row {wrong[0]}, {len(wrong)} wrong"


@each_plan
def test_shared_memory_of_others_is_no_part_of_the_result(cupy: Any, plan: WgmmaPlan) -> None:
    """NaN in all of it; K ends in bundles of which no block is there."""
    for blocks in (5, plan.contract.slices * plan.layout.bundle + 1):
        packed, _ = operands(plan.format, 300, blocks)
        x, weight = many(plan.format, blocks, 9), tiled(cupy, plan.format, packed)
        for each in plan.rungs:
            bound, y = run.bind(weight, instance=each), cupy.zeros((9, 300), dtype=cupy.float32)
            scratch, given = cupy.zeros(bound.workspace_for(9), dtype=cupy.uint8), cupy.asarray(x)
            leave_nan(cupy)
            bound(given, y, workspace=scratch)
            assert same(cupy.asnumpy(y), multiplied(plan.format, packed, x)).all(), f"{each.name}: {blocks} blocks"


@each_plan
def test_routed_calls(cupy: Any, plan: WgmmaPlan) -> None:
    """At every threshold of rows and tokens: a sample of rows as in the contract, all of them as in calls of one token
    and as in the ladder's rungs."""
    blocks = max(3, 1024 // plan.block)
    packed, x = large(plan.format, blocks), many(plan.format, blocks, max(TOKENS))
    routed = set()
    (rung,) = (r for r in LADDERS[plan.format].rungs if r.columns == 16 and r.row_tiles == 1)
    for rows in ROWS:
        few = np.unique(np.linspace(0, rows - 1, SAMPLE).astype(int))
        wanted = multiplied(plan.format, packed[few], x)
        weight, given = tiled(cupy, plan.format, packed[:rows]), cupy.asarray(x)
        ladder = run.bind(weight, instance=rung)(given)
        assert same(cupy.asnumpy(ladder[:, few]), wanted).all()
        for token in (0, 8, 64, len(x) - 1):
            assert (qgen.mul_mat(weight, given[token]).view("u4") == ladder[token].view("u4")).all(), f"{rows} rows"
        for tokens in TOKENS:
            # Rows of x and of y apart, and y of NaN.
            wide = cupy.full((tokens, x.shape[1] + 4), cupy.nan, dtype=cupy.float32)
            wide[:, : x.shape[1]] = given[:tokens]
            out = cupy.full((tokens, rows + 3), cupy.nan, dtype=cupy.float32)
            qgen.mul_mat(weight, wide[:, : x.shape[1]], out[:, :rows])
            assert cupy.isnan(out[:, rows:]).all(), f"writes outside y: {rows} rows, T = {tokens}"
            y = cupy.ascontiguousarray(out[:, :rows])
            assert (y.view("u4") == ladder[:tokens].view("u4")).all(), f"{rows} rows, T = {tokens}"
            bound = run.bind(weight, tokens=tokens)
            routed |= {bound.instance.columns} if isinstance(bound, run.Wgmma) else set()
    if device.arch_of_device(cupy.cuda.Device().id).name == "sm_90":
        generated = {r.columns for r in plan.rungs if run.written(plan, r.name)}
        assert generated - LONG_ROWS.get(plan.format, set()) <= routed <= generated, "all that are generated"


@each_kernel
def test_x_written_just_before(cupy: Any, monkeypatch: pytest.MonkeyPatch, plan: WgmmaPlan, rung: WgmmaRung) -> None:
    """A chain: x is written by an ordinary kernel, then by the one in front, whose result it is the end of. As
    dependent launches, captured in a graph that runs twice, and one by one."""
    columns, rows, tokens = 1024, 1100, rung.columns + 1
    packed = operands(plan.format, rows, columns // plan.block)[0]
    bound = run.bind(tiled(cupy, plan.format, packed), instance=rung)
    seed = cupy.asarray(np.random.default_rng(2).standard_normal((tokens, columns), dtype=np.float32))
    x = cupy.empty((tokens, columns), dtype=cupy.float32)
    kept = cupy.empty((2 * CALLS, tokens, rows), dtype=cupy.float32)
    scratch = cupy.empty(bound.workspace_for(tokens), dtype=cupy.uint8)

    def chain() -> None:
        x[...] = seed
        for i in range(CALLS):
            bound(x, kept[2 * i], workspace=scratch)
            bound(kept[2 * i, :, rows - columns :], kept[2 * i + 1], workspace=scratch)
            # Ordinary kernels keep what comes next small.
            cupy.multiply(kept[2 * i + 1, :, :columns], 1e-6, out=x)
            cupy.tanh(x, out=x)

    def cleared(issue: Callable[[], None]) -> Any:
        for memory in (kept, x):
            memory.fill(cupy.nan)
        scratch.fill(0xFF)
        issue()
        return cupy.asnumpy(kept)

    results = cleared(chain)
    assert np.isfinite(results).all() and len(np.unique(results[-1])) > 1
    for i in (0, CALLS - 1):
        own = np.ascontiguousarray(results[2 * i, :, rows - columns :])
        few = [0, 1, tokens - 1]
        assert same(results[2 * i + 1][few], multiplied(plan.format, packed, own[few])).all(), f"call {i} of a chain"
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        chain()
        graph = stream.end_capture()

        def replay() -> None:
            graph.launch(stream)
            graph.launch(stream)

        for _ in range(2):
            found = cleared(replay)
            assert np.array_equal(found.view(np.uint32), results.view(np.uint32)), "a graph of dependent launches"
    ordinary(monkeypatch)
    found = cleared(chain)
    assert np.array_equal(found.view(np.uint32), results.view(np.uint32)), "ordinary launches"


@each_plan
def test_activations_that_are_no_numbers_or_very_small_or_large(cupy: Any, plan: WgmmaPlan) -> None:
    packed, x = operands(plan.format, 150, plan.contract.slices + 1)
    weight, values = tiled(cupy, plan.format, packed), (0.0, 1e-44, 1e-38, 3e38, np.inf, -np.inf, np.nan)
    changed = np.stack([x] * len(values))
    changed[:, -1] = values
    zeros = np.zeros_like(x)
    changed = np.concatenate([changed, zeros[None], -zeros[None]])
    wanted = multiplied(plan.format, packed, changed)
    for rung in plan.rungs:
        assert same(cupy.asnumpy(run.bind(weight, instance=rung)(cupy.asarray(changed))), wanted).all(), rung.name
