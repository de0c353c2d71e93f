"""Nsight Compute from outside: which counters it has here, how it is called, what its CSV says. It knows no kernels."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qgen.errors import QgenError

TIMEOUT = 240  # seconds for one profiled run
_NAME = re.compile(r"^([a-z0-9]+__[a-zA-Z0-9_.]+)\b", re.MULTILINE)
_PERMISSION = "ERR_NVGPUCTRPERM"
_PERCENT = ".avg.pct_of_peak_sustained_active"


def _copies(way: str) -> tuple[str, ...]:
    """Names that count sectors of copies from global to shared memory, `way` of them."""
    return (
        f"smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts{way}.sum",
        f"sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts{way}.sum",
        f"smsp__sass_l1tex_t_sectors_mem_global_op_ldgsts{way}.sum",
        f"l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts{way}.sum",
        f"smsp__sass_l1tex_m_xbar2l1tex_read_sectors_mem_global_op_ldgsts{way}.sum",
        f"sm__sass_l1tex_m_xbar2l1tex_read_sectors_mem_global_op_ldgsts{way}.sum",
        f"l1tex__m_xbar2l1tex_read_sectors_mem_lg_op_ldgsts{way}.sum",
    )


# What is wanted, by role: the first of each list that this ncu has. Names change between chips and versions.
# A copy from global to shared memory is an LDGSTS; those that bypass L1 (16 bytes) and those that do not count apart.
ROLES: Mapping[str, tuple[str, ...]] = {
    "time_ns": ("gpu__time_duration.sum",),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "copy_sectors_bypass": _copies("_cache_bypass"),
    "copy_sectors_access": _copies("_cache_access"),
    "copy_sectors": _copies(""),
    "copy_instructions": (
        "smsp__inst_executed_op_ldgsts.sum",
        "smsp__sass_inst_executed_op_ldgsts.sum",
        "sm__sass_inst_executed_op_ldgsts.sum",
    ),
    "bulk_bytes": (
        "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
        "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
    ),
    "l1_fill_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", "l1tex__m_xbar2l1tex_read_sectors.sum"),
    "l1_hit_percent": ("l1tex__t_sector_hit_rate.pct",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    "l2_read_sectors": (
        "lts__t_sectors_srcunit_tex_op_read.sum",
        "lts__t_sectors_op_read.sum",
        "lts__t_sectors_srcunit_tex.sum",
    ),
    "dram_bytes": ("dram__bytes_read.sum", "dram__sectors_read.sum"),
    "instructions": ("smsp__inst_executed.sum", "sm__inst_executed.sum"),
    "issued": ("smsp__inst_issued.sum", "sm__inst_issued.sum"),
    "local_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",),
    "local_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",),
    "occupancy_percent": ("sm__warps_active" + _PERCENT,),
    "issue_percent": ("smsp__issue_active" + _PERCENT, "sm__inst_issued" + _PERCENT),
    "dram_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
}
_PIPES = re.compile(
    r"^sm__inst_executed_pipe_(?:adu|alu|cbu|fma|fmaheavy|fmalite|fp16|lsu|tensor.*|tex|tma|uniform|xu)$"
)
_COPIES = re.compile(r"^(?:l1tex|sm|smsp)__.*(?:sectors|bytes).*global_op_ldgsts(?:_cache_access|_cache_bypass)?$")
_STALLS = re.compile(r"^smsp__average_warps_issue_stalled_(?P<reason>[a-z_]+?)_per_issue_active$")
_MOST_EXTRAS = 12
PIPE, EXECUTED, STALLED = "pipe ", "executed ", "stalled "  # how the names of extras begin, before a pipe or a reason


@dataclass(frozen=True)
class Choice:
    """Counters to ask for: role -> full name, and the roles this ncu has nothing for.

    pipes: "pipe NAME", percent of its peak, and "executed NAME", warp instructions
    extras: what is good to have: "stalled REASON", warps waiting for it while one issues, and the other counts of
    copies under their own names
    """

    names: Mapping[str, str]
    pipes: Mapping[str, str]
    extras: Mapping[str, str]
    missing: tuple[str, ...]

    def asks(self) -> Iterator[Mapping[str, str]]:
        """What to ask for, most first: where ncu refuses one name of many, the next has fewer."""
        yield {**self.names, **self.pipes, **self.extras}
        yield {**self.names, **self.pipes}
        yield self.names


def known_metrics(listing: str) -> frozenset[str]:
    """Base names (no ".sum") in what `ncu --query-metrics` prints."""
    return frozenset(_NAME.findall(listing))


def choose(known: Iterable[str]) -> Choice:
    """For every role the first name that is known; every pipe's use and instructions, and every reason of a stall."""
    have = frozenset(known)
    names: dict[str, str] = {}
    missing = []
    for role, wanted in ROLES.items():
        found = next((name for name in wanted if name.split(".")[0] in have), None)
        if found:
            names[role] = found
        else:
            missing.append(role)
    pipes: dict[str, str] = {}
    for name in sorted(name for name in have if _PIPES.match(name)):
        pipe = name.removeprefix("sm__inst_executed_pipe_")
        pipes |= {PIPE + pipe: name + _PERCENT, EXECUTED + pipe: f"{name}.sum"}
    stalls = sorted((found["reason"], found[0]) for found in map(_STALLS.match, have) if found)
    extras = {STALLED + reason: f"{name}.ratio" for reason, name in stalls if not reason.endswith("_not_issued")}
    copies = sorted(f"{name}.sum" for name in have if _COPIES.match(name) and f"{name}.sum" not in names.values())
    extras |= {name: name for name in copies[:_MOST_EXTRAS]}
    return Choice(names=names, pipes=pipes, extras=extras, missing=tuple(missing))


def parse_csv(text: str, kernel: str) -> dict[str, float]:
    """Metric -> value of the first profiled launch of `kernel`, from ncu's CSV among whatever else is in `text`.

    Figures that ncu could not take (n/a) are left out. Raises QgenError when there is no such launch in it.
    """
    begin = re.search(r'^"ID",', text, re.MULTILINE)
    rows = list(csv.DictReader(io.StringIO(text[begin.start() :]))) if begin else []
    rows = [row for row in rows if (row.get("Kernel Name") or "").split("(")[0].strip() == kernel]
    if not rows:
        raise _no_counters(text, kernel)
    values: dict[str, float] = {}
    for row in rows:
        if row["ID"] == rows[0]["ID"] and row.get("Metric Name"):
            try:
                values[row["Metric Name"]] = float((row.get("Metric Value") or "").replace(",", ""))
            except ValueError:
                continue  # n/a
    return values


def _no_counters(text: str, kernel: str) -> QgenError:
    said = [line.strip() for line in text.splitlines() if line.startswith("==ERROR==")]
    tail = [line.strip() for line in text.splitlines() if line.strip()][-3:]
    if _PERMISSION in text:
        allowed, next = "a user that may read the GPU's counters", "run as root, or let the administrator allow it"
    else:
        allowed, next = (
            f"a profiled launch of {kernel}",
            "run `python -m qgen.bench.profile_child` alone to see it fail",
        )
    return QgenError(
        stage="bench",
        subject=f"ncu on {kernel}",
        found=" ".join(said or tail) or "no output",
        allowed=allowed,
        next=next,
    )


def find() -> str:
    """The path of ncu. Raises QgenError where it is not installed."""
    path = shutil.which("ncu")
    if path is None:
        raise QgenError(
            stage="bench",
            subject="ncu",
            found="Nsight Compute is not on the PATH",
            allowed="Nsight Compute 2022 or newer",
            next="install it with the CUDA toolkit; `qgen bench` needs no profiler",
        )
    return path


def query(path: str) -> frozenset[str]:
    """The counters this ncu knows for the device of this machine. Raises QgenError when it cannot say."""
    done = _run([path, "--query-metrics"], TIMEOUT)
    known = known_metrics(done)
    if not known:
        raise QgenError(
            stage="bench",
            subject="ncu --query-metrics",
            found=" ".join(done.split()[:40]) or "no output",
            allowed="a list of counters",
            next="check that ncu supports this device and driver",
        )
    return known


def profile(path: str, metrics: Sequence[str], kernel: str, child: Sequence[str]) -> dict[str, float]:
    """Run `child` under ncu and count the first launch of `kernel`: metric -> value, in base units.

    ncu empties the caches before each of its passes and leaves the clocks alone. Raises QgenError when it counts
    nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            path, "--csv", "--log-file", str(log), "--clock-control", "none", "--cache-control", "all",
            "--print-units", "base", "--target-processes", "all", "--kernel-name-base", "function",
            "--kernel-name", kernel, "--launch-count", "1", "--metrics", ",".join(metrics), *child,
        ]  # fmt: skip
        output = _run(command, TIMEOUT)
        written = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return parse_csv(written + "\n" + output if written else output, kernel)


def _run(command: Sequence[str], timeout: float) -> str:
    """Everything a command prints, whatever its exit status."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QgenError(
            stage="bench",
            subject=" ".join(command[:2]),
            found=str(error)[:300],
            allowed=f"an answer within {timeout:.0f} s",
            next="try it by hand",
        ) from error
    return done.stdout
