"""Kernels with f16 and bf16 activations on the device: columns have the bits of calls alone, near the exact result.

What happens inside a tensor-core instruction is the hardware's: results are held against the computed bound, and only
columns against each other bit for bit. The emulator's tests compare with the contract to the bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qgen import codec, contract_float, layout, run
from qgen.generate import generate
from qgen.plan import FloatKsplitPlan, FloatRung
from qgen.spec import load_formats
from qgen.weights import Weight

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
FORMATS = load_formats()
PLANS = [plan for plan in generate().plans if isinstance(plan, FloatKsplitPlan)]
RUNGS = [(plan, rung) for plan in PLANS for rung in plan.rungs]
TOKENS = (1, 2, 7, 8, 9, 16, 17, 33, 97)
GUARD = 64  # poisoned floats on both sides of the result


@cache
def matrix(format: str, rows: int, blocks: int) -> tuple[contract_float.Packed, Weight, F32]:
    """The packed rows, the weight on the host, and x float32[97, K] of mixed sizes."""
    chosen = FORMATS[format]
    placed = layout.matrix(chosen, rows=rows, columns=blocks * chosen.block)
    seed = rows * 1000 + blocks
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((TOKENS[-1], blocks * chosen.block), dtype=np.float32)
    x *= np.exp2(rng.integers(-8, 8, x.shape)).astype(np.float32)
    if not chosen.split:
        data = codec.random_blocks(chosen, rows * blocks, seed)
        return data.reshape(rows, blocks, -1), Weight.of(chosen, data, rows=rows, columns=x.shape[1]), x
    planes = codec.random_planes(chosen, rows * placed.blocks, seed)
    weight = Weight.of(chosen, {n: p.reshape(-1) for n, p in planes.items()}, rows=rows, columns=x.shape[1])
    return {n: p.reshape(rows, placed.blocks, -1)[:, :blocks] for n, p in planes.items()}, weight, x


@pytest.mark.parametrize(("plan", "rung"), RUNGS, ids=[rung.name for _, rung in RUNGS])
def test_columns_and_bound(cupy: Any, plan: FloatKsplitPlan, rung: FloatRung) -> None:
    for rows, blocks in ((1, 1), (37, rung.stage_blocks + 1), (1031, rung.warps - 1)):
        packed, weight, x = matrix(plan.format, rows, blocks)
        device = run.to_device(weight, 0, storage=plan.storage)
        bound = run.bind(device, 0, instance=rung)
        alone = np.concatenate([cupy.asnumpy(bound(cupy.asarray(row[None]))) for row in x[: 9 if rows > 99 else None]])
        for token in (0, 5):
            exact, near = contract_float.reference(FORMATS[plan.format], packed, x[token], rung.activation)
            assert (np.abs(alone[token] - exact) <= near).all(), (rows, blocks, token)
        for tokens in TOKENS:
            if tokens > len(alone):
                break
            memory = cupy.full(tokens * (rows + 3) + 2 * GUARD, np.nan, dtype=np.float32)
            y = memory[GUARD:-GUARD].reshape(tokens, rows + 3)[:, :rows]
            scratch = cupy.full(bound.workspace_for(tokens), 0xFF, dtype=np.uint8)
            bound(cupy.asarray(x[:tokens]), y, workspace=scratch)
            found = cupy.asnumpy(y).view(np.uint32)
            assert np.array_equal(found, alone[:tokens].view(np.uint32)), (rows, blocks, tokens)
            assert int(cupy.isnan(memory).sum()) == memory.size - tokens * rows, "written outside y"


@pytest.mark.parametrize("activation", ["bf16", "f16"])
def test_numbers_of_the_class_give_the_same_bits(cupy: Any, activation: str) -> None:
    _, weight, x = matrix("Q5G64_F16S", 37, 9)
    rounded = contract_float.rounded(x, activation)
    own = rounded.astype(np.float16) if activation == "f16" else (rounded.view(np.uint32) >> 16).astype(np.uint16)
    wide, narrow = (run.mul_mat(weight, cupy.asarray(given), activation=activation) for given in (x, own))
    assert np.array_equal(cupy.asnumpy(wide).view(np.uint32), cupy.asnumpy(narrow).view(np.uint32))
