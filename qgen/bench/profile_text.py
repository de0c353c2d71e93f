"""What `qgen profile` found as text: for the terminal, as markdown to keep, as CSV for programs."""

from __future__ import annotations

import csv
import io

from qgen.bench import ncu
from qgen.bench.instructions import H200
from qgen.bench.profile import Profile, Profiles
from qgen.bench.tables import NO_FIGURE, columns, markdown_table, number
from qgen.count import PIPES

_BYTES = ("emulator, requested", "emulator, sectors", "ncu, cp.async", "ncu, bulk", "ncu, into L1", "ncu, DRAM")
_PERCENTS = ("occupancy_percent", "issue_percent", "dram_percent", "l1_hit_percent", "l2_hit_percent")
_MOST_STALLS = 3


def _bytes(row: Profile) -> tuple[float | None, ...]:
    """Bytes read, in the order of _BYTES. Into L1 and from DRAM the activation comes, too."""
    e = row.emulated
    return (
        e.read_bytes if e else None,
        e.sector_bytes if e else None,
        row.copied_bytes,
        *(row.counters.get(role) for role in ("bulk_bytes", "l1_fill_bytes", "dram_bytes")),
    )


def _stalls(row: Profile) -> str:
    found = {k.removeprefix(ncu.STALLED): v for k, v in row.counters.items() if k.startswith(ncu.STALLED)}
    most = sorted(found, key=lambda reason: -found[reason])[:_MOST_STALLS]
    return ", ".join(f"{reason} {number(found[reason])}" for reason in most) or NO_FIGURE


def _instruction_lines(row: Profile) -> list[tuple[str, ...]]:
    return [
        (word, *(number((of or {}).get(pipe)) for pipe in (*PIPES, "all")))
        for word, of in (("predicted", row.predicted), ("counted", row.measured))
    ]


def _title(row: Profile) -> str:
    return f"{row.kernel} at {row.rows}x{row.columns}, T = {row.tokens}"


def text(report: Profiles) -> str:
    """All of it, kernel by kernel."""
    lines: list[str] = []
    for row in report.rows:
        lines += [_title(row), f"  weights, {row.packed_bytes:,} bytes packed; read:"]
        named = list(_BYTES)
        if row.emulated:
            named[0] += f" (from {row.emulated.sample_rows} rows)"
        for name, value in zip(named, _bytes(row), strict=True):
            share = "" if value is None else f"{value:>15,.0f}  {value / row.packed_bytes:6.3f} x packed"
            lines.append(f"    {name:42} {share or NO_FIGURE}")
        table = columns([("instructions a weight", *PIPES, "all"), *_instruction_lines(row)])
        lines += [f"  {line}" for line in table]
        lines += [f"    {role:42} {value:>15,.2f}" for role, value in row.counters.items()]
        lines += [f"  NOTE {note}" for note in row.notes] + [""]
    return "\n".join([*lines, *(f"skipped {some.what}: {some.reason}" for some in report.skipped)])


def markdown(report: Profiles) -> str:
    """The report to keep."""
    lines = ["# qgen profile", "", f"- command: `{report.command}`"]
    lines.append(
        "- one launch of each kernel on cold data; bytes are over those of the packed weights, and into L1 and"
    )
    lines.append(f"  from DRAM the activation comes, too; predicted for {H200.name}; `control` counted is CBU and ADU")
    lines += ["", "## Bytes", ""]
    lines += markdown_table(
        ("kernel", "N x K", "T", "packed", *_BYTES),
        (
            (
                row.kernel,
                f"{row.rows}x{row.columns}",
                str(row.tokens),
                f"{row.packed_bytes:,}",
                *(number(None if value is None else value / row.packed_bytes, 3) for value in _bytes(row)),
            )
            for row in report.rows
        ),
    )
    lines += ["## Instructions a weight", ""]
    lines += markdown_table(
        ("kernel", "", *PIPES, "all"),
        ((row.kernel, *cells) for row in report.rows for cells in _instruction_lines(row)),
    )
    lines += ["## Use", ""]
    head = ("kernel", "us", *(role.replace("_", " ").replace("percent", "%") for role in _PERCENTS), "stalled by")
    lines += markdown_table(
        head,
        (
            (
                row.kernel,
                number(row.counters["time_ns"] / 1e3 if "time_ns" in row.counters else None),
                *(number(row.counters.get(role), 0) for role in _PERCENTS),
                _stalls(row),
            )
            for row in report.rows
        ),
    )
    noted = dict.fromkeys(note for row in report.rows for note in row.notes)
    lines += [f"- {note}: {', '.join(r.label for r in report.rows if note in r.notes)}" for note in noted]
    lines += [f"- skipped {some.what}: {some.reason}" for some in report.skipped]
    return "\n".join(lines).rstrip() + "\n"


def csv_text(report: Profiles) -> str:
    """One line a kernel; bytes as they are, instructions a weight."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    facts = ("format", "rows", "columns", "tokens", "storage", "kernel", "packed_bytes")
    counts = ("emulated_bytes", "emulated_sector_bytes", "copied_bytes", "bulk_bytes", "l1_fill_bytes", "dram_bytes")
    pipes = (*PIPES, "all")
    names = [f"{word}_{pipe}" for word in ("predicted", "measured") for pipe in pipes]
    writer.writerow((*facts, *counts, *names, "issued", *_PERCENTS, "time_ns"))
    for row in report.rows:
        figures = [*_bytes(row)]
        figures += [(of or {}).get(pipe) for of in (row.predicted, row.measured) for pipe in pipes]
        figures += [row.counters.get(role) for role in ("issued", *_PERCENTS, "time_ns")]
        cells = ("" if figure is None else round(figure, 4) for figure in figures)
        writer.writerow((*(getattr(row, name) for name in facts), *cells))
    return output.getvalue()
