"""Every generated kernel, run in the emulator from its text in generated/: one test a kernel, ids from the manifest."""

from __future__ import annotations

import pytest
from kernel_cases import (
    FORMATS,
    ROWS,
    Case,
    Kernel,
    cases,
    kernels,
    matvec_of,
    missing_codes,
    operands,
    plan_of,
    program,
    quantize_of,
)
from kernel_checks import Matvec, check_quantize, quantize_vectors
from test_fused import KERNELS as FUSED
from test_ksplit import PLANS, RUNGS, SERVED
from test_ksplit_float import ROUTED as FLOATS
from test_ksplit_float_tiled import RUNGS as TILED_FLOATS
from test_ksplit_tiled import ONE_ROW_TILE
from test_ksplit_tiled import RUNGS as TILED
from test_multirow import SHIPPED
from test_repack import REPACKERS
from test_wgmma_float import PLANS as WIDE_FLOATS

from qgen import generate
from qgen.plan import MatvecPlan, QuantizePlan, entries, plan_arrange, plan_quantize_fragments, plan_wgmma

MATVEC = kernels("matvec")
CONVERT = [kernel for kernel in kernels("convert") if isinstance(plan_of(kernel), QuantizePlan)]


def of(kernel: Kernel) -> Matvec:
    plan, instance = matvec_of(kernel)
    return Matvec(FORMATS[plan.format], program(kernel), plan, instance)


def ids(chosen: list[Kernel]) -> list[str]:
    return [kernel.entry for kernel in chosen]


def test_the_manifest_lists_exactly_the_kernels_that_are_planned() -> None:
    made = generate.generate()
    planned = [(source.path, entry) for source in made.sources for entry in source.kernels]
    assert planned and sorted(planned) == sorted((kernel.path, kernel.entry) for kernel in kernels())


def test_every_kernel_has_its_test() -> None:
    """Here, in test_multirow, test_repack, test_fused, test_wgmma, test_wgmma_float, or for tensor cores in test_ksplit
    and those named after it: once."""
    here = [kernel.entry for kernel in MATVEC + CONVERT]
    there = [instance.name for _, instance in SHIPPED]
    # Rungs to which no route leads are tested, too.
    there += {rung.name for _, rung in RUNGS + TILED + ONE_ROW_TILE}.intersection(kernel.entry for kernel in kernels())
    there += {instance.name for _, instance in FUSED}.intersection(kernel.entry for kernel in kernels())
    for plan in map(plan_wgmma, map(FORMATS.__getitem__, SERVED)):
        there += {*entries(plan), plan.quantize.name}.intersection(kernel.entry for kernel in kernels())
    for wide in WIDE_FLOATS:
        there += {*entries(wide), wide.quantize.name}.intersection(kernel.entry for kernel in kernels())
    there += [rung.name for _, rung in TILED_FLOATS]
    there += [plan_quantize_fragments(PLANS[format]).name for format in SERVED]
    there += [kernel.entry for kernel in REPACKERS]
    there += [name for plan in FLOATS for name in (*entries(plan), plan_arrange(plan).name)]
    assert MATVEC and CONVERT and RUNGS and SERVED and FLOATS
    assert sorted(here + there) == sorted(kernel.entry for kernel in kernels()), "a kernel without tests"


@pytest.mark.parametrize("kernel", MATVEC, ids=ids(MATVEC))
def test_matvec(kernel: Kernel) -> None:
    """Shapes from the kernel's own tiles, every alignment, every code at every place, four thread orders."""
    judged = of(kernel)
    judged.check_shapes()
    tried = cases(judged.plan, judged.instance)
    assert {case.offset for case in tried} == set(range(0, 16, judged.plan.alignment))
    assert {case.pad for case in tried} >= {0, judged.plan.alignment}
    last = tried[-1]
    assert last.rows == ROWS
    assert not missing_codes(judged.format, operands(judged.format, last.blocks).packed)


@pytest.mark.parametrize("kernel", MATVEC, ids=ids(MATVEC))
def test_matvec_of_special_numbers(kernel: Kernel) -> None:
    """Zero, subnormal, huge, infinite and NaN scales and activations give the contract's bits, NaN for NaN."""
    of(kernel).check_special()


@pytest.mark.parametrize("kernel", MATVEC, ids=ids(MATVEC))
def test_matvec_rows_gigabytes_apart(kernel: Kernel) -> None:
    """Row offsets past 2^31 and past 2^32 bytes."""
    of(kernel).check_far_rows()


@pytest.mark.parametrize("kernel", CONVERT, ids=ids(CONVERT))
def test_quantize(kernel: Kernel) -> None:
    """Codes, scales and sums of all kinds of groups, where the layout record puts them; every byte is written once."""
    plan = quantize_of(kernel)
    for x in quantize_vectors(plan):
        check_quantize(program(kernel), plan, x)


# ---- the read factor --------------------------------------------------------------------------------------------


def read_factor(kernel: Kernel, multiprocessors: int) -> float:
    """Weight bytes requested over packed bytes, for whole output tiles and a tail, at the worst alignment."""
    judged = of(kernel)
    plan, instance = judged.plan, judged.instance
    given = operands(judged.format, 2 * plan.contract.slices + 3)
    rows = 2 * instance.warp_rows * plan.warps + 1
    case = Case(rows, given.blocks, pad=plan.alignment, offset=16 - plan.alignment, multiprocessors=multiprocessors)
    _, report = judged.run(given, case)
    packed = given.packed[:rows].size
    assert report.bytes_touched["weight"] == packed
    return report.read_bytes["weight"] / packed


@pytest.mark.parametrize("format", ["TQ1_0", "PTQ1_0"])
def test_each_packed_byte_of_base_3_is_requested_once_per_output_tile(format: str) -> None:
    chosen = [kernel for kernel in MATVEC if matvec_of(kernel)[0].format == format]
    assert chosen
    for kernel in chosen:
        assert read_factor(kernel, 1) == 1.0 and read_factor(kernel, 1000) == 1.0


@pytest.mark.parametrize("kernel", MATVEC, ids=ids(MATVEC))
def test_the_counter_confirms_the_planned_read_factor(kernel: Kernel) -> None:
    plan: MatvecPlan = matvec_of(kernel)[0]
    assert plan.read_factor <= 1.15
    assert read_factor(kernel, 1) == plan.read_factor
