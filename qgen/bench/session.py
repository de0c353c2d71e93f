"""A run of `qgen bench`: case by case, every kernel first judged, then timed among the rulers of its own bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qgen import emit
from qgen.bench import floors, peers
from qgen.bench.candidates import AnyCandidate, candidates, of_activation
from qgen.bench.cases import QUICK_FORMATS, QUICK_SHAPES, SHAPES, Case, cases, choose_formats, parse_shape
from qgen.bench.conditions import Conditions, State, now, other_processes, read_state, revision, software
from qgen.bench.inputs import Operands, difference, fill, pattern
from qgen.bench.live.peer import Live, live_peers
from qgen.bench.machine import Machine
from qgen.bench.matvec import Runnable, make
from qgen.bench.protocol import SPREAD_ALLOWED, measure, rotation
from qgen.bench.records import Report, Row, Times
from qgen.errors import QgenError
from qgen.plan import FragmentQuantizePlan, FusedPlan, KsplitPlan, MatvecPlan, Plan, QuantizePlan, plan_all
from qgen.progress import progress
from qgen.spec import load_formats

PASSES, QUICK_PASSES = 30, 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run. Empty formats or shapes: the default ones; passes None: the default number.

    storage: of the matrices
    every: all instances of a plan, not only the routed one
    peers: live ones, as `qgen.bench.live.peer.LivePeer` takes them
    """

    formats: Sequence[str] = ()
    shapes: Sequence[str] = ()
    storage: str = "native"
    every: bool = False
    passes: int | None = None
    quick: bool = False
    floors_only: bool = False
    peers: Sequence[str] = ()
    label: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if self.passes is not None and self.passes < 1:
            raise QgenError(
                stage="bench",
                subject="--repeat",
                found=f"{self.passes}",
                allowed="at least 1 pass",
                next=f"leave it out for {PASSES}",
            )

    @property
    def rounds(self) -> int:
        return self.passes or (QUICK_PASSES if self.quick else PASSES)


def bench(options: Options, machine: Machine, *, show_progress: bool = True) -> Report:
    """Run the benchmark.

    A kernel whose result is wrong gets no times and makes the report not ok. An error of the device ends the run; the
    report then holds what came before it. Raises QgenError for options that do not fit, and for whatever keeps the
    run from beginning.
    """
    plans = of_activation(plan_all(load_formats())[0], "", options.storage)
    wanted = options.formats or (QUICK_FORMATS if options.quick else ())
    chosen = choose_formats(wanted, load_formats(), plans)
    shapes = [parse_shape(s) for s in options.shapes or (QUICK_SHAPES if options.quick else SHAPES)]
    todo, skipped = cases(chosen, shapes, storage=options.storage)
    report = opened(machine, options.command, options.label)
    report.skipped += skipped
    if options.floors_only:
        _floors_only(machine, options.rounds, report)
    else:
        with live_peers(options.peers, machine.facts.l2_bytes, report) as live:
            _compile(machine, todo, plans)
            _measure_cases(machine, todo, plans, options, report, live, show_progress=show_progress)
    close(report)
    return report


def opened(machine: Machine, command: str, label: str) -> Report:
    """A report without rows: the conditions before the run."""
    facts = machine.facts
    report = Report(conditions=Conditions(facts, now(), command, label, revision(), software()))
    _note_state(report.conditions.states, "before", read_state(facts.bus))
    report.conditions.others = other_processes(facts.bus, os.getpid())
    return report


def close(report: Report) -> None:
    """What conditions and spread say against the figures goes into the notes."""
    report.conditions.judge()
    wide = report.wide()
    if wide:
        report.conditions.notes.append(
            f"{wide} of {report.timed} figures are of passes that spread by more than {SPREAD_ALLOWED:.0%}"
        )


def _note_state(states: dict[str, State], name: str, state: State | None) -> None:
    if state:
        states[name] = state


def loaded_state(machine: Machine, name: str, graph: Any, report: Report) -> None:
    """The clocks while the device is at work."""

    def work() -> None:
        machine.lap([graph])

    state = read_state(machine.facts.bus, meanwhile=work)
    _note_state(report.conditions.states, name, state)


def _compile(machine: Machine, todo: Sequence[Case], plans: Sequence[Plan]) -> None:
    names = {case.format.name for case in todo}
    # The cases are all of one token: no need to wait for the ladders.
    tiled = todo and todo[0].storage == "tiled"
    kinds = KsplitPlan | FragmentQuantizePlan | FusedPlan if tiled else MatvecPlan | QuantizePlan
    wanted = [p for p in plans if p.format in names and isinstance(p, kinds)]
    texts = {plan.file: emit.emit(plan).text for plan in wanted}
    machine.compile({floors.FILE: floors.text(), **texts})


def _floors_only(machine: Machine, rounds: int, report: Report) -> None:
    l2 = machine.facts.l2_bytes
    turns = {size: rotation(size, floors.PIECE, l2) for size in floors.SIZES}
    buffer = machine.filled(max(turn.nbytes for turn in turns.values()))
    # Reading zeros can be faster than reading data.
    machine.repeat(buffer, np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8))
    machine.compile({floors.FILE: floors.text()})
    rulers = floors.Rulers(machine)
    report.no_chain = rulers.no_chain
    rulers.check(buffer, min(floors.CHECKED, *floors.SIZES))
    for size, turn in turns.items():
        graphs = rulers.graphs(buffer, size, turn)
        report.floors.append(rulers.best(measure(machine, graphs, rounds), size))
    loaded_state(machine, "loaded, last", next(iter(graphs.values()))[0], report)


def _measure_cases(
    machine: Machine,
    todo: Sequence[Case],
    plans: Sequence[Plan],
    options: Options,
    report: Report,
    live: Live,
    *,
    show_progress: bool,
) -> None:
    if not todo:
        raise QgenError(
            stage="bench",
            subject="the cases",
            found="; ".join(f"{s.what}: {s.reason}" for s in report.skipped) or "no format",
            allowed="at least one format at one shape",
            next="choose a K that the format's block divides",
        )
    table = peers.load()
    report.peers_device = table.device
    turns = {case: rotation(case.stored_bytes, case.unit, machine.facts.l2_bytes) for case in todo}
    total = max(turn.nbytes for turn in turns.values())
    buffer = machine.filled(total)
    rulers = floors.Rulers(machine)
    report.no_chain = rulers.no_chain
    filled = ""
    with progress("bench", len(todo), show=show_progress) as step:
        for number, case in enumerate(todo):
            try:
                if case.format.name != filled:
                    blocks = pattern(case.format)
                    fill(machine, buffer, case, turns[case], blocks)
                    filled = case.format.name
                if number == 0:
                    rulers.check(buffer, min(floors.CHECKED, total))
                operands = Operands(machine, case, buffer, turns[case], blocks)
                rows, graph = _measure_case(operands, rulers, plans, options, live)
                report.rows += [beside_peers(row, table, machine.facts.name) for row in rows]
                if number in (0, len(todo) - 1):
                    loaded_state(machine, "loaded, last" if number else "loaded, first", graph, report)
            except QgenError as error:
                report.aborted = f"{case}: {error.subject}: {error.found} ({error.next})"
                return
            step()


def _measure_case(
    operands: Operands, rulers: floors.Rulers, plans: Sequence[Plan], options: Options, live: Live
) -> tuple[list[Row], Any]:
    """The rows of a case, and a graph that keeps the device at work."""
    machine, case, turn = operands.machine, operands.case, operands.turn
    wanted = operands.wanted()
    rows: list[Row] = []
    right: list[tuple[int, Runnable]] = []
    first = None
    for candidate in candidates(case, plans, every=options.every, arch=machine.facts.arch):
        runnable = make(operands, candidate)
        y = runnable.result()
        problem = difference(y[:, operands.sample], wanted, operands.sample)
        if not problem and first is not None:
            problem = difference(y, first)
            problem = problem and f"unlike the first kernel of this case: {problem}"
        if not problem:
            first = y if first is None else first
            right.append((len(rows), runnable))
        rows.append(make_row(case, candidate, runnable, problem))
    floor_graphs = rulers.graphs(operands.buffer, case.weight_bytes, turn)
    graphs = dict(floor_graphs)
    for number, runnable in right:
        graphs |= {f"{number} {part}": runnable.graph(issue) for part, issue in runnable.parts.items()}
    times = measure(machine, graphs, options.rounds, live.subjects([case]))
    figures = live.figures(case, times)
    live.end_case()
    read, chain = rulers.best(times, case.weight_bytes)
    for number, runnable in right:
        taken = Times(**{part: times[f"{number} {part}"] for part in runnable.parts})
        rows[number] = replace(rows[number], times=taken)
    rows = [replace(row, read_floor=read, chain_floor=chain, peers=figures) for row in rows]
    return rows, next(iter(floor_graphs.values()))[0]


def make_row(case: Case, candidate: AnyCandidate, runnable: Runnable, problem: str) -> Row:
    """A row without times."""
    grid = runnable.grids[-1]
    return Row(
        format=case.format.name,
        activation=case.activation,
        rows=case.shape.rows,
        columns=case.shape.columns,
        tokens=case.tokens,
        storage=candidate.plan.storage,
        family=candidate.plan.family,
        kernel=candidate.instance.name,
        launch=candidate.label,
        routed=candidate.routed,
        grid=grid[0] if isinstance(grid, tuple) else grid,
        grid_y=grid[1] if isinstance(grid, tuple) else 1,
        resident=runnable.resident,
        bits_per_weight=case.format.bits_per_weight,
        weight_bytes=case.weight_bytes,
        problem=problem,
    )


def beside_peers(row: Row, table: peers.Peers, device: str) -> Row:
    """With the figures of the file too, where they were taken on such a device; those of this run take their place."""
    if not device.startswith(table.device):
        return row
    earlier = table.beside(row.format, row.shape, row.tokens)
    return replace(row, peers=row.peers + tuple(f for f in earlier if f.factors or not row.live(f.peer)))
