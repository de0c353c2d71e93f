"""What a format decides alone, by made-up ones: codes left in place, CTAs that share an SM, rows of a mat-vec."""

from __future__ import annotations

from pathlib import Path

import pytest
from ksplit_checks import compiled
from ksplit_formats import D, M, toml
from tiled_checks import Tiled

from qgen import build
from qgen.emit import emit
from qgen.plan import plan_ksplit, plan_matvec
from qgen.spec import Format, load_format, load_formats

P16 = '[fields.d]\ntype = "ue4m3"\nper = 16\nat = 0\nshape = [8]\nstride = [8]\n'


def codes(at: int, width: int, block: int, extra: str = "") -> str:
    """Codes a byte apart, those that share a byte `width` bits apart."""
    each = 8 // width
    return f"[fields.q]\nat = {at}\nwidth = {width}\nshape = [{block // each}, {each}]\nstride = [8, {width}]\n{extra}"


# name -> (text, places of the codes of an instruction; None where all are shifted)
FORMATS = {
    "2 bits, four float steps": (toml("d*q", D, codes(2, 2, 128), block=128, activation="q8_g32"), (0, 2, 4, 5)),
    "2 bits, two float steps and a minimum": (
        toml("d*q + m", D, M, codes(4, 2, 128, "mul = 3\nadd = -5\n"), block=128, activation="q8_g64"), (0, 4),
    ),
    "2 bits times minus two": (
        toml("d*q", D, codes(2, 2, 64, "mul = -2\nadd = 1\n"), block=64, activation="q8_g64"), (0, 4),
    ),
    # A word an instruction: the bit that would be the sign of its byte moves down by one.
    "1 bit, scales of 16": (
        toml("d*q", P16, codes(8, 1, 128, "mul = 2\nadd = -1\n"), block=128, activation="q8_g32"),
        (0, 1, 2, 3, 4, 5, 6),
    ),
    "4 bits": (toml("d*q", D, codes(2, 4, 128, "add = -8\n"), block=128, activation="q8_g128"), None),
    "8 bits": (toml("d*q", D, codes(2, 8, 128), block=128, activation="q8_g128"), None),
}  # fmt: skip


def made(text: str, folder: Path) -> Format:
    path = folder / "toy.toml"
    path.write_text(text)
    return load_format(path)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_left_in_place_give_the_same_bits(name: str, tmp_path: Path) -> None:
    text, shifts = FORMATS[name]
    format = made(text, tmp_path)
    plan = plan_ksplit(format, "tiled")
    assert (plan.in_place.shifts if plan.in_place else None) == shifts
    (rung,) = (r for r in plan.rungs if r.columns == 1)
    judged = Tiled(format, compiled(plan, 900), plan, rung, bulk=True)
    judged.check_shapes()
    judged.check_special()


def test_shipped_formats_that_leave_codes_in_place() -> None:
    found = {name: plan_ksplit(load_formats()[name], "tiled").in_place for name in ("Q1_0", "Q2_0", "PQ2_0", "Q4_0")}
    shifts = {name: plan and (plan.shifts, plan.pairs) for name, plan in found.items()}
    assert shifts == {
        "Q1_0": ((0, 2, 4, 6), (0, -1, 1, -1, 2, -1, 3, -1)),
        "Q2_0": ((0, 4), (0, -1, 1, -1)),
        "PQ2_0": ((0, 4), (0, -1, 1, -1, 0, -1, 1, -1)),
        "Q4_0": None,
    }


DOUBLED = codes(2, 1, 64, "mul = 2\nadd = -1\n")
LOOKED_UP = codes(2, 4, 256, 'table = "iq4_nl"\n')


@pytest.mark.parametrize("text, ctas", [
    (toml("d*q", D, DOUBLED, block=64, activation="q8_g64"), 1),
    (toml("d*q", D, LOOKED_UP), 1),
    (toml("d*q", D, codes(2, 2, 64), block=64, activation="q8_g64"), 2),
])  # fmt: skip
def test_ctas_share_a_multiprocessor_only_where_registers_do(text: str, ctas: int, tmp_path: Path) -> None:
    """At 32 columns; the compiler has the last word."""
    plan = plan_ksplit(made(text, tmp_path), "tiled")
    assert {r.min_ctas for r in plan.rungs if r.columns == 32} == {ctas}
    build.compile(emit(plan).text, plan.file, "sm_90")


@pytest.mark.parametrize("width, rows", [(4, [(1, 32), (2, 32), (2, 8)]), (8, [(1, 32), (1, 8)])])
def test_large_blocks_have_fewer_rows(width: int, rows: list[tuple[int, int]], tmp_path: Path) -> None:
    format = made(toml("d*q", D, codes(2, width, 128), block=128, activation="q8_g128"), tmp_path)
    assert [(i.rows, i.team_blocks) for i in plan_matvec(format).instances] == rows
