"""A run of `qgen bench multirow`: a few tokens through every number of rows, beside the ladder and the mat-vec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qgen.bench.candidates import AnyCandidate, multirow_candidates, of_activation
from qgen.bench.cases import MULTIROW_CASES, Case, Skipped, cases, choose_formats, parse_shape
from qgen.bench.ladder import SHAPES, Options, parse_sweep
from qgen.bench.machine import Machine
from qgen.bench.records import Report
from qgen.bench.session import close, opened
from qgen.bench.sweep import Run, run_sweeps
from qgen.plan import Plan, plan_all
from qgen.spec import Format, load_formats

SWEEP = "1,2,3,4,5,8"


def bench_multirow(options: Options, machine: Machine, *, show_progress: bool = True) -> Report:
    """Run the sweep over MULTIROW_CASES, or over the formats and shapes of the options.

    A kernel whose result is wrong gets no times and makes the report not ok. An error of the device ends the run; the
    report then holds what came before it. Raises QgenError for options that do not fit.
    """
    sweep = parse_sweep(options.sweep)
    formats = load_formats()
    plans = of_activation(plan_all(formats)[0], "")
    todo, skipped = _todo(options, formats, plans, sweep[-1])

    def choose(case: Case) -> list[AnyCandidate]:
        return multirow_candidates(case, plans, arch=machine.facts.arch)

    report = opened(machine, options.command, options.label)
    report.skipped += skipped
    run = Run(todo=todo, sweep=sweep, choose=choose, passes=options.passes, title="bench multirow", peers=options.peers)
    run_sweeps(run, machine, plans, report, show_progress=show_progress)
    close(report)
    return report


def _todo(
    options: Options, formats: Mapping[str, Format], plans: Sequence[Plan], tokens: int
) -> tuple[list[Case], list[Skipped]]:
    """The list, or every format chosen at every shape chosen, with the defaults of the other where one is left out."""
    if not options.formats and not options.shapes:
        return [Case(formats[name], parse_shape(shape), tokens) for name, shape in MULTIROW_CASES], []
    named = options.formats or list(dict.fromkeys(name for name, _ in MULTIROW_CASES))
    shapes = [parse_shape(text) for text in options.shapes or SHAPES]
    return cases(choose_formats(named, formats, plans), shapes, (tokens,))
