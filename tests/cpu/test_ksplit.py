"""Every rung of the family ksplit_mma and its quantiser, run in the emulator from the text that is generated."""

from __future__ import annotations

import numpy as np
import pytest
from judging import same
from ksplit_cases import (
    DISTINCT,
    ROWS,
    Case,
    block_of,
    bundles,
    cases,
    missing_codes,
    numbers,
    operands,
    record_type,
    takes_bulk_copies,
)
from ksplit_checks import SM_90, Ksplit, check_quantise, compiled, quantise

from qgen.errors import QgenError
from qgen.plan import KsplitPlan, Rung, launch_ksplit, plan_ksplit, plan_quantize_fragments
from qgen.spec import load_formats

FORMATS = load_formats()


def _plans() -> dict[str, KsplitPlan]:
    found = {}
    for name, format in FORMATS.items():
        try:
            found[name] = plan_ksplit(format)
        except QgenError:
            continue
    return found


PLANS = _plans()
RUNGS = [(plan, rung) for plan in PLANS.values() for rung in plan.rungs]
SERVED = list(PLANS)


def judge(plan: KsplitPlan, rung: Rung, arch: int = 900) -> Ksplit:
    return Ksplit(FORMATS[plan.format], compiled(plan, arch), plan, rung, bulk=arch >= 900)


each_rung = pytest.mark.parametrize(
    ("plan", "rung"), RUNGS, ids=[f"{plan.format}-{rung.columns}" for plan, rung in RUNGS]
)


@each_rung
def test_ksplit(plan: KsplitPlan, rung: Rung) -> None:
    """Tails of rows, blocks and tokens, at many alignments and in three thread orders: the mat-vec's bits."""
    judge(plan, rung).check_shapes()


# Q4_K's rows are always whole pieces: only without bulk copies are they staged the other way. Q3_K has two rungs with
# two row tiles a warp, one on sm_100. Q4_0 has bundles of four blocks.
@pytest.mark.parametrize(
    ("format", "arch"), [("Q4_K", 800), ("Q4_0", 800), ("Q3_K", 800), ("Q4_0", 750), ("Q3_K", 1000)]
)
def test_ksplit_on_other_architectures(format: str, arch: int) -> None:
    """Without bulk copies, and with one row tile a warp where sm_90 has two."""
    for rung in PLANS[format].rungs:
        judge(PLANS[format], rung, arch).check_shapes()


@each_rung
def test_ksplit_of_special_numbers(plan: KsplitPlan, rung: Rung) -> None:
    judge(plan, rung).check_special()


@pytest.mark.parametrize("format", SERVED)
def test_ksplit_rows_gigabytes_apart(format: str) -> None:
    plan = PLANS[format]
    judge(plan, plan.rungs[0]).check_far_rows()


@pytest.mark.parametrize("format", SERVED)
def test_the_cases_hold_every_code_at_every_alignment(format: str) -> None:
    plan = PLANS[format]
    tried = [(rung, case) for rung in plan.rungs for case in cases(plan, rung)]
    assert {(case.offset + row * (case.blocks * plan.block_bytes + case.pad)) % 16 for _, case in tried
            for row in range(case.rows)} == set(range(0, 16, plan.alignment))  # fmt: skip
    for rung in plan.rungs:
        own = [case for case in cases(plan, rung) if takes_bulk_copies(plan, rung, case)]
        grids = [
            (launch_ksplit(plan, rung, case.rows, case.tokens, case.multiprocessors, 1, SM_90)[0].grid, case)
            for case in own
        ]
        assert {grid for grid, _ in grids} >= {1, 2, 3}
        stages = max(
            -(-case.blocks // rung.stage_blocks) * -(-case.rows // rung.rows) for grid, case in grids if grid == 1
        )
        assert stages > max(rung.stages, rung.warps), "the ring goes round, and every warp has its turn"
        # Two fragments of rows or one, where a warp has two.
        assert rung.row_tiles == 1 or {grid for grid, case in grids if case.rows == ROWS} >= {1, 2}
        ragged = [case for case in cases(plan, rung) if case not in own]
        assert ragged or plan.alignment == 16, "rows that are not whole pieces"
    widest = max(rung.columns for rung in plan.rungs)
    assert {case.tokens for _, case in tried} >= {1, 2, widest - 1, widest, widest + 1, 97}
    assert any(case.y_pad for _, case in tried)
    largest = max(case.blocks for _, case in tried if case.rows == ROWS)
    assert not missing_codes(FORMATS[format], operands(FORMATS[format], largest).packed)


@pytest.mark.parametrize("format", SERVED)
def test_quantiser(format: str) -> None:
    """Codes, scales and sums of usual and of special numbers lie where the layout record says; padding is 0."""
    plan = plan_quantize_fragments(PLANS[format])
    whole = plan.split * plan.layout.bundle  # blocks of a round of bundles
    for tokens, blocks in ((1, 1), (8, plan.warps), (9, plan.warps + 1), (19, 3), (3, whole), (2, 2 * whole - 3)):
        rng = np.random.default_rng(tokens)
        x = rng.standard_normal((tokens, blocks * plan.weight_block), dtype=np.float32)
        groups = x.reshape(-1, plan.layout.group)
        with np.errstate(all="ignore"):
            groups[::3] *= (10.0 ** rng.uniform(-44, 37, (len(groups[::3]), 1))).astype(np.float32)
        groups[1::3] = np.abs(groups[1::3])  # the largest sums
        groups[1::6] = 1
        for at, special in enumerate((0.0, np.nan, -np.inf, 1e-45)):
            groups[2 + 7 * at :: 29, 3] = special
        check_quantise(compiled(plan), plan, x)


@pytest.mark.parametrize("format", SERVED)
def test_the_oracle_places_every_block_and_every_byte_once(format: str) -> None:
    layout = PLANS[format].layout
    for blocks in (1, 3, 8, 9, 32, 67):
        placed = [block_of(layout, u, j) for u in range(bundles(layout, blocks)) for j in range(layout.bundle)]
        assert len(set(placed)) == len(placed) and set(placed) >= set(range(blocks))
        assert bundles(layout, blocks) == layout.bundles(blocks)
    record = record_type(layout)
    assert record.itemsize == layout.record_bytes and layout.record_bytes % 16 == 0
    offsets = {name: record.fields[name][1] for name in record.names or ()} if record.fields else {}
    assert offsets["scales"] == layout.code_bytes
    assert offsets.get("starts", layout.starts_at) == layout.starts_at
    assert offsets.get("sums", layout.sums_at) == layout.sums_at


@pytest.mark.parametrize("format", SERVED)
def test_both_kernels_one_after_the_other(format: str) -> None:
    """What the quantiser writes, over bytes of 0xFF, is what the matmul reads; T = 11 and its tile's empty tokens."""
    plan = PLANS[format]
    convert = plan_quantize_fragments(plan)
    tokens = 2 * DISTINCT + 1
    for blocks in (3, 11):
        given = operands(FORMATS[format], blocks)
        made, _ = quantise(compiled(convert), convert, given.x[numbers(tokens)], fill=0xFF)
        case = Case(rows=17, blocks=blocks, tokens=tokens)
        for rung in plan.rungs:
            y, _, _ = judge(plan, rung).run(given, case, activation=made)
            assert same(y, given.wanted[numbers(tokens), :17]).all()
