"""Every routed rung with f16 or bf16 activations over tiled storage, run in the emulator from the text generated."""

from __future__ import annotations

import numpy as np
import pytest
from float_cases import numbers, operands
from float_checks import arrange, compiled
from float_tiled_checks import FloatTiled
from judging import same
from ksplit_cases import DISTINCT, Case
from ksplit_checks import SM_90
from test_ksplit_float import judge as native_judge

from qgen import dispatch
from qgen.plan import (
    FloatKsplitPlan,
    FloatRung,
    launch_ksplit_float,
    plan_all,
    plan_arrange,
    plan_ksplit_float,
    plan_tile,
)
from qgen.spec import load_formats

FORMATS = load_formats()
ROUTED = [p for p in dispatch.keep_routed(*plan_all(FORMATS)) if isinstance(p, FloatKsplitPlan) and p.tile]
RUNGS = [(plan, rung) for plan in ROUTED for rung in plan.rungs]

each_plan = pytest.mark.parametrize("plan", ROUTED, ids=lambda p: f"{p.format}-{p.contract.activation}")
each_rung = pytest.mark.parametrize(
    ("plan", "rung"), RUNGS, ids=[f"{plan.format}-{plan.contract.activation}-{rung.columns}" for plan, rung in RUNGS]
)


def judge(plan: FloatKsplitPlan, rung: FloatRung, arch: int = 900) -> FloatTiled:
    return FloatTiled(FORMATS[plan.format], compiled(plan, arch), plan, rung, bulk=arch >= 900)


def test_every_format_with_float_kernels_has_them_over_its_tiles() -> None:
    native = {(p.format, p.contract.activation) for p in plan_all(FORMATS)[0] if isinstance(p, FloatKsplitPlan)}
    assert {(p.format, p.contract.activation) for p in ROUTED} == native and len(native) == 48
    assert all(plan.tile == plan_tile(FORMATS[plan.format]) for plan in ROUTED)


@each_rung
def test_float_tiled(plan: FloatKsplitPlan, rung: FloatRung) -> None:
    """Tails of rows, blocks and tokens in three thread orders: the contract's bits, each tile read once."""
    judge(plan, rung).check_shapes()


@each_plan
def test_float_tiled_of_special_numbers(plan: FloatKsplitPlan) -> None:
    judge(plan, plan.rungs[-1]).check_special()


@each_plan
def test_float_tiled_without_bulk_copies(plan: FloatKsplitPlan) -> None:
    """As architectures from sm_80 to sm_89 run it: every tile comes once, 16 bytes a request, with the same bits."""
    judge(plan, plan.rungs[-1], 800).check_shapes()


# Planes, integer scales of many groups, digits: where other architectures take one CTA a multiprocessor.
@pytest.mark.parametrize(("format", "activation"), [("Q5G64_F16S", "bf16"), ("Q6_K", "f16"), ("TQ1_0", "bf16")])
def test_float_tiled_on_other_architectures(format: str, activation: str) -> None:
    (plan,) = (p for p in ROUTED if (p.format, p.contract.activation) == (format, activation))
    judge(plan, plan.rungs[0], 1200).check_shapes()


@each_plan
def test_the_cases_go_round_the_ring_and_leave_tails(plan: FloatKsplitPlan) -> None:
    for rung in plan.rungs:
        shapes = judge(plan, rung).cases()
        grids = {launch_ksplit_float(plan, rung, c.rows, c.tokens, c.multiprocessors, 1, SM_90)[0].grid for c in shapes}
        assert grids >= {1, 2}
        alone = [c for c in shapes if c.multiprocessors == 1]
        stages = max(-(-c.blocks // rung.stage_blocks) * -(-c.rows // rung.rows) for c in alone)
        assert stages > max(rung.stages, rung.warps), "the ring goes round, and every warp has its turn"
        assert {c.rows % 16 for c in shapes} >= {0, 1, 15} and any(c.blocks % rung.stage_blocks for c in alone)
        assert any(c.tokens > rung.columns for c in shapes)


@pytest.mark.parametrize(
    ("format", "activation"), [("Q4_K", "f16"), ("Q5_K", "bf16"), ("Q6G64_F16S", "bf16"), ("MXFP4", "f16")]
)
def test_both_storages_give_the_same_bits(format: str, activation: str) -> None:
    """What one kernel arranges, over bytes of 0xFF, meets rows and tiles; for every T and every rung."""
    (plan,) = (p for p in ROUTED if (p.format, p.contract.activation) == (format, activation))
    native = plan_ksplit_float(FORMATS[format], activation)
    convert = plan_arrange(native)
    given = operands(FORMATS[format], activation, plan.rungs[0].stage_blocks + 1)
    for tokens in (1, DISTINCT + 1, 9, 17):
        made = arrange(compiled(convert), convert, given.x[numbers(tokens)], narrow=False, fill=0xFF)[0]
        case = Case(rows=17, blocks=given.blocks, tokens=tokens)
        wanted, _, _ = native_judge(native, native.rungs[0]).run(given, case, activation=made)
        for rung in plan.rungs:
            y, _, _ = judge(plan, rung).run(given, case, activation=made)
            assert same(y, wanted).all() and same(y, given.wanted[numbers(tokens), :17]).all(), (rung.name, tokens)


def test_what_fills_up_a_row_is_skipped() -> None:
    """Of W8G32 a row holds whole multiples of four blocks: the next row tile begins behind them."""
    (plan,) = (p for p in ROUTED if (p.format, p.contract.activation) == ("W8G32_F16S", "bf16"))
    assert plan.tile is not None and plan.tile.row_blocks == 4
    for blocks in (1, 3, 4, 5):
        given = operands(FORMATS[plan.format], "bf16", blocks)
        assert plan.tile.bytes(17, blocks) == 2 * -(-blocks // 4) * 4 * plan.tile.tile_bytes
        case = Case(rows=37, blocks=blocks, tokens=3)
        assert np.isfinite(given.wanted).all()
        judge(plan, plan.rungs[0]).check(given, case, orders=False)
