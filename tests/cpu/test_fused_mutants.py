"""Broken kernels of the family fused: each must fail the check that is there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fused_checks import Fused
from fused_mutants import HARMLESS, MUTANTS, Mutant, Target
from judging import Wrong, damaged, with_headers
from ksplit_mutants import FAULT

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_fused
from qgen.spec import load_formats

FORMATS = load_formats()


def _name(mutant: Mutant) -> str:
    return f"{mutant.name} ({mutant.target[0]}, {mutant.target[1]})"


def _prepared(mutant: Mutant) -> Fused:
    """The damaged text, compiled, with no other instance than the mutant's."""
    name, warps = mutant.target
    plan = plan_fused(FORMATS[name])
    (instance,) = (i for i in plan.instances if i.warps == warps)
    text = emit(replace(plan, instances=(instance,))).text
    text = with_headers(text, "qgen_single.cuh", "qgen_tiles.cuh", "qgen_split.cuh")
    return Fused(FORMATS[name], emulate.compile(damaged(text, mutant.edits), plan.file), plan, instance)


def _check(judged: Fused) -> None:
    judged.check_shapes()
    judged.check_far_rows()
    judged.check_too_long()


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_damage_is_caught(mutant: Mutant) -> None:
    """Something notices the damage, and it is what should."""
    try:
        _check(_prepared(mutant))
    except Wrong as wrong:
        assert wrong.check == mutant.caught, str(wrong)
    except QgenError as error:
        assert mutant.caught == FAULT, str(error)
    else:
        pytest.fail("nothing noticed the damage")


@pytest.mark.parametrize("mutant", HARMLESS, ids=_name)
def test_what_is_no_part_of_the_result(mutant: Mutant) -> None:
    _check(_prepared(mutant))


@pytest.mark.parametrize("target", sorted({mutant.target for mutant in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: Target) -> None:
    _check(_prepared(Mutant("none", target, (), "")))
