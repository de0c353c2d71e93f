"""qgen bench without a device: the report, the peers' figures, the conditions, the driver's records, the verb."""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib.util
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_machine import EmulatedMachine, make_small, run

from qgen.bench import conditions, peers, report, writing
from qgen.bench.records import Report, geometric_mean
from qgen.cli import bench as verb
from qgen.errors import QgenError
from qgen.run import launching
from qgen.spec import load_formats

FORMATS = load_formats()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


# ---- peers -------------------------------------------------------------------------------------------------------


def test_the_shipped_figures() -> None:
    table = peers.load()
    (named,) = table.beside("TQ1_0", "14336x4096", 1)
    assert (named.peer, named.row, named.us, named.factors) == ("ggml", "Q2_0", 16.3, (1.25, 1.0))
    assert [round(f * named.us, 1) for f in named.factors] == [20.4, 16.3]
    q4k = table.beside("Q4_K", "14336x4096", 8)
    assert {(f.peer, f.row, f.us) for f in q4k} == {
        ("ggml", "Q4_K", 72.0), ("humming", "4-bit", 15.2), ("humming", "4-bit int8", 15.9),
    }  # fmt: skip
    assert all(not f.factors and "not in this run" in f.provenance for f in q4k)
    assert table.beside("Q4_K", "1x256", 1) == () == table.beside("Q4_K", "14336x4096", 3)
    unknown = {name for row in table.rows for name in row.formats} - set(FORMATS) - {"F16"}
    assert not unknown, "formats that qgen does not know"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device = 3", "keys unknown or missing"),
        ("not toml", "readable TOML"),
        (
            'device="d"\nprotocol="p"\nprovenance="p"\nnamed=[]\n[[peers]]\nname="a"\nversion="1"\nhow="h"\n'
            "tokens=[1,2]\n[peers.us.2x2]\nQ4_K=[1.0]",
            "1 times for 2 token counts",
        ),
    ],
)
def test_a_wrong_file_of_figures_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(QgenError, match=said):
        peers.load(path)
    with pytest.raises(QgenError, match="No such file"):
        peers.load(tmp_path / "none.toml")


# ---- report ------------------------------------------------------------------------------------------------------


def with_peers() -> Report:
    machine = EmulatedMachine()
    machine.costs |= {"quantize_activation_q8_g256_tq1_0": 14.0}
    # Shapes of the figures would take the emulator minutes, so the rows are given their names afterwards.
    found = run(machine, formats=("TQ1_0", "Q4_K"))
    table = peers.load()
    found.rows = [replace(row, peers=table.beside(row.format, "14336x4096", 1)) for row in found.rows]
    return found


def test_a_report_says_how_it_stands_beside_peers() -> None:
    found = with_peers()
    text = report.markdown(found)
    assert "| TQ1_0 | 70x512 | 18" in text and "| ggml Q2_0 16.3 | 1.25 | 20.38 | met |" in text
    assert "| ggml Q2_0 16.3 | 1 | 16.30 | missed by 1.7" in text
    assert "not in this run" in text and "against ggml:" in text and "against humming:" in text
    assert "ggml Q4_K 20 (3.9" in report.table(found)


def test_csv_and_json_hold_every_row(tmp_path: Path) -> None:
    found = with_peers()
    rows = list(csv.DictReader(io.StringIO(report.csv_text(found))))
    assert [row["format"] for row in rows] == ["TQ1_0", "Q4_K"]
    assert float(rows[1]["us"]) == pytest.approx(5.0, abs=0.06) and rows[1]["problem"] == ""
    assert float(rows[1]["times_faster"]) == pytest.approx(15.2 / float(rows[1]["us"]), rel=1e-3)
    files = writing.write(found, tmp_path / "out", plots=False)
    assert {path.name for path in files} == {"results.json", "results.csv", "report.md"}
    data = json.loads((tmp_path / "out" / "results.json").read_text())
    assert data["rows"][0]["us"] == found.rows[0].us and data["rows"][0]["times"]["total"]["passes"] == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(QgenError, match="cannot be written"):
        writing.write(found, tmp_path / "file", plots=False)


def test_plots_or_a_clear_word(tmp_path: Path) -> None:
    found = with_peers()
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(QgenError, match="Matplotlib cannot be imported"):
            writing.write(found, tmp_path, plots=True)
        assert (tmp_path / "report.md").exists(), "the figures are written before the pictures"
    else:
        names = {path.name for path in writing.write(found, tmp_path, plots=True)}
        assert {"percent_of_floor.png", "formats.png"} <= names
        assert (tmp_path / "formats.png").stat().st_size > 1000
        assert "![formats](formats.png)" in (tmp_path / "report.md").read_text()


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0) and geometric_mean([]) is None


# ---- conditions --------------------------------------------------------------------------------------------------


def state(line: str = "580.1, 1980, 1980, 3201, 40, 300.5, 0, 0x0000000000000000") -> conditions.State:
    return conditions.parse_state(line)


def test_states_are_read_as_nvidia_smi_prints_them() -> None:
    s = state("580.159.03, 345, 1980, 3201, 31, 76.12, 0, 0x0000000000000001")
    assert s == conditions.State("580.159.03", 345.0, 1980.0, 3201.0, 31.0, 76.12, 0.0, 1)
    assert state("580.1, [N/A], 1980, 3201, 31, [Not Supported], 0") == conditions.State(
        "580.1", None, 1980.0, 3201.0, 31.0, None, 0.0, None
    )


def test_a_busy_or_throttled_device_is_said() -> None:
    judge = conditions.judge
    assert judge({"before": state(), "loaded, first": state()}, ()) == []
    # Idle clocks before the run are no finding; the same under load are.
    idle = state("580.1, 345, 1980, 3201, 31, 76, 0, 0x1")
    assert judge({"before": idle}, ()) == []
    assert judge({"loaded, last": idle}, ()) == ["loaded, last: SM clock 345 of 1980 MHz"]
    hot = state("580.1, 1950, 1980, 3201, 88, 700, 100, 0x0000000000000024")
    assert judge({"loaded, last": hot}, ()) == ["loaded, last: the driver slows the clocks (power cap, temperature)"]
    busy = state("580.1, 1980, 1980, 3201, 60, 400, 97, 0x0")
    assert "97 percent" in judge({"before": busy}, ())[0] and judge({"loaded, first": busy}, ()) == []
    assert "12, other, 400 MiB" in judge({"before": state()}, ("12, other, 400 MiB",))[0]
    assert "unknown" in judge({}, ())[0]


def test_no_nvidia_smi_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert conditions.read_state("0") is None and conditions.other_processes("0", 1) == ()
    script = tmp_path / "nvidia-smi"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *event_reasons*) echo "Field is not a valid field"; exit 2;; '
        '*compute-apps*) echo "77, python, 10"; echo "5, me, 20";; '
        '*) echo "580.1, 1980, 1980, 3201, 40, 300.5, 0, 0x4";; esac\n'
    )
    script.chmod(0o755)
    calls: list[int] = []
    read = conditions.read_state("0", meanwhile=lambda: calls.append(1))
    assert read and read.reasons == 4 and read.driver == "580.1", "the older name of a field is tried too"
    assert conditions.other_processes("0", 5) == ("77, python, 10 MiB",)


def test_a_wide_spread_is_said() -> None:
    class Noisy(EmulatedMachine):
        def lap(self, graphs: Any) -> list[float]:
            return [us * (1 + 0.2 * (self.laps % 3)) for us in super().lap(graphs)]

    found = run(Noisy(), passes=6)
    assert found.wide() and any("spread by more than 5%" in note for note in found.conditions.notes)
    assert found.ok, "noise is no wrong result"


# ---- the real machine's own arithmetic -----------------------------------------------------------------------------


def test_launch_records_have_the_drivers_layout() -> None:
    assert ctypes.sizeof(launching._Attribute) == 72 and launching._Attribute.value.offset == 8
    assert ctypes.sizeof(launching._Config) == 56
    offsets = [
        getattr(launching._Config, name).offset for name in ("grid", "block", "shared", "stream", "attributes", "count")
    ]
    assert offsets == [0, 12, 24, 32, 40, 48]


def test_arguments_are_packed_by_size() -> None:
    class Memory:
        ptr = 0x7F0000001200

    class Array:
        data = Memory()

    values, pointers = launching.pack_arguments((Array(), np.int64(-2), np.int32(7)))
    assert [v.raw[:-1] for v in values] == [
        (0x7F0000001200).to_bytes(8, "little"), b"\xfe" + b"\xff" * 7, b"\x07\0\0\0",
    ]  # fmt: skip
    assert ctypes.c_int32.from_address(pointers[2]).value == 7 and len(pointers) == 3


# ---- the verb ----------------------------------------------------------------------------------------------------


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    return parser.parse_args(["bench", *arguments])


def test_the_verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("qgen.bench.cuda.CudaMachine", EmulatedMachine)
    monkeypatch.setenv("QGEN_PROGRESS", "0")
    common = ["--format", "tq1_0", "--shape", "70x512", "--repeat", "2"]
    args = parse(*common, "--out", str(tmp_path / "o"), "--no-plots")
    assert args.run(args) == 0
    assert "TQ1_0" in capsys.readouterr().out and (tmp_path / "o" / "report.md").exists()
    args = parse(*common, "--json", "--candidates")
    assert args.run(args) == 0 and len(json.loads(capsys.readouterr().out)["rows"]) > 1
    args = parse(*common, "--csv")
    assert args.run(args) == 0 and capsys.readouterr().out.startswith("format,rows,")
    args = parse("--floors-only", "--repeat", "1")
    assert args.run(args) == 0 and "read by" in capsys.readouterr().out
