"""Broken kernels of the family wgmma with f16 or bf16 activations, and of what arranges x for them: each must fail the
check that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from float_cases import numbers, operands
from float_mutants import FAULT
from judging import Wrong, damaged
from wgmma_float_checks import FloatWgmma, check_arranged
from wgmma_float_mutants import HARMLESS, MUTANTS, Mutant, Target

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_wgmma_float
from qgen.spec import load_formats

FORMATS = load_formats()


def _name(mutant: Mutant) -> str:
    return f"{mutant.name} ({mutant.target[0]}, {mutant.target[2].rpartition('_')[2] or 'arranged'})"


def _check_of(mutant: Mutant) -> Callable[[], None]:
    """Compiles the damaged text, with no other rung than the mutant's. Returns the check of it."""
    format, activation, ending = FORMATS[mutant.target[0]], *mutant.target[1:]
    plan = plan_wgmma_float(format, activation)
    if not ending:
        convert = plan.quantize
        program = emulate.compile(damaged(emit(convert).text, mutant.edits), convert.file)
        x = operands(format, activation, convert.warps + 1).x[numbers(11)]
        return lambda: check_arranged(program, convert, x)
    (rung,) = (rung for rung in plan.rungs if rung.name.endswith(ending))
    text = damaged(emit(replace(plan, rungs=(rung,))).text, mutant.edits)
    judged = FloatWgmma(format, emulate.compile(text, rung.name), plan, rung)

    def check() -> None:
        judged.check_shapes()
        judged.check_leftovers()

    return check


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_damage_is_caught(mutant: Mutant) -> None:
    """Something notices the damage, and it is what should."""
    check = _check_of(mutant)
    with pytest.raises((Wrong, QgenError)) as caught:
        check()
    found = caught.value.check if isinstance(caught.value, Wrong) else FAULT
    assert found in mutant.caught, caught.value


@pytest.mark.parametrize("mutant", HARMLESS, ids=_name)
def test_what_is_no_part_of_the_result(mutant: Mutant) -> None:
    _check_of(mutant)()


@pytest.mark.parametrize("target", sorted({mutant.target for mutant in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: Target) -> None:
    _check_of(Mutant("none", target, (), ()))()
