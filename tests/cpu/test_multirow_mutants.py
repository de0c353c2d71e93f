"""Broken multirow kernels: each must fail the check that is there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from batch_checks import Wrong
from multirow_checks import Multirow
from multirow_mutants import FAULT, MUTANTS, Edit, Mutant

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.plan import plan_multirow
from qgen.spec import load_formats

FORMATS = load_formats()


def _damaged(text: str, edits: tuple[Edit, ...]) -> str:
    for old, new in edits:
        assert old in text, f"{old!r} is no longer in the text: bring the mutant up to date"
        text = text.replace(old, new, 1)
    return text


def _judge(mutant: Mutant, edits: tuple[Edit, ...]) -> str | None:
    """The check that the damaged text fails, "fault" for the emulator's own, None for none."""
    plan = plan_multirow(FORMATS[mutant.format])
    (instance,) = (i for i in plan.instances if (i.rows, i.columns) == (mutant.rows, mutant.columns))
    text = emit(replace(plan, instances=(instance,))).text
    header = (data_dir("templates") / "lib" / "qgen_deal.cuh").read_text(encoding="utf-8")
    include = '#include "qgen_deal.cuh"\n'
    assert text.count(include) == 1
    text = text.replace(include, header.replace("#pragma once\n", ""))
    program = emulate.compile(_damaged(text, edits), "mutant")
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
