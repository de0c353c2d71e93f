"""One request, explained: the way through the graph, what it comes to, and why the neighbours were not taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qgen.dispatch.diagram import Diagram, show_names, show_span
from qgen.dispatch.emission import kernel_facts
from qgen.dispatch.judge import Leaf
from qgen.dispatch.labels import Claim
from qgen.dispatch.proof import Proof
from qgen.dispatch.request import Request
from qgen.dispatch.routes import Routes
from qgen.dispatch.space import Axis, Condition, Ints, Value, Where, holds
from qgen.dispatch.table import checked

_SHOWN = 3  # outcomes named behind an answer that was not taken


@dataclass(frozen=True)
class Turn:
    """One question on the way. others: the answers not taken, with what lies behind each."""

    axis: str
    answer: str
    others: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Neighbour:
    """Another way to be served. kernel: its name; because: what keeps this request from it."""

    kernel: str
    because: str


@dataclass(frozen=True)
class Explanation:
    """What `qgen explain` prints. source: the row that decided."""

    request: dict[str, Value]
    leaf: Leaf
    source: str
    turns: tuple[Turn, ...]
    neighbours: tuple[Neighbour, ...]
    kernel: dict[str, Any]

    def json(self) -> dict[str, Any]:
        """For programs."""
        refusal = self.leaf.refusal
        return {
            "request": self.request,
            "kernel": self.kernel or None,
            "refusal": {"code": refusal.code, "reason": refusal.reason} if refusal else None,
            "decided_by": self.source,
            "path": [{"axis": t.axis, "answer": t.answer, "others": dict(t.others)} for t in self.turns],
            "neighbours": [{"kernel": n.kernel, "because": n.because} for n in self.neighbours],
        }


def explain(proof: Proof, routes: Routes, request: Request) -> Explanation:
    """Explain one request. Raises QgenError (stage "dispatch") where it lies outside the request space."""
    values = checked(proof.space, request.values())
    diagram = proof.diagram
    leaf = diagram.decide(values)
    assert isinstance(leaf, Leaf)
    kernel = next((k for k in proof.catalog.kernels if k.name == leaf.kernel), None)
    return Explanation(
        request=values,
        leaf=leaf,
        source=_source(routes, leaf, values),
        turns=tuple(_turns(diagram, values)),
        neighbours=tuple(_rivals(proof, routes, leaf, values) if leaf.kernel else _nearest(proof, values)),
        kernel=kernel_facts(kernel) if kernel else {},
    )


def _source(routes: Routes, leaf: Leaf, values: Mapping[str, Value]) -> str:
    """The row that decided; a measured choice stands before the route it replaces."""
    if leaf.refusal:
        return leaf.refusal.source
    claims = [
        r.label
        for r in routes.rows
        if isinstance(r.label, Claim) and r.label.kernel == leaf.kernel and _in(r.where, values)
    ]
    return next((c.source for c in sorted(claims, key=lambda c: not c.tuned)), "")


def _in(where: Where, values: Mapping[str, Value]) -> bool:
    return all(holds(condition, values[name]) for name, condition in where.items())


def _turns(diagram: Diagram, values: Mapping[str, Value]) -> Iterator[Turn]:
    node = diagram.root
    while not diagram.is_leaf(node):
        child = diagram.next(node, values)
        others = tuple(
            (diagram.show_answer(node, other), _behind(diagram, other))
            for other in diagram.graph.adj[node]
            if other != child
        )
        yield Turn(diagram.graph.nodes[node]["axis"], diagram.show_answer(node, child), others)
        node = child


def _behind(diagram: Diagram, node: int) -> str:
    """What lies behind an answer: some of its outcomes, and how many more."""
    stack, seen, names = [node], {node}, []
    while stack:
        at = stack.pop()
        if diagram.is_leaf(at):
            names.append(name_of(diagram.outcome(at)))
            continue
        for child in diagram.graph.adj[at]:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    # Kernels before refusals: whoever asks wants to be served.
    ordered = sorted(set(names), key=lambda name: (name.startswith("refused"), name))
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def name_of(outcome: object) -> str:
    """An outcome in a word or two."""
    assert isinstance(outcome, Leaf)
    if outcome.kernel:
        return outcome.kernel
    return f"refused ({outcome.refusal.code})" if outcome.refusal else "a fault: see qgen check-dispatch"


def _rivals(proof: Proof, routes: Routes, leaf: Leaf, values: Mapping[str, Value]) -> Iterator[Neighbour]:
    """The other kernels of the same op and format, with the conditions of their rows that the request misses."""
    claims: dict[str, list[Where]] = {}
    for row in routes.rows:
        if isinstance(row.label, Claim) and row.label.kernel != leaf.kernel:
            if all(holds(row.where[name], values[name]) for name in ("op", "format")):
                claims.setdefault(row.label.kernel, []).append(row.where)
    for kernel, boxes in claims.items():
        missed = min(([*_missed(proof, where, values)] for where in boxes), key=len)
        # Nothing missed and yet not taken: a measured choice has replaced the row here.
        yield Neighbour(kernel, "; ".join(missed) or "a measured choice replaces its row here")


def _missed(proof: Proof, where: Where, values: Mapping[str, Value]) -> Iterator[str]:
    for axis in proof.space.axes:
        condition = where.get(axis.name)
        if condition is not None and not holds(condition, values[axis.name]):
            yield f"needs {show_condition(axis, condition)}, not {values[axis.name]}"


def show_condition(axis: Axis, condition: Condition) -> str:
    """A condition on one axis, as a person reads it."""
    if isinstance(condition, frozenset):
        return show_names(axis, condition)
    parts = []
    if (condition.lo, condition.hi) != (axis.lo, axis.hi):
        parts.append(f"{axis.name} {show_span(axis, condition.lo, condition.hi)}")
    parts += [f"{axis.name} % {m} == 0" for m in sorted(condition.multiple)]
    parts += [f"{axis.name} % {m} != 0" for m in sorted(condition.indivisible)]
    return " and ".join(parts) or f"any {axis.name}"


def _nearest(proof: Proof, values: Mapping[str, Value]) -> Iterator[Neighbour]:
    """For a refused request: the served requests of the same op and format that change the fewest axes."""
    found: list[tuple[int, int, str, str]] = []
    for where, outcome in proof.diagram.boxes():
        if not isinstance(outcome, Leaf) or not outcome.kernel:
            continue
        if not all(name not in where or holds(where[name], values[name]) for name in ("op", "format")):
            continue
        changes: list[str] = []
        far = 0
        for axis in proof.space.axes:
            condition = where.get(axis.name)
            if condition is not None and not holds(condition, values[axis.name]):
                value, distance = _closest(axis, condition, values[axis.name])
                changes.append(f"{axis.name} = {value}")
                far += distance
        found.append((len(changes), far, outcome.kernel, ", ".join(changes)))
    fewest = min((count for count, *_ in found), default=0)
    for count, _, kernel, with_these in sorted(found):
        if count == fewest:
            yield Neighbour(kernel, f"it would serve this request with {with_these}")
            return


def _closest(axis: Axis, condition: Condition, value: Value) -> tuple[Value, int]:
    """The allowed value nearest to `value`, and how far away it is."""
    if isinstance(condition, frozenset):
        return next(name for name in axis.values if name in condition), 0
    x = int(value)
    above = Ints(max(condition.lo, x), condition.hi, condition.multiple, condition.indivisible).least()
    below = _greatest(condition, x)
    options = [option for option in (below, above) if option is not None]
    best = min(options, key=lambda option: abs(option - x), default=x)
    return best, abs(best - x)


def _greatest(ints: Ints, limit: int) -> int | None:
    """The largest member up to `limit`, by mirroring: -x is divisible by what x is."""
    mirrored = Ints(-min(ints.hi, limit), -ints.lo, ints.multiple, ints.indivisible).least()
    return None if mirrored is None else -mirrored
