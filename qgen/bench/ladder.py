"""A run of `qgen bench ladder`: one matrix against a sweep of token counts, every rung beside the routed kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qgen.bench.candidates import AnyCandidate, ladder_candidates, of_activation
from qgen.bench.cases import Case, cases, choose_formats, parse_shape
from qgen.bench.machine import Machine
from qgen.bench.records import Report
from qgen.bench.session import close, opened
from qgen.bench.sweep import Run, run_sweeps
from qgen.errors import QgenError
from qgen.plan import CLASSES, MAX_TOKENS, FloatKsplitPlan, KsplitPlan, plan_all
from qgen.spec import load_formats

SHAPES = ("14336x4096",)
SWEEP = "1:32:1"
PASSES = 30
_SWEEP = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run. Empty formats or shapes: those that the run has by itself; sweep: see `parse_sweep`.

    activation: "f16", "bf16", or "" for int8 as each format's file says; storage: of the matrices
    peers: live ones, as `qgen.bench.live.peer.LivePeer` takes them
    """

    formats: Sequence[str] = ()
    shapes: Sequence[str] = ()
    sweep: str = SWEEP
    passes: int = PASSES
    activation: str = ""
    storage: str = "native"
    peers: Sequence[str] = ()
    label: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if self.activation and self.activation not in CLASSES:
            raise QgenError(
                stage="bench",
                subject="--activation",
                found=repr(self.activation),
                allowed=", ".join(CLASSES),
                next="leave it out for the int8 activation that each format names",
            )
        if self.passes < 1:
            raise QgenError(
                stage="bench",
                subject="--repeat",
                found=f"{self.passes}",
                allowed="at least 1 pass",
                next=f"leave it out for {PASSES}",
            )


def parse_sweep(text: str) -> tuple[int, ...]:
    """ "1:32:1" -> 1, 2 .. 32; "1,2,8" -> 1, 2, 8; parts may be mixed. Raises QgenError for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        match = _SWEEP.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        step = int(match[3] or 1) if match else 0
        if not (1 <= first <= last <= MAX_TOKENS and step >= 1):
            raise QgenError(
                stage="bench",
                subject=f"--sweep {text}",
                found=repr(part),
                allowed=f"FIRST:LAST:STEP or single token counts, from 1 to {MAX_TOKENS}, with commas between",
                next="write it like 1:32:1",
            )
        found |= set(range(first, last + 1, step))
    return tuple(sorted(found))


def bench_ladder(options: Options, machine: Machine, *, show_progress: bool = True) -> Report:
    """Run the sweep.

    A kernel whose result is wrong gets no times and makes the report not ok. An error of the device ends the run; the
    report then holds what came before it. Raises QgenError for options that do not fit and for a format without a
    ladder.
    """
    sweep = parse_sweep(options.sweep)
    formats = load_formats()
    plans = of_activation(plan_all(formats)[0], options.activation, options.storage)
    ladders = [plan for plan in plans if isinstance(plan, KsplitPlan | FloatKsplitPlan)]
    chosen = choose_formats(options.formats or [plan.format for plan in ladders], formats, plans)
    shapes = [parse_shape(text) for text in options.shapes or SHAPES]
    todo, skipped = cases(chosen, shapes, (sweep[-1],), options.activation, options.storage)

    def choose(case: Case) -> list[AnyCandidate]:
        return ladder_candidates(case, plans, arch=machine.facts.arch)

    report = opened(machine, options.command, options.label)
    report.skipped += skipped
    run = Run(todo=todo, sweep=sweep, choose=choose, passes=options.passes, title="bench ladder", peers=options.peers)
    run_sweeps(run, machine, plans, report, show_progress=show_progress)
    close(report)
    return report
