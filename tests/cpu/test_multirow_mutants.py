"""Broken multirow kernels: each must fail the check that is there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import Edit, Wrong, damaged, with_headers
from multirow_checks import Multirow
from multirow_mutants import FAULT, MUTANTS, Mutant

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_multirow
from qgen.spec import load_formats

FORMATS = load_formats()


def _judge(mutant: Mutant, edits: tuple[Edit, ...]) -> str | None:
    """The check that the damaged text fails, "fault" for the emulator's own, None for none."""
    plan = plan_multirow(FORMATS[mutant.format])
    (instance,) = (i for i in plan.instances if (i.rows, i.columns) == (mutant.rows, mutant.columns))
    text = emit(replace(plan, instances=(instance,))).text
    program = emulate.compile(damaged(with_headers(text, "qgen_deal.cuh"), edits), "mutant")
    judged = Multirow(FORMATS[mutant.format], program, plan, instance)
    try:
        judged.check_shapes()
        judged.check_far_rows()
    except Wrong as wrong:
        return wrong.check
    except QgenError as error:
        assert error.stage == "emulate", error
        return FAULT
    return None


def _id(m: Mutant) -> str:
    return "-".join((m.name.replace(" ", "_"), m.format, f"r{m.rows}", f"t{m.columns}"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[_id(m) for m in MUTANTS])
def test_damage_is_caught(mutant: Mutant) -> None:
    assert _judge(mutant, mutant.edits) == mutant.caught


SOUND = {(m.format, m.rows, m.columns): m for m in MUTANTS}


@pytest.mark.parametrize("mutant", SOUND.values(), ids=[f"{f}-r{r}-t{c}" for f, r, c in SOUND])
def test_the_same_text_without_damage_passes(mutant: Mutant) -> None:
    assert _judge(mutant, ()) is None
