"""Matrices against token counts: every candidate of a case judged, then timed among the rulers of its own bytes.

Every result is held against single-column results of the same run, bit for bit, and those against the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qgen.bench import floors, peers
from qgen.bench.candidates import AnyCandidate, candidates
from qgen.bench.cases import Case
from qgen.bench.inputs import F32, Operands, difference, fill, pattern
from qgen.bench.live.peer import Live, live_peers
from qgen.bench.machine import Machine
from qgen.bench.matvec import Runnable, make, text
from qgen.bench.protocol import Rotation, measure, rotation
from qgen.bench.records import Report, Row, Times
from qgen.bench.session import beside_peers, loaded_state, make_row
from qgen.errors import QgenError
from qgen.plan import Plan
from qgen.progress import progress

Choose = Callable[[Case], list[AnyCandidate]]  # what competes for a case


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run of sweeps does.

    todo:   matrices, each as the case of the most tokens; sweep: the token counts
    choose: what competes for a matrix at one token count
    passes: of each kernel; title: of the progress bar; peers: live ones, as `LivePeer` takes them
    """

    todo: Sequence[Case]
    sweep: Sequence[int]
    choose: Choose
    passes: int
    title: str
    peers: Sequence[str] = ()


def run_sweeps(run: Run, machine: Machine, plans: Sequence[Plan], report: Report, *, show_progress: bool) -> None:
    """Fill `report`. An error of the device ends the run; the report then holds what came before it.

    Raises QgenError for no matrices, and before anything is compiled for a case that no kernel takes.
    """
    if not run.todo:
        raise QgenError(
            stage="bench",
            subject="the cases",
            found="; ".join(f"{s.what}: {s.reason}" for s in report.skipped) or "no format",
            allowed="at least one format at one shape",
            next="choose a K that the format's block divides",
        )
    with live_peers(run.peers, machine.facts.l2_bytes, report) as live:
        _run(run, machine, plans, report, live, show_progress=show_progress)


def _run(run: Run, machine: Machine, plans: Sequence[Plan], report: Report, live: Live, *, show_progress: bool) -> None:
    machine.compile({floors.FILE: floors.text(), **_texts(run, machine, plans)})
    table = peers.load()
    report.peers_device = table.device
    turns = {case: rotation(case.stored_bytes, case.unit, machine.facts.l2_bytes) for case in run.todo}
    buffer = machine.filled(max(turn.nbytes for turn in turns.values()))
    rulers = floors.Rulers(machine)
    report.no_chain = rulers.no_chain
    with progress(run.title, len(run.todo), show=show_progress) as step:
        for number, case in enumerate(run.todo):
            try:
                fill(machine, buffer, case, turns[case], pattern(case.format))
                if number == 0:
                    rulers.check(buffer, min(floors.CHECKED, max(turn.nbytes for turn in turns.values())))
                one = Sweep(machine, case, buffer, turns[case], run, plans)
                rows, graph = one.measure(rulers, live)
                report.rows += [beside_peers(row, table, machine.facts.name) for row in rows]
                if number in (0, len(run.todo) - 1):
                    loaded_state(machine, "loaded, last" if number else "loaded, first", graph, report)
            except QgenError as error:
                report.aborted = f"{case}: {error.subject}: {error.found} ({error.next})"
                break
            step()


def _texts(run: Run, machine: Machine, plans: Sequence[Plan]) -> dict[str, str]:
    """Name -> text of every file that the run loads from."""
    found: dict[str, str] = {}
    for case in run.todo:
        every = candidates(replace(case, tokens=1), plans, every=False, arch=machine.facts.arch)
        for tokens in run.sweep:
            every += run.choose(replace(case, tokens=tokens))
        found |= {plan.file: text(plan) for c in every for plan in (c.plan, c.quantize) if plan}
    return found


class Sweep:
    """One format at one shape over all token counts."""

    def __init__(
        self, machine: Machine, case: Case, buffer: Any, turn: Rotation, run: Run, plans: Sequence[Plan]
    ) -> None:
        """case: that of the most tokens; buffer: filled with the format's pattern."""
        self.machine, self.buffer, self.turn, self.run, self.plans = machine, buffer, turn, run, plans
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

    def measure(self, rulers: floors.Rulers, live: Live) -> tuple[list[Row], Any]:
        """The rows, token count by token count, and a graph that keeps the device at work."""
        singles, wrong = self.singles()
        rows: list[Row] = []
        graphs = rulers.graphs(self.buffer, self.widest.case.weight_bytes, self.turn)
        busy = next(iter(graphs.values()))[0]
        timed: dict[int, dict[str, str]] = {}  # row -> its subjects, by the fields of `Times`
        alive: list[Runnable] = []  # graphs hold no reference to the memory they use
        for tokens in self.run.sweep:
            operands = self.operands(tokens)
            for candidate in self.run.choose(operands.case):
                runnable = make(operands, candidate)
                problem = self._judge(runnable, singles[:tokens], wrong)
                if not problem:
                    alive.append(runnable)
                    quantizer = f"{candidate.quantize.name}, T = {tokens}" if candidate.quantize else ""
                    timed[len(rows)] = self._subjects(graphs, runnable, quantizer, len(rows))
                rows.append(make_row(operands.case, candidate, runnable, problem))
        cases = [replace(self.widest.case, tokens=tokens) for tokens in self.run.sweep]
        times = measure(self.machine, graphs, self.run.passes, live.subjects(cases))
        figures = {case.tokens: live.figures(case, times) for case in cases}
        live.end_case()
        read, chain = rulers.best(times, self.widest.case.weight_bytes)
        for number, subjects in timed.items():
            rows[number] = replace(rows[number], times=Times(**{part: times[s] for part, s in subjects.items()}))
        return [replace(row, read_floor=read, chain_floor=chain, peers=figures[row.tokens]) for row in rows], busy

    def _judge(self, runnable: Runnable, singles: F32, wrong: str) -> str:
        problem = difference(runnable.result(), singles)
        if problem:
            return f"unlike single columns: {problem}"
        return wrong and f"single columns are wrong: {wrong}"

    def _subjects(
        self, graphs: dict[str, tuple[Any, int]], runnable: Runnable, quantizer: str, number: int
    ) -> dict[str, str]:
        """Capture what is to be timed; a quantiser is timed once for all rungs that it serves, as this subject."""
        subjects = {part: quantizer if part == "quantise" else f"{number} {part}" for part in runnable.parts}
        for part, issue in runnable.parts.items():
            if subjects[part] not in graphs:
                graphs[subjects[part]] = runnable.graph(issue)
        return subjects
