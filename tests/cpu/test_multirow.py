"""Kernels of the family multirow in the emulator, from the text that is generated: the contract's bits at every T."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from judging import same
from kernel_cases import FORMATS, kernels, program
from ksplit_cases import DISTINCT, ROWS, missing_codes, numbers, operands
from multirow_checks import Multirow, compiled

from qgen import dispatch
from qgen.emulated import EmulatedMatvec, EmulatedMultirow
from qgen.plan import MultirowInstance, MultirowPlan, plan_all

PLANS, REFUSED = plan_all(FORMATS)
FULL = {plan.format: plan for plan in PLANS if isinstance(plan, MultirowPlan)}
KEPT = dispatch.keep_routed(PLANS, REFUSED)
ROUTED = {plan.format: plan for plan in KEPT if isinstance(plan, MultirowPlan)}
ARCHS = dispatch.routed_archs(KEPT, REFUSED)  # a file's text holds each kernel for those only
SHIPPED = [(plan, instance) for plan in ROUTED.values() for instance in plan.instances]


def _candidates() -> list[tuple[MultirowPlan, MultirowInstance]]:
    """Two variants a format that no route names, dealt so that each combination of rows and tokens has its turn, for
    formats that share blocks over threads and for those that do not."""
    found = []
    tried: Counter[tuple[bool, int, int]] = Counter()
    for plan in FULL.values():
        spare = [i for i in plan.instances if i not in ROUTED[plan.format].instances]
        chosen = sorted(spare, key=lambda i, shared=plan.lanes > 1: tried[shared, i.rows, i.columns])[:2]  # type: ignore[misc]
        tried.update((plan.lanes > 1, i.rows, i.columns) for i in chosen)
        found += [(plan, instance) for instance in chosen]
    return found


CANDIDATES = _candidates()


def of(plan: MultirowPlan, instance: MultirowInstance) -> Multirow:
    """From generated/ for what is shipped, else printed alone."""
    shipped = {kernel.entry: kernel for kernel in kernels("multirow")}
    if instance.name in shipped:
        arch = 900 if "sm_90" in ARCHS[instance.name] else 750
        return Multirow(FORMATS[plan.format], program(shipped[instance.name], arch), plan, instance)
    return Multirow(FORMATS[plan.format], compiled(replace(plan, instances=(instance,))), plan, instance)


def ids(chosen: list[tuple[MultirowPlan, MultirowInstance]]) -> list[str]:
    return [f"{plan.format}-r{i.rows}-t{i.columns}" for plan, i in chosen]


@pytest.mark.parametrize(("plan", "instance"), SHIPPED + CANDIDATES, ids=ids(SHIPPED + CANDIDATES))
def test_multirow(plan: MultirowPlan, instance: MultirowInstance) -> None:
    """Tails of rows, blocks and tokens, at many alignments and in three thread orders: the mat-vec's bits.

    Each packed byte is requested once for all tokens of a tile, and each token's fragment once for all rows of a team.
    """
    of(plan, instance).check_shapes()


@pytest.mark.parametrize("plan", ROUTED.values(), ids=ROUTED)
def test_multirow_of_special_numbers(plan: MultirowPlan) -> None:
    of(plan, plan.instances[-1]).check_special()


@pytest.mark.parametrize("format", ["Q6_K", "MXFP4"])
def test_multirow_rows_gigabytes_apart(format: str) -> None:
    of(ROUTED[format], ROUTED[format].instances[0]).check_far_rows()


def test_the_manifest_lists_exactly_what_is_routed() -> None:
    assert {i.name for _, i in SHIPPED} == {kernel.entry for kernel in kernels("multirow")}
    assert ROUTED.keys() == FULL.keys()
    assert all({(i.rows, i.columns) for i in p.instances} >= {(2, 2), (2, 4), (2, 8)} for p in ROUTED.values())


def test_the_cases_hold_every_code_at_every_alignment_and_width() -> None:
    for format, plan in ROUTED.items():
        tried = [case for instance in plan.instances for case in of(plan, instance).cases()]
        assert {(case.offset + row * (case.blocks * plan.block_bytes + case.pad)) % 16 for case in tried
                for row in range(case.rows)} == set(range(0, 16, plan.alignment))  # fmt: skip
        assert {case.tokens for case in tried} >= {1, 2, 3, 4, 5, 8, 9} and any(case.y_pad for case in tried)
        assert {case.blocks for case in tried} >= {1, plan.contract.slices}
        largest = max(case.blocks for case in tried if case.rows == ROWS)
        assert not missing_codes(FORMATS[format], operands(FORMATS[format], largest).packed)


def test_the_candidates_tried_are_of_every_kind() -> None:
    for shared in (True, False):
        tried = {(i.rows, i.columns) for plan, i in SHIPPED + CANDIDATES if (plan.lanes > 1) == shared}
        kind = [plan for plan in FULL.values() if (plan.lanes > 1) == shared]
        assert tried == {(i.rows, i.columns) for plan in kind for i in plan.instances}


@pytest.mark.parametrize("format", ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q4_0", "NVFP4", "PTQ1_0"])
def test_both_kernels_one_after_the_other(format: str) -> None:
    """What one launch of the quantiser writes for all tokens is what the matmul reads: each token as it is alone."""
    given, tokens = operands(FORMATS[format], 3), DISTINCT + 1
    rows = given.packed[:17].reshape(17, -1)
    x = given.x[numbers(tokens)]
    single, several = EmulatedMatvec(FORMATS[format]), EmulatedMultirow(FORMATS[format])
    alone = np.stack([single(rows, column) for column in x[:2]])
    for count in (1, 2, 3, tokens):
        instance = next((i for i in ROUTED[format].instances if i.columns >= count), ROUTED[format].instances[-1])
        y = several(rows, x[:count], instance=instance, order="shuffle", seed=2)
        assert same(y, given.wanted[numbers(count), :17]).all() and same(y[:2], alone[:count]).all()
    workspace = several.activation(x)
    assert np.array_equal(workspace.reshape(tokens, -1)[1], single.activation(x[1]))
