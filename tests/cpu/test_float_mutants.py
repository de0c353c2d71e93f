"""Broken kernels with f16 or bf16 activations: each must fail a check that is there for it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from float_checks import Float, check_arrange
from float_mutants import FAULT, MUTANTS, Mutant
from judging import Wrong, damaged, only, with_headers

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import ArrangePlan, FloatKsplitPlan, FloatRung, plan_arrange, plan_ksplit_float
from qgen.spec import load_formats

FORMATS = load_formats()
HEADERS = ("qgen_fold.cuh", "qgen_float.cuh")


@cache
def planned(format: str, activation: str, columns: int) -> tuple[FloatKsplitPlan, FloatRung | ArrangePlan, str]:
    """The plan, what is broken of it, and its text with the headers for floats written into it and no other kernel."""
    plan = plan_ksplit_float(FORMATS[format], activation)
    headers = HEADERS if plan.fold and (columns or plan.layout.pieced) else HEADERS[1:]
    if not columns:
        convert = plan_arrange(plan)
        return plan, convert, with_headers(emit(convert).text, *headers)
    (rung,) = (r for r in plan.rungs if (r.columns, r.row_tiles) == (columns, 1))
    return plan, rung, with_headers(only(emit(plan).text, rung.name), *headers)


def judged(mutant: Mutant, text: str) -> None:
    """Compile a text and run the checks. Raises what they find."""
    plan, broken, _ = planned(mutant.format, mutant.activation, mutant.columns)
    program = emulate.compile(text, plan.file)
    if isinstance(broken, ArrangePlan):
        x = np.random.default_rng(1).standard_normal((11, 5 * plan.block), dtype=np.float32)
        # Halfway between two bf16, and between two f16: ties.
        x[:, ::3] = (x[:, ::3].view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)
        check_arrange(program, broken, x)
        return
    Float(FORMATS[mutant.format], program, plan, broken).check_shapes()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_broken_kernel_is_caught(mutant: Mutant) -> None:
    text = damaged(planned(mutant.format, mutant.activation, mutant.columns)[2], mutant.edits)
    with pytest.raises((Wrong, QgenError)) as caught:
        judged(mutant, text)
    found = caught.value.check if isinstance(caught.value, Wrong) else FAULT
    assert found in mutant.caught, caught.value
    if isinstance(caught.value, QgenError):
        assert caught.value.stage == "emulate" and "compile" not in caught.value.found, caught.value


@pytest.mark.parametrize("target", sorted({(m.format, m.activation, m.columns) for m in MUTANTS}), ids=str)
def test_the_unbroken_text_passes(target: tuple[str, str, int]) -> None:
    judged(next(m for m in MUTANTS if (m.format, m.activation, m.columns) == target), planned(*target)[2])
