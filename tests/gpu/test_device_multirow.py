"""Every variant of the family multirow on the device, routed there or not: the bits of the contract, at every width."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from test_device_kernels import FORMATS, GUARD, many, on_device, operands, same

from qgen import contract, run
from qgen.emulated import EmulatedMultirow
from qgen.plan import MultirowPlan, plan_all

PLANS = {plan.format: plan for plan in plan_all(FORMATS)[0] if isinstance(plan, MultirowPlan)}
TOKENS = (1, 2, 3, 4, 5, 8, 9)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_multirow(cupy: Any, plan: MultirowPlan) -> None:
    """Columns are the contract's bits, twice alike, and nothing beside y is written."""
    alignment, slices = FORMATS[plan.format].alignment, plan.contract.slices
    for number, (rows, blocks) in enumerate(((1, 1), (37, slices - 1), (1031, slices + 3))):
        packed, _ = operands(plan.format, rows, blocks)
        weight = on_device(cupy, plan.format, packed, offset=number * alignment, pad=number % 3 * alignment)
        x = many(plan.format, blocks, max(TOKENS))
        wanted = np.stack([contract.mul_mat(FORMATS[plan.format], packed, row) for row in x])
        padded = cupy.full((len(x), x.shape[1] + number), cupy.nan, dtype=cupy.float32)
        padded[:, : x.shape[1]] = cupy.asarray(x)
        for instance in plan.instances:
            bound = run.bind(weight, instance=instance)
            assert bound.instance is instance
            for tokens in TOKENS:
                memory = cupy.full((tokens + 2, rows + GUARD), cupy.nan, dtype=cupy.float32)
                scratch = cupy.full(bound.workspace_for(tokens), 0xFF, dtype=cupy.uint8)
                for _ in range(2):
                    bound(padded[:tokens, : x.shape[1]], memory[1 : tokens + 1, :rows], workspace=scratch)
                    y = cupy.asnumpy(memory)
                    where = f"{instance.name}: {rows} rows of {blocks} blocks, T = {tokens}"
                    assert np.isnan(y[[0, -1]]).all() and np.isnan(y[:, rows:]).all(), f"writes outside y: {where}"
                    wrong = np.argwhere(~same(y[1:-1, :rows], wanted[:tokens]))
                    assert not len(wrong), f"{where}: token and row {wrong[0]}, {len(wrong)} wrong"


@pytest.mark.parametrize("format", PLANS)
def test_multirow_and_its_emulator_agree_bit_for_bit(cupy: Any, format: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ for the emulator")
    plan, emulated = PLANS[format], EmulatedMultirow(FORMATS[format])
    (instance,) = (i for i in plan.instances if (i.rows, i.columns) == (2, 4))
    for rows, blocks, tokens in ((1, 1, 2), (21, plan.contract.slices + 3, 5)):
        packed, _ = operands(format, rows, blocks)
        x = many(format, blocks, tokens)
        scratch = cupy.zeros(plan.workspace_bytes(blocks, tokens), dtype=cupy.uint8)
        bound = run.bind(on_device(cupy, format, packed), instance=instance)
        y = cupy.asnumpy(bound(cupy.asarray(x), workspace=scratch))
        assert same(y, emulated(packed.reshape(rows, -1), x, instance=instance)).all()
        np.testing.assert_array_equal(cupy.asnumpy(scratch), emulated.activation(x), err_msg="quantiser")
