"""qgen bench multirow without a device: what competes, the judgement of every result, the texts, the verb."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_machine import EmulatedMachine, make_small

from qgen.bench import cases, cuda, ladder_text, multirow
from qgen.bench.candidates import MultirowCandidate, multirow_candidates
from qgen.bench.ladder import Options
from qgen.bench.records import Report
from qgen.cli import bench as verb
from qgen.errors import QgenError
from qgen.models import shapes
from qgen.plan import MultirowPlan, plan_all, plan_multirow
from qgen.spec import load_formats

FORMATS = load_formats()
PLANS = plan_all(FORMATS)[0]
ROWS = (1, 2, 4, 8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def machine_of(arch: str = "sm_90") -> EmulatedMachine:
    machine = EmulatedMachine()
    machine.facts = replace(machine.facts, l2_bytes=1, arch=arch)
    return machine


def run(machine: EmulatedMachine, *, sweep: str = "1,3,9", **options: Any) -> Report:
    defaults: dict[str, Any] = {"formats": ("Q5_K",), "shapes": ("19x512",), "passes": 2}
    return multirow.bench_multirow(Options(sweep=sweep, **(defaults | options)), machine, show_progress=False)


def test_the_list_is_of_model_matrices_and_of_formats_with_kernels() -> None:
    known, served = set(shapes()), {plan.format for plan in PLANS if isinstance(plan, MultirowPlan)}
    assert len(set(cases.MULTIROW_CASES)) == len(cases.MULTIROW_CASES) == 15
    for name, text in cases.MULTIROW_CASES:
        shape = cases.parse_shape(text)
        assert (shape.rows, shape.columns) in known and name in served
        assert shape.columns % FORMATS[name].block == 0, "whole blocks"
    assert {"Q4_K", "Q5_K", "Q6_K", "IQ4_XS"} <= {name for name, _ in cases.MULTIROW_CASES}


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize(("tokens", "columns"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 8)])
def test_every_number_of_rows_competes_with_the_fewest_columns_that_do(arch: str, tokens: int, columns: int) -> None:
    case = cases.Case(FORMATS["Q4_K"], cases.Shape(64, 512), tokens)
    found = multirow_candidates(case, PLANS, arch=arch)
    assert len({c.instance.name for c in found}) == len(found) and sum(c.routed for c in found) == 1
    few = [c for c in found if isinstance(c, MultirowCandidate)]
    wanted = [(rows, 4 if (rows, columns) == (1, 2) else min(columns, 4) if rows == 8 else columns) for rows in ROWS]
    assert sorted((c.instance.rows, c.instance.columns) for c in few) == wanted, "Q4_K has no r1 t2, and no r8 t8"
    others = [c.plan.family for c in found if not isinstance(c, MultirowCandidate)]
    assert others == {"sm_75": [], "sm_90": ["ksplit_mma"]}[arch] if tokens > 1 else others[0] == "matvec"


def test_all_are_timed_beside_the_ladder() -> None:
    found = run(machine_of())
    assert found.ok
    taken = [(row.tokens, row.launch, row.routed) for row in found.rows]
    few = [f"multirow_r{rows}" for rows in ROWS]
    assert taken == [
        (1, "r2_b2", True), (1, "t8_w8", False), *((1, name, False) for name in few),
        (3, "t8_w8", True), *((3, name, False) for name in few),
        (9, "t16_w8", True), *((9, name, False) for name in few),
    ]  # fmt: skip
    assert all(row.times and row.us for row in found.rows)
    assert [row.grid_y for row in found.rows if row.tokens == 9 and row.family == "multirow"] == [2, 2, 2, 3]
    lines = ladder_text.table(found).splitlines()
    head = next(line for line in lines if line.startswith("T "))
    assert head.split()[1:7] == ["matvec", "t8_w8", *few]


def test_where_multirow_is_routed_it_is_marked() -> None:
    found = run(machine_of("sm_75"), sweep="2")
    assert found.ok and [(row.launch, row.routed) for row in found.rows] == [
        ("multirow_r2", True), ("multirow_r1", False), ("multirow_r4", False), ("multirow_r8", False),
    ]  # fmt: skip


def test_one_wrong_bit_fails_the_run() -> None:
    name = next(i.name for i in plan_multirow(FORMATS["Q5_K"]).instances if (i.rows, i.columns) == (4, 4))

    def corrupt(entry: str, y: Any) -> None:
        if entry == name:
            y[2, 7] = np.nextafter(y[2, 7], np.float32(np.inf))

    machine = machine_of()
    machine.corrupt = corrupt
    found = run(machine, sweep="2,3")
    (wrong,) = (row for row in found.rows if row.problem)
    assert not found.ok and wrong.kernel == name and wrong.tokens == 3 and wrong.times is None
    assert f"unlike single columns: 1 of {3 * 19} results differ; row 7 of token 2" in wrong.problem


def test_a_run_that_cannot_be_is_refused_before_anything_is_compiled() -> None:
    machine = machine_of()
    with pytest.raises(QgenError, match="not whole blocks"):
        run(machine, shapes=("19x500",))
    with pytest.raises(QgenError, match="did you mean Q5_K"):
        run(machine, formats=("Q5_KK",))
    assert not machine.compiled


def test_the_verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda, "CudaMachine", machine_of)
    monkeypatch.setenv("QGEN_PROGRESS", "0")
    monkeypatch.setattr(multirow, "MULTIROW_CASES", (("Q5_K", "19x512"),))
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    common = ["bench", "multirow", "--sweep", "3", "--repeat", "1"]
    args = parser.parse_args([*common, "--out", str(tmp_path), "--no-plots"])
    assert parser.parse_args(common[:2]).sweep == multirow.SWEEP
    assert args.run(args) == 0 and "Q5_K, 19 x 512" in capsys.readouterr().out
    assert (tmp_path / "report.md").read_text().startswith("# qgen bench multirow")

    def broken() -> EmulatedMachine:
        machine = machine_of()
        machine.corrupt = lambda entry, y: y.fill(1.0) if "multirow" in entry else None
        return machine

    monkeypatch.setattr(cuda, "CudaMachine", broken)
    args = parser.parse_args([*common, "--json"])
    assert args.run(args) == 1 and json.loads(capsys.readouterr().out)["ok"] is False
