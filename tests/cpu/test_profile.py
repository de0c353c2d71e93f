"""qgen profile without a profiler: what ncu prints is read, what it lacks is named, the emulator counts beside it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from qgen.bench import ncu, profile
from qgen.cli import profile as verb
from qgen.errors import QgenError

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
    assert choice.extras["pipe alu"] == "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
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
    result = profile.profile("TQ1_0", "14336x4096", KERNEL)
    assert result.copied_bytes == 32 * 387_072 == result.packed_bytes
    assert any("asked again without the extra counters" in note for note in result.notes)
    assert any("no counter for" in note for note in result.notes)


def counted(metrics: Sequence[str], kernel: str, child: Sequence[str]) -> dict[str, float]:
    assert kernel == KERNEL and list(child[1:]) == ["-m", "qgen.bench.profile_child", KERNEL, "64x4096"]
    every = {
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum": 1750.0,
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum": 10.0,
        "dram__bytes_read.sum": 60_000.0,
        "smsp__inst_executed.sum": 8192.0,
    }
    return {name: value for name, value in every.items() if name in metrics}


def test_emulator_and_counters_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    result = profile.profile("tq1_0", "64x4096", "r1_b8", profiler=counted)
    assert result.packed_bytes == 64 * 16 * 54 == 55_296
    assert result.emulated and result.emulated.read_bytes == result.emulated.touched_bytes == 55_296
    assert 55_296 <= result.emulated.sector_bytes <= 1.05 * 55_296
    assert result.copied_bytes == 32 * 1760 and result.dram_bytes == 60_000
    assert result.instructions_a_weight == pytest.approx(1.0)
    text = profile.text(result)
    for words in (
        "packed",
        "emulator, requested (from 8 rows)",
        "LDGSTS",
        "1.019 x packed",
        "instructions a weight: 1.000",
    ):
        assert words in text
    assert json.loads(json.dumps(result.to_json()))["copied_bytes"] == 32 * 1760


def test_a_machine_without_ncu_or_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path / "cache"))
    result = profile.profile("TQ1_0", "64x4096")
    assert result.emulated is None and result.copied_bytes is None and result.counters == {}
    said = " ".join(result.notes)
    assert "emulator skipped" in said and "Nsight Compute is not on the PATH" in said
    assert "NOTE profiler skipped" in profile.text(result)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(QgenError, match="multiple of 256"):
        profile.choose("TQ1_0", "8x640", None)
    with pytest.raises(QgenError, match="no such kernel of TQ1_0"):
        profile.choose("TQ1_0", "8x512", "r9_b9")
    with pytest.raises(QgenError, match="no such format"):
        profile.choose("TQ9", "8x512", None)
    case, candidate = profile.choose("TQ1_0", "8x512", None)
    assert candidate.routed and case.weight_bytes == 8 * 2 * 54


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> str:
        raise QgenError(stage="bench", subject="ncu", found="not here", allowed="ncu", next="install it")

    monkeypatch.setattr(ncu, "find", missing)
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    out = tmp_path / "deep" / "p.json"
    args = parser.parse_args(["profile", "TQ1_0", "--shape", "64x4096", "--out", str(out)])
    assert args.run(args) == 0 and "x packed" in capsys.readouterr().out
    assert json.loads(out.read_text())["emulated"]["read_bytes"] == 55_296
    args = parser.parse_args(["profile", "TQ1_0", "--shape", "64x4096", "--json"])
    assert args.run(args) == 0 and json.loads(capsys.readouterr().out)["packed_bytes"] == 55_296
