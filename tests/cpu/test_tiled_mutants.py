"""Broken ksplit_mma kernels over tiles: each must fail the check that is there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import Wrong, damaged, with_headers
from ksplit_mutants import FAULT, Mutant
from tiled_checks import Tiled
from tiled_mutants import COPIES, HARMLESS, MUTANTS, ROOMY

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_ksplit
from qgen.spec import load_formats

FORMATS = load_formats()


def _name(mutant: Mutant) -> str:
    return f"{mutant.name} ({mutant.format}, {mutant.columns})"


def _prepared(mutant: Mutant, arch: int = 900) -> Tiled:
    """The damaged text, compiled; of two rungs of so many columns that of two row tiles a warp."""
    format = FORMATS[mutant.format]
    plan = plan_ksplit(format, "tiled")
    rung = [r for r in plan.rungs if r.columns == mutant.columns][-1]
    headers = ("qgen_tiles.cuh", "qgen_split.cuh")
    text = emit(replace(plan, rungs=(rung,))).text
    # What includes other headers goes first, so that theirs are written where it stands.
    text = with_headers(text, "qgen_single.cuh", *headers) if rung.columns == 1 else with_headers(text, *headers)
    program = emulate.compile(damaged(text, mutant.edits), plan.file, arch=arch)
    return Tiled(format, program, plan, rung, bulk=arch >= 900)


def _check(judged: Tiled) -> None:
    judged.check_shapes()
    judged.check_special()
    judged.check_far_rows()


def _expect(mutant: Mutant, arch: int = 900) -> None:
    """Something notices the damage, and it is what should."""
    try:
        _check(_prepared(mutant, arch))
    except Wrong as wrong:
        assert wrong.check == mutant.caught, str(wrong)
    except QgenError as error:
        assert mutant.caught == FAULT, str(error)
    else:
        pytest.fail("nothing noticed the damage")


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_damage_is_caught(mutant: Mutant) -> None:
    _expect(mutant)


@pytest.mark.parametrize("mutant", COPIES, ids=_name)
def test_damage_to_copies_that_are_not_bulk_is_caught(mutant: Mutant) -> None:
    _expect(mutant, 800)


@pytest.mark.parametrize("mutant", HARMLESS, ids=_name)
def test_when_the_next_kernel_begins_is_no_part_of_the_result(mutant: Mutant) -> None:
    _check(_prepared(mutant))


@pytest.mark.parametrize("target", sorted({(m.format, m.columns) for m in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: tuple[str, int]) -> None:
    _check(_prepared(Mutant("none", *target, (), "")))


@pytest.mark.parametrize("target", sorted({(m.format, m.columns) for m in COPIES}), ids=str)
def test_the_same_text_undamaged_passes_without_bulk_copies(target: tuple[str, int]) -> None:
    _check(_prepared(Mutant("none", *target, (ROOMY,), ""), 800))
