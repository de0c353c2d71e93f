"""Broken ksplit_mma kernels and quantisers: each must fail the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from judging import Wrong, damaged, only, with_headers
from ksplit_checks import Ksplit, check_quantise
from ksplit_mutants import FAULT, MUTANTS, Mutant

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import plan_ksplit, plan_quantize_fragments
from qgen.spec import load_formats

FORMATS = load_formats()


def _prepared(mutant: Mutant) -> Callable[[], None]:
    """The damaged text, compiled; what is returned runs the checks and raises what they find."""
    format = FORMATS[mutant.format]
    plan = plan_ksplit(format)
    if not mutant.columns:
        convert = plan_quantize_fragments(plan)
        text = with_headers(emit(convert).text, "qgen_quantize.cuh")
        program = emulate.compile(damaged(text, mutant.edits), convert.file)

        def convert_both() -> None:
            for blocks in (5, convert.split * convert.layout.bundle + 3):
                x = np.random.default_rng(1).standard_normal((11, blocks * format.block), dtype=np.float32)
                x.reshape(-1, 32)[::2] = np.abs(x.reshape(-1, 32)[::2])
                check_quantise(program, convert, x)

        return convert_both
    (rung,) = (r for r in plan.rungs if r.columns == mutant.columns)
    text = with_headers(only(emit(plan).text, rung.name), "qgen_ring.cuh", "qgen_split.cuh", "qgen_parts.cuh")
    judged = Ksplit(format, emulate.compile(damaged(text, mutant.edits), plan.file), plan, rung)

    def run() -> None:
        judged.check_shapes()
        judged.check_special()
        judged.check_far_rows()

    return run


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m.name} ({m.format}, {m.columns})" for m in MUTANTS])
def test_damage_is_caught(mutant: Mutant) -> None:
    check = _prepared(mutant)
    try:
        check()
    except Wrong as wrong:
        assert wrong.check == mutant.caught, str(wrong)
    except QgenError as error:
        assert mutant.caught == FAULT, str(error)
    else:
        pytest.fail("nothing noticed the damage")


@pytest.mark.parametrize("target", sorted({(m.format, m.columns) for m in MUTANTS}), ids=str)
def test_the_same_text_undamaged_passes(target: tuple[str, int]) -> None:
    format, columns = target
    _prepared(Mutant("none", format, columns, (), ""))()
