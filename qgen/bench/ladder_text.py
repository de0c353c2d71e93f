"""A sweep over token counts as text: a table of microseconds by token count and kernel, and the page to keep."""

from __future__ import annotations

from collections.abc import Sequence

from qgen.bench import live_text
from qgen.bench.records import Report, Row
from qgen.bench.report import beside, conditions_lines, ending, opening
from qgen.bench.tables import NO_FIGURE, columns, markdown_table, number


def table(report: Report) -> str:
    """The tables for the terminal, with what a reader must know above them and findings below."""
    lines = opening(report)
    for own in sweeps(report):
        lines += ["", _title(own), *columns([_head(own), *_cells(report, own)])]
    lines += live_text.means(report)
    lines += [
        f"WRONG {row.kernel} at {row.shape}, T = {row.tokens}: {row.problem}" for row in report.rows if row.problem
    ]
    if report.aborted:
        lines.append(f"STOPPED at {report.aborted}")
    return "\n".join(lines)


def markdown(report: Report, plots: Sequence[str] = (), *, title: str = "qgen bench ladder") -> str:
    """The report to keep under docs/benchmarks. plots: file names beside it."""
    checked = (
        "every result is equal, bit for bit, to single-column results of this run, whose sampled rows are the "
        "contract's bits, or with f16 and bf16 activations lie within its bound"
    )
    lines = [f"# {title}", "", *conditions_lines(report, checked), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in plots] + [""] * bool(plots)
    for own in sweeps(report):
        lines += [f"## {_title(own)}", "", *markdown_table(_head(own), _cells(report, own))]
    if report.rows:
        lines += [
            "Microseconds a call, quantisation of the activation included. `[ ]`: the kernel that a call gets; `<`: "
            "another kernel was faster by more than both spreads. `t / t(1)`, the floor's percentage and the peers "
            "stand beside the routed kernel.",
            "",
        ]
    return "\n".join([*lines, *live_text.section(report), *ending(report)]).rstrip() + "\n"


def sweeps(report: Report) -> list[list[Row]]:
    """The rows of each format and shape."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        found.setdefault((row.format, row.shape), []).append(row)
    return list(found.values())


def kernels(own: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of one sweep by kernel, in order of appearance: mat-vec, warps a team of fused, rungs, rows a team of
    multirow."""
    found: dict[str, list[Row]] = {}
    for row in own:
        found.setdefault(row.family if row.family == "matvec" else row.launch, []).append(row)
    return found


def _title(own: Sequence[Row]) -> str:
    first = own[0]
    floor = f", read floor {number(first.read_floor.us.median)} us" if first.read_floor else ""
    return f"{first.operands}, {first.shape.replace('x', ' x ')}, {first.weight_bytes / 1e6:.1f} MB{floor}"


def _head(own: Sequence[Row]) -> tuple[str, ...]:
    return ("T", *kernels(own), "quantise", "t / t(1)", "%read", "peers (us, times faster)")


def _cells(report: Report, own: Sequence[Row]) -> list[tuple[str, ...]]:
    one = next((row.us for row in own if row.tokens == 1 and row.routed), None)
    cells = []
    for tokens in dict.fromkeys(row.tokens for row in own):
        case = [row for row in own if row.tokens == tokens]
        routed = next((row for row in case if row.routed), None)
        line = [str(tokens)]
        for rows in kernels(own).values():
            line.append(_cell(next((row for row in rows if row.tokens == tokens), None), case))
        quantise = routed.quantise.median if routed and routed.quantise else None
        ratio = routed.us / one if routed and routed.us and one else None
        line += [number(quantise), number(ratio), number(routed.percent(routed.read_floor) if routed else None, 0)]
        cells.append((*line, beside(routed) if routed else NO_FIGURE))
    return cells


def _cell(row: Row | None, case: Sequence[Row]) -> str:
    if row is None:
        return ""
    if row.problem:
        return "WRONG"
    text = number(row.us)
    if not row.routed:
        return text
    return f"[{text}]" + (" <" if beaten(row, case) else "")


def beaten(routed: Row, case: Sequence[Row]) -> bool:
    """Whether another kernel of the case was faster by more than the middle half of either one's passes."""
    if routed.times is None:
        return False
    own = routed.times.total
    return any(
        row.times is not None and row.times.total.three_quarters < own.quarter for row in case if row is not routed
    )
