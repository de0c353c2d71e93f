"""Broken kernels of the family wgmma, and broken quantisers: each must fail the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from judging import Wrong, damaged, with_headers
from ksplit_cases import operands
from ksplit_mutants import FAULT
from wgmma_checks import Wgmma, check_quantise
from wgmma_mutants import HARMLESS, MUTANTS, Mutant, Target

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_wgmma
from qgen.spec import load_formats

FORMATS = load_formats()


def _name(mutant: Mutant) -> str:
    return f"{mutant.name} ({mutant.target[0]}, {mutant.target[1].rpartition('_')[2] or 'quantiser'})"


def _check_of(mutant: Mutant) -> Callable[[], None]:
    """Compiles the damaged text, with no other rung than the mutant's. Returns the check of it."""
    format, ending = FORMATS[mutant.target[0]], mutant.target[1]
    plan = plan_wgmma(format)
    if not ending:
        text = damaged(emit(plan.quantize).text, mutant.edits)
        program = emulate.compile(text, plan.quantize.file)
        blocks = plan.quantize.warps + 1
        return lambda: check_quantise(program, plan.quantize, operands(format, blocks).x.repeat(3, axis=0))
    (rung,) = (rung for rung in plan.rungs if rung.name.endswith(ending))
    text = with_headers(emit(replace(plan, rungs=(rung,))).text, "qgen_slices.cuh")
    judged = Wgmma(format, emulate.compile(damaged(text, mutant.edits), rung.name), plan, rung)

    def check() -> None:
        judged.check_shapes()
        judged.check_leftovers()
        judged.check_far_rows()

    return check


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_damage_is_caught(mutant: Mutant) -> None:
    """Something notices the damage, and it is what should."""
    check = _check_of(mutant)
    try:
        check()
    except Wrong as wrong:
        assert wrong.check == mutant.caught, str(wrong)
    except QgenError as error:
        assert mutant.caught == FAULT, str(error)
    else:
        pytest.fail("nothing noticed the damage")


@pytest.mark.parametrize("mutant", HARMLESS, ids=_name)
def test_what_is_no_part_of_the_result(mutant: Mutant) -> None:
    _check_of(mutant)()


@pytest.mark.parametrize("target", sorted({mutant.target for mutant in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: Target) -> None:
    _check_of(Mutant("none", target, (), ""))()
