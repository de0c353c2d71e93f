"""A run of `qgen bench ladder`: one matrix against a sweep of token counts, every rung beside the routed kernel.

Every result is held against single-column results of the same run, bit for bit, and those against the contract.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qgen import emit
from qgen.bench import floors, peers
from qgen.bench.cases import (
    Case,
    candidates,
    cases,
    choose_formats,
    ladder_candidates,
    of_activation,
    parse_shape,
)
from qgen.bench.machine import Machine
from qgen.bench.matvec import F32, Operands, Runnable, difference, fill, make, pattern
from qgen.bench.protocol import Rotation, measure, rotation
from qgen.bench.records import Report, Row, Times
from qgen.bench.session import beside_peers, close, loaded_state, make_row, opened
from qgen.errors import QgenError
from qgen.plan import CLASSES, MAX_TOKENS, FloatKsplitPlan, KsplitPlan, Plan, plan_all
from qgen.progress import progress
from qgen.spec import load_formats

SHAPES = ("14336x4096",)
SWEEP = "1:32:1"
PASSES = 30
_SWEEP = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run. Empty formats or shapes: all formats with a ladder, SHAPES; sweep: see `parse_sweep`.

    activation: "f16", "bf16", or "" for int8 as each format's file says
    """

    formats: Sequence[str] = ()
    shapes: Sequence[str] = ()
    sweep: str = SWEEP
    passes: int = PASSES
    activation: str = ""
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
    report then holds what came before it. Raises QgenError for options that do not fit, for a format without a ladder,
    and for an architecture that cannot run one.
    """
    sweep = parse_sweep(options.sweep)
    formats = load_formats()
    plans = of_activation(plan_all(formats)[0], options.activation)
    ladders = [plan for plan in plans if isinstance(plan, KsplitPlan | FloatKsplitPlan)]
    chosen = choose_formats(options.formats or [plan.format for plan in ladders], formats, plans)
    shapes = [parse_shape(text) for text in options.shapes or SHAPES]
    todo, skipped = cases(chosen, shapes, (sweep[-1],), options.activation)
    if not todo:
        raise QgenError(
            stage="bench",
            subject="the cases",
            found="; ".join(f"{s.what}: {s.reason}" for s in skipped) or "no format",
            allowed="at least one format at one shape",
            next="choose a K that the format's block divides",
        )
    for case in todo:
        ladder_candidates(case, plans, arch=machine.facts.arch)  # refused before anything is compiled
    report = opened(machine, options.command, options.label)
    report.skipped += skipped
    names = {case.format.name for case in todo}
    texts = {plan.file: emit.emit(plan).text for plan in plans if plan.format in names}
    machine.compile({floors.FILE: floors.text(), **texts})
    table = peers.load()
    report.peers_device = table.device
    turns = {case: rotation(case.placed.total, _unit(case), machine.facts.l2_bytes) for case in todo}
    buffer = machine.filled(max(turn.nbytes for turn in turns.values()))
    rulers = floors.Rulers(machine)
    report.no_chain = rulers.no_chain
    with progress("bench ladder", len(todo), show=show_progress) as step:
        for number, case in enumerate(todo):
            try:
                blocks = pattern(case.format)
                fill(machine, buffer, case, turns[case], blocks)
                if number == 0:
                    rulers.check(buffer, min(floors.CHECKED, max(turn.nbytes for turn in turns.values())))
                one = Sweep(machine, case, buffer, turns[case], sweep, plans)
                rows, graph = one.measure(rulers, options.passes)
                report.rows += [beside_peers(row, table, machine.facts.name) for row in rows]
                if number in (0, len(todo) - 1):
                    loaded_state(machine, "loaded, last" if number else "loaded, first", graph, report)
            except QgenError as error:
                report.aborted = f"{case}: {error.subject}: {error.found} ({error.next})"
                break
            step()
    close(report)
    return report


def _unit(case: Case) -> int:
    """Copies begin on whole blocks, so that a repeating pattern fills all alike; planes are filled one by one."""
    return 1 if case.format.split else case.format.bytes


class Sweep:
    """One format at one shape over all token counts."""

    def __init__(
        self, machine: Machine, case: Case, buffer: Any, turn: Rotation, sweep: Sequence[int], plans: Sequence[Plan]
    ) -> None:
        """case: that of the most tokens; buffer: filled with the format's pattern."""
        self.machine, self.buffer, self.turn, self.sweep, self.plans = machine, buffer, turn, sweep, plans
        self.widest = Operands(machine, case, buffer, turn, pattern(case.format))

    def operands(self, tokens: int) -> Operands:
        """The first `tokens` tokens."""
        case = replace(self.widest.case, tokens=tokens)
        made = Operands(self.machine, case, self.buffer, self.turn, self.widest.pattern)
        assert (made.host_x == self.widest.host_x[:tokens]).all(), "all cases share their x"
        return made

    def singles(self) -> tuple[F32, str]:
        """float32[tokens, N]: every column alone through the kernel routed for T = 1; and what is wrong with them."""
        operands = self.operands(1)
        (routed,) = candidates(operands.case, self.plans, every=False, arch=self.machine.facts.arch)
        runnable = make(operands, routed)
        results = np.zeros((self.widest.case.tokens, operands.case.shape.rows), dtype=np.float32)
        for token, x in enumerate(self.widest.host_x):
            operands.x = self.machine.put(x[None])
            results[token] = runnable.result()[0]
        return results, self.widest.judge(results[:, self.widest.sample])

    def measure(self, rulers: floors.Rulers, passes: int) -> tuple[list[Row], Any]:
        """The rows, token count by token count, and a graph that keeps the device at work."""
        singles, wrong = self.singles()
        rows: list[Row] = []
        graphs = rulers.graphs(self.buffer, self.widest.case.weight_bytes, self.turn)
        busy = next(iter(graphs.values()))[0]
        timed: dict[int, tuple[str, str, str]] = {}  # row -> its subjects: total, product, quantise
        alive: list[Runnable] = []  # graphs hold no reference to the memory they use
        for tokens in self.sweep:
            operands = self.operands(tokens)
            for candidate in ladder_candidates(operands.case, self.plans, arch=self.machine.facts.arch):
                runnable = make(operands, candidate)
                problem = self._judge(runnable, singles[:tokens], wrong)
                if not problem:
                    alive.append(runnable)
                    timed[len(rows)] = self._subjects(graphs, runnable, candidate.quantize.name, tokens, len(rows))
                rows.append(make_row(operands.case, candidate, runnable, problem))
        times = measure(self.machine, graphs, passes)
        read, chain = rulers.best(times, self.widest.case.weight_bytes)
        for number, subjects in timed.items():
            rows[number] = replace(rows[number], times=Times(*(times[name] for name in subjects)))
        return [replace(row, read_floor=read, chain_floor=chain) for row in rows], busy

    def _judge(self, runnable: Runnable, singles: F32, wrong: str) -> str:
        problem = difference(runnable.result(), singles)
        if problem:
            return f"unlike single columns: {problem}"
        return wrong and f"single columns are wrong: {wrong}"

    def _subjects(
        self, graphs: dict[str, tuple[Any, int]], runnable: Runnable, quantizer: str, tokens: int, number: int
    ) -> tuple[str, str, str]:
        """Capture what is to be timed; a quantiser is timed once for all rungs that it serves."""
        names = f"{number} total", f"{number} product", f"{quantizer}, T = {tokens}"
        for name, issue in zip(names, (runnable.both, runnable.multiply, runnable.quantise), strict=True):
            if name not in graphs:
                graphs[name] = runnable.graph(issue)
        return names
