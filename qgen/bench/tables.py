"""Figures and tables as text, for the terminal and for markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NO_FIGURE = "-"


def number(value: float | None, digits: int = 2) -> str:
    """A figure for a table."""
    return NO_FIGURE if value is None else f"{value:.{digits}f}"


def columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for the terminal."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in markdown, and an empty one."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows), ""]
