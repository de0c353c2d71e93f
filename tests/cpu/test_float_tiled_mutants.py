"""Broken kernels with f16 or bf16 activations over tiles: each must fail the check that is there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from float_mutants import FAULT, Mutant
from float_tiled_checks import FloatTiled
from float_tiled_mutants import HARMLESS, MUTANTS
from judging import Wrong, damaged, with_headers

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_ksplit_float
from qgen.spec import load_formats

FORMATS = load_formats()


def _name(mutant: Mutant) -> str:
    return f"{mutant.name} ({mutant.format}, {mutant.columns})"


def _prepared(mutant: Mutant) -> FloatTiled:
    """The damaged text, compiled."""
    format = FORMATS[mutant.format]
    plan = plan_ksplit_float(format, mutant.activation, "tiled")
    (rung,) = (r for r in plan.rungs if r.columns == mutant.columns)
    text = with_headers(emit(replace(plan, rungs=(rung,))).text, "qgen_tiles.cuh", "qgen_split.cuh")
    return FloatTiled(format, emulate.compile(damaged(text, mutant.edits), plan.file), plan, rung)


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_damage_is_caught(mutant: Mutant) -> None:
    judged = _prepared(mutant)
    with pytest.raises((Wrong, QgenError)) as caught:
        judged.check_shapes()
    found = caught.value.check if isinstance(caught.value, Wrong) else FAULT
    assert found in mutant.caught, caught.value
    if isinstance(caught.value, QgenError):
        assert caught.value.stage == "emulate" and "compile" not in caught.value.found, caught.value


@pytest.mark.parametrize("mutant", HARMLESS, ids=_name)
def test_when_the_next_kernel_begins_is_no_part_of_the_result(mutant: Mutant) -> None:
    _prepared(mutant).check_shapes()


@pytest.mark.parametrize("target", sorted({(m.format, m.activation, m.columns) for m in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: tuple[str, str, int]) -> None:
    _prepared(Mutant("none", *target, (), ())).check_shapes()
