"""Every routed rung with f16 or bf16 activations and what arranges its x, run in the emulator as it is generated."""

from __future__ import annotations

import numpy as np
import pytest
from float_cases import cases, missing_codes, numbers, operands
from float_checks import Float, arrange, check_arrange, compiled
from judging import F32, U8, same
from ksplit_cases import DISTINCT, Case

from qgen import contract_float, dispatch
from qgen.plan import ArrangePlan, FloatKsplitPlan, FloatRung, plan_all, plan_arrange, plan_ksplit_float
from qgen.spec import load_formats

FORMATS = load_formats()
ROUTED = [p for p in dispatch.keep_routed(*plan_all(FORMATS)) if isinstance(p, FloatKsplitPlan) and not p.tile]
RUNGS = [(plan, rung) for plan in ROUTED for rung in plan.rungs]
# What no route names is tried once for each way to store and convert: scales and sums, such that are folded, planes,
# signed bytes, digits.
SPARE = [("Q4_K", "bf16"), ("Q4_K", "f16"), ("Q5G64_F16S", "bf16"), ("W8G32_F16S", "bf16"), ("TQ1_0", "bf16")]


def judge(plan: FloatKsplitPlan, rung: FloatRung) -> Float:
    return Float(FORMATS[plan.format], compiled(plan), plan, rung)


def label(plan: FloatKsplitPlan) -> str:
    return f"{plan.format}-{plan.contract.activation}"


each_rung = pytest.mark.parametrize(
    ("plan", "rung"), RUNGS, ids=[f"{label(plan)}-{rung.columns}" for plan, rung in RUNGS]
)
each_plan = pytest.mark.parametrize("plan", ROUTED, ids=label)


@each_rung
def test_float_ksplit(plan: FloatKsplitPlan, rung: FloatRung) -> None:
    """Tails of rows, blocks and tokens, at several alignments and in three thread orders: the contract's bits."""
    judge(plan, rung).check_shapes()


@each_plan
def test_float_ksplit_of_special_numbers(plan: FloatKsplitPlan) -> None:
    judge(plan, plan.rungs[-1]).check_special()


@pytest.mark.parametrize(("format", "activation"), SPARE)
def test_rungs_that_no_route_names(format: str, activation: str) -> None:
    plan = plan_ksplit_float(FORMATS[format], activation)
    assert {(r.columns, r.row_tiles) for r in plan.rungs} >= {(8, 1), (16, 1), (32, 1)}
    assert any(rung.row_tiles == 2 for rung in plan.rungs)
    for rung in plan.rungs:
        case = Case(rows=rung.rows + 1, blocks=rung.warps + 1, tokens=rung.columns + 1)
        judge(plan, rung).check(operands(FORMATS[format], activation, case.blocks), case, orders=False)


@each_plan
def test_every_code_occurs_and_the_contract_is_near_the_exact_result(plan: FloatKsplitPlan) -> None:
    format, activation = FORMATS[plan.format], plan.contract.activation
    tried = [case for rung in plan.rungs for case in cases(plan, rung)]
    given = operands(format, activation, max(case.blocks for case in tried))
    assert not missing_codes(given)
    for column, wanted in zip(given.x, given.wanted, strict=True):
        exact, bound = contract_float.reference(format, given.packed, column, activation)
        assert (np.abs(wanted - exact) <= bound).all() and (bound > 0).any()
        # A bound that a wrong code could hide behind is none: one step of one code moves y by more.
        assert np.median(bound / np.abs(exact).mean()) < 1e-3


@pytest.mark.parametrize(
    ("format", "activation"), [("Q4_K", "f16"), ("Q5_K", "bf16"), ("Q6G64_F16S", "bf16"), ("MXFP4", "f16")]
)
def test_a_column_has_the_bits_of_a_call_with_it_alone(format: str, activation: str) -> None:
    """Whatever an instruction rounds: every T, every rung and every launch shape give a token the same bits."""
    (plan,) = (p for p in ROUTED if (p.format, p.contract.activation) == (format, activation))
    given = operands(FORMATS[format], activation, plan.rungs[0].stage_blocks + 1)
    single = judge(plan, plan.rungs[0])
    alone = np.concatenate([
        single.run(given, Case(rows=17, blocks=given.blocks, tokens=1), activation=made)[0]
        for made in (arranged(plan, given.x[token : token + 1]) for token in range(DISTINCT))
    ])  # fmt: skip
    for rung in plan.rungs:
        for tokens in (1, 2, 7, 8, 9, 17, 33):
            case = Case(rows=17, blocks=given.blocks, tokens=tokens, multiprocessors=1 + tokens % 2)
            y, _, _ = judge(plan, rung).run(given, case, activation=arranged(plan, given.x[numbers(tokens)]))
            assert same(y, alone[numbers(tokens)]).all(), (rung.name, tokens)


def arranged(plan: FloatKsplitPlan, x: F32) -> U8:
    """What the kernel in front of it writes, over bytes of 0xFF: NaN in any float."""
    convert = plan_arrange(plan)
    return arrange(compiled(convert), convert, x, narrow=False, fill=0xFF)[0]


@each_plan
def test_arranging(plan: FloatKsplitPlan) -> None:
    """Values and sums of usual and of special numbers lie where the layout says; padding tokens have sums of 0."""
    convert: ArrangePlan = plan_arrange(plan)
    for tokens, blocks in ((1, 1), (9, convert.warps + 1)):
        rng = np.random.default_rng(tokens)
        x = rng.standard_normal((tokens, blocks * plan.block), dtype=np.float32)
        groups = x.reshape(-1, 16)
        with np.errstate(all="ignore"):
            groups[::3] *= (10.0 ** rng.uniform(-44, 37, (len(groups[::3]), 1))).astype(np.float32)
        for at, special in enumerate((0.0, np.nan, -np.inf, 1e-45, 65519.9, 65520.0, -0.0)):
            groups[2 + at :: 29, 3] = special
        check_arrange(compiled(convert), convert, x)
