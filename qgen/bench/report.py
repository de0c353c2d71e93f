"""A report as text: a short table for the terminal, markdown to keep, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from qgen.bench import live_text
from qgen.bench.floors import Floor
from qgen.bench.peers import Figure
from qgen.bench.protocol import Timing
from qgen.bench.records import Report, Row, geometric_mean
from qgen.bench.tables import NO_FIGURE, columns, markdown_table, number


def _median(taken: Timing | Floor | None) -> float | None:
    timing = taken.us if isinstance(taken, Floor) else taken
    return timing.median if timing else None


def _spread(row: Row) -> float | None:
    return 100 * row.times.total.spread if row.times else None


def beside(row: Row) -> str:
    """The peers of a row, fastest first: name, microseconds, how many times faster this run is."""
    figures = sorted(row.peers, key=lambda f: f.us)
    texts = (f"{f.peer} {f.row} {_figure(f)} ({number(row.ratio(f))}x)" for f in figures)
    return "; ".join(texts) or NO_FIGURE


def _figure(figure: Figure) -> str:
    return f"{figure.us:.2f} live" if figure.live else f"{figure.us:g}"


# ---- the terminal ------------------------------------------------------------------------------------------------


def opening(report: Report) -> list[str]:
    """What a reader must know before the table."""
    c = report.conditions
    lines = [f"{c.facts.name}, driver {c.driver}, {c.date}, revision {c.revision}", *(f"NOTE {n}" for n in c.notes)]
    if report.no_chain:
        lines.append(f"no chain floor: {report.no_chain}")
    return lines + [f"skipped {s.what}: {s.reason}" for s in report.skipped]


def table(report: Report) -> str:
    """The short table, with what a reader must know above it and findings below."""
    lines = opening(report)
    if report.rows:
        head = (
            "format",
            "N x K",
            "kernel",
            "MB",
            "us",
            "alone",
            "GB/s",
            "%read",
            "%chain",
            "spread%",
            "peers (us, times faster)",
        )
        lines += ["", *columns([head, *(_cells(row) for row in _shown(report))])]
    if report.floors:
        floor_head = ("MB", "read us", "GB/s", "read by", "chain us", "GB/s", "chain by")
        lines += ["", *columns([floor_head, *(_floor_cells(read, chain) for read, chain in report.floors)])]
    lines += live_text.means(report)
    lines += [f"WRONG {row.kernel} at {row.shape}: {row.problem}" for row in report.rows if row.problem]
    if report.aborted:
        lines.append(f"STOPPED at {report.aborted}")
    return "\n".join(lines)


def _shown(report: Report) -> list[Row]:
    """The routed row of each case, and behind it a faster candidate if there is one."""
    faster = {(r.format, r.shape, r.tokens): r for r in report.best() if not r.routed}
    shown = []
    for row in report.routed():
        shown.append(row)
        other = faster.get((row.format, row.shape, row.tokens))
        if other:
            shown.append(other)
    return shown


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.format,
        row.shape,
        row.launch + ("" if row.routed else " *"),
        number(row.weight_bytes / 1e6, 1),
        number(row.us),
        number(_median(row.alone)),
        number(row.gigabytes_a_second, 0),
        number(row.percent(row.read_floor), 0),
        number(row.percent(row.chain_floor), 0),
        number(_spread(row), 1),
        "WRONG" if row.problem else beside(row),
    )


def _floor_cells(read: Floor, chain: Floor | None) -> tuple[str, ...]:
    cells = [number(read.nbytes / 1e6, 1), number(read.us.median), number(read.nbytes / read.us.median / 1e3, 0)]
    cells.append(read.variant)
    if chain:
        return (*cells, number(chain.us.median), number(chain.nbytes / chain.us.median / 1e3, 0), chain.variant)
    return (*cells, NO_FIGURE, NO_FIGURE, NO_FIGURE)


# ---- markdown ----------------------------------------------------------------------------------------------------


def markdown(report: Report, plots: Sequence[str] = ()) -> str:
    """The report to keep under docs/benchmarks. plots: file names beside it."""
    lines = ["# qgen bench", "", *conditions_lines(report), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in plots]
    lines += [""] * bool(plots)
    for shape in dict.fromkeys(row.shape for row in report.rows):
        tokens = dict.fromkeys(row.tokens for row in report.rows if row.shape == shape)
        for count in tokens:
            lines += _shape_section(report, shape, count)
    lines += _promises(report)
    lines += live_text.section(report)
    lines += _candidates(report)
    if report.floors:
        lines += ["## Floors", ""]
        head = ("MB", "read, us", "GB/s", "by", "chain, us", "GB/s", "by")
        lines += markdown_table(head, (_floor_cells(read, chain) for read, chain in report.floors))
    return "\n".join([*lines, *ending(report)]).rstrip() + "\n"


def ending(report: Report, wrong: Sequence[str] = ()) -> list[str]:
    """What was not measured, and what failed, `wrong` among it, as markdown."""
    lines = []
    if report.skipped:
        lines += ["## Not measured", "", *(f"- {s.what}: {s.reason}" for s in report.skipped), ""]
    failed = [f"- `{r.kernel}` at {r.shape}, T = {r.tokens}: {r.problem}" for r in report.rows if r.problem]
    failed += [f"- {text}" for text in wrong] + [f"- stopped at {report.aborted}"] * bool(report.aborted)
    return lines + (["## Failed", "", *failed, ""] if failed else [])


PROTOCOL = (
    "weights rotate over at least 300 MB and twice the L2, CUDA graph, device events, median of passes, one pass a "
    "kernel and round; `us` is a call with the quantisation of the activation, `alone` without (none where one kernel "
    "does both)"
)
CHECKED = "its sampled rows are the contract's bits, and all rows of all kernels of a case are equal"


def conditions_lines(report: Report, checked: str = CHECKED, protocol: str = PROTOCOL) -> list[str]:
    """Device, software, protocol and remarks as a list in markdown. checked: how each result was judged."""
    c = report.conditions
    lines = [
        f"- device: {c.facts.name} ({c.facts.arch}, {c.facts.multiprocessors} multiprocessors, "
        f"{c.facts.l2_bytes / 1e6:.0f} MB of L2), driver {c.driver}, {c.facts.runtime}",
        f"- software: {c.software}; revision {c.revision}" + (f"; {c.label}" if c.label else ""),
        f"- date: {c.date}; command: `{c.command}`",
    ]
    for name, s in c.states.items():
        lines.append(
            f"- {name}: SM {number(s.sm_mhz, 0)} of {number(s.sm_max_mhz, 0)} MHz, "
            f"memory {number(s.memory_mhz, 0)} MHz, {number(s.celsius, 0)} C, "
            f"{number(s.watts, 0)} W, {number(s.utilisation, 0)} percent busy"
        )
    lines.append(f"- protocol: {protocol}")
    if report.judged:
        lines.append(f"- results: every kernel that has a time was judged in this run: {checked}")
    if report.no_chain:
        lines.append(f"- no chain floor: {report.no_chain}")
    for name, provenance in dict.fromkeys(
        ("live figures" if f.live else "figures", f.provenance) for row in report.rows for f in row.peers
    ):
        lines.append(f"- peers' {name}: {provenance}; ratio = their time over ours")
    for peer in report.live:
        lines.append(
            f"- peer {peer.name}: {peer.version}; {peer.how}; each result judged on a sample of rows, normalised mean "
            f"square error at most {peer.tolerance:g}"
        )
    return lines + [f"- **{note}**" for note in c.notes]


def _shape_section(report: Report, shape: str, tokens: int) -> list[str]:
    head = (
        "format", "kernel", "MB", "us", "alone", "quantise", "GB/s", "read floor", "%", "chain floor", "%", "spread %",
        "beside",
    )  # fmt: skip
    rows = []
    for row in _shown(report):
        if (row.shape, row.tokens) == (shape, tokens):
            format, _, kernel, megabytes, us, alone, speed, read, chain, spread, beside = _cells(row)
            quantise = number(_median(row.quantise))
            floor_us, chain_us = number(_median(row.read_floor)), number(_median(row.chain_floor))
            rows.append(
                (format, kernel, megabytes, us, alone, quantise, speed, floor_us, read, chain_us, chain, spread, beside)
            )
    title = f"## {shape.replace('x', ' x ')}, T = {tokens}"
    lines = [title, "", *markdown_table(head, rows)]
    own = [row for row in report.routed() if row.us and (row.shape, row.tokens) == (shape, tokens)]
    for peer in dict.fromkeys(f.peer for row in own for f in row.peers):
        # Against the fastest that the peer has beside each format.
        ratios = [min(row.ratio(f) or 0.0 for f in row.peers if f.peer == peer) for row in own if _has(row, peer)]
        mean = geometric_mean(ratios)
        if mean:
            over = f"{len(ratios)} format{'s' if len(ratios) > 1 else ''}"
            lines += [f"Geometric mean over {over} against {peer}: {mean:.2f} times faster.", ""]
    return lines


def _has(row: Row, peer: str) -> bool:
    return any(figure.peer == peer for figure in row.peers)


def _promises(report: Report) -> list[str]:
    """Comparisons by name: a format without a kernel of the peer against another of its types."""
    rows = []
    for row in report.routed():
        for figure in row.peers:
            for factor in figure.factors:
                allowed = factor * figure.us
                verdict = (
                    NO_FIGURE if row.us is None else "met" if row.us <= allowed else f"missed by {row.us - allowed:.2f}"
                )
                rows.append(
                    (row.format, row.shape, number(row.us), f"{figure.peer} {figure.row} {figure.us:g}", f"{factor:g}",
                     number(allowed), verdict)
                )  # fmt: skip
    if not rows:
        return []
    head = ("format", "N x K", "us", "held against", "times", "allowed us", "verdict")
    return ["## Named comparisons", "", *markdown_table(head, rows)]


def _candidates(report: Report) -> list[str]:
    if all(row.routed for row in report.rows):
        return []
    head = ("format", "N x K", "kernel", "grid", "CTAs/SM", "us", "alone", "low", "high")
    rows = []
    for row in report.rows:
        alone = row.alone
        rows.append(
            (row.format, row.shape, row.launch + (" (routed)" if row.routed else ""), str(row.grid), str(row.resident),
             number(row.us), number(_median(alone)), number(alone.low if alone else None),
             number(alone.high if alone else None))
        )  # fmt: skip
    return ["## All candidates", "", *markdown_table(head, rows)]


# ---- CSV ---------------------------------------------------------------------------------------------------------


def csv_text(report: Report) -> str:
    """One line a kernel and case, or a line a size where only floors were taken."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    if report.floors:
        writer.writerow(("bytes", "read_us", "read_variant", "chain_us", "chain_variant"))
        for read, chain in report.floors:
            chain_cells = (chain.us.median, chain.variant) if chain else ("", "")
            writer.writerow((read.nbytes, read.us.median, read.variant, *chain_cells))
        return output.getvalue()
    times = ("us", "us_low", "us_high", "alone_us", "alone_low", "alone_high", "quantise_us")
    writer.writerow(
        ("format", "rows", "columns", "tokens", "storage", "family", "kernel", "routed", "grid", "resident",
         "bits_per_weight", "weight_bytes", *times, "gigabytes_a_second", "read_floor_us", "percent_of_read_floor",
         "chain_floor_us", "percent_of_chain_floor", "spread_percent", "passes", "peer", "peer_row", "peer_us",
         "times_faster", *(f"{p.name}_{what}" for p in report.live for what in ("us", "times_faster")), "problem")
    )  # fmt: skip
    for row in report.rows:
        t = row.times
        figures = [
            (timing.median, timing.low, timing.high) if timing else (None,) * 3
            for timing in (t.total if t else None, row.alone)
        ]
        taken = (*figures[0], *figures[1], _median(row.quantise))
        peer = min(row.peers, key=lambda f: f.us, default=None)
        peer_cells = (peer.peer, peer.row, peer.us, row.ratio(peer)) if peer else ("",) * 4
        live = [row.live(p.name) for p in report.live]
        live_cells = [cell for f in live for cell in ((f.us, row.ratio(f)) if f else ("", ""))]
        cells = (
            row.format, row.rows, row.columns, row.tokens, row.storage, row.family, row.kernel, int(row.routed),
            row.grid, row.resident, row.bits_per_weight, row.weight_bytes, *taken, row.gigabytes_a_second,
            _median(row.read_floor), row.percent(row.read_floor), _median(row.chain_floor),
            row.percent(row.chain_floor), _spread(row), t.total.passes if t else "", *peer_cells, *live_cells,
            row.problem,
        )  # fmt: skip
        writer.writerow([round(cell, 4) if isinstance(cell, float) else cell for cell in cells])
    return output.getvalue()
