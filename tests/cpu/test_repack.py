"""The generated repackers, run in the emulator from their text, against the host's; and that these tests can fail."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from judging import Edit, Wrong, damaged
from kernel_cases import FORMATS, Kernel, kernels, plan_of, program, text_of
from repack_checks import (
    ORDERS,
    Case,
    cases,
    check_far_to_native,
    check_far_to_tiled,
    check_to_native,
    check_to_tiled,
)

from qgen import emulate, plan
from qgen.archs import load_archs
from qgen.dispatch import routed_repack
from qgen.errors import QgenError
from qgen.plan import RepackPlan, plan_repack
from qgen.spec import Format

REPACKERS = [kernel for kernel in kernels("convert") if isinstance(plan_of(kernel), RepackPlan)]


def planned_of(kernel: Kernel) -> RepackPlan:
    planned = plan_of(kernel)
    assert isinstance(planned, RepackPlan)
    return planned


@pytest.mark.parametrize("kernel", REPACKERS, ids=[kernel.entry for kernel in REPACKERS])
def test_repack(kernel: Kernel) -> None:
    """Row counts around whole tiles, odd strides and addresses, chunks, four thread orders; each byte moved once."""
    planned = planned_of(kernel)
    check = check_to_tiled if kernel.entry == planned.to_tiled else check_to_native
    tried = cases(planned)
    assert {(case.order, case.seed) for case in tried} == set(ORDERS)
    for case in tried:
        check(FORMATS[planned.format], planned, program(kernel), case)


def test_every_format_with_tiles_has_repackers() -> None:
    tiled = []
    for name, format in FORMATS.items():
        try:
            plan.plan_tile(format)
        except QgenError:
            continue
        tiled.append(name)
    assert len(tiled) == 24 and sorted(2 * tiled) == sorted(planned_of(kernel).format for kernel in REPACKERS)


@pytest.mark.parametrize("arch", load_archs())
def test_the_dispatch_names_the_kernel_that_makes_the_other_storage(arch: str) -> None:
    for name in sorted({planned_of(kernel).format for kernel in REPACKERS}):
        format, planned = FORMATS[name], plan_repack(FORMATS[name])
        for storage, kernel in (("native", planned.to_tiled), ("tiled", planned.to_native)):
            assert routed_repack(format, storage, 5, 3 * format.block, arch) == kernel
    with pytest.raises(QgenError, match="no tiled storage"):
        routed_repack(FORMATS["IQ1_S"], "native", 5, 256, arch)


def test_rows_gigabytes_apart() -> None:
    """Row offsets past 2^31 and past 2^32 bytes, in one launch."""
    planned = plan_repack(FORMATS["MXFP4"])
    check_to_tiled(FORMATS["MXFP4"], planned, _program(planned), Case(17, 3), stride=(1 << 28) + 17)


@pytest.mark.parametrize("kernel", REPACKERS, ids=[kernel.entry for kernel in REPACKERS])
def test_tiles_past_4_gib(kernel: Kernel) -> None:
    planned = planned_of(kernel)
    check = check_far_to_tiled if kernel.entry == planned.to_tiled else check_far_to_native
    check(FORMATS[planned.format], planned, program(kernel))


def _program(planned: RepackPlan) -> emulate.Program:
    return program(Kernel(planned.to_tiled, f"convert/{planned.file}.cu", "convert"))


# ---- damage ----------------------------------------------------------------------------------------------------------

FAULT = "fault"
BARRIER = "        __syncthreads();\n"
STORE, GATHER = (
    "        uint8_t* to = tiled",
    "        const int64_t row = (int64_t)(first + tile) * kRows;\n        store",
)


@dataclass(frozen=True)
class Mutant:
    """One slip of a template or planner. caught: the checks that may find it first, to tiles and back."""

    name: str
    edits: tuple[Edit, ...]
    caught: tuple[str | None, str | None]
    format: str = "MXFP4"


MUTANTS = [
    Mutant("no barrier before tiles are stored", ((BARRIER + STORE, STORE),), ("tiles", None)),
    Mutant("no barrier after rows are staged", ((BARRIER + GATHER, GATHER),), (None, "rows")),
    Mutant("no barrier before the next tile", (("[i]);\n        __syncthreads();\n", "[i]);\n"),), ("tiles", None)),
    Mutant("zero rows read", (
        ("row < there ? qgen_load_u32", "true ? qgen_load_u32"), ("row < there ? qgen_load_u8", "true ? qgen_load_u8"),
    ), (FAULT, None)),
    Mutant("zero rows stored", ((" && row < there", ""),), (None, FAULT)),
    Mutant("rows of all chunks counted", (("rows - (int64_t)first * kRows - row", "rows - row"),), (FAULT, None)),
    Mutant("blocks behind the last", (("min(kSpan, blocks - block)", "kSpan"),), (FAULT, None)),
    Mutant("words not aligned", (("& 3u)", "& 1u)"),), (FAULT, FAULT)),
    Mutant("ragged start left out", (("if (lane < head) scatter", "if (lane < 0) scatter"),), ("tiles", None)),
    Mutant("ragged end left out", (("if (tail + lane < size) qgen", "if (false) qgen"),), (None, "rows")),
    Mutant("next block not begun", (("byte = 0, ++block;", "byte = 0;"),), ("tiles", None)),
    Mutant("two places swapped", (("{0, 16}, {1, 16}", "{1, 16}, {0, 16}"),), ("tiles", "rows")),
    Mutant("rows at another step", (("{256, 1}", "{256, 2}"),), ("tiles", "rows")),
    Mutant("first row tile forgotten", (("(int64_t)(first + tile) *", "(int64_t)tile *"),), ("tiles", None)),
    Mutant("padding forgotten", (("native + row * native_stride + (int64_t)block * 17, native_stride, own, rows",
                                  "native + row * (blocks * 17) + (int64_t)block * 17, blocks * 17, own, rows"),
    ), (None, "rows")),
    Mutant("32-bit row offsets", (("native + row * row_stride;", "native + (int)(row * row_stride);"),), (FAULT, None)),
    Mutant("32-bit offsets of row tiles read", (
        ("native + row * native_stride + (int64_t)block * 17, native_stride, own, there",
         "native + (int)(row * native_stride) + (int64_t)block * 17, native_stride, own, there"),
    ), ("tiles", None)),
    Mutant("32-bit offsets of row tiles stored", (
        ("native + row * native_stride + (int64_t)block * 17, native_stride, own, rows",
         "native + (int)(row * native_stride) + (int64_t)block * 17, native_stride, own, rows"),
    ), (None, "rows")),
    Mutant("32-bit places of tiles made", (
        ("((int64_t)(first + tile) * blocks + block) * kTileBytes", "((first + tile) * blocks + block) * kTileBytes"),
    ), ("tiles", None)),
    Mutant("32-bit places of tiles read", (
        ("((int64_t)tile * blocks + block) * kTileBytes", "(tile * blocks + block) * kTileBytes"),
    ), (None, "rows")),
    Mutant("places of the first plane for the last", (("kPlace + 40", "kPlace"),), ("tiles", None), "Q5G64_F16S"),
    Mutant("last plane as far apart as the first", (
        ("block * 2, native_scale_stride, own, there", "block * 2, native_base_stride, own, there"),
    ), (FAULT, None), "Q5G64_F16S"),
    Mutant("middle plane not stored", (
        ("        store<8>(native_high", "        if (rows < 0) store<8>(native_high"),
    ), (None, "rows"), "Q5G64_F16S"),
    Mutant("middle plane from the first's blocks", (
        ("native_high_stride + (int64_t)block * 8, native_high_stride, own, rows",
         "native_high_stride + (int64_t)block * 32, native_high_stride, own, rows"),
    ), (None, FAULT), "Q5G64_F16S"),
]  # fmt: skip


def judge(format: Format, text: str) -> tuple[str | None, str | None]:
    """What finds a fault of the two kernels: the name of the check, FAULT for the emulator, None for nothing."""
    planned = plan_repack(format)
    made = emulate.compile(text, "mutant")
    found: list[str | None] = []
    for check in (check_to_tiled, check_to_native):
        try:
            for case in cases(planned):
                check(format, planned, made, case)
            if check is check_to_tiled:
                if not format.split:  # there is memory for one plane so large
                    check_to_tiled(format, planned, made, Case(17, 3), stride=(1 << 28) + 17)
                check_far_to_tiled(format, planned, made)
            else:
                check_far_to_native(format, planned, made)
            found.append(None)
        except Wrong as wrong:
            found.append(wrong.check)
        except QgenError as error:
            assert error.stage == "emulate", error
            found.append(FAULT)
    return found[0], found[1]


def victim(mutant: Mutant) -> tuple[Format, str]:
    format = FORMATS[mutant.format]
    planned = plan_repack(format)
    return format, text_of(Kernel(planned.to_tiled, f"convert/{planned.file}.cu", "convert"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "_") for mutant in MUTANTS])
def test_damage_is_caught(mutant: Mutant) -> None:
    format, text = victim(mutant)
    assert judge(format, damaged(text, mutant.edits)) == mutant.caught


@pytest.mark.parametrize("format", sorted({mutant.format for mutant in MUTANTS}))
def test_the_same_text_without_damage_passes(format: str) -> None:
    assert judge(*victim(next(mutant for mutant in MUTANTS if mutant.format == format))) == (None, None)
