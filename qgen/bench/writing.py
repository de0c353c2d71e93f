"""A report as files in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qgen.bench import plots as pictures
from qgen.bench import report as texts
from qgen.bench.records import Report
from qgen.errors import QgenError


def write_files(folder: Path, *, record: Any, sheet: str, page: str) -> list[Path]:
    """Write results.json, results.csv and report.md; the paths written. Raises QgenError when the folder cannot be."""
    files = {"results.json": json.dumps(record, indent=1) + "\n", "results.csv": sheet, "report.md": page}
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def write(
    report: Report,
    folder: Path,
    *,
    plots: bool,
    page: Callable[[Report, Sequence[str]], str] = texts.markdown,
    draw: Callable[[Report, Path], list[str]] = pictures.write,
    sheet: Callable[[Report], str] = texts.csv_text,
) -> list[Path]:
    """Write results.json, results.csv, report.md and, with `plots`, the pictures; the paths written.

    page, draw, sheet: what makes report.md, the pictures, and results.csv
    Raises QgenError when the folder cannot be written, and, after everything else is written, when plots are wanted
    and Matplotlib is missing.
    """
    paths = write_files(folder, record=report.to_json(), sheet=sheet(report), page=page(report, ()))
    if plots:
        with _writing(folder):
            names = draw(report, folder)
            (folder / "report.md").write_text(page(report, names), encoding="utf-8")
        paths += [folder / name for name in names]
    return paths


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise QgenError(
            stage="bench",
            subject=str(folder),
            found=f"cannot be written: {error.strerror}",
            allowed="a folder that can be written",
            next="give another --out",
        ) from error
