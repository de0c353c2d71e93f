"""Broken ksplit_mma kernels and quantisers: each must fail the check that is there for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from batch_checks import Wrong
from ksplit_checks import Ksplit, check_quantise
from ksplit_mutants import FAULT, MUTANTS, Edit, Mutant

from qgen import emulate
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.plan import plan_ksplit, plan_quantize_fragments
from qgen.spec import load_formats

FORMATS = load_formats()


def _damaged(text: str, edits: tuple[Edit, ...]) -> str:
    for old, new in edits:
        assert old in text, f"{old!r} is no longer in the text: bring the mutant up to date"
        text = text.replace(old, new, 1)
    return text


def _only(text: str, entry: str) -> str:
    """The file with no other kernel than `entry`, which compiles faster, and qgen_parts.cuh written into it."""
    head, end = text.rsplit("}  // namespace\n", 1)
    kernels: Iterator[str] = (m[0] for m in re.finditer(r'extern "C" __global__.*?\n}\n', end, re.DOTALL))
    (kept,) = (kernel for kernel in kernels if re.search(rf"\b{entry}\(", kernel))
    header = (data_dir("templates") / "lib" / "qgen_parts.cuh").read_text(encoding="utf-8")
    include = '#include "qgen_parts.cuh"\n'
    assert head.count(include) == 1
    return f"{head}}}  // namespace\n\n{kept}".replace(include, header.replace("#pragma once\n", ""))


def _prepared(mutant: Mutant) -> Callable[[], None]:
    """The damaged text, compiled; what is returned runs the checks and raises what they find."""
    format = FORMATS[mutant.format]
    plan = plan_ksplit(format)
    if not mutant.columns:
        convert = plan_quantize_fragments(plan)
        program = emulate.compile(_damaged(emit(convert).text, mutant.edits), convert.file)
        x = np.random.default_rng(1).standard_normal((11, 5 * format.block), dtype=np.float32)
        x.reshape(-1, 32)[::2] = np.abs(x.reshape(-1, 32)[::2])
        return lambda: check_quantise(program, convert, x)
    (rung,) = (r for r in plan.rungs if r.columns == mutant.columns)
    text = _only(emit(plan).text, rung.name)
    judged = Ksplit(format, emulate.compile(_damaged(text, mutant.edits), plan.file), plan, rung)

    def run() -> None:
        judged.check_shapes()
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
