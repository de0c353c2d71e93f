"""The report's pictures. Matplotlib is asked for only here, and a run without it says so."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qgen.bench.ladder_text import kernels, sweeps
from qgen.bench.model_records import ModelReport
from qgen.bench.records import Report, Row
from qgen.errors import QgenError

_SIZE = (9.0, 5.0)  # inches


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")  # no display
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise QgenError(
            stage="bench",
            subject="plots",
            found=f"Matplotlib cannot be imported: {error}",
            allowed="Matplotlib, or --no-plots",
            next="pip install 'qgen[bench]'",
        ) from error


def write(report: Report, folder: Path) -> list[str]:
    """Write the plots that the report has data for; their file names. Raises QgenError without Matplotlib."""
    rows = [row for row in report.routed() if row.us]
    if not rows:
        return []
    pyplot = _pyplot()
    made = {"percent_of_floor.png": _floor_plot(pyplot, rows), "formats.png": _format_plot(pyplot, rows)}
    for name, figure in made.items():
        figure.savefig(folder / name, dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return list(made)


def write_ladder(report: Report, folder: Path, *, name: str = "ladder") -> list[str]:
    """Write cost against tokens, a picture a sweep; their file names, which begin with `name`.

    Raises QgenError without Matplotlib.
    """
    timed = [own for own in sweeps(report) if any(row.us for row in own)]
    if not timed:
        return []
    pyplot = _pyplot()
    names = []
    for own in timed:
        figure = _ladder_plot(pyplot, own)
        operands = own[0].operands.lower().replace(" x ", "_")
        names.append(f"{name}_{operands}_{own[0].shape}.png")
        figure.savefig(folder / names[-1], dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return names


def _ladder_plot(pyplot: Any, own: Sequence[Row]) -> Any:
    """Microseconds against tokens: a line a kernel, the routed one thick, peers as dots, the read floor as a line."""
    figure, axes = pyplot.subplots(figsize=_SIZE)
    for number, (name, rows) in enumerate(kernels(own).items()):
        found = [(row.tokens, row.us) for row in rows if row.us]
        if found:
            axes.plot(*zip(*found, strict=True), ".-", color=f"C{number}", linewidth=0.8, label=name)
    routed = [(row.tokens, row.us) for row in own if row.routed and row.us]
    if routed:
        axes.plot(*zip(*routed, strict=True), "-", color="black", linewidth=3, alpha=0.3, label="what a call gets")
    floor = next((row.read_floor for row in own if row.read_floor), None)
    if floor:
        axes.axhline(floor.us.median, color="black", linestyle="--", linewidth=0.8, label="read floor")
    peers: dict[str, list[tuple[int, float]]] = {}
    for row in own:
        for figure_of in row.peers if row.routed else ():
            when = "this run" if figure_of.live else "measured earlier"
            peers.setdefault(f"{figure_of.peer} {figure_of.row} ({when})", []).append((row.tokens, figure_of.us))
    for marker, (name, points) in zip("ovs^D*", peers.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker, color="gray", markersize=5, label=name)
    first = own[0]
    axes.set(xlabel="tokens", ylabel="us a call, quantisation included", title=f"{first.operands}, {first.shape}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def _floor_plot(pyplot: Any, rows: Sequence[Row]) -> Any:
    """Percent of both floors against the bytes of the weights."""
    figure, axes = pyplot.subplots(figsize=_SIZE)
    shapes = list(dict.fromkeys(row.shape for row in rows))
    for number, shape in enumerate(shapes):
        own = [row for row in rows if row.shape == shape]
        megabytes = [row.weight_bytes / 1e6 for row in own]
        color = f"C{number}"
        axes.plot(megabytes, [row.percent(row.read_floor) for row in own], "o", color=color, label=shape)
        if all(row.chain_floor for row in own):
            axes.plot(megabytes, [row.percent(row.chain_floor) for row in own], "x", color=color)
        for row, x in zip(own, megabytes, strict=True):
            axes.annotate(
                row.format, (x, row.percent(row.read_floor)), fontsize=6, xytext=(3, 2), textcoords="offset points"
            )
    axes.axhline(100, color="black", linewidth=0.8)
    axes.set(
        xscale="log",
        xlabel="MB of weights",
        ylabel="percent of the floor",
        ylim=(0, 110),
        title="Activation quantisation included. o: floor kernel by kernel, x: chain floor",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _format_plot(pyplot: Any, rows: Sequence[Row]) -> Any:
    """Bars of microseconds a format, the read floor inside them, one panel a shape."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    figure, panels = pyplot.subplots(len(shapes), 1, figsize=(_SIZE[0], 2.6 * len(shapes)), squeeze=False)
    for axes, shape in zip(panels[:, 0], shapes, strict=True):
        own = sorted((row for row in rows if row.shape == shape), key=lambda row: row.weight_bytes)
        names = [row.format for row in own]
        axes.bar(names, [row.us for row in own], color="C0", label="a call")
        if all(row.read_floor for row in own):
            floors = [row.read_floor.us.median for row in own if row.read_floor]
            axes.bar(names, floors, color="C1", width=0.5, label="read floor")
        marked = [(row.format, min(f.us for f in row.peers)) for row in own if row.peers]
        if marked:
            axes.plot([m[0] for m in marked], [m[1] for m in marked], "k_", markersize=14, label="best peer's figure")
        axes.set(ylabel="us", title=shape.replace("x", " x "))
        axes.tick_params(axis="x", rotation=60, labelsize=7)
        axes.legend(fontsize=7)
    figure.tight_layout()
    return figure


def write_model(report: ModelReport, folder: Path) -> list[str]:
    """Write tokens a second beside the limit, one picture; its file name. Raises QgenError without Matplotlib."""
    steps = [step for step in report.steps if step.tokens_a_second]
    if not steps:
        return []
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=_SIZE)
    formats = list(dict.fromkeys(step.format for step in steps))
    if len({step.tokens for step in steps}) == 1:
        axes.bar(formats, [step.limit_tokens_a_second for step in steps], color="C1", label="limit")
        axes.bar(formats, [step.tokens_a_second for step in steps], color="C0", width=0.5, label="qgen")
        axes.tick_params(axis="x", rotation=60, labelsize=7)
    else:
        for number, name in enumerate(formats):
            own = [step for step in steps if step.format == name]
            tokens = [step.tokens for step in own]
            axes.plot(tokens, [step.tokens_a_second for step in own], ".-", color=f"C{number}", label=name)
            limit = [step.limit_tokens_a_second for step in own]
            axes.plot(tokens, limit, "--", color=f"C{number}", linewidth=0.8, label=f"{name}, limit")
        axes.set(xlabel="tokens a step", xscale="log", yscale="log")
    axes.set(ylabel="tokens/s, linear part", title=f"{steps[0].model}: one step, activation quantisation included")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(folder / "tokens_a_second.png", dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return ["tokens_a_second.png"]
