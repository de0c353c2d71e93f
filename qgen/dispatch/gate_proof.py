"""The prover, turned on another engine: does every walk end in a kernel that exists, and do its predicates agree?"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

from qgen.dispatch import ladder
from qgen.dispatch.checks import compare, first_of
from qgen.dispatch.diagram import Diagram, Row, build
from qgen.dispatch.gates import Engine, ForeignKernel, Place, intersect
from qgen.dispatch.judge import Leaf, Mark, Witness, witnesses
from qgen.dispatch.labels import Refusal
from qgen.dispatch.space import Ints, Where, show

KINDS = {
    "hole": "steps that some requests leave by no case",
    "overlap": "steps or sets that are ambiguous for some requests",
    "no_kernel": "walks that end where no kernel exists",
    "promise": "requests that the capability check accepts and the walk refuses",
    "narrow": "predicates that say no although a kernel exists",
    "lie": "predicates that say yes although no kernel exists",
    "disagree": "predicates about the same kernels that contradict each other",
    "dead": "compiled kernels that no walk reaches",
    "rung": "rungs that are compiled, but not used where they would save columns",
    "waste": "more columns computed than allowed",
    "order": "rungs of a ladder out of order",
}


@dataclass(frozen=True)
class GateFinding:
    """One thing found in a foreign dispatch, with the smallest request that shows it."""

    kind: str
    text: str
    sources: tuple[str, ...]
    witness: Witness | None

    def __str__(self) -> str:
        shown = f"\n    request: {show(self.witness)}" if self.witness else ""
        return f"{self.kind}: {self.text}{shown}\n    rows:    {'; '.join(self.sources)}"


@dataclass
class GateProof:
    """What `prove_gates` found out. It holds when `findings` is empty."""

    engine: Engine
    diagram: Diagram
    findings: tuple[GateFinding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(frozen=True)
class _Yes:
    gate: str


@dataclass(frozen=True)
class _Scope:
    gate: str


@dataclass(frozen=True)
class _Case:
    step: str
    number: int


@dataclass(frozen=True)
class _Can:
    kernel: str


def prove_gates(engine: Engine) -> GateProof:
    """Check a foreign dispatch over its whole request space."""
    started = time.perf_counter()
    diagram = build(engine.space, _rows(engine), _Walk(engine))
    placed: dict[int, list[tuple[Mark, Witness]]] = {}
    for leaf in diagram.leaves():
        placed[leaf] = [(mark, {}) for mark in _leaf(diagram, leaf).marks]
    if engine.waste and "T" in engine.space.names:
        for node, marks in _ladders(engine, diagram):
            placed.setdefault(node, []).extend(marks)
    found = [GateFinding(m.kind, m.text, m.sources, w) for m, w in witnesses(diagram, placed).items()]
    found += _disagreements(engine)
    found += _dead(engine, diagram)
    order = list(KINDS)
    found.sort(key=lambda f: (order.index(f.kind), f.text))
    return GateProof(engine, diagram, tuple(found), time.perf_counter() - started)


def _leaf(diagram: Diagram, node: int) -> Leaf:
    outcome = diagram.outcome(node)
    assert isinstance(outcome, Leaf)
    return outcome


def _rows(engine: Engine) -> list[Row]:
    rows: list[Row] = []
    for gate in engine.gates.values():
        rows += [Row(_Yes(gate.name), box) for box in gate.yes]
        if gate.guards:
            rows.append(Row(_Scope(gate.name), gate.scope))
    for step in engine.steps.values():
        rows += [Row(_Case(step.name, i), case.when) for i, case in enumerate(step.cases)]
    for kernel in engine.kernels:
        rows += [Row(_Can(kernel.name), box) for box in kernel.when]
    return rows


class _Walk:
    """The judge: walks through the engine's steps for one class of requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sets: dict[str, list[ForeignKernel]] = {}
        for kernel in engine.kernels:
            self.sets.setdefault(kernel.set, []).append(kernel)
        self.named = {kernel.name: kernel for kernel in engine.kernels}

    def __call__(self, labels: tuple[Hashable, ...]) -> Leaf:
        holds = frozenset(labels)
        promised = [g.name for g in self.engine.gates.values() if g.capability and _Yes(g.name) in holds]
        leaf, denied = self._go(holds, frozenset())
        marks = [*leaf.marks, *self._guards(holds)]
        if leaf.refusal and promised and not leaf.marks:
            sources = (self.engine.gates[promised[0]].source, leaf.refusal.source)
            text = f"{promised[0]} says yes, but the walk ends in a refusal: {leaf.refusal.reason}"
            marks.append(Mark("promise", text, sources))
        if leaf.refusal and denied:
            # What would have come of it, had the capability check let it through?
            beyond, _ = self._go(holds, frozenset(denied))
            if beyond.kernel and not beyond.marks:
                text = f"{denied[0]} says no, but the walk behind it ends in {beyond.kernel}, which can serve it"
                marks.append(Mark("narrow", text, (self.engine.gates[denied[0]].source,)))
        return Leaf(leaf.kernel, leaf.refusal, tuple(dict.fromkeys(marks)))

    def _go(self, holds: frozenset[Hashable], granted: frozenset[str]) -> tuple[Leaf, list[str]]:
        """The end of the walk, and the capability checks that said no on the way."""
        place: Place | None = Place("step", self.engine.start)
        path: list[str] = []
        denied: list[str] = []
        while place is not None and place.kind == "step":
            step = self.engine.steps[place.name]
            path.append(step.name)
            if step.ask:
                yes = _Yes(step.ask) in holds or step.ask in granted
                if not yes and self.engine.gates[step.ask].capability:
                    denied.append(step.ask)
                place = step.yes if yes else step.no
                continue
            taken = [case.to for i, case in enumerate(step.cases) if _Case(step.name, i) in holds]
            if len(taken) != 1:
                kind = "overlap" if taken else "hole"
                text = f"step {step.name}: {len(taken)} cases hold, behind {' -> '.join(path)}"
                return Leaf(marks=(Mark(kind, text, (step.source,)),)), denied
            place = taken[0]
        assert place is not None
        return self._end(place, path, holds), denied

    def _end(self, place: Place, path: list[str], holds: frozenset[Hashable]) -> Leaf:
        source = self.engine.steps[path[-1]].source
        if place.kind == "refuse":
            return Leaf(refusal=Refusal("refused", place.name, source))
        among = self.sets[place.name] if place.kind == "kernels" else [self.named[place.name]]
        able = [k for k in among if _Can(k.name) in holds]
        if len(able) == 1:
            return Leaf(kernel=able[0].name)
        what = f"set {place.name}" if place.kind == "kernels" else place.name
        if able:
            text = f"{' -> '.join(path)} -> {what}: {len(able)} kernels fit: {', '.join(k.name for k in able)}"
            return Leaf(marks=(Mark("overlap", text, (source,)),))
        text = f"reachable path without a kernel: {' -> '.join(path)} -> {what}, which has no kernel for the request"
        return Leaf(marks=(Mark("no_kernel", text, (source,)),))

    def _guards(self, holds: frozenset[Hashable]) -> Iterator[Mark]:
        """Each predicate against the kernels it decides about, for requests in its scope."""
        for gate in self.engine.gates.values():
            if not gate.guards or _Scope(gate.name) not in holds:
                continue
            exists = any(_Can(k.name) in holds for k in self.sets[gate.guards])
            yes = _Yes(gate.name) in holds
            if yes and not exists:
                text = f"{gate.name} says yes, but set {gate.guards} has no kernel for the request"
                yield Mark("lie", text, (gate.source,))
            if exists and not yes:
                text = f"{gate.name} says no, but set {gate.guards} has a kernel for the request"
                yield Mark("narrow", text, (gate.source,))


def _ladders(engine: Engine, diagram: Diagram) -> Iterator[tuple[int, list[tuple[Mark, Witness]]]]:
    assert engine.waste
    rungs: dict[str, frozenset[int]] = {}
    for kernel in engine.kernels:
        if kernel.ladder:
            rungs[kernel.ladder] = rungs.get(kernel.ladder, frozenset()) | {kernel.columns}
    named = {kernel.name: kernel for kernel in engine.kernels}

    def span(node: int) -> ladder.Span | None:
        kernel = named.get(_leaf(diagram, node).kernel or "")
        return ladder.Span(Ints(0, 0), kernel.name, kernel.columns, kernel.ladder) if kernel else None

    for node in ladder.entries(diagram):
        spans = ladder.spans_at(diagram, node, span)
        marks = (
            *ladder.wasted(spans, engine.waste),
            *ladder.bypassed(spans, engine.waste, rungs),
            *ladder.disordered(spans),
        )
        yield node, [(mark, dict(fixed)) for mark, fixed in marks]


def _disagreements(engine: Engine) -> Iterator[GateFinding]:
    """Predicates that guard one set, compared where they can be: on the axes that no scope fixes.

    They may differ where the kernels do (an epilogue that only some have), and nowhere else.
    """
    by_set: dict[str, list[str]] = {}
    for gate in engine.gates.values():
        if gate.guards:
            by_set.setdefault(gate.guards, []).append(gate.name)
    for guarded, names in by_set.items():
        if len(names) < 2:
            continue
        dropped = {axis for name in names for axis in engine.gates[name].scope}
        sides: dict[str, list[Mapping[str, object]]] = {}
        for name in names:
            gate = engine.gates[name]
            can = [box for kernel in engine.kernels if kernel.set == guarded for box in kernel.when]
            sides[f"yes {name}"] = _projected(gate.yes, gate.scope, dropped)
            sides[f"can {name}"] = _projected(can, gate.scope, dropped)
        sources = tuple(engine.gates[name].source for name in names)
        found = compare(engine.space.without(dropped), sides, _verdict(guarded, names, sources))  # type: ignore[arg-type]
        for mark, witness in found.items():
            yield GateFinding(mark.kind, mark.text, mark.sources, witness)


def _projected(boxes: object, scope: Where, dropped: set[str]) -> list[Mapping[str, object]]:
    met = [both for box in boxes if (both := intersect(box, scope)) is not None]  # type: ignore[attr-defined]
    return [{name: condition for name, condition in box.items() if name not in dropped} for box in met]


def _verdict(guarded: str, names: list[str], sources: tuple[str, ...]) -> Callable[[frozenset[str]], Mark | None]:
    def verdict(sides: frozenset[str]) -> Mark | None:
        for exists in (True, False):
            alike = [name for name in names if (f"can {name}" in sides) is exists]
            answers = {name: f"yes {name}" in sides for name in alike}
            if len(set(answers.values())) > 1:
                said = ", ".join(f"{name} says {'yes' if yes else 'no'}" for name, yes in answers.items())
                there = "a kernel" if exists else "no kernel"
                return Mark("disagree", f"about set {guarded}, which has {there} for the request: {said}", sources)
        return None

    return verdict


def _dead(engine: Engine, diagram: Diagram) -> Iterator[GateFinding]:
    reached = {_leaf(diagram, leaf).kernel for leaf in diagram.leaves()}
    for kernel in engine.kernels:
        if kernel.name not in reached:
            witness = next((w for box in kernel.when if (w := first_of(engine.space, box, {}))), None)
            yield GateFinding("dead", f"no walk reaches {kernel.name}", (kernel.source,), witness)
