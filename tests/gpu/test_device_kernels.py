"""Every kernel on the device: bit for bit what the arithmetic contract and the emulator give, and near the oracle.

One test a kernel, from the plans. Shapes come from the plan's tiles: one block, tails of the step and of the slices,
rows that do not fill a warp, a grid that walks several tiles.
"""

from __future__ import annotations

import shutil
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qgen import codec, contract, run
from qgen.emulated import EmulatedLadder, EmulatedMatvec
from qgen.generate import generate
from qgen.plan import Instance, KsplitPlan, MatvecPlan, Rung
from qgen.spec import load_formats
from qgen.weights import Weight

F32 = NDArray[np.float32]
FORMATS = load_formats()
GENERATED = generate().plans
PLANS = {plan.format: plan for plan in GENERATED if isinstance(plan, MatvecPlan)}
KERNELS = [(plan, instance) for plan in PLANS.values() for instance in plan.instances]
EVERY_LADDER = [plan for plan in GENERATED if isinstance(plan, KsplitPlan)]
LADDERS = {plan.format: plan for plan in EVERY_LADDER if plan.storage == "native"}
RUNGS = [(plan, rung) for plan in EVERY_LADDER for rung in plan.rungs]
TOKENS = (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 97)
GUARD = 64  # poisoned floats on both sides of the result


def shapes(plan: MatvecPlan, instance: Instance) -> list[tuple[int, int]]:
    """(rows, blocks of a row) worth a run: ends and tails of every tile."""
    slices, step, tile = plan.contract.slices, instance.team_blocks, instance.warp_rows * plan.warps
    return [
        (1, 1),
        (instance.warp_rows, step),
        (instance.warp_rows + 1, step + 1),
        (tile + 3, 2 * slices - 1),
        (tile - 1, max(1, step - 1)),
        (1031, slices + 1),
    ]


@cache
def operands(format: str, rows: int, blocks: int) -> tuple[NDArray[np.uint8], F32]:
    """uint8[rows, blocks, bytes] with every code value where there is room, and float32[K] of mixed sizes."""
    chosen = FORMATS[format]
    seed = rows * 1000 + blocks
    packed = codec.random_blocks(chosen, rows * blocks, seed)
    assert isinstance(packed, np.ndarray)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(blocks * chosen.block, dtype=np.float32)
    x *= np.exp2(rng.integers(-8, 8, x.size)).astype(np.float32)
    x[: min(x.size, chosen.block) // 2] = 0  # a group of zeros
    return packed.reshape(rows, blocks, chosen.bytes), x


def on_device(cupy: Any, format: str, packed: NDArray[np.uint8], offset: int = 0, pad: int = 0) -> Weight:
    """The weight on the device: `offset` bytes behind an aligned address, rows `pad` bytes apart, all else poisoned."""
    rows = len(packed)
    lines = packed.reshape(rows, -1)
    stride = lines.shape[1] + pad
    memory = np.full(offset + rows * stride, 0xFF, dtype=np.uint8)
    memory[offset:].reshape(rows, stride)[:, : lines.shape[1]] = lines
    return Weight.of(
        FORMATS[format],
        cupy.asarray(memory)[offset:],
        rows=rows,
        columns=packed.shape[1] * FORMATS[format].block,
        row_stride_bytes=stride,
    )


def same(y: F32, wanted: F32) -> NDArray[np.bool_]:
    bits: NDArray[np.bool_] = y.view(np.uint32) == wanted.view(np.uint32)
    return bits | (np.isnan(y) & np.isnan(wanted))


@pytest.mark.parametrize(("plan", "instance"), KERNELS, ids=[instance.name for _, instance in KERNELS])
def test_kernel(cupy: Any, monkeypatch: pytest.MonkeyPatch, plan: MatvecPlan, instance: Instance) -> None:
    alignment = FORMATS[plan.format].alignment
    for number, (rows, blocks) in enumerate(shapes(plan, instance)):
        packed, x = operands(plan.format, rows, blocks)
        weight = on_device(cupy, plan.format, packed, offset=number * alignment, pad=number % 3 * alignment)
        bound = run.bind(weight, instance=instance)
        assert bound.instance is instance and isinstance(bound, run.Matvec)
        memory = cupy.empty(rows + 2 * GUARD, dtype=cupy.float32)
        scratch = cupy.full(bound.workspace_bytes, 0xFF, dtype=cupy.uint8)
        device_x = cupy.asarray(x)
        wanted = contract.mul_mat(FORMATS[plan.format], packed, x)
        exact, allowed = contract.reference(FORMATS[plan.format], packed, x)
        # As launched, once more, and with a grid so small that every warp walks many tiles.
        for grid in (None, None, 2):
            if grid:
                monkeypatch.setattr(bound, "_second", ((grid,), *bound._second[1:]))
            memory.fill(cupy.nan)
            bound(device_x, memory[GUARD : GUARD + rows], workspace=scratch)
            y = cupy.asnumpy(memory)
            where = f"{rows} rows of {blocks} blocks, offset {number * alignment}, grid {bound._second[0]}"
            assert np.isnan(y[:GUARD]).all() and np.isnan(y[GUARD + rows :]).all(), f"writes outside y: {where}"
            y = y[GUARD : GUARD + rows]
            wrong = np.flatnonzero(~same(y, wanted))
            assert not len(wrong), f"{where}: row {wrong[0]} is {y[wrong[0]]!r}, the contract says {wanted[wrong[0]]!r}"
            assert np.all(np.abs(y - exact) <= allowed), where


@pytest.mark.parametrize("format", PLANS)
def test_device_and_emulator_agree_bit_for_bit(cupy: Any, format: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ for the emulator")
    plan, emulated = PLANS[format], EmulatedMatvec(FORMATS[format])
    for rows, blocks in ((1, 1), (37, plan.contract.slices + 3)):
        packed, x = operands(format, rows, blocks)
        scratch = cupy.zeros(plan.workspace_bytes(blocks), dtype=cupy.uint8)
        for instance in plan.instances:
            bound = run.bind(on_device(cupy, format, packed), instance=instance)
            y = cupy.asnumpy(bound(cupy.asarray(x), workspace=scratch))
            assert same(y, emulated(packed.reshape(rows, -1), x, instance=instance)).all(), instance.name
            np.testing.assert_array_equal(cupy.asnumpy(scratch), emulated.activation(x), err_msg="quantiser")


@pytest.mark.parametrize("format", PLANS)
def test_activations_that_are_no_numbers_or_very_small_or_large(cupy: Any, format: str) -> None:
    blocks = 2 * PLANS[format].contract.slices // 4 + 1
    packed, x = operands(format, 9, blocks)
    weight = on_device(cupy, format, packed)
    for value in (0.0, 1e-44, 1e-38, 3e38, np.inf, -np.inf, np.nan):
        changed = x.copy()
        changed[-1] = value
        y = cupy.asnumpy(run.mul_mat(weight, cupy.asarray(changed)))
        assert same(y, contract.mul_mat(FORMATS[format], packed, changed)).all(), f"x[-1] = {value}"
    silent = cupy.asnumpy(run.mul_mat(weight, cupy.zeros(x.size, dtype=cupy.float32)))
    assert not silent.any()


def test_rows_more_than_two_gigabytes_apart(cupy: Any) -> None:
    """Row offsets past 2^31 and past 2^32 bytes: 64-bit arithmetic all the way."""
    stride, rows = 2**31 + 6, 4
    needed = (rows - 1) * stride + (1 << 20)
    if cupy.cuda.Device().mem_info[0] < needed + (1 << 30):
        pytest.skip(f"needs {needed >> 20} MiB of device memory")
    packed, x = operands("Q8_0", rows, 70)
    data = cupy.empty(needed, dtype=cupy.uint8)
    for row in range(rows):
        line = cupy.asarray(packed[row].reshape(-1))
        data[row * stride : row * stride + line.size] = line
    weight = Weight.of("Q8_0", data, rows=rows, columns=x.size, row_stride_bytes=stride)
    y = cupy.asnumpy(run.mul_mat(weight, cupy.asarray(x)))
    assert same(y, contract.mul_mat(FORMATS["Q8_0"], packed, x)).all()


# ---- more tokens ------------------------------------------------------------------------------------------------


def many(format: str, blocks: int, tokens: int) -> F32:
    """float32[tokens, K]: the vector of `operands` and others of mixed sizes."""
    rng = np.random.default_rng(blocks * 100 + tokens)
    x = rng.standard_normal((tokens, blocks * FORMATS[format].block), dtype=np.float32)
    x *= np.exp2(rng.integers(-8, 8, x.shape)).astype(np.float32)
    x[0] = operands(format, 1, blocks)[1]
    return x


@pytest.mark.parametrize(("plan", "rung"), RUNGS, ids=[rung.name for _, rung in RUNGS])
def test_rung(cupy: Any, plan: KsplitPlan, rung: Rung) -> None:
    """Every rung at every kind of T: columns are the contract's bits, and nothing beside y is written."""
    alignment, slices = FORMATS[plan.format].alignment, plan.contract.slices
    for number, (rows, blocks) in enumerate(((1, 1), (15, slices), (17, slices - 1), (1031, 2 * slices + 3))):
        packed, _ = operands(plan.format, rows, blocks)
        weight = on_device(cupy, plan.format, packed, offset=number * alignment, pad=number % 3 * alignment)
        bound = run.bind(weight if plan.storage == "native" else run.repack(weight), instance=rung)
        assert bound.instance is rung
        x = many(plan.format, blocks, max(TOKENS))
        wanted = np.stack([contract.mul_mat(FORMATS[plan.format], packed, row) for row in x])
        for tokens in TOKENS:
            memory = cupy.full((tokens + 2, rows + GUARD), cupy.nan, dtype=cupy.float32)
            scratch = cupy.full(bound.workspace_for(tokens), 0xFF, dtype=cupy.uint8)
            padded = cupy.full((tokens, x.shape[1] + number), cupy.nan, dtype=cupy.float32)
            padded[:, : x.shape[1]] = cupy.asarray(x[:tokens])
            for _ in range(2):
                bound(padded[:, : x.shape[1]], memory[1 : tokens + 1, :rows], workspace=scratch)
                y = cupy.asnumpy(memory)
                where = f"{rows} rows of {blocks} blocks, T = {tokens}"
                assert np.isnan(y[[0, -1]]).all() and np.isnan(y[:, rows:]).all(), f"writes outside y: {where}"
                wrong = np.argwhere(~same(y[1:-1, :rows], wanted[:tokens]))
                assert not len(wrong), f"{where}: token and row {wrong[0]}, {len(wrong)} wrong"


@pytest.mark.parametrize("format", LADDERS)
def test_a_token_has_the_bits_it_has_alone(cupy: Any, format: str) -> None:
    """The dispatch's own choice for T = 1 .. 96, both policies: every column as mul_mat gives it for one token."""
    blocks = LADDERS[format].contract.slices + 3
    packed, _ = operands(format, 37, blocks)
    weight, x = on_device(cupy, format, packed), cupy.asarray(many(format, blocks, 96))
    alone = np.stack([cupy.asnumpy(run.mul_mat(weight, row)) for row in x])
    for stored in (weight, run.repack(weight)):
        for tokens in range(1, 97):
            for policy in ("fastest", "invariant"):
                y = cupy.asnumpy(run.mul_mat(stored, x[:tokens], policy=policy))
                where = f"{stored.storage}, T = {tokens}, {policy}"
                assert y.shape == (tokens, 37) and same(y, alone[:tokens]).all(), where


@pytest.mark.parametrize("plan", EVERY_LADDER, ids=[plan.file for plan in EVERY_LADDER])
def test_the_ladder_and_its_emulator_agree_bit_for_bit(cupy: Any, plan: KsplitPlan) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ for the emulator")
    format, emulated = plan.format, EmulatedLadder(FORMATS[plan.format], plan.storage)
    for rows, blocks, tokens in ((1, 1, 2), (21, plan.contract.slices + 3, 19)):
        packed, _ = operands(format, rows, blocks)
        x = many(format, blocks, tokens)
        scratch = cupy.zeros(plan.workspace_bytes(blocks, tokens), dtype=cupy.uint8)
        for rung in plan.rungs:
            weight = on_device(cupy, format, packed)
            bound = run.bind(weight if plan.storage == "native" else run.repack(weight), instance=rung)
            y = cupy.asnumpy(bound(cupy.asarray(x), workspace=scratch))
            assert same(y, emulated(packed.reshape(rows, -1), x, rung=rung)).all(), rung.name
            np.testing.assert_array_equal(cupy.asnumpy(scratch), emulated.activation(x), err_msg="quantiser")


@pytest.mark.parametrize("format", LADDERS)
def test_odd_activations_stay_in_their_token(cupy: Any, format: str) -> None:
    """A token of Inf or NaN is the contract's, and its neighbours in the same tile are untouched."""
    blocks = LADDERS[format].contract.slices // 2 + 1
    packed, _ = operands(format, 9, blocks)
    weight, x = on_device(cupy, format, packed), many(format, blocks, 11)
    for token, value in enumerate((0.0, 1e-44, 1e-38, 3e38, np.inf, -np.inf, np.nan)):
        x[token, -1] = value
    y = cupy.asnumpy(run.mul_mat(weight, cupy.asarray(x)))
    wanted = np.stack([contract.mul_mat(FORMATS[format], packed, row) for row in x])
    assert same(y, wanted).all(), f"tokens {np.flatnonzero(~same(y, wanted).all(axis=1))}"
