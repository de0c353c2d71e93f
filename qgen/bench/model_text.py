"""A run of `qgen bench --model` as text: a table for the terminal, markdown to keep, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from qgen.bench import live_text
from qgen.bench.model_records import ModelReport, Step
from qgen.bench.report import conditions_lines, ending, opening
from qgen.bench.tables import NO_FIGURE, columns, markdown_table, number

_HEAD = (
    "format", "T", "tokens/s", "limit tokens/s", "%limit", "us a step", "chain us", "read us", "quantised", "GB a step",
    "GB/s", "%stream", "spread%",
)  # fmt: skip
_PROTOCOL = (
    "one CUDA graph of every matrix of a decode step in order, by calls of qgen.run with the quantisation of their "
    "activation, launches dependent where they can be; matrices that take the same x (q, k and v; gate and up) are one "
    "call, which quantises it once where their kernels read it alike; distinct matrices are distinct memory, and at "
    "least 300 MB and twice the L2 lie between two reads of one; device events, median of passes, the floors in the "
    "same rounds"
)
_CHECKED = (
    "every distinct matrix was multiplied once on its own, the first of a shape held against the contract on a sample "
    "of rows, the others against the first on all; and so were the last products of the graph after it was timed"
)
_MEANING = (
    "tokens/s are those of the linear part alone: no attention, no norms, no sampling. limit: the same matrices read "
    "as a chain of dependent launches (`chain us`), or one after another (`read us`) where launches cannot be chained. "
    "quantised: how many launches of a step quantise an activation; matrices that take the same x share one, and some "
    "kernels quantise by themselves. %stream: GB/s over those of one kernel that reads all weights at once."
)


def table(report: ModelReport) -> str:
    """The short table, with what a reader must know above it and findings below."""
    lines = opening(report)
    if report.steps:
        lines += ["", report.steps[0].model, *_memory(report)]
        lines += ["", *columns([_HEAD, *map(_cells, report.steps)]), "", _MEANING]
    lines += live_text.means(report)
    lines += [f"WRONG {r.kernel} at {r.shape}, T = {r.tokens}: {r.problem}" for r in report.rows if r.problem]
    lines += [f"WRONG {text}" for text in _wrong(report)]
    if report.aborted:
        lines.append(f"STOPPED at {report.aborted}")
    return "\n".join(lines)


def markdown(report: ModelReport, plots: Sequence[str] = ()) -> str:
    """The report to keep under docs/benchmarks. plots: file names beside it."""
    model = report.steps[0].model if report.steps else "no step"
    lines = [f"# qgen bench --model: {model}", "", *conditions_lines(report, _CHECKED, _PROTOCOL), ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in plots] + [""] * bool(plots)
    if report.steps:
        lines += ["## Steps", "", *markdown_table(_HEAD, map(_cells, report.steps)), _MEANING, ""]
        lines += [*(f"- {line}" for line in _memory(report)), "", "## Matrices", ""]
        head = ("format", "T", "N x K", "roles", "a step", "kernel")
        rows = (
            (step.format, str(step.tokens), kind.shape, ", ".join(kind.roles), str(kind.count), f"`{kind.kernel}`")
            for step in report.steps
            for kind in step.kinds
        )
        lines += markdown_table(head, rows)
    return "\n".join([*lines, *live_text.section(report), *ending(report, _wrong(report))]).rstrip() + "\n"


def csv_text(report: ModelReport) -> str:
    """One line a format and token count."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(
        ("model", "format", "storage", "tokens", "products", "quantisations", "weight_bytes", "layers",
         "distinct_layers", "copies", "us", "us_low", "us_high", "tokens_a_second", "limit_tokens_a_second",
         "percent_of_limit", "gigabytes_a_second",
         "read_floor_us", "chain_floor_us", "stream_gigabytes_a_second", "percent_of_stream", "spread_percent",
         "passes", "problem")
    )  # fmt: skip
    for s in report.steps:
        cells = (
            s.model, s.format, s.storage, s.tokens, s.products, s.quantisations, s.weight_bytes, s.layers, s.distinct,
            s.copies, *((s.us.median, s.us.low, s.us.high) if s.us else ("",) * 3), s.tokens_a_second,
            s.limit_tokens_a_second, s.percent_of_limit, s.gigabytes_a_second,
            s.read_floor.us.median if s.read_floor else None, s.chain_floor.us.median if s.chain_floor else None,
            s.stream, s.percent_of_stream, 100 * s.us.spread if s.us else None, s.us.passes if s.us else "", s.problem,
        )  # fmt: skip
        writer.writerow([round(cell, 4) if isinstance(cell, float) else cell for cell in cells])
    return output.getvalue()


def _cells(s: Step) -> tuple[str, ...]:
    return (
        s.format,
        str(s.tokens),
        "WRONG" if s.problem else number(s.tokens_a_second, 1),
        number(s.limit_tokens_a_second, 1),
        number(s.percent_of_limit, 1),
        number(s.us.median if s.us else None, 1),
        number(s.chain_floor.us.median if s.chain_floor else None, 1),
        number(s.read_floor.us.median if s.read_floor else None, 1),
        str(s.quantisations),
        number(s.weight_bytes / 1e9, 3),
        number(s.gigabytes_a_second, 0),
        number(s.percent_of_stream, 1),
        number(100 * s.us.spread, 1) if s.us else NO_FIGURE,
    )


def _memory(report: ModelReport) -> list[str]:
    """Where the weights of each format lay, a sentence a format."""
    lines = []
    for step in {step.format: step for step in report.steps}.values():
        text = f"{step.format}, {step.storage} storage: "
        text += f"{step.products} products of {step.layers} layers (the head is one) a step"
        if step.distinct < step.layers:
            text += f"; the model does not fit: layers repeat over a ring of {step.distinct} distinct ones"
        if step.copies > 1:
            text += f"; the model is smaller than a cold pass: steps take {step.copies} copies of it in turn"
        lines.append(text)
    return lines


def _wrong(report: ModelReport) -> list[str]:
    return [f"{step.format}, T = {step.tokens}: {step.problem}" for step in report.steps if step.problem]
