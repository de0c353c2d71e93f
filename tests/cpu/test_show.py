"""qgen show and qgen formats: what they print of kernels for warpgroups."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import pytest

from qgen import cli, generate
from qgen.plan import plan_wgmma, plan_wgmma_float
from qgen.spec import load_formats

PLAN = plan_wgmma(load_formats()["Q2_K"])


@pytest.fixture(autouse=True, scope="module")
def made_once() -> Iterator[None]:
    """To plan and print every kernel takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "generate", functools.cache(generate.generate))
        yield


def test_a_file_of_kernels_for_warpgroups_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", PLAN.file]) == 0
    text = capsys.readouterr().out
    assert f"layout    {PLAN.layout.name}: activation q8_g256" in text and f"contract  {PLAN.contract.name}" in text
    assert "family wgmma, tiled storage" in text and "instructions multiply codes times their integer scales\n" in text
    wide = PLAN.rungs[-1]
    assert f"  kernel  {wide.name}: 64 tokens x 128 rows a CTA, 2 x 1 warpgroup(s)" in text
    assert f"file      generated/wgmma/{PLAN.file}.cu" in text
    assert cli.main(["show", "q2_k"]) == 0
    assert f"on sm_90\nlayout    {PLAN.layout.name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("activation", "contract", "multiplied"),
    [("f16", "f16_g32_s8_folded", "codes times their integer scales"), ("bf16", "bf16_g32_s8", "codes")],
)
def test_those_of_a_class_are_shown(
    activation: str, contract: str, multiplied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_wgmma_float(load_formats()["Q4_K"], activation)
    assert cli.main(["show", plan.file]) == 0
    text = capsys.readouterr().out
    assert f"layout    {plan.layout.name}: activation {activation}" in text and f"contract  {contract}:" in text
    assert f"instructions multiply {multiplied}\n" in text and all(f"{rung.name}: " in text for rung in plan.rungs)


def test_formats_count_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["formats"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Q2_K "))
    assert f"wgmma over tiles: {len(PLAN.rungs)};" in line
    assert cli.main(["formats", "--json"]) == 0
    rows = {row["name"]: row["kernels"] for row in json.loads(capsys.readouterr().out)}
    assert {rung.name for rung in PLAN.rungs} <= set(rows["Q2_K"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("Q4K", "Q4_K"), (PLAN.rungs[0].name[:-1] + "9", PLAN.rungs[0].name), (PLAN.rungs[0].name.upper(), "")],
)
def test_a_slip_in_a_name_is_answered_with_the_nearest(
    name: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", name]) == 1
    assert f"(did you mean {near or PLAN.rungs[0].name}?)" in capsys.readouterr().err


def test_a_name_that_is_none_has_no_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "nonsense"]) == 1
    assert "did you mean" not in capsys.readouterr().err
