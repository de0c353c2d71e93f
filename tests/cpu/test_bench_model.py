"""qgen bench --model without a device: the step, where its weights lie, the judgement of its products, the texts."""

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
from bench_machine import make_small
from fake_cupy import FakeCupy, install
from model_machine import ModelMachine

from qgen import models, paths, run
from qgen.bench import candidates, cuda, model, model_text, protocol, steps
from qgen.bench.cases import Shape
from qgen.bench.model_records import ModelReport
from qgen.cli import bench as verb
from qgen.errors import QgenError
from qgen.plan import plan_fused, plan_ksplit

TINY = """
[[model]]
name = "Tiny"
id = "me/tiny"
source = "mine"
hidden = 256
vocab = 70
attention = [{ layers = 2, heads = 2, kv_heads = 1, dim = 32 }]
ffn = [{ layers = 2, width = 256 }]
"""
ODD = TINY.replace("Tiny", "Odd").replace("width = 256", "width = 288")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    make_small(monkeypatch)
    monkeypatch.setattr(model, "PATTERN_BLOCKS", 64)
    monkeypatch.setattr("qgen.bench.inputs.PATTERN_BLOCKS", 64)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "catalog.toml").write_text(TINY + ODD)
    monkeypatch.setattr(models, "data_dir", lambda name: tmp_path if name == "specs" else paths.data_dir(name))
    return install(monkeypatch, FakeCupy())


def bench(machine: ModelMachine, **options: Any) -> ModelReport:
    defaults: dict[str, Any] = {"model": "tiny", "formats": ("Q8_0",), "passes": 1}
    return model.bench_model(model.Options(**(defaults | options)), machine, show_progress=False)


# ---- the step ----------------------------------------------------------------------------------------------------


def test_the_models_that_the_documentation_names_are_steps() -> None:
    step, left_out = steps.products(models.model_named("QWEN3-8b"))
    roles = ["q", "k", "v", "o", "gate", "up", "down"]
    assert [p.role for p in step] == roles * 36 + ["lm_head"] and not left_out
    assert [p.layer for p in step] == [i // 7 for i in range(253)]
    assert sum(p.shape.rows * p.shape.columns for p in step) == pytest.approx(7.57e9, rel=0.01)
    step, left_out = steps.products(models.model_named("Qwen3.6-27B"))
    assert [s.what for s in left_out] == ["gdn_b 48x5120", "gdn_a 48x5120"]
    assert sum(p.shape.rows * p.shape.columns for p in step) == pytest.approx(25.6e9, rel=0.02)
    firsts = ["q" if "q" in {p.role for p in step if p.layer == i} else "gdn" for i in range(64)]
    assert firsts.count("q") == 16 and {b - a for a, b in _pairs([i for i in range(64) if firsts[i] == "q"])} == {4}
    step, _ = steps.products(models.model_named("gemma-3-270m"))
    assert len(step) == 18 * 7 + 1 and step[-1].shape == Shape(262144, 640)


def _pairs(values: list[int]) -> list[tuple[int, int]]:
    return list(zip(values, values[1:], strict=False))


def test_what_is_no_chain_of_products_is_refused() -> None:
    with pytest.raises(QgenError, match="mul_mat_id"):
        steps.products(models.model_named("Qwen3-30B-A3B"))
    with pytest.raises(QgenError, match="Qwen3-8B"):
        models.model_named("qwen3-8")


# ---- memory ------------------------------------------------------------------------------------------------------


def size(shape: Shape) -> int:
    return shape.rows * shape.columns


def placed(layers: int, *, available: int, cold: int, unit: int = 10) -> tuple[list[steps.Product], steps.Placement]:
    step = [steps.Product(role, Shape(rows, 10), i) for i in range(layers) for role, rows in (("a", 3), ("b", 4))]
    step.append(steps.Product("head", Shape(5, 10), layers))
    return step, steps.place(step, size, unit=unit, available=available, cold=cold)


def check(step: list[steps.Product], made: steps.Placement, cold: int) -> None:
    """Slots do not overlap and have the shapes of their products; nothing is read again before `cold` other bytes."""
    ends = [0]
    for own in made.slots:
        assert own.offset >= ends[-1] and own.offset % 10 == 0
        ends.append(own.offset + own.nbytes)
    assert ends[-1] <= made.nbytes
    for slots in made.rounds:
        assert [made.slots[s].shape for s in slots] == [p.shape for p in step]
    order = made.order * 3
    for i, slot in enumerate(order):
        later = next((j for j in range(i + 1, len(order)) if order[j] == slot), None)
        if later is not None:
            assert sum(made.slots[s].nbytes for s in order[i + 1 : later]) >= cold


def test_every_matrix_has_memory_of_its_own() -> None:
    step, made = placed(6, available=10_000, cold=300)
    check(step, made, 300)
    assert len(made.slots) == 13 == len(set(made.order)) and len(made.rounds) == 1
    assert (made.layers, made.distinct, made.nbytes) == (7, 7, 6 * 70 + 50)


def test_a_model_smaller_than_cold_has_copies() -> None:
    step, made = placed(2, available=10_000, cold=1000)
    check(step, made, 1000)
    assert len(made.rounds) == 6 and made.nbytes == 6 * 190, "190 bytes, of which 50 are one matrix"
    with pytest.raises(QgenError, match="0.00019 MB a step, 0.001 MB free"):
        placed(2, available=1000, cold=1000)


def test_a_model_larger_than_memory_is_a_ring() -> None:
    step, made = placed(20, available=700, cold=300)
    check(step, made, 300)
    assert made.nbytes <= 700 and (made.layers, made.distinct, len(made.rounds)) == (21, 8, 1), (
        "nine would end on slots that begin the next step"
    )
    with pytest.raises(QgenError, match="MB between two reads"):
        placed(20, available=300, cold=300)


def test_kinds_of_layers_have_rings_of_their_own() -> None:
    step = [steps.Product("a" if i % 4 else "b", Shape(3 if i % 4 else 9, 10), i) for i in range(16)]
    made = steps.place(step, size, unit=10, available=400, cold=100)
    check(step, made, 100)
    assert made.nbytes <= 400 and len({s for s in made.order if made.slots[s].shape.rows == 9}) == 2


# ---- a run -------------------------------------------------------------------------------------------------------


def test_a_step_runs_in_order_through_calls(fake: FakeCupy) -> None:
    machine = ModelMachine(fake)
    report = bench(machine, sweep="1,3")
    assert report.ok, model_text.table(report)
    one, three = report.steps
    assert (one.products, one.layers, one.distinct, one.tokens, three.tokens) == (15, 3, 3, 1, 3)
    # heads x dim = 64 = the K of o; everything else has K = 256; blocks of 34 bytes hold 32 weights.
    weights = 2 * (256 * (64 + 32 + 32 + 3 * 256) + 256 * 64) + 70 * 256
    assert one.weight_bytes == weights * 34 // 32 and one.copies == 1
    # 4 us a product, 1 us a quantisation: for q, k, v; o; gate, up; down of both layers, and for the head.
    assert one.quantisations == three.quantisations == 2 * 4 + 1
    assert one.us and one.us.median == 15 * 4 + 9 and one.tokens_a_second == pytest.approx(1e6 / 69)
    assert three.tokens_a_second == pytest.approx(3e6 / 69)
    assert one.read_floor and one.read_floor.us.median == 30 and one.chain_floor and one.chain_floor.us.median == 15
    assert one.percent_of_limit == pytest.approx(100 * 15 / 69) and one.limit_tokens_a_second == pytest.approx(1e6 / 15)
    assert one.gigabytes_a_second == pytest.approx(one.weight_bytes / 69e3)
    kinds = {kind.shape: (kind.roles, kind.count) for kind in one.kinds}
    assert kinds == {
        "64x256": (("q",), 2), "32x256": (("k", "v"), 4), "256x64": (("o",), 2),
        "256x256": (("gate", "up", "down"), 6), "70x256": (("lm_head",), 1),
    }  # fmt: skip
    assert all("__matvec_" in kind.kernel for kind in one.kinds) and all("_t" in kind.kernel for kind in three.kinds)
    issued = [name for name, _ in fake.launches if name.startswith("mul_mat")]
    order = [p.shape for p in steps.products(models.model_named("tiny"))[0]]
    assert len(issued) == 2 * (15 + len(order)), "each matrix judged alone, then each product captured, for both T"
    quantised = [name for name, _ in fake.launches if name.startswith("quantize")]
    assert len(quantised) == 2 * (15 + 9), "judged alone, and captured with those that take the same x"
    assert "quantised" in model_text.table(report) and "q, k and v; gate and up" in model_text.markdown(report)


def test_a_limit_without_dependent_launches(fake: FakeCupy) -> None:
    report = bench(ModelMachine(fake, chain=False))
    (step,) = report.steps
    assert report.ok and step.chain_floor is None and step.limit is step.read_floor
    assert "no chain floor" in model_text.table(report)


def test_a_step_over_tiles(fake: FakeCupy) -> None:
    """One token's kernels quantise x by themselves here: a product is one launch, and there is no scratch."""
    report = bench(ModelMachine(fake), storage="tiled", sweep="1,2")
    assert report.ok, model_text.table(report)
    one, two = report.steps
    assert all("_t1__fused_tiled_w" in kind.kernel for kind in one.kinds)
    assert all("__ksplit_mma_tiled_w" in kind.kernel for kind in two.kinds)
    assert (one.quantisations, two.quantisations) == (0, 9)
    assert one.us and one.us.median == 15 * 4 and two.us and two.us.median == 15 * 4 + 9
    quantised = [name for name, _ in fake.launches if name.startswith("quantize")]
    assert len(quantised) == 15 + 9, "of T = 2 alone: judged one by one, and captured"
    assert "tiled storage" in model_text.table(report)


@pytest.mark.parametrize(("rows", "quantisations"), [(64, 2), (32, 2), (256, 2 * 3)])
def test_only_launches_of_quantisers_are_counted(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch, rows: int, quantisations: int
) -> None:
    """Where one shape has kernels with a quantiser in front: q; k and v, which share; o, gate and up, down."""

    def routed(format: Any, n: int, *others: Any, **named: Any) -> Any:
        return plan_ksplit(format, "tiled").rungs[1] if n == rows else plan_fused(format).instances[0]

    for room in (candidates, run):
        monkeypatch.setattr(room, "routed_batch", routed)
    report = bench(ModelMachine(fake), storage="tiled")
    assert report.ok, model_text.table(report)
    (step,) = report.steps
    assert {kind.shape.split("x")[0] for kind in step.kinds if "__fused_" not in kind.kernel} == {str(rows)}
    assert step.quantisations == quantisations and step.us and step.us.median == 15 * 4 + quantisations


def test_a_quantised_x_serves_past_a_kernel_that_needs_none(fake: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second matrix has a quantiser in front: q, v, gate, down; then k, o, up, and the head."""
    bound = 0

    def routed(format: Any, *others: Any, **named: Any) -> Any:
        nonlocal bound
        bound += 1
        return plan_ksplit(format, "tiled").rungs[1] if bound % 2 else plan_fused(format).instances[0]

    monkeypatch.setattr(run, "routed_batch", routed)
    report = bench(ModelMachine(fake), storage="tiled")
    assert report.ok and bound == 15, model_text.table(report)
    assert report.steps[0].quantisations == 8 - 1, "q and v share one, with k between them"


@pytest.mark.parametrize("storage", ["native", "tiled"])
def test_planes_are_filled_and_judged(fake: FakeCupy, storage: str) -> None:
    report = bench(ModelMachine(fake), formats=("Q4G64_F16S", "W8G32_F16S"), storage=storage, sweep="2")
    assert report.ok, model_text.table(report)
    assert report.steps[0].kinds[0].kernel.startswith("mul_mat_q4g64_f16s_bf16")
    assert all(f"__ksplit_mma_{storage}_" in kind.kernel for step in report.steps for kind in step.kinds)


def test_small_memory_is_a_ring_and_the_report_says_so(fake: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "COLD_BYTES", 1)
    machine = ModelMachine(fake, memory=350_000)
    machine.facts = replace(machine.facts, l2_bytes=1)
    report = bench(machine)
    (step,) = report.steps
    assert report.ok and (step.layers, step.distinct, step.copies) == (3, 2, 1)
    assert "a ring of 2 distinct ones" in model_text.table(report) and "a ring of 2" in model_text.markdown(report)


def test_a_small_model_has_copies_and_the_report_says_so(fake: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "COLD_BYTES", 600_000)
    report = bench(ModelMachine(fake))
    (step,) = report.steps
    assert report.ok and step.copies == 2 and step.us and step.us.median == 69, "a step, not a graph"
    assert "2 copies of it in turn" in model_text.table(report)


def test_a_format_that_cannot_serve_is_named(fake: FakeCupy) -> None:
    machine = ModelMachine(fake)
    report = bench(machine, model="odd", formats=("Q4_K", "Q8_0"))
    assert [step.format for step in report.steps] == ["Q8_0"] and report.ok
    said = "skipped Odd in Q4_K: o 256x64: K = 64 = 0 x 256 + 64: not whole blocks"
    assert said in model_text.table(report) and "## Not measured" in model_text.markdown(report)
    with pytest.raises(QgenError, match="not whole blocks"):
        bench(machine, model="odd", formats=("Q4_K",))


def test_one_wrong_bit_anywhere_fails_the_step(fake: FakeCupy) -> None:
    """In the first matrix of its shape, which the contract judges, or in a later one, which the first does."""
    for number in (0, 9):
        calls = 0

        def corrupt(entry: str, y: Any, number: int = number) -> None:
            nonlocal calls
            if calls == number:
                y[0, -1] = np.nextafter(y[0, -1], np.float32(np.inf))
            calls += 1

        machine = ModelMachine(fake)
        machine.corrupt = corrupt
        report = bench(machine)
        (step,) = report.steps
        assert not report.ok and step.us is None and "results differ" in step.problem
        assert "WRONG Q8_0, T = 1" in model_text.table(report) and "## Failed" in model_text.markdown(report)


def test_a_product_that_is_wrong_only_in_the_graph_fails_the_step(fake: FakeCupy) -> None:
    class Racy(ModelMachine):
        def lap(self, graphs: Any) -> list[float]:
            times = super().lap(graphs)
            for graph in graphs:
                if graph[-1][0].startswith("mul_mat"):
                    graph[0][1]()  # x of another matrix is in the scratch when the last product runs
                    graph[-1][1]()
            return times

    report = bench(Racy(fake))
    assert not report.ok and "70x256, in the graph" in report.steps[0].problem


def test_every_product_of_a_shared_call_is_judged_in_the_graph(fake: FakeCupy) -> None:
    """k and v have one shape: the result of the second is held against the first's too."""

    class Racy(ModelMachine):
        lost = 0

        def lap(self, graphs: Any) -> list[float]:
            graph = graphs[-1]
            # The run that is judged; a layer has 11 launches.
            if len(graphs) == 1 and graph[-1][0].startswith("mul_mat"):
                graphs = [[launch for i, launch in enumerate(graph) if i not in (self.lost, 11 + self.lost)]]
            return super().lap(graphs)

    for lost, shape in ((2, "32x256"), (3, "32x256"), (8, "256x256")):  # k, v, up
        machine = Racy(fake)
        machine.lost = lost
        report = bench(machine)
        assert not report.ok and f"{shape}, in the graph" in report.steps[0].problem


def test_an_error_of_the_device_keeps_what_was_measured(fake: FakeCupy) -> None:
    class Failing(ModelMachine):
        def call(self, bounds: Any, x: Any, outs: Any, workspace: Any) -> None:
            if bounds[0].weight.format.name == "Q8_0":
                raise QgenError(stage="run", subject="a call", found="CUDA refuses", allowed="a device", next="look")
            super().call(bounds, x, outs, workspace)

    report = bench(Failing(fake), formats=("Q4_0", "Q8_0"))
    assert [step.format for step in report.steps] == ["Q4_0"] and not report.ok
    assert report.aborted.startswith("Tiny in Q8_0: a call") and "STOPPED" in model_text.table(report)


# ---- texts and the verb ------------------------------------------------------------------------------------------


def test_csv_and_json_hold_every_step(fake: FakeCupy) -> None:
    report = bench(ModelMachine(fake), sweep="1,2")
    rows = list(csv.DictReader(io.StringIO(model_text.csv_text(report))))
    assert [(row["format"], row["tokens"]) for row in rows] == [("Q8_0", "1"), ("Q8_0", "2")]
    assert float(rows[1]["tokens_a_second"]) == pytest.approx(2e6 / 69) and float(rows[0]["chain_floor_us"]) == 15
    data = report.to_json()["steps"]
    assert [step["quantisations"] for step in data] == [9, 9] == [int(row["quantisations"]) for row in rows]
    assert [step["tokens_a_second"] for step in data] == [step.tokens_a_second for step in report.steps]


def test_spread_of_steps_is_said(fake: FakeCupy) -> None:
    class Noisy(ModelMachine):
        def lap(self, graphs: Any) -> list[float]:
            return [us * (1 + 0.2 * (self.laps % 3)) for us in super().lap(graphs)]

    report = bench(Noisy(fake), passes=6)
    assert any("1 of 1 figures are of passes that spread by more than 5%" in n for n in report.conditions.notes)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    return parser.parse_args(["bench", *arguments])


def test_the_verb(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "CudaMachine", lambda: ModelMachine(fake))
    monkeypatch.setenv("QGEN_PROGRESS", "0")
    common = ["--model", "tiny", "--format", "q8_0", "--repeat", "1"]
    args = parse(*common, "--sweep", "1,2", "--out", str(tmp_path / "o"))
    assert args.run(args) == 0 and "tokens/s" in capsys.readouterr().out
    page = (tmp_path / "o" / "report.md").read_text()
    drawn = importlib.util.find_spec("matplotlib") is not None  # pictures come with the extra `bench`
    assert page.startswith("# qgen bench --model: Tiny") and ("(tokens_a_second.png)" in page) == drawn
    assert (tmp_path / "o" / "results.csv").read_text().startswith("model,format")
    picture = tmp_path / "o" / "tokens_a_second.png"
    assert picture.read_bytes().startswith(b"\x89PNG") if drawn else not picture.exists()
    args = parse(*common, "--json")
    assert args.run(args) == 0 and len(json.loads(capsys.readouterr().out)["steps"]) == 1
    args = parse(*common, "--csv")
    assert args.run(args) == 0 and capsys.readouterr().out.startswith("model,format")
    for wrong in (["--shape", "8x256"], ["--candidates"], ["--floors-only"]):
        args = parse(*common, *wrong)
        with pytest.raises(QgenError, match="beside --model"):
            args.run(args)
    args = parse("--model", "tiny", "ladder", "--sweep", "1,2")
    with pytest.raises(QgenError, match="bench --model tiny --sweep 1,2"):
        args.run(args)
    args = parse("--sweep", "1,2")
    with pytest.raises(QgenError, match="bench ladder"):
        args.run(args)
    with pytest.raises(QgenError, match="at least 1 pass"):
        model.Options(model="tiny", passes=0)
