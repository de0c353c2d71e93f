"""qgen bench ladder without a device: the sweep, the judgement of every result, the tables, the plot, the verb."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_machine import EmulatedMachine, make_small

from qgen.bench import cuda, ladder, ladder_text, peers, plots, report, writing
from qgen.bench.cases import Case, Shape
from qgen.bench.inputs import Operands, pattern
from qgen.bench.protocol import Rotation
from qgen.bench.records import Report
from qgen.cli import bench as verb
from qgen.errors import QgenError
from qgen.plan import MAX_TOKENS, plan_fused, plan_ksplit, plan_ksplit_float, plan_wgmma, plan_wgmma_float
from qgen.spec import load_formats

FORMATS = load_formats()
RUNGS = {rung.columns: rung.name for rung in plan_ksplit(FORMATS["Q5_K"]).rungs}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def machine_of(**costs: float) -> EmulatedMachine:
    """Rungs cost what their columns cost: the smallest is the cheapest."""
    machine = EmulatedMachine()
    machine.facts = replace(machine.facts, l2_bytes=1)
    machine.costs |= {RUNGS[8]: 4.2, RUNGS[16]: 5.0, RUNGS[24]: 6.0, RUNGS[32]: 7.0} | costs
    return machine


def run(machine: EmulatedMachine, *, sweep: str = "1,2,9", **options: Any) -> Report:
    defaults: dict[str, Any] = {"formats": ("Q5_K",), "shapes": ("19x512",), "passes": 3}
    return ladder.bench_ladder(ladder.Options(sweep=sweep, **(defaults | options)), machine, show_progress=False)


# ---- options -----------------------------------------------------------------------------------------------------


def test_sweeps_are_read_or_refused() -> None:
    assert ladder.parse_sweep("1:32:1") == tuple(range(1, 33)) == ladder.parse_sweep("1:32")
    assert ladder.parse_sweep("1:8:3, 3") == (1, 3, 4, 7)
    assert ladder.parse_sweep("97") == (97,)
    for text in ("", "0:4", "4:1", "1:8:0", "1:2:3:4", "a", "1,,2", "-1", f"1:{MAX_TOKENS + 1}"):
        with pytest.raises(QgenError, match="--sweep"):
            ladder.parse_sweep(text)
    with pytest.raises(QgenError, match="at least 1 pass"):
        ladder.Options(passes=0)


def test_a_run_that_cannot_be_is_refused_before_anything_is_compiled() -> None:
    machine = EmulatedMachine()
    with pytest.raises(QgenError, match="not whole blocks"):
        run(machine, shapes=("19x500",))
    with pytest.raises(QgenError, match="did you mean Q5_K"):
        run(machine, formats=("Q5_KK",))
    assert not machine.compiled


def test_an_architecture_without_rungs_has_what_a_call_gets() -> None:
    machine = machine_of()
    machine.facts = replace(machine.facts, arch="sm_75")
    found = run(machine, sweep="1,3")
    assert found.ok and [(row.tokens, row.launch, row.routed) for row in found.rows] == [
        (1, "r2_b2", True),
        (3, "multirow_r2", True),
    ]


def test_fewer_tokens_are_the_first_of_more() -> None:
    machine = EmulatedMachine()
    turn = Rotation(stride=4096, copies=1, launches=1)
    blocks = pattern(FORMATS["Q5_K"])

    def operands(tokens: int) -> Operands:
        return Operands(machine, Case(FORMATS["Q5_K"], Shape(19, 512), tokens), machine.filled(16), turn, blocks)

    many = operands(11)
    for tokens in (1, 2, 8, 10):
        few = operands(tokens)
        assert np.array_equal(few.host_x, many.host_x[:tokens]) and np.array_equal(few.sample, many.sample)


# ---- a run -------------------------------------------------------------------------------------------------------


def test_every_rung_is_timed_at_every_token_count() -> None:
    found = run(machine_of())
    assert found.ok and not found.conditions.notes[1:]
    taken = {(row.tokens, row.kernel) for row in found.rows}
    assert taken >= {(tokens, name) for tokens in (1, 2, 9) for name in RUNGS.values()}
    assert len(found.rows) == len(taken) == 3 * 4 + 1, "and at T = 1 the mat-vec"
    routed = {row.tokens: row for row in found.routed()}
    assert routed[1].family == "matvec" and routed[2].kernel == RUNGS[8] and routed[9].kernel == RUNGS[16]
    for row in found.rows:
        assert row.times and row.alone and row.quantise and row.read_floor and row.us and row.times.total.passes == 3
        cost = {RUNGS[8]: 4.2, RUNGS[16]: 5.0, RUNGS[24]: 6.0, RUNGS[32]: 7.0}.get(row.kernel, 4.0)
        # Drift of at most 0.1 us is spread over a graph's launches.
        assert row.alone.median == pytest.approx(cost, abs=0.06)
        assert row.us == pytest.approx(cost + 1, abs=0.06) and row.quantise.median == pytest.approx(1, abs=0.06)
        assert row.weight_bytes == 19 * 2 * 176, "one read of the weights, whatever T is"
        assert row.grid_y == (1 if row.family == "matvec" else -(-row.tokens // int(row.launch[1:].split("_")[0])))


@pytest.mark.parametrize("format", ["Q5_K", "Q4_0"])
def test_a_ladder_over_tiles(format: str) -> None:
    """Every rung of the tiles' own, judged like the others, at T = 1 kernels that quantise x by themselves, else the
    narrowest for warpgroups; 19 rows leave the second row tile with 3."""
    rungs, fused = plan_ksplit(FORMATS[format], "tiled").rungs, plan_fused(FORMATS[format]).instances
    found = run(machine_of(), formats=(format,), storage="tiled")
    assert found.ok, [row.problem for row in found.rows]
    ladder = {(t, r.name) for t in (1, 2, 9) for r in rungs}
    ladder |= {(t, r.name) for t in (2, 9) for r in plan_wgmma(FORMATS[format]).rungs if r.columns == 16}
    assert {(row.tokens, row.kernel) for row in found.rows} == ladder | {(1, i.name) for i in fused}
    assert {row.launch: row.grid for row in found.rows if row.family == "wgmma"} == {"w16g2": 1, "w16g1": 1}
    assert {row.storage for row in found.rows} == {"tiled"}
    routed = {row.tokens: row for row in found.routed()}
    assert {t: routed[t].kernel for t in (2, 9)} == {
        t: next(r.name for r in rungs if r.columns == c) for t, c in ((2, 8), (9, 16))
    }
    assert routed[1].kernel == fused[-1].name and routed[1].us == pytest.approx(4, abs=0.06)
    assert all((row.quantise is None) == (row.alone is None) == (row.family == "fused") for row in found.rows)
    (one,) = (line.split() for line in ladder_text.table(found).splitlines() if line.startswith("1 "))
    assert one[len(fused)].startswith("[4.0") and one[1 + len(fused) + len(rungs)] == "-", "nothing quantises"
    assert {row.weight_bytes for row in found.rows} == {19 * 512 // FORMATS[format].block * FORMATS[format].bytes}


def test_a_wrong_bit_over_tiles_fails_the_run() -> None:
    name = plan_ksplit(FORMATS["Q5_K"], "tiled").rungs[-1].name

    def corrupt(entry: str, y: Any) -> None:
        if entry == name:
            y[0, 18] = np.nextafter(y[0, 18], np.float32(np.inf))

    machine = machine_of()
    machine.corrupt = corrupt
    found = run(machine, storage="tiled")
    assert not found.ok and {row.kernel for row in found.rows if row.problem} == {name}


def test_cold_copies_take_turns() -> None:
    class Offsets(EmulatedMachine):
        seen: set[int] = set()

        def at(self, buffer: Any, offset: int) -> Any:
            self.seen.add(offset)
            return super().at(buffer, offset)

    machine = Offsets()
    assert run(machine, sweep="2").ok and len(machine.seen) > 1


@pytest.mark.parametrize(("token", "row"), [(0, 0), (8, 18), (3, 7)])
def test_one_wrong_bit_fails_the_run(token: int, row: int) -> None:
    def corrupt(entry: str, y: Any) -> None:
        if entry == RUNGS[16] and len(y) > token:
            y[token, row] = np.nextafter(y[token, row], np.float32(np.inf))

    machine = machine_of()
    machine.corrupt = corrupt
    found = run(machine)
    wrong = [r for r in found.rows if r.problem]
    assert not found.ok and {r.kernel for r in wrong} == {RUNGS[16]}
    assert [r.tokens for r in wrong] == [tokens for tokens in (1, 2, 9) if tokens > token]
    assert all(r.times is None for r in wrong) and all(r.times for r in found.rows if not r.problem)
    assert f"unlike single columns: 1 of {9 * 19} results differ; row {row} of token {token}" in wrong[-1].problem
    assert f"WRONG {RUNGS[16]} at 19x512, T = 9" in ladder_text.table(found)
    assert "## Failed" in ladder_text.markdown(found)


def test_single_columns_are_held_against_the_contract() -> None:
    """All kernels wrong in the same way agree with each other, and are still wrong."""
    machine = machine_of()
    machine.corrupt = lambda entry, y: y.fill(0)
    found = run(machine)
    assert not found.ok and all("single columns are wrong" in row.problem for row in found.rows)


def test_an_error_of_the_device_ends_the_run() -> None:
    machine = machine_of()
    machine.fail_at = RUNGS[32]
    found = run(machine)
    assert not found.ok and found.aborted.startswith("Q5_K 19x512") and "STOPPED" in ladder_text.table(found)


# ---- texts -------------------------------------------------------------------------------------------------------


def with_peers(**costs: float) -> Report:
    """The shapes of the figures would take the emulator minutes, so the rows are given their names afterwards."""
    found = run(machine_of(**costs))
    table = peers.load()
    found.rows = [replace(row, peers=table.beside("Q5_K", "14336x4096", row.tokens)) for row in found.rows]
    return found


def test_the_table_has_a_line_a_token_count_and_marks_the_routed_kernel() -> None:
    found = with_peers()
    lines = ladder_text.table(found).splitlines()
    head = next(line for line in lines if line.startswith("T "))
    assert head.split()[:6] == ["T", "matvec", "t8_w8", "t16_w8", "t24_w8", "t32_w8"]
    one, two, nine = (line.split() for line in lines[lines.index(head) + 1 :][:3])
    assert one[0] == "1" and one[1].startswith("[5.0") and two[1].startswith("[5.2") and nine[2].startswith("[6.0")
    assert "1.04" in two and "1.20" in nine, "the ratio to T = 1"
    page = ladder_text.markdown(found)
    assert "ggml Q5_K 21.9" in page and "ggml Q5_K 31 (" in page, "peers at their own token counts"
    assert "bit for bit, to single-column results of this run" in page
    assert page.count("] <") == 1, "two tiles of the first rung cost no more than one here"


def test_a_rung_that_a_wider_one_beats_is_marked() -> None:
    found = with_peers(**{RUNGS[16]: 3.0})
    case = [row for row in found.rows if row.tokens == 2]
    (routed,) = [row for row in case if row.routed]
    assert ladder_text.beaten(routed, case) and not ladder_text.beaten(routed, [routed])


def test_files_hold_every_row(tmp_path: Path) -> None:
    found = with_peers()
    draw = {"page": ladder_text.markdown, "draw": plots.write_ladder}
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(QgenError, match="Matplotlib cannot be imported"):
            writing.write(found, tmp_path, plots=True, **draw)  # type: ignore[arg-type]
        assert (tmp_path / "report.md").exists()
    else:
        files = {path.name for path in writing.write(found, tmp_path, plots=True, **draw)}  # type: ignore[arg-type]
        assert files == {"results.json", "results.csv", "report.md", "ladder_q5_k_19x512.png"}
        assert (tmp_path / "ladder_q5_k_19x512.png").read_bytes().startswith(b"\x89PNG")
        assert "(ladder_q5_k_19x512.png)" in (tmp_path / "report.md").read_text()
    rows = list(csv.DictReader(io.StringIO(report.csv_text(found))))
    assert [(int(r["tokens"]), r["kernel"]) for r in rows] == [(r.tokens, r.kernel) for r in found.rows]
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["ok"] is True and [r["us"] for r in data["rows"]] == [r.us for r in found.rows]


# ---- the verb ----------------------------------------------------------------------------------------------------


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    return parser.parse_args(["bench", *arguments])


def test_the_verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda, "CudaMachine", EmulatedMachine)
    monkeypatch.setenv("QGEN_PROGRESS", "0")
    common = ["ladder", "--format", "q5_k", "--n", "19", "--k", "512", "--sweep", "1:3:2", "--repeat", "2"]
    args = parse(*common, "--out", str(tmp_path / "o"), "--no-plots")
    assert args.run(args) == 0
    assert "Q5_K, 19 x 512" in capsys.readouterr().out
    assert (tmp_path / "o" / "report.md").read_text().startswith("# qgen bench ladder")
    args = parse(*common, "--csv")
    assert args.run(args) == 0 and capsys.readouterr().out.count("\n") == 1 + 5 + 4

    class Broken(EmulatedMachine):
        def __init__(self) -> None:
            super().__init__()
            self.corrupt = lambda entry, y: y.__setitem__((len(y) - 1, 5), 1.0) if len(y) > 1 else None

    monkeypatch.setattr(cuda, "CudaMachine", Broken)
    args = parse(*common, "--json")
    assert args.run(args) == 1 and json.loads(capsys.readouterr().out)["ok"] is False
    args = parse("ladder", "--n", "19")
    with pytest.raises(QgenError, match="--n and --k"):
        args.run(args)
    assert parse("--format", "q5_k").run is verb.run, "without the word it is the other one"


# ---- f16 and bf16 activations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["native", "tiled"])
@pytest.mark.parametrize(("format", "activation"), [("Q5G64_F16S", "bf16"), ("Q5_K", "f16")])
def test_float_activations_are_swept_and_compared_with_single_columns(
    format: str, activation: str, storage: str
) -> None:
    """Planes, blocks or tiles, in rotating copies; every rung there is, the routed ones among them, from T = 1 up."""
    machine = EmulatedMachine()
    machine.facts = replace(machine.facts, l2_bytes=1)
    found = run(machine, formats=(format,), activation=activation, storage=storage, sweep="1,2,9", shapes=("19x768",))
    assert found.ok and not [row.problem for row in found.rows if row.problem]
    assert f"{format} x {activation}, 19 x 768" in ladder_text.table(found)
    plan = plan_ksplit_float(FORMATS[format], activation, storage)
    wide = plan_wgmma_float(FORMATS[format], activation).rungs if storage == "tiled" else ()
    # Of the kernels for warpgroups those that suit as many tokens.
    kernels = {rung.name for rung in plan.rungs} | {rung.name for rung in wide if rung.columns == 16}
    assert {row.kernel for row in found.rows} == kernels
    routed = {row.tokens: row.kernel for row in found.routed()}
    columns = {1: 8, 2: 8, 9: 16 if (activation, storage) != ("f16", "native") else 8}
    stem = f"mul_mat_{format.lower()}_{activation}"
    end = {"native": "native_r1w8", "tiled": "tiled_w8"}[storage]
    assert routed == {t: f"{stem}_t{c}__ksplit_mma_{end}" for t, c in columns.items()}
    assert all(row.weight_bytes == 19 * 768 // FORMATS[format].block * FORMATS[format].bytes for row in found.rows)


def test_a_float_result_past_its_bound_or_unlike_a_single_column_fails() -> None:
    for wrong, words in ((1.001, "unlike single columns"), (1.0 + 1e-6, "unlike single columns")):
        machine = EmulatedMachine()

        def corrupt(entry: str, y: np.ndarray[Any, Any], factor: float = wrong) -> None:
            if "_t16_" in entry:
                y[0] *= np.float32(factor)

        machine.corrupt = corrupt
        found = run(machine, formats=("Q4G64_F16S",), activation="bf16", sweep="2", shapes=("19x256",))
        bad = [row for row in found.rows if row.problem]
        assert not found.ok and all("_t16_" in row.kernel and words in row.problem for row in bad) and bad
    machine = EmulatedMachine()
    machine.corrupt = lambda entry, y: np.multiply(y, np.float32(1.001), out=y)
    found = run(machine, formats=("Q4G64_F16S",), activation="bf16", sweep="1", shapes=("19x256",))
    assert found.rows and all("single columns are wrong" in row.problem for row in found.rows)


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(QgenError, match="bf16, f16"):
        ladder.Options(activation="f8")
    with pytest.raises(QgenError, match="without kernels"):
        run(EmulatedMachine(), formats=("Q5G64_F16S",))
