"""qgen profile without a profiler: what ncu prints is read, what it lacks is named, the emulator counts beside it."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_machine import EmulatedMachine

from qgen.bench import instructions, ncu, profile, profile_child, profile_text
from qgen.bench.cases import Case, Shape
from qgen.cli import profile as verb
from qgen.count import PIPES
from qgen.errors import QgenError
from qgen.plan import plan_all
from qgen.spec import load_formats

FORMATS = load_formats()
PLANS, _ = plan_all(FORMATS)
KERNEL = "mul_mat_tq1_0_q8_g256_t1__matvec_native_r1_b8"
COPIES = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass"
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def line(id: int, kernel: str, metric: str, value: str) -> str:
    return (
        f'"{id}","314","python3","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{metric}","sector","{value}"'
    )


LISTING = f"""\
Device NVIDIA H200 (GH100)
-------------------------- ------------ ------------------------------
Metric Name                Metric Type  Metric Unit
-------------------------- ------------ ------------------------------
dram__bytes_read           Counter      byte            # of bytes read from DRAM
dram__throughput           Throughput   %               DRAM throughput
gpu__time_duration         Counter      nsecond         incremental duration
l1tex__t_sectors_pipe_lsu_mem_global_op_ld  Counter  sector  # of sectors
lts__t_sectors_op_read     Counter      sector          # of LTS sectors from read requests
sm__inst_executed_pipe_alu Counter      inst            # of warp instructions executed by alu pipe
sm__inst_executed_pipe_fp64_op_dmma Counter inst        # of
sm__inst_executed_pipe_tma Counter         inst            # of
smsp__average_warps_issue_stalled_wait_per_issue_active Ratio # average
smsp__average_warps_issue_stalled_wait_not_issued_per_issue_active Ratio # average
l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld Counter byte # of bytes
sm__warps_active           Counter      warp            # of warps resident
smsp__inst_executed        Counter      inst            # of warp instructions executed
{COPIES}  Counter  sector  # of sectors
sm__sass_l1tex_m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass Counter byte # of bytes
"""


def test_metrics_are_chosen_among_those_that_exist() -> None:
    known = ncu.known_metrics(LISTING)
    assert "dram__bytes_read" in known and "gpu__time_duration" in known and "Metric" not in known
    choice = ncu.choose(known)
    assert choice.names["copy_sectors_bypass"] == f"{COPIES}.sum"
    # The first choice is not there, the second is.
    assert choice.names["l2_read_sectors"] == "lts__t_sectors_op_read.sum"
    assert choice.names["occupancy_percent"] == "sm__warps_active.avg.pct_of_peak_sustained_active"
    assert choice.names["bulk_bytes"] == "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"
    assert choice.pipes == {
        "pipe alu": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
        "executed alu": "sm__inst_executed_pipe_alu.sum",
        "pipe tma": "sm__inst_executed_pipe_tma.avg.pct_of_peak_sustained_active",
        "executed tma": "sm__inst_executed_pipe_tma.sum",
    }
    assert {k: v for k, v in choice.extras.items() if k.startswith("stalled")} == {
        "stalled wait": "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"
    }
    assert [len(asked) for asked in choice.asks()] == sorted((len(a) for a in choice.asks()), reverse=True)
    assert "sm__sass_l1tex_m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass.sum" in choice.extras
    assert {"copy_sectors_access", "local_load_sectors", "issue_percent"} <= set(choice.missing)
    assert set(choice.names) | set(choice.missing) == set(ncu.ROLES)


def test_the_csv_is_found_among_other_lines() -> None:
    text = "\n".join(
        [
            "==PROF== Connected to process 314 (/usr/bin/python3)",
            'hello from the child, with "quotes" and, commas',
            HEAD,
            line(0, "fill", "dram__bytes_read.sum", "1"),
            line(1, KERNEL, "dram__bytes_read.sum", "12,386,304"),
            line(1, f"{KERNEL}(const unsigned char *, long long)", f"{COPIES}.sum", "387072"),
            line(1, KERNEL, "sm__warps_active.avg.pct_of_peak_sustained_active", "31.25"),
            line(1, KERNEL, "smsp__inst_executed.sum", "n/a"),
            line(2, KERNEL, "dram__bytes_read.sum", "5"),
            "==PROF== Disconnected from process 314",
        ]
    )
    assert ncu.parse_csv(text, KERNEL) == {
        "dram__bytes_read.sum": 12_386_304.0,
        f"{COPIES}.sum": 387_072.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 31.25,
    }
    with pytest.raises(QgenError, match="ncu on other"):
        ncu.parse_csv(text, "other")


def test_what_ncu_refuses_is_said() -> None:
    refused = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    with pytest.raises(QgenError, match="run as root"):
        ncu.parse_csv(refused, KERNEL)
    with pytest.raises(QgenError, match="LibraryNotLoaded"):
        ncu.parse_csv("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", KERNEL)
    with pytest.raises(QgenError, match="no output"):
        ncu.parse_csv("", KERNEL)


FAKE_NCU = """\
#!/bin/sh
case "$*" in
*--query-metrics*) cat {listing}; exit 0;;
*pipe_alu*) echo "==ERROR== Failed to find metric sm__inst_executed_pipe_alu"; exit 1;;
esac
while [ "$1" != --log-file ]; do shift; done
cat {csv} > "$2"
"""


def test_a_whole_profile_with_a_stand_in_for_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listing").write_text(LISTING)
    (tmp_path / "csv").write_text("\n".join([HEAD, line(0, KERNEL, f"{COPIES}.sum", "387,072")]))
    script = tmp_path / "bin" / "ncu"
    script.parent.mkdir()
    script.write_text(FAKE_NCU.format(listing=tmp_path / "listing", csv=tmp_path / "csv"))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    (result,) = profile.profiles(["TQ1_0"], kernel=KERNEL).rows
    assert result.copied_bytes == 32 * 387_072 == result.packed_bytes
    assert sum("asked again with fewer counters" in note for note in result.notes) == 2
    assert any("no counter for" in note for note in result.notes)


def counted(metrics: Sequence[str], kernel: str, child: Sequence[str]) -> dict[str, float]:
    assert kernel == KERNEL and list(child[1:]) == ["-m", "qgen.bench.profile_child", KERNEL, "64x4096", "1"]
    every = {
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum": 1750.0,
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum": 10.0,
        "dram__bytes_read.sum": 60_000.0,
        "smsp__inst_executed.sum": 8192.0,
    }
    return {name: value for name, value in every.items() if name in metrics}


def test_emulator_and_counters_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    report = profile.profiles(["tq1_0"], shape="64x4096", kernel="r1_b8", profiler=counted)
    (result,) = report.rows
    assert result.packed_bytes == 64 * 16 * 54 == 55_296
    assert result.emulated and result.emulated.read_bytes == result.emulated.touched_bytes == 55_296
    assert 55_296 <= result.emulated.sector_bytes <= 1.05 * 55_296
    assert result.copied_bytes == 32 * 1760 and result.counters["dram_bytes"] == 60_000
    assert result.measured == {"all": pytest.approx(1.0)}
    text = profile_text.text(report)
    for words in ("packed", "emulator, requested (from 8 rows)", "ncu, cp.async", "1.019 x packed", "1.00"):
        assert words in text
    assert json.loads(json.dumps(report.to_json()))["rows"][0]["copied_bytes"] == 32 * 1760


def pipes_of(metrics: Sequence[str], kernel: str, child: Sequence[str]) -> dict[str, float]:
    """As a device would count 16 x 4096 weights over tiles; bulk copies in sectors, without bytes."""
    assert list(child[3:]) == [kernel, "16x4096", "1"]
    every = {
        "smsp__inst_executed.sum": 4096.0,
        "sm__inst_executed_pipe_alu.sum": 2048.0,
        "sm__inst_executed_pipe_fmaheavy.sum": 512.0,
        "sm__inst_executed_pipe_fmalite.sum": 256.0,
        "sm__inst_executed_pipe_cbu.sum": 128.0,
        "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum": 432.0,
        "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": 1.5,
        "smsp__issue_active.avg.pct_of_peak_sustained_active": 57.0,
    }
    return {name: value for name, value in every.items() if name in metrics}


def test_pipes_stand_beside_their_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in ncu.ROLES["bulk_bytes"] if "sectors" in name]
    known = [*(n.split(".")[0] for ns in ncu.ROLES.values() for n in ns if n not in ncu.ROLES["bulk_bytes"])]
    known += [name.split(".")[0] for name in names]
    known += [f"sm__inst_executed_pipe_{pipe}" for pipe in ("alu", "fmaheavy", "fmalite", "cbu")]
    known += ["smsp__average_warps_issue_stalled_wait_per_issue_active"]
    monkeypatch.setattr(ncu, "find", lambda: "ncu")
    monkeypatch.setattr(ncu, "query", lambda path: frozenset(known))
    monkeypatch.setattr(ncu, "profile", lambda path, metrics, kernel, child: pipes_of(metrics, kernel, child))
    report = profile.profiles(["TQ1_0"], shape="16x4096", storage="tiled")
    (result,) = report.rows
    weight = 32 / (16 * 4096)
    assert result.measured == pytest.approx({"alu": 2048 * weight, "fma": 768 * weight, "all": 4096 * weight})
    assert result.counters["bulk_bytes"] == 32 * 432 == result.packed_bytes
    page, sheet = profile_text.markdown(report), profile_text.csv_text(report)
    assert "| counted | 1.00 | 0.38 | - |" in page and "wait 1.50" in page and "| 57 |" in page
    (line,) = csv.DictReader(sheet.splitlines())
    assert float(line["measured_all"]) == pytest.approx(2.0) and float(line["bulk_bytes"]) == result.packed_bytes
    # What a profile wrote, `qgen count` takes beside its prediction.
    (tmp_path / "results.csv").write_text(sheet)
    measured = instructions.read_measured([tmp_path / "results.csv"])
    assert measured[result.kernel, 16, 4096, 1] == {"measured_all": 2.0, "issue_percent": 57.0}


@pytest.mark.parametrize(
    ("storage", "tokens", "kernel", "times"),
    [
        ("native", 1, None, 1),  # mat-vec
        ("native", 1, "t8_w8", 1),  # a rung that no route takes for one token
        ("native", 3, None, 1),  # multirow for Q4_0, the ladder for the others
        ("native", 3, "multirow_r2", 1),
        ("tiled", 1, None, 1),
        ("tiled", 1, "fused_w4", 1),  # one CTA for all row tiles
        ("tiled", 1, "t1_w4", 1),
        ("tiled", 3, None, 1),
        ("tiled", 17, "w32g2", 1),
        ("tiled", 17, "w16g1", 2),
        ("native", 9, "t8_w8", 2),  # two column tiles of CTAs, each of which reads the weights
    ],
)
@pytest.mark.parametrize("format", ["Q4_0", "TQ1_0"])
def test_every_family_reads_the_weights_once_a_token_tile(
    format: str, storage: str, tokens: int, kernel: str | None, times: int
) -> None:
    case = Case(FORMATS[format], Shape(64, 1024), tokens, storage=storage)
    found = profile.emulated(case, profile.choose(case, PLANS, kernel))
    assert found.touched_bytes == case.weight_bytes and found.read_bytes == times * case.weight_bytes
    assert found.sector_bytes >= found.read_bytes


@pytest.mark.parametrize(
    ("format", "storage", "tokens", "label"),
    [
        ("Q4_0", "native", 1, None),
        ("Q4_0", "tiled", 1, "t1_w4"),
        ("Q4_0", "tiled", 1, "fused_w4"),
        ("TQ1_0", "tiled", 1, "fused_w8"),
        ("Q4_0", "native", 3, None),
        ("TQ1_0", "tiled", 3, None),
        ("TQ1_0", "tiled", 9, "w16g1"),
        ("Q4_0", "tiled", 9, "w16g2"),
    ],
)
def test_the_child_launches_every_family_on_real_inputs(
    format: str, storage: str, tokens: int, label: str | None
) -> None:
    case = Case(FORMATS[format], Shape(48, 512), tokens, storage=storage)
    entry = profile.choose(case, PLANS, label).instance.name
    machine = EmulatedMachine()
    profile_child.launch(entry, "48x512", tokens, machine)
    assert [name for name, _ in machine.launches if name.startswith("mul_mat")] == [entry]
    assert len(machine.launches) == (1 if "__fused_" in entry else 2), "a quantiser in front, but for those without"

    def spoil(_: str, y: Any) -> None:
        y.reshape(-1)[-1] += 1.0  # the last row is always among those judged

    machine.corrupt = spoil
    with pytest.raises(QgenError, match="its counters mean nothing"):
        profile_child.launch(entry, "48x512", tokens, machine)
    with pytest.raises(QgenError, match="no such matmul kernel"):
        profile_child.launch("quantize_nothing", "48x512", tokens, machine)


def test_kernels_for_warpgroups_are_not_predicted() -> None:
    case = Case(FORMATS["Q4_K"], Shape(64, 512), 9, storage="tiled")
    with pytest.raises(QgenError, match=r"__wgmma_tiled_g1s4\n.*side by side.*\n.*ksplit_mma, fused"):
        instructions.predict(case, profile.choose(case, PLANS, "w16g1"))


def test_a_machine_without_ncu_or_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path / "cache"))
    report = profile.profiles(["TQ1_0"], shape="64x4096")
    (result,) = report.rows
    assert result.emulated is None and result.copied_bytes is None and result.counters == {}
    said = " ".join(result.notes)
    assert "emulator skipped" in said and "Nsight Compute is not on the PATH" in said
    assert "NOTE profiler skipped" in profile_text.text(report)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(QgenError, match="multiple of its block: 256"):
        profile.profiles(["TQ1_0"], shape="8x640")
    with pytest.raises(QgenError, match="only float activations"):
        profile.profiles(["Q5G64_F16S"])
    with pytest.raises(QgenError, match="no such kernel of TQ1_0"):
        profile.profiles(["TQ1_0"], shape="8x512", kernel="r9_b9")
    with pytest.raises(QgenError, match="2 formats"):
        profile.profiles(["TQ1_0", "Q4_K"], kernel="r2_b8")
    with pytest.raises(QgenError, match="no such format"):
        profile.profiles(["TQ9"], shape="8x512")


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> str:
        raise QgenError(stage="bench", subject="ncu", found="not here", allowed="ncu", next="install it")

    monkeypatch.setattr(ncu, "find", missing)
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    out = tmp_path / "deep" / "folder"
    args = parser.parse_args(["profile", "TQ1_0", "--shape", "64x4096", "--out", str(out)])
    assert args.run(args) == 0 and "x packed" in capsys.readouterr().out
    (row,) = json.loads((out / "results.json").read_text())["rows"]
    assert row["emulated"]["read_bytes"] == 55_296 and set(row["predicted"]) in ({*PIPES, "all"}, set())
    assert (out / "report.md").read_text().startswith("# qgen profile")
    args = parser.parse_args(["profile", "TQ1_0", "--shape", "64x4096", "--storage", "tiled", "--csv"])
    assert args.run(args) == 0
    (line,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert line["storage"] == "tiled" and float(line["emulated_bytes"]) == 55_296
