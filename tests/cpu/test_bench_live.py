"""Live peers without a device: their processes over stand-ins for PyTorch and Humming, and over ggml's real C API."""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import libggml
import numpy as np
import pytest
from bench_machine import EmulatedMachine, make_small
from fake_cupy import FakeCupy, install
from model_machine import ModelMachine
from test_bench_model import TINY

from qgen import codec, models, paths
from qgen.bench import cuda, ladder, ladder_text, live_text, model, model_text, peers, protocol, report, session
from qgen.bench.cases import Case, Shape
from qgen.bench.inputs import fill, pattern
from qgen.bench.live import humming_peer
from qgen.bench.live.cell import Cell, error
from qgen.bench.live.child import Service
from qgen.bench.live.peer import Gone, LivePeer
from qgen.bench.records import Report
from qgen.cli import bench as verb
from qgen.errors import QgenError
from qgen.spec import load_formats

FORMATS = load_formats()
FAKES = Path(__file__).parent / "fake_peers"
COLD = 4096


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(FAKES))


@pytest.fixture(scope="session")
def ggml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of fake_peers/ggml_cuda.cpp over the ggml of the package libggml-python."""
    root = Path(libggml.__file__).parent
    built = tmp_path_factory.mktemp("ggml") / "libggml-cuda.so"
    command = [
        "g++", "-shared", "-fPIC", str(FAKES / "ggml_cuda.cpp"), f"-I{root / 'include'}", f"-L{root / 'lib64'}",
        "-Wl,--no-as-needed", "-lggml", "-lggml-cpu", "-lggml-base", f"-Wl,-rpath,{root / 'lib64'}", "-o", str(built),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return built


def case(format: str = "Q8_0", rows: int = 24, columns: int = 256, tokens: int = 3) -> Case:
    return Case(FORMATS[format], Shape(rows, columns), tokens)


def ask(wanted: str, *cases: Case) -> list[tuple[int, str] | str]:
    """What a peer answers, cell by cell; a lap of each that it has is taken too."""
    peer = LivePeer(wanted)
    assert peer.about, peer.why_not
    answers = []
    for wanted_case in cases:
        answer = peer.cell(wanted_case, COLD)
        assert isinstance(answer, str) or peer.lap(answer[0]) > 0
        answers.append(answer)
    peer.close()
    return answers


def why_not(wanted: str) -> str:
    peer = LivePeer(wanted)
    assert peer.about is None
    peer.close()
    return peer.why_not


# ---- cells -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "columns"), [("Q4_K", 768), ("TQ1_0", 512), ("Q5G64_F16S", 576)])
def test_peers_have_the_weights_that_qgen_has(format: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than the pattern has, as the run's buffer holds them; planes each from their own first byte on."""
    monkeypatch.setattr("qgen.bench.inputs.PATTERN_BLOCKS", 16)
    cell = Cell.of(format, (19, columns), 2, COLD)
    if FORMATS[format].split:
        machine = EmulatedMachine()
        made = Case(FORMATS[format], Shape(19, columns))
        buffer = machine.filled(made.placed.total)
        turn = protocol.Rotation(stride=made.placed.total, copies=1, launches=1)
        fill(machine, buffer, made, turn, pattern(FORMATS[format]))
        packed = buffer
    else:
        packed = cell.packed
    weights = codec.decode_matrix(FORMATS[format], packed, rows=19, columns=columns)
    np.testing.assert_array_equal(cell.decoded, weights)
    assert error(cell.x @ weights.T, weights, cell.x) < 1e-12
    assert error(cell.x @ weights.T * 1.1, weights, cell.x) == pytest.approx(0.01, rel=1e-3)
    assert not error(np.full((2, 19), np.nan), weights, cell.x) <= 1, "a NaN is no small error"


def test_integers_of_about_as_many_bits() -> None:
    found = {name: humming_peer.bits(FORMATS[name]) for name in ("Q1_0", "TQ1_0", "Q2_K", "Q4_K", "IQ4_XS", "Q8_0")}
    assert found == {"Q1_0": 1, "TQ1_0": 2, "Q2_K": 2, "Q4_K": 4, "IQ4_XS": 4, "Q8_0": 8}


# ---- the processes -----------------------------------------------------------------------------------------------


def test_torch_answers() -> None:
    (q8, planes) = ask("torch", case(), case("Q5G64_F16S", columns=640))
    assert q8 == (0, "f16") and planes == (1, "f16")


def test_torch_without_graphs_is_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TORCH", "no graph")
    assert ask("torch", case()) == [(0, "f16 (no CUDA graph: calls one by one)")]


@pytest.mark.parametrize(
    ("mode", "said"), [("no device", "2.11.0+fake sees no CUDA device"), ("old", "is too old: it has no torch.cuda")]
)
def test_a_torch_that_cannot_says_why(mode: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TORCH", mode)
    assert said in why_not("torch") and said in why_not("humming")


def test_a_wrong_result_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TORCH", "wrong")
    for name in ("torch", "humming"):
        (found,) = ask(name, case())
        assert isinstance(found, str) and "square error 0.25, 1e-05 is allowed" in found


def test_humming_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    four, three, odd = ask("humming", case("Q4_K", columns=512), case("Q3_K", columns=256), case(columns=160))
    assert (four, three) == ((0, "int4 g128"), (1, "int3 g128")) and odd == "K = 160 is no multiple of its group of 128"
    monkeypatch.setenv("FAKE_HUMMING", "old")
    assert "too old" in why_not("humming")


def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    assert "PyTorch cannot be imported: none here" in why_not("torch")
    with pytest.raises(QgenError, match="ggml, humming, torch"):
        LivePeer("marlin")


def test_ggml_answers_through_its_c_api(ggml: Path) -> None:
    cases = [case(format, columns=512, tokens=tokens) for format in ("Q4_K", "TQ1_0", "MXFP4") for tokens in (1, 3)]
    assert ask(f"ggml={ggml}", *cases) == [(n, c.format.name) for n, c in enumerate(cases)]
    lacks = ask(f"ggml={ggml}", case("Q4_1"), case("Q5G64_F16S"), case("PQ2_0", columns=512))
    assert lacks[:2] == ["its backend has no MUL_MAT of Q4_1", "Q5G64_F16S is no type of ggml"]
    assert isinstance(lacks[2], str) and lacks[2].startswith(f"its type {FORMATS['PQ2_0'].id} is ")


def test_a_ggml_that_cannot_says_why(ggml: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "--peer ggml=/path" in why_not("ggml")
    assert why_not(f"ggml={tmp_path / 'none.so'}").startswith("no file")
    (tmp_path / "text.so").write_text("no library")
    assert "cannot be loaded" in why_not(f"ggml={tmp_path / 'text.so'}")
    (tmp_path / "other.c").write_text("int ggml_init(void) { return 0; }")
    other = tmp_path / "other.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c", str(tmp_path / "other.c"), "-o", str(other)], check=True)
    assert "too old, or no ggml: it has no ggml_free, " in why_not(f"ggml={other}")
    monkeypatch.setenv("GGML_FAKE", "no device")
    assert "has no backend for a GPU here" in why_not(f"ggml={ggml}")
    monkeypatch.setenv("GGML_FAKE", "aborts")
    assert "ended with status -6; the last it said: CUDA error: a fault" in why_not(f"ggml={ggml}")


def test_a_library_without_cuda_in_it_is_asked_for_its_gpus() -> None:
    library = Path(libggml.__file__).parent / "lib64" / "libggml.so"
    assert "has no backend for a GPU here" in why_not(f"ggml={library}"), "this one has a CPU only"


def test_cells_of_a_matrix_end_with_the_next_one(ggml: Path) -> None:
    peer = LivePeer(f"ggml={ggml}")
    assert peer.cell(case(), COLD) == (0, "Q8_0") and peer.cell(case("Q4_0"), COLD) == (1, "Q4_0")
    with pytest.raises(Gone, match="freed for another matrix"):
        peer.lap(0)
    assert peer.lap(1) > 0
    peer.close()


def test_whatever_a_library_raises_is_a_reason() -> None:
    class Raising:
        version, how, tolerance = "1", "none", 1.0

        def ready(self, cell: Cell) -> Any:
            raise ValueError(f"no kernel for {cell.tokens} tokens\nand more")

        def drop(self) -> None:
            raise AssertionError("not asked for")

    request = {"do": "cell", "format": "Q8_0", "shape": [24, 256], "tokens": 7, "cold": COLD}
    assert Service(Raising()).answer(request) == {"skip": "ValueError: no kernel for 7 tokens"}


def test_a_peer_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qgen.bench.live.peer._WAIT", 0.2)
    peer = LivePeer("torch", child=("-c", "import time; time.sleep(600)"))
    assert peer.about is None and "gave no answer" in peer.why_not


def test_a_peer_that_dies_on_a_cell_is_started_again(ggml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_FAKE", "aborts later")
    first, dead, after = ask(f"ggml={ggml}", case(), case(rows=1), case("Q4_0"))
    assert first == (0, "Q8_0") and isinstance(dead, str) and "status -6" in dead
    assert after == (0, "Q4_0")


# ---- a run -------------------------------------------------------------------------------------------------------


def sweep(ggml: Path | None = None, **options: Any) -> Report:
    machine = EmulatedMachine(name="another device")
    machine.facts = replace(machine.facts, l2_bytes=1)
    peers = ("torch", "humming", *([f"ggml={ggml}"] if ggml else []))
    defaults: dict[str, Any] = {"formats": ("Q5_K",), "shapes": ("19x512",), "sweep": "1,2,9,16", "passes": 2}
    chosen = ladder.Options(peers=peers, **(defaults | options))
    return ladder.bench_ladder(chosen, machine, show_progress=False)


def test_every_cell_of_a_sweep_has_its_peers(ggml: Path) -> None:
    found = sweep(ggml)
    assert found.ok and [about.name for about in found.live] == ["torch", "humming", "ggml"]
    for row in found.routed():
        live = {f.peer: f for f in row.peers if f.live}
        assert {name: f.row for name, f in live.items()} == {"torch": "f16", "humming": "int5 g128", "ggml": "Q5_K"}
        assert all(f.live and f.us == f.live.median > 0 and f.live.passes == 2 for f in live.values())
        assert all(row.ratio(f) == pytest.approx(f.us / row.us) for f in live.values() if row.us)
    page = ladder_text.markdown(found)
    assert "## Beside peers of the same run" in page and "- peer ggml: ggml 0" in page and "at most 0.0005" in page
    assert page.count("| Q5_K | 19x512 |") == 4
    table = ladder_text.table(found)
    assert "T = 2..8" in table and " live (" in table
    rows = list(csv.DictReader(io.StringIO(report.csv_text(found))))
    assert all(float(row["ggml_us"]) > 0 and float(row["torch_times_faster"]) > 0 for row in rows)
    assert [about["name"] for about in found.to_json()["live_peers"]] == ["torch", "humming", "ggml"]


def test_means_go_over_the_cells_that_exist() -> None:
    found = sweep()
    figure = next(f for f in found.rows[0].peers if f.peer == "torch")
    taken = {1: 2.0, 2: 4.0, 9: 1000.0, 16: 3.0}
    rows = []
    for row in found.rows:
        assert row.us
        rows.append(replace(row, peers=(replace(figure, us=taken[row.tokens] * row.us),)))
        # Another matrix, with a figure at T = 2 alone.
        other = (replace(figure, us=9 * row.us),) if row.tokens == 2 else ()
        rows.append(replace(row, columns=256, peers=other))
    found.rows = rows
    lines = live_text.means(found)
    table = {cells[0]: cells[1:] for line in lines if (cells := [c.strip() for c in line.split("  ") if c.strip()])}
    assert table["torch"] == ["2.00 (1 cell)", "6.00 (2 cells)", "3.00 (1 cell)"]
    assert table["humming"] == ["-", "-", "-"]


def test_what_peers_lack_is_named_and_fails_nothing(ggml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HUMMING", "old")
    found = sweep(ggml, formats=("Q4_1",), shapes=("19x512",), sweep="1,3")
    assert found.ok and [about.name for about in found.live] == ["torch", "ggml"]
    said = {s.what: s.reason for s in found.skipped}
    assert said["peer ggml, Q4_1 19x512, T = 1, 3"] == "its backend has no MUL_MAT of Q4_1"
    assert "too old" in said["peer humming"]
    assert "skipped peer humming" in ladder_text.table(found) and "## Not measured" in ladder_text.markdown(found)


def test_a_peer_that_fails_during_the_passes_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    laps = 0

    def lap(self: LivePeer, number: int) -> float:
        nonlocal laps
        laps += 1
        if laps > 5:
            raise Gone("its process ended with status -9")
        return 1.0

    monkeypatch.setattr(LivePeer, "lap", lap)
    options = session.Options(formats=("Q8_0",), shapes=("70x512",), passes=3, peers=("torch",))
    found = session.bench(options, EmulatedMachine(name="another device"), show_progress=False)
    assert found.ok and laps == 6, "it is not asked again"
    assert not any(row.peers for row in found.rows)
    assert [(s.what, s.reason) for s in found.skipped] == [
        ("peer torch, Q8_0 70x512, T = 1", "its process ended with status -9")
    ]


def test_figures_of_this_run_take_the_place_of_earlier_ones(ggml: Path) -> None:
    row = sweep(ggml, sweep="1").routed()[0]
    table = peers.load()
    beside = session.beside_peers(replace(row, rows=14336, columns=4096), table, table.device)
    kinds = {(f.peer, f.row, f.live is not None) for f in beside.peers}
    assert ("ggml", "Q5_K", True) in kinds and ("ggml", "Q5_K", False) not in kinds
    named = session.beside_peers(replace(row, format="TQ1_0", rows=14336, columns=4096), table, table.device)
    assert ("ggml", "Q2_0", False) in {(f.peer, f.row, f.live is not None) for f in named.peers}, "a named comparison"


def test_matrices_of_a_model_stand_beside_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "catalog.toml").write_text(TINY)
    monkeypatch.setattr(models, "data_dir", lambda name: tmp_path if name == "specs" else paths.data_dir(name))
    monkeypatch.setattr(model, "PATTERN_BLOCKS", 64)
    monkeypatch.setattr("qgen.bench.inputs.PATTERN_BLOCKS", 64)
    machine = ModelMachine(install(monkeypatch, FakeCupy()))
    options = model.Options(model="tiny", formats=("Q8_0",), sweep="1,2", passes=1, peers=("torch",))
    found = model.bench_model(options, machine, show_progress=False)
    assert found.ok, model_text.table(found)
    assert len(found.steps) == 2 and {row.shape for row in found.routed()} == {k.shape for k in found.steps[0].kinds}
    assert all(row.live("torch") for row in found.routed())
    assert "geometric means" in model_text.table(found) and "## Beside peers" in model_text.markdown(found)


def test_the_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda, "CudaMachine", EmulatedMachine)
    monkeypatch.setenv("QGEN_PROGRESS", "0")
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    common = ["--format", "tq1_0", "--shape", "70x512", "--repeat", "1", "--peer", "torch", "--peer", "ggml=none.so"]
    args = parser.parse_args(["bench", *common])
    assert args.run(args) == 0
    out = capsys.readouterr().out
    assert "skipped peer ggml: no file none.so" in out and "times faster than peers of the same run" in out
    args = parser.parse_args(["bench", "multirow", *common, "--sweep", "2", "--json"])
    assert args.run(args) == 0
    assert [about["name"] for about in json.loads(capsys.readouterr().out)["live_peers"]] == ["torch"]
