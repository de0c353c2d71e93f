"""Kernels of the family fused on the device: bit for bit the contract's results, however they are launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qgen
from qgen import codec, contract, run
from qgen.errors import QgenError
from qgen.plan import FusedInstance, FusedPlan, launch_fused, plan_all
from qgen.run import launching
from qgen.spec import load_formats
from qgen.weights import Weight

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
FORMATS = load_formats()
PLANS = {plan.format: plan for plan in plan_all(FORMATS)[0] if isinstance(plan, FusedPlan)}
KERNELS = [(plan, instance) for plan in PLANS.values() for instance in plan.instances]
GUARD = 64  # poisoned floats on both sides of the result
K, N = 1024, 2133  # a chain's x is the end of the result before it; more row tiles than an H200 has multiprocessors
CALLS = 5

each_kernel = pytest.mark.parametrize(("plan", "instance"), KERNELS, ids=[instance.name for _, instance in KERNELS])


def shapes(plan: FusedPlan, instance: FusedInstance, multiprocessors: int) -> list[tuple[int, int]]:
    """(rows, blocks of a row) worth a run: tails of row tiles, stages and rounds of quantising; a row tile and some
    more for each team of all multiprocessors; the longest rows."""
    stage, turn = instance.stage_blocks, 16 * plan.ladder.layout.bundle
    return [
        (1, 1),
        (15, max(1, stage - 1)),
        (instance.rows + 1, stage + 1),
        (1031, turn + 1),
        (multiprocessors * instance.rows + 17, 3),
        (37, plan.most_blocks),
        (17, plan.most_blocks - 1),
    ]


@cache
def operands(format: str, rows: int, blocks: int) -> tuple[U8, F32]:
    """uint8[rows, blocks, bytes] with every code value where there is room, and float32[K] of mixed sizes."""
    chosen = FORMATS[format]
    packed = codec.random_blocks(chosen, rows * blocks, rows * 1000 + blocks)
    assert isinstance(packed, np.ndarray)
    rng = np.random.default_rng(rows * 1000 + blocks)
    x = rng.standard_normal(blocks * chosen.block, dtype=np.float32)
    x *= np.exp2(rng.integers(-8, 8, x.size)).astype(np.float32)
    x[: min(x.size, chosen.block) // 2] = 0  # a group of zeros
    return packed.reshape(rows, blocks, chosen.bytes), x


def tiled(cupy: Any, format: str, packed: U8) -> Weight:
    """The weight on the device, in tiles."""
    columns = packed.shape[1] * FORMATS[format].block
    weight = Weight.of(FORMATS[format], cupy.asarray(packed.reshape(-1)), rows=len(packed), columns=columns)
    return qgen.to_device(weight, storage="tiled")


def bind(cupy: Any, weight: Weight, instance: FusedInstance) -> run.Fused:
    """The launch; skips where the device has less shared memory than the kernel needs."""
    room = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    if room < instance.shared_bytes:
        pytest.skip(f"{instance.name} needs {instance.shared_bytes} bytes of shared memory, the device has {room}")
    bound = run.bind(weight, instance=instance)
    assert isinstance(bound, run.Fused) and bound.instance is instance and bound.workspace_bytes == 0
    return bound


def same(y: F32, wanted: F32) -> NDArray[np.bool_]:
    bits: NDArray[np.bool_] = y.view(np.uint32) == wanted.view(np.uint32)
    return bits | (np.isnan(y) & np.isnan(wanted))


def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches from here on begin when what is in front of them has ended."""
    monkeypatch.setattr(launching, "why_not_dependent", lambda arch: "a test")


@each_kernel
def test_fused(cupy: Any, plan: FusedPlan, instance: FusedInstance) -> None:
    """Ragged shapes, x and y at addresses of single floats: the contract's bits, twice, and nothing beside y."""
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    for rows, blocks in shapes(plan, instance, multiprocessors):
        packed, x = operands(plan.format, rows, blocks)
        wanted = contract.mul_mat(FORMATS[plan.format], packed, x)
        bound = bind(cupy, tiled(cupy, plan.format, packed), instance)
        assert bound._launch[0] == (launch_fused(instance, rows, multiprocessors).grid,)
        memory = cupy.empty(rows + 2 * GUARD + 1, dtype=cupy.float32)
        given = cupy.full(x.size + 1, cupy.nan, dtype=cupy.float32)
        given[1:] = cupy.asarray(x)
        # As launched, once more, and with so few CTAs that every team takes many row tiles.
        for grid in (None, None, 2):
            with pytest.MonkeyPatch.context() as patch:
                if grid and rows > 16:
                    patch.setattr(bound, "_launch", ((grid,), *bound._launch[1:]))
                memory.fill(cupy.nan)
                bound(given[1:], memory[GUARD + 1 : GUARD + 1 + rows])
                y = cupy.asnumpy(memory)
            where = f"{rows} rows of {blocks} blocks, grid {grid}"
            front, y, behind = np.split(y, (GUARD + 1, GUARD + 1 + rows))
            assert np.isnan(front).all() and np.isnan(behind).all(), f"writes outside y: {where}"
            wrong = np.flatnonzero(~same(y, wanted))
            assert not len(wrong), f"{where}: row {wrong[0]} is {y[wrong[0]]!r}, the contract says {wanted[wrong[0]]!r}"


@each_kernel
def test_ordinary_launches(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, plan: FusedPlan, instance: FusedInstance
) -> None:
    """The same bits where launches do not begin early."""
    ordinary(monkeypatch)
    for rows, blocks in ((1, 1), (instance.rows + 1, instance.stage_blocks + 1)):
        packed, x = operands(plan.format, rows, blocks)
        bound = bind(cupy, tiled(cupy, plan.format, packed), instance)
        y = cupy.asnumpy(bound(cupy.asarray(x)))
        assert same(y, contract.mul_mat(FORMATS[plan.format], packed, x)).all()


@each_kernel
def test_x_written_just_before(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, plan: FusedPlan, instance: FusedInstance
) -> None:
    """A chain: x is written by an ordinary kernel, then by the fused one in front, whose result it is the end of. One
    that does not wait takes a wrong x. As dependent launches, captured in a graph that runs twice, and one by one."""
    format = FORMATS[plan.format]
    packed = codec.random_blocks(format, N * K // format.block, seed=1)
    assert isinstance(packed, np.ndarray)
    packed = packed.reshape(N, K // format.block, format.bytes)
    bound = bind(cupy, tiled(cupy, plan.format, packed), instance)
    seed = cupy.asarray(np.random.default_rng(2).standard_normal(K, dtype=np.float32))
    x = cupy.empty(K, dtype=cupy.float32)
    # Ordinary kernels between every two results keep them small.
    kept = cupy.empty((2 * CALLS, N), dtype=cupy.float32)
    given = cupy.empty((CALLS, K), dtype=cupy.float32)

    def chain() -> None:
        x[...] = seed
        for i in range(CALLS):
            bound(x, kept[2 * i])
            bound(kept[2 * i, N - K :], kept[2 * i + 1])
            cupy.multiply(kept[2 * i + 1, :K], 1e-3, out=x)
            cupy.tanh(x, out=x)
            given[i] = x

    def cleared(issue: Callable[[], None]) -> tuple[F32, F32]:
        for memory in (kept, given, x):
            memory.fill(cupy.nan)
        issue()
        return cupy.asnumpy(kept), cupy.asnumpy(given)

    results, between = cleared(chain)
    assert np.isfinite(results).all() and len(np.unique(results[-1])) > 1
    for i in (0, CALLS - 1):
        first = cupy.asnumpy(seed) if i == 0 else between[i - 1]
        for own, made in ((first, results[2 * i]), (results[2 * i, N - K :], results[2 * i + 1])):
            wanted = contract.mul_mat(format, packed, np.ascontiguousarray(own))
            assert same(made, wanted).all(), f"call {i} of a chain of dependent launches"

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        chain()
        graph = stream.end_capture()

        def replay() -> None:
            graph.launch(stream)
            graph.launch(stream)

        for _ in range(2):
            found, _ = cleared(replay)
            assert np.array_equal(found.view(np.uint32), results.view(np.uint32)), "a graph of dependent launches"
    ordinary(monkeypatch)
    found, _ = cleared(chain)
    assert np.array_equal(found.view(np.uint32), results.view(np.uint32)), "ordinary launches"


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_activations_that_are_no_numbers_or_very_small_or_large(cupy: Any, plan: FusedPlan) -> None:
    blocks = plan.instances[0].stage_blocks + 1
    packed, x = operands(plan.format, 21, blocks)
    weight = tiled(cupy, plan.format, packed)
    for instance in plan.instances:
        bound = bind(cupy, weight, instance)
        for value in (0.0, 1e-44, 1e-38, 3e38, np.inf, -np.inf, np.nan):
            changed = x.copy()
            changed[-1] = value
            y = cupy.asnumpy(bound(cupy.asarray(changed)))
            assert same(y, contract.mul_mat(FORMATS[plan.format], packed, changed)).all(), f"x[-1] = {value}"
        for zero in (0.0, -0.0):
            zeros = np.full(x.size, zero, dtype=np.float32)
            y = cupy.asnumpy(bound(cupy.asarray(zeros)))
            assert same(y, contract.mul_mat(FORMATS[plan.format], packed, zeros)).all(), f"x = {zero}"


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_rows_that_are_too_long_and_native_storage_are_refused(cupy: Any, plan: FusedPlan) -> None:
    packed, _ = operands(plan.format, 1, plan.most_blocks + 1)
    long = tiled(cupy, plan.format, packed)
    native = Weight.of(
        FORMATS[plan.format], cupy.asarray(packed[:, :1].reshape(-1)), rows=1, columns=FORMATS[plan.format].block
    )
    for instance in plan.instances:
        for weight in (long, native):
            with pytest.raises(QgenError) as refused:
                run.bind(weight, instance=instance)
            assert refused.value.stage == "run"
