"""qgen bench without a device: the arithmetic of the protocol, the cases, the judgement of results, the rulers."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import numpy as np
import pytest
from bench_machine import EmulatedMachine, make_small, matvec, run

from qgen import emulate
from qgen.bench import cases, floors, protocol, report, session
from qgen.bench.candidates import (
    Candidate,
    FusedCandidate,
    MultirowCandidate,
    RungCandidate,
    WgmmaCandidate,
    candidates,
    every_candidate,
    ladder_candidates,
)
from qgen.bench.inputs import difference
from qgen.errors import QgenError
from qgen.plan import plan_all, plan_fused, plan_wgmma
from qgen.spec import load_formats

FORMATS = load_formats()
PLANS, _ = plan_all(FORMATS)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


# ---- protocol ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "block", "l2"), [(3_538_944, 54, 60 << 20), (178_257_920, 34, 60 << 20), (16, 16, 0)]
)
def test_a_copy_is_cold_when_its_turn_comes_again(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, block: int, l2: int
) -> None:
    monkeypatch.undo()
    turn = protocol.rotation(nbytes, block, l2)
    assert turn.stride >= nbytes and turn.stride % block == 0 and turn.stride % 256 == 0
    between = (turn.copies - 1) * turn.stride
    assert between >= 300_000_000 and between > 2 * l2
    # A graph begins where it ended: its last launch reads the last copy, so the next graph's first is as cold.
    assert turn.launches % turn.copies == 0 and turn.launches >= protocol.MIN_LAUNCHES
    offsets = [turn.offset(i) for i in range(turn.launches)]
    assert sorted(set(offsets)) == [i * turn.stride for i in range(turn.copies)]
    assert max(offsets) + nbytes <= turn.nbytes


def test_timing_keeps_median_ends_and_quarters() -> None:
    t = protocol.timing([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (t.median, t.low, t.high, t.quarter, t.three_quarters, t.passes) == (3.0, 1.0, 5.0, 2.0, 4.0, 5)
    assert t.spread == pytest.approx(2 / 3)
    one = protocol.timing([7.0])
    assert (one.median, one.spread) == (7.0, 0.0)


def test_every_round_takes_each_subject_once_and_begins_with_another() -> None:
    class Recorder(EmulatedMachine):
        rounds: list[list[str]] = []

        def lap(self, graphs: Any) -> list[float]:
            self.rounds.append([graph[0] for graph in graphs])
            return [{"a": 10.0, "b": 20.0, "c": 60.0}[graph[0]] for graph in graphs]

    machine = Recorder()
    times = protocol.measure(machine, {name: ([name], 2) for name in "abc"}, passes=4)
    assert {name: t.median for name, t in times.items()} == {"a": 5.0, "b": 10.0, "c": 30.0}
    assert all(t.passes == 4 for t in times.values())
    assert all(sorted(order) == ["a", "b", "c"] for order in machine.rounds)
    assert [order[0] for order in machine.rounds[-4:]] == ["a", "b", "c", "a"]
    assert len(machine.rounds) == 4 + protocol.WARM_UP


# ---- cases -------------------------------------------------------------------------------------------------------


def test_shapes_are_read_or_refused() -> None:
    assert cases.parse_shape("14336x4096") == cases.Shape(14336, 4096)
    for text in ("", "14336", "0x4096", "4096x", "4096x4096x2", "-1x4", "99999999999x1", "4096*4096"):
        with pytest.raises(QgenError, match="--shape"):
            cases.parse_shape(text)


def test_formats_are_all_with_kernels_or_those_named() -> None:
    served = cases.choose_formats([], FORMATS, PLANS)
    assert len(served) == len({plan.format for plan in PLANS}) and "IQ2_XS" not in [f.name for f in served]
    assert [f.name for f in cases.choose_formats(["q4_k", "TQ1_0", "Q4_K"], FORMATS, PLANS)] == ["Q4_K", "TQ1_0"]
    with pytest.raises(QgenError, match="did you mean Q4_K"):
        cases.choose_formats(["Q4_KK"], FORMATS, PLANS)
    with pytest.raises(QgenError, match="without kernels"):
        cases.choose_formats(["IQ2_XS"], FORMATS, PLANS)


def test_a_k_of_broken_blocks_is_named() -> None:
    found, skipped = cases.cases([FORMATS["TQ1_0"], FORMATS["Q8_0"]], [cases.Shape(8, 640), cases.Shape(8, 512)])
    assert [(c.format.name, str(c.shape)) for c in found] == [("TQ1_0", "8x512"), ("Q8_0", "8x640"), ("Q8_0", "8x512")]
    assert skipped == [cases.Skipped("TQ1_0 8x640", "K = 640 = 2 x 256 + 128: not whole blocks")]
    assert found[0].weight_bytes == 8 * 2 * 54


def test_candidates_are_the_routed_kernel_or_all() -> None:
    case = cases.Case(FORMATS["Q4_K"], cases.Shape(8, 512))
    (routed,) = candidates(case, PLANS, every=False, arch="sm_90")
    every = candidates(case, PLANS, every=True, arch="sm_90")
    assert isinstance(routed, Candidate)
    assert routed.routed and [c.instance for c in every if c.routed] == [routed.instance]
    assert [c.instance for c in every] == list(routed.plan.instances) and len({c.label for c in every}) == len(every)


def test_candidates_of_several_tokens_are_rungs() -> None:
    case = cases.Case(FORMATS["Q4_K"], cases.Shape(8, 512), tokens=11)
    (routed,) = candidates(case, PLANS, every=False, arch="sm_90")
    every = candidates(case, PLANS, every=True, arch="sm_90")
    assert isinstance(routed, RungCandidate) and routed.instance.columns == 16
    assert [c.label for c in every] == [f"t{rung.columns}_w{rung.warps}" for rung in routed.plan.rungs]
    assert [c.routed for c in every] == [c.instance == routed.instance for c in every]
    (few,) = candidates(case, PLANS, every=True, arch="sm_75")
    assert isinstance(few, MultirowCandidate) and few.routed and few.label == "multirow_r2"
    single = cases.Case(FORMATS["Q4_K"], cases.Shape(8, 512))
    one, *rungs = ladder_candidates(single, PLANS, arch="sm_90")
    assert isinstance(one, Candidate) and one.routed and not any(c.routed for c in rungs)
    assert [c.instance for c in rungs] == list(routed.plan.rungs)
    assert len(ladder_candidates(single, PLANS, arch="sm_75")) == 1
    assert [c.routed for c in ladder_candidates(case, PLANS, arch="sm_90")] == [c.routed for c in every]


def test_one_token_over_tiles_has_kernels_of_one_launch_too() -> None:
    def fused(columns: int = 512, tokens: int = 1, arch: str = "sm_90") -> list[FusedCandidate]:
        case = cases.Case(FORMATS["Q5_K"], cases.Shape(70, columns), tokens, storage="tiled")
        ways = [candidates(case, PLANS, every=True, arch=arch), ladder_candidates(case, PLANS, arch=arch)]
        ways.append(every_candidate(case, PLANS, arch=arch))
        found = [[c for c in way if isinstance(c, FusedCandidate)] for way in ways]
        assert found[0] == found[1] == found[2] and any(isinstance(c, RungCandidate) for c in ways[0])
        assert [c for way in ways for c in way if c.routed] == [*candidates(case, PLANS, every=False, arch=arch)] * 3
        return found[0]

    plan = plan_fused(FORMATS["Q5_K"])
    assert [c.instance for c in fused()] == list(plan.instances) and {c.plan for c in fused()} == {plan}
    assert [(c.label, c.routed) for c in fused()] == [("fused_w4", False), ("fused_w8", True)]
    assert fused(plan.most_blocks * 256) and not fused((plan.most_blocks + 1) * 256), "x does not fit"
    assert not fused(tokens=2)
    assert fused(arch="sm_80") and not fused(arch="sm_86"), "99 KB of shared memory"
    native = cases.Case(FORMATS["Q5_K"], cases.Shape(70, 512))
    assert not any(isinstance(c, FusedCandidate) for c in every_candidate(native, PLANS, arch="sm_90"))


@pytest.mark.parametrize(("tokens", "labels"), [
    (1, ""), (16, "w16g2 w16g1"), (17, "w16g2 w16g1 w32g2 w32g1"), (64, "w32g2 w32g1 w64g2"), (96, "w48g2 w64g2"),
    (300, "w64g2"),
])  # fmt: skip
def test_many_tokens_over_tiles_have_kernels_for_warpgroups_too(tokens: int, labels: str) -> None:
    """Those with the fewest columns that hold the tokens, at once or at twice, and the routed one among them."""

    def found(rows: int, arch: str = "sm_90") -> list[WgmmaCandidate]:
        case = cases.Case(FORMATS["Q4_K"], cases.Shape(rows, 4096), tokens, storage="tiled")
        ways = [candidates(case, PLANS, every=True, arch=arch), ladder_candidates(case, PLANS, arch=arch)]
        own = [[c for c in way if isinstance(c, WgmmaCandidate)] for way in ways]
        assert own[0] == own[1] and any(isinstance(c, RungCandidate) for c in ways[0])
        assert [c for c in ways[0] if c.routed] == candidates(case, PLANS, every=False, arch=arch)
        named = [c for c in every_candidate(case, PLANS, arch=arch) if isinstance(c, WgmmaCandidate)]
        assert len(named) == (len(plan_wgmma(case.format).rungs) if arch == "sm_90" else 0)
        return own[0]

    assert [c.label for c in found(70)] == labels.split()
    assert not any(c.routed for c in found(70)), "few rows are the ladder's"
    assert [c.plan.rungs for c in found(70)] == [(c.instance,) for c in found(70)], "each is compiled alone"
    assert sum(c.routed for c in found(14336)) == (tokens > 1) and not found(14336, "sm_80")


# ---- a run -------------------------------------------------------------------------------------------------------


def test_a_run_times_each_kernel_among_its_floors() -> None:
    found = run(EmulatedMachine(), formats=("TQ1_0", "Q8_0"), every=True, shapes=("70x512",))
    assert found.ok and found.conditions.facts.name.startswith("NVIDIA H200")
    assert len(found.rows) == len(matvec("TQ1_0").instances) + len(matvec("Q8_0").instances)
    for row in found.rows:
        assert row.times and row.alone and row.quantise and row.read_floor and row.chain_floor and row.us
        # Drift of at most 0.1 us is spread over a graph's launches.
        assert row.us == pytest.approx(5.0, abs=0.06) and row.alone.median == pytest.approx(4.0, abs=0.06)
        assert row.quantise.median == pytest.approx(1.0, abs=0.06) and row.times.total.passes == 3
        assert row.percent(row.read_floor) == pytest.approx(40, abs=1.5)
        assert row.percent(row.chain_floor) == pytest.approx(20, abs=1.5)
        assert row.gigabytes_a_second == pytest.approx(row.weight_bytes / row.us / 1000)
        assert row.weight_bytes == row.rows * row.columns * row.bits_per_weight / 8
    assert {(r.format, r.routed) for r in found.routed()} == {("TQ1_0", True), ("Q8_0", True)}


def test_dependent_launches_only_where_the_device_has_them() -> None:
    machine = EmulatedMachine()
    run(machine)
    chained = {entry for entry, chained in machine.launches if chained}
    assert {entry for entry in chained if entry.startswith("read_")} == {"read_chain_u4", "read_chain_u8"}
    assert any("__matvec_" in entry for entry in chained), "a call as the run issues it"
    machine = EmulatedMachine(chain=False)
    found = run(machine)
    assert not any(chained for _, chained in machine.launches) and not any(row.chain_floor for row in found.rows)
    assert found.ok and "no chain floor: sm_75" in report.table(found) and "no chain floor" in report.markdown(found)


def test_a_kernel_of_one_launch_is_timed_as_a_call_alone() -> None:
    machine = EmulatedMachine()
    (fused,) = plan_fused(FORMATS["Q4_0"]).instances
    machine.costs[fused.name] = 6.0
    found = run(machine, formats=("Q4_0",), storage="tiled", every=True)
    assert found.ok, report.table(found)
    (one,) = [row for row in found.rows if row.kernel == fused.name]
    assert one.times and one.us == pytest.approx(6.0, abs=0.06) and one.times.total.passes == 3
    assert one.alone is None and one.quantise is None and (one.family, one.grid, one.grid_y) == ("fused", 2, 1)
    assert all(row.alone and row.quantise for row in found.rows if row is not one)
    assert {chained for entry, chained in machine.launches if entry == fused.name} == {True}
    # A figure that there is not: `alone` for the terminal, and `quantise` beside it to keep.
    cells = next(line for line in report.table(found).splitlines() if "  fused_w4" in line).split()
    assert cells[5] == "-" != cells[4]
    lines = [line.split(" | ") for line in report.markdown(found).splitlines() if "| fused_w4" in line]
    assert lines[0][4:6] == ["-", "-"] and lines[1][6:] == ["-", "-", "- |"]
    (row,) = [row for row in csv.DictReader(io.StringIO(report.csv_text(found))) if row["kernel"] == fused.name]
    assert float(row["us"]) == pytest.approx(one.us, abs=1e-4) and not row["alone_us"] and not row["quantise_us"]
    assert found.to_json()["rows"][0]["times"]["product"] is None


@pytest.mark.parametrize("row", [0, 33, 69])
def test_a_wrong_bit_of_a_kernel_of_one_launch_fails_the_run(row: int) -> None:
    machine = EmulatedMachine()
    wrong = plan_fused(FORMATS["TQ1_0"]).instances[1].name

    def corrupt(entry: str, y: Any) -> None:
        if entry == wrong:
            y[0, row] = np.nextafter(y[0, row], np.float32(np.inf))

    machine.corrupt = corrupt
    found = run(machine, storage="tiled", every=True)
    (bad,) = [r for r in found.rows if r.problem]
    assert bad.kernel == wrong and bad.times is None and not found.ok and f"row {row} is" in bad.problem


def test_a_result_that_one_launch_leaves_out_is_seen() -> None:
    """y is poisoned before it: what an earlier kernel wrote there does not count."""

    class Short(EmulatedMachine):
        def launch(self, kernel: Any, grid: Any, args: Any, *, chained: bool = False) -> None:
            if "__fused_" in kernel.entry and self._recording is None:
                args = (args[0], np.int32(args[1] - 1), *args[2:])  # the last row is left out
            super().launch(kernel, grid, args, chained=chained)

    found = run(Short(), storage="tiled", every=True)
    assert {row.kernel for row in found.rows if row.problem} == {i.name for i in plan_fused(FORMATS["TQ1_0"]).instances}
    assert all("row 69 is nan" in row.problem for row in found.rows if row.problem)


def test_a_wrong_kernel_gets_no_time_and_fails_the_run() -> None:
    machine = EmulatedMachine()
    wrong = matvec("TQ1_0").instances[1].name

    def corrupt(entry: str, y: Any) -> None:
        if entry == wrong:
            y[0, -1] = np.nextafter(
                y[0, -1], np.float32(np.inf)
            )  # one bit of the last row, which is always in the sample

    machine.corrupt = corrupt
    found = run(machine, every=True)
    (bad,) = [row for row in found.rows if row.problem]
    assert bad.kernel == wrong and bad.times is None and re.match(r"1 of \d results differ; row 69 is", bad.problem)
    assert not found.ok and all(row.times for row in found.rows if row is not bad)
    assert f"WRONG {wrong}" in report.table(found) and "## Failed" in report.markdown(found)
    assert found.to_json()["ok"] is False


def test_a_row_outside_the_sample_is_compared_between_kernels() -> None:
    machine = EmulatedMachine()
    last = matvec("TQ1_0").instances[-1].name
    rows = 70

    def corrupt(entry: str, y: Any) -> None:
        if entry == last:
            y[0, 1 : rows - 1] += 1.0

    machine.corrupt = corrupt
    found = run(machine, every=True, shapes=(f"{rows}x256",))
    (bad,) = [row for row in found.rows if row.problem]
    assert bad.kernel == last and not found.ok


def test_an_unsampled_row_alone_is_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = EmulatedMachine()
    instances = matvec("TQ1_0").instances
    monkeypatch.setattr("qgen.bench.inputs.SAMPLE", 2)  # the first and the last row

    def corrupt(entry: str, y: Any) -> None:
        if entry == instances[-1].name:
            y[0, 33] += 1.0

    machine.corrupt = corrupt
    (bad,) = [row for row in run(machine, every=True).rows if row.problem]
    assert bad.problem.startswith("unlike the first kernel of this case: 1 of 70 results differ; row 33")


def test_an_error_of_the_device_keeps_what_was_measured() -> None:
    machine = EmulatedMachine()
    machine.fail_at = "mul_mat_q8_0"
    found = run(machine, formats=("TQ1_0", "Q8_0"))
    assert [row.format for row in found.rows] == ["TQ1_0"] and found.rows[0].times
    assert not found.ok and found.aborted.startswith("Q8_0 70x512") and "STOPPED" in report.table(found)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(QgenError, match="not whole blocks"):
        run(EmulatedMachine(), shapes=("8x640",))
    with pytest.raises(QgenError, match="at least 1 pass"):
        session.Options(passes=0)


def test_quick_and_repeat() -> None:
    assert session.Options(quick=True).rounds == session.QUICK_PASSES < session.Options().rounds == session.PASSES
    assert session.Options(quick=True, passes=9).rounds == 9


# ---- floors ------------------------------------------------------------------------------------------------------


def test_the_rulers_read_every_byte_once() -> None:
    program = emulate.compile(floors.text(), floors.FILE, arch=890)
    data = np.random.default_rng(3).integers(0, 256, 16 * 1003, dtype=np.uint8)
    assert {v.entry for v in floors.READS + floors.CHAINS} <= set(program.parameters)
    for entry in program.parameters:
        for grid, pieces in ((3, 1003), (40, 1003), (1, 1)):
            out = np.zeros(grid * 64, dtype=np.uint32)
            args: list[Any] = [
                emulate.Buffer("bytes", data[: 16 * pieces].copy()),
                pieces,
                1,
                emulate.Buffer("out", out, writable=True),
            ]
            counted = program.launch(entry, grid=grid, block=64, args=args)
            assert counted.read_bytes["bytes"] == counted.bytes_touched["bytes"] == 16 * pieces
            assert np.bitwise_xor.reduce(out) == np.bitwise_xor.reduce(data[: 16 * pieces].view(np.uint32))
            args[2] = 0
            assert program.launch(entry, grid=grid, block=64, args=args).write_requests["out"] == 0


def test_a_ruler_that_skips_bytes_is_caught() -> None:
    class Lazy(EmulatedMachine):
        def launch(self, kernel: Any, grid: Any, args: Any, *, chained: bool = False) -> None:
            if kernel.entry == "read_u4":
                args = (args[0], np.int64(args[1] - 1), *args[2:])
            super().launch(kernel, grid, args, chained=chained)

    found = run(Lazy())
    assert not found.rows and "ruler read 4" in found.aborted


def test_floors_only() -> None:
    machine = EmulatedMachine()
    machine.costs |= {"read_u8": 1.5}
    found = run(machine, floors_only=True)
    assert found.ok and [read.nbytes for read, _ in found.floors] == [4096, 16384] and not found.rows
    assert all(read.variant.startswith("read 8") for read, _ in found.floors)
    lines = report.csv_text(found).splitlines()
    assert len(lines) == 3 and lines[1].startswith("4096,")
    assert "chain by" in report.table(found) and "## Floors" in report.markdown(found)


def test_difference_names_a_row() -> None:
    y = np.array([[1.0, np.nan, 3.0]], dtype=np.float32)
    assert difference(y, y.copy()) == ""
    other = np.array([[1.0, np.nan, 4.0]], dtype=np.float32)
    assert "1 of 3 results differ; row 70 is 3, should be 4" in difference(y, other, np.array([5, 6, 70]))
    assert difference(y, np.array([[1.0, 2.0, 3.0]], dtype=np.float32)).startswith("1 of 3")
    zero = np.zeros((2, 1), np.float32)
    assert "row 0 of token 1" in difference(zero, np.array([[0.0], [-0.0]], np.float32)), "a zero's sign is a bit too"


def test_a_driver_that_fails_at_dependent_graphs_costs_only_the_chain_floor() -> None:
    class Old(EmulatedMachine):
        def launch(self, kernel: Any, grid: Any, args: Any, *, chained: bool = False) -> None:
            if chained and self.why_no_chain is None:
                raise QgenError(stage="bench", subject="x", found="error 801", allowed="a launch", next="none")
            super().launch(kernel, grid, args, chained=chained)

    found = run(Old())
    assert found.ok and found.rows[0].read_floor and found.rows[0].chain_floor is None
    assert found.no_chain == "a graph of dependent launches fails: error 801"
