"""Live peers as text: ratio by ratio, and geometric means over the cells that exist."""

from __future__ import annotations

from qgen.bench.records import Report, Row, geometric_mean
from qgen.bench.tables import NO_FIGURE, columns, markdown_table, number

# Token counts that a mean goes over: decoding alone, speculative decoding and a few users, a small batch.
BANDS = {"T = 1": (1, 1), "T = 2..8": (2, 8), "T = 16..64": (16, 64)}


def section(report: Report) -> list[str]:
    """The comparison with the peers of the same run, in markdown; nothing without them."""
    if not report.live:
        return []
    head = ["format", "N x K", "T", "us"]
    for peer in report.live:
        head += [f"{peer.name}, us", "times faster"]
    rows = []
    for row in _rows(report):
        cells = [row.operands, row.shape, str(row.tokens), number(row.us)]
        for peer in report.live:
            figure = row.live(peer.name)
            cells += [f"{number(figure.us)} ({figure.row})", number(row.ratio(figure))] if figure else [NO_FIGURE] * 2
        rows.append(cells)
    lines = ["## Beside peers of the same run", "", *markdown_table(head, rows)]
    return [
        *lines,
        "Geometric means of `times faster`, over the cells that exist:",
        "",
        *markdown_table(*_means(report)),
    ]


def means(report: Report) -> list[str]:
    """The geometric means alone, for the terminal; nothing without live peers."""
    if not report.live:
        return []
    head, rows = _means(report)
    return ["", "times faster than peers of the same run, geometric means:", *columns([head, *rows])]


def _rows(report: Report) -> list[Row]:
    """What a user gets, where a peer has a figure beside it."""
    return [row for row in report.routed() if row.us and any(figure.live for figure in row.peers)]


def _means(report: Report) -> tuple[list[str], list[list[str]]]:
    rows = []
    for peer in report.live:
        cells = [peer.name]
        for low, high in BANDS.values():
            own = [(row, row.live(peer.name)) for row in _rows(report) if low <= row.tokens <= high]
            ratios = [ratio for row, figure in own if figure and (ratio := row.ratio(figure))]
            count = f" ({len(ratios)} cell{'s' * (len(ratios) != 1)})" if ratios else ""
            cells.append(number(geometric_mean(ratios)) + count)
        rows.append(cells)
    return ["peer", *BANDS], rows
