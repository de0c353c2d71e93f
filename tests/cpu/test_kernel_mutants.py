"""The kernel tests can fail: each kind of damage to a kernel's text is caught, by the very checks good kernels pass."""

from __future__ import annotations

import random

import pytest
from judging import Wrong, damaged, only, with_headers
from kernel_cases import FORMATS, Kernel, kernels, matvec_of, text_of
from kernel_checks import Matvec, check_quantize, quantize_vectors
from kernel_mutants import MUTANTS, Mutant, slips
from made_formats import RUNS, made

from qgen import emit, emulate, plan
from qgen.errors import QgenError
from qgen.plan import Instance, MatvecPlan
from qgen.spec import Format

FAULT = "fault"


def format_of(mutant: Mutant) -> Format:
    """A shipped format, or one of made_formats."""
    name = mutant.target[0]
    return made(name) if name in RUNS else FORMATS[name]


def text_and_instance(mutant: Mutant, planned: MatvecPlan) -> tuple[str, Instance]:
    """The text of the chosen kernel alone (from generated/ for shipped formats), and its launch shape."""
    if planned.format in RUNS:
        text, instances = emit.emit(planned).text, list(planned.instances)
    else:
        shipped = [k for k in kernels("matvec") if k.path == f"matvec/{planned.file}.cu"]
        text, instances = text_of(shipped[0]), [matvec_of(k)[1] for k in shipped]
    instances.sort(key=lambda i: (i.team_blocks, i.rows))
    wide = [i for i in instances if i.team_blocks == instances[-1].team_blocks]
    chosen = {"narrow": instances[0], "slim": wide[0], "wide": wide[-1]}[mutant.target[1]]
    return only(text, chosen.name), chosen


def quantiser_text(planned: plan.QuantizePlan) -> str:
    if planned.format in RUNS:
        return emit.emit(planned).text
    return text_of(Kernel(planned.name, f"convert/{planned.file}.cu", "convert"))


def judge(format: Format, text: str, instance: Instance | None) -> str | None:
    """The check that a kernel fails, "fault" for the emulator's own, None for none. Raises if it does not compile."""
    planned = plan.plan_matvec(format)
    program = emulate.compile(text, "mutant")
    try:
        if instance is None:
            quantiser = plan.plan_quantize(planned)
            for x in quantize_vectors(quantiser):
                check_quantize(program, quantiser, x)
        else:
            judged = Matvec(format, program, planned, instance)
            judged.check_shapes()
            judged.check_special()
            judged.check_far_rows()
    except Wrong as wrong:
        return wrong.check
    except QgenError as error:
        assert error.stage == "emulate", error
        return FAULT
    return None


def victim(mutant: Mutant) -> tuple[Format, str, Instance | None]:
    """The kernel that a mutant is made from: its text, alone and with the header where that is to be damaged."""
    format = format_of(mutant)
    planned = plan.plan_matvec(format)
    if mutant.target[1] == "quantise":
        text, instance = with_headers(quantiser_text(plan.plan_quantize(planned)), "qgen_quantize.cuh"), None
    else:
        text, instance = text_and_instance(mutant, planned)
    return format, with_headers(text, "qgen_parts.cuh") if mutant.header else text, instance


@pytest.mark.parametrize("mutant", MUTANTS, ids=["-".join((m.name.replace(" ", "_"), *m.target)) for m in MUTANTS])
def test_damage_is_caught(mutant: Mutant) -> None:
    format, text, instance = victim(mutant)
    assert judge(format, damaged(text, mutant.edits), instance) == mutant.caught


# One of each way to come by a text, and the formats that test_kernels does not know.
SOUND = {"-".join(m.target) + "-header" * m.header: m for m in MUTANTS if m.target[0] in RUNS or m.target[0] == "TQ1_0"}


@pytest.mark.parametrize("mutant", SOUND.values(), ids=SOUND)
def test_the_same_text_without_damage_passes(mutant: Mutant) -> None:
    assert judge(*victim(mutant)) is None


@pytest.mark.parametrize("path", sorted({kernel.path for kernel in kernels("matvec")}))
def test_slips_in_decoding_are_caught(path: str) -> None:
    """A few of the hundreds of possible ones, drawn anew only when the file's name changes."""
    kernel = [kernel for kernel in kernels("matvec") if kernel.path == path][-1]
    planned, instance = matvec_of(kernel)
    every = slips(only(text_of(kernel), kernel.entry))
    assert len(every) > 10
    for what, text in random.Random(path).sample(every, 3):
        assert judge(FORMATS[planned.format], text, instance) is not None, f"{what} passes"
