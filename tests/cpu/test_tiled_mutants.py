"""Broken ksplit_mma kernels over tiles: each must fail the check that is there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import Wrong, damaged, with_headers
from ksplit_mutants import FAULT, Mutant
from tiled_checks import Tiled
from tiled_mutants import HARMLESS, MUTANTS

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_ksplit
from qgen.spec import load_formats

FORMATS = load_formats()


def _name(mutant: Mutant) -> str:
    return f"{mutant.name} ({mutant.format}, {mutant.columns})"


def _prepared(mutant: Mutant) -> Tiled:
    """The damaged text, compiled."""
    format = FORMATS[mutant.format]
    plan = plan_ksplit(format, "tiled")
    (rung,) = (r for r in plan.rungs if r.columns == mutant.columns)
    headers = ("qgen_tiles.cuh", "qgen_split.cuh")
    text = emit(replace(plan, rungs=(rung,))).text
    # What includes other headers goes first, so that theirs are written where it stands.
    text = with_headers(text, "qgen_single.cuh", *headers) if rung.columns == 1 else with_headers(text, *headers)
    return Tiled(format, emulate.compile(damaged(text, mutant.edits), plan.file), plan, rung)


def _check(judged: Tiled) -> None:
    judged.check_shapes()
    judged.check_special()


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_damage_is_caught(mutant: Mutant) -> None:
    judged = _prepared(mutant)
    try:
        _check(judged)
    except Wrong as wrong:
        assert wrong.check == mutant.caught, str(wrong)
    except QgenError as error:
        assert mutant.caught == FAULT, str(error)
    else:
        pytest.fail("nothing noticed the damage")


@pytest.mark.parametrize("mutant", HARMLESS, ids=_name)
def test_when_the_next_kernel_begins_is_no_part_of_the_result(mutant: Mutant) -> None:
    _check(_prepared(mutant))


@pytest.mark.parametrize("target", sorted({(m.format, m.columns) for m in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: tuple[str, int]) -> None:
    _check(_prepared(Mutant("none", *target, (), "")))
