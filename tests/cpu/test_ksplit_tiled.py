"""Every rung of the family ksplit_mma over tiled storage, run in the emulator from the text that is generated."""

from __future__ import annotations

import numpy as np
import pytest
from judging import same
from ksplit_cases import DISTINCT, Case, leftovers, numbers, operands
from ksplit_checks import SM_90, compiled, quantise
from tiled_checks import Tiled

from qgen.emit import emit
from qgen.plan import KsplitPlan, Rung, launch_ksplit, plan_all, plan_ksplit, plan_quantize_fragments
from qgen.spec import load_formats

FORMATS = load_formats()
PLANS = {plan.format: plan for plan in plan_all(FORMATS)[0] if isinstance(plan, KsplitPlan) and plan.tile}
RUNGS = [(plan, rung) for plan in PLANS.values() for rung in plan.rungs]

each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
each_rung = pytest.mark.parametrize(
    ("plan", "rung"), RUNGS, ids=[f"{plan.format}-{rung.columns}" for plan, rung in RUNGS]
)


def judge(plan: KsplitPlan, rung: Rung, arch: int = 900) -> Tiled:
    return Tiled(FORMATS[plan.format], compiled(plan, arch), plan, rung)


def test_every_format_with_a_ladder_has_one_over_tiles() -> None:
    native = {plan.format for plan in plan_all(FORMATS)[0] if isinstance(plan, KsplitPlan) and not plan.tile}
    assert set(PLANS) == native and len(native) >= 20


@each_rung
def test_tiled(plan: KsplitPlan, rung: Rung) -> None:
    """Tails of rows, blocks and tokens in three thread orders: the mat-vec's bits, each tile read once."""
    judge(plan, rung).check_shapes()


@each_rung
def test_tiled_of_special_numbers(plan: KsplitPlan, rung: Rung) -> None:
    judge(plan, rung).check_special()


# One row tile a warp where sm_90 has two; bundles of several blocks, integer scales, digits.
@pytest.mark.parametrize("format", ["Q4_0", "Q6_K", "TQ1_0"])
def test_tiled_on_other_architectures(format: str) -> None:
    for rung in PLANS[format].rungs:
        judge(PLANS[format], rung, 1000).check_shapes()


@each_plan
def test_the_cases_go_round_the_ring_and_leave_tails(plan: KsplitPlan) -> None:
    for rung in plan.rungs:
        shapes = judge(plan, rung).cases()
        grids = {launch_ksplit(plan, rung, c.rows, c.tokens, c.multiprocessors, 1, SM_90)[0].grid for c in shapes}
        assert grids >= {1, 2, 3}
        alone = [
            c for c in shapes if launch_ksplit(plan, rung, c.rows, c.tokens, c.multiprocessors, 1, SM_90)[0].grid == 1
        ]
        stages = max(-(-c.blocks // rung.stage_blocks) * -(-c.rows // rung.rows) for c in alone)
        assert stages > max(rung.stages, rung.warps), "the ring goes round, and every warp has its turn"
        assert {c.rows % 16 for c in shapes} >= {0, 1, 15}
        assert leftovers(plan, rung).blocks % rung.stage_blocks


@each_plan
def test_both_kernels_one_after_the_other(plan: KsplitPlan) -> None:
    """What the quantiser writes, over bytes of 0xFF, is what the matmul reads; T = 11 and its tile's empty tokens."""
    convert = plan_quantize_fragments(plan)
    native = plan_quantize_fragments(plan_ksplit(FORMATS[plan.format]))
    assert emit(convert) == emit(native), "one quantiser for both storages"
    tokens = 2 * DISTINCT + 1
    given = operands(FORMATS[plan.format], 11)
    made, _ = quantise(compiled(convert), convert, given.x[numbers(tokens)], fill=0xFF)
    case = Case(rows=17, blocks=11, tokens=tokens)
    for rung in plan.rungs:
        y, _, _ = judge(plan, rung).run(given, case, activation=made)
        assert same(y, given.wanted[numbers(tokens), :17]).all()


@each_plan
def test_a_tile_has_every_byte_of_its_blocks_once(plan: KsplitPlan) -> None:
    tile = plan.tile
    assert tile is not None
    places = [tile.at(row, byte) for row in range(16) for byte in range(plan.block_bytes)]
    assert np.array_equal(np.sort(places), np.arange(tile.tile_bytes))
