"""What a class of requests comes to: one kernel, one refusal, or a fault; and marks that say what is wrong there."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from qgen.dispatch.diagram import Diagram
from qgen.dispatch.labels import Claim, Gap, Gate, Refusal
from qgen.dispatch.space import Condition, Ints, Space, Value, order_key


@dataclass(frozen=True)
class Can:
    """In this box the kernel is able to serve, whatever the routes say.

    foreign: though not under the contract that policy "invariant" promises, which is what the box asks for
    """

    kernel: str
    foreign: bool = False


@dataclass(frozen=True)
class Mark:
    """One fault at a leaf or at the questions about T.

    kind:    hole, overlap, outside, narrow, launch, waste, order, contract, ...
    sources: the rows or kernels at fault
    needs:   axes whose value is part of the fault (a launch fault is one of an architecture)
    """

    kind: str
    text: str
    sources: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Leaf:
    """An outcome. kernel: its name, or refusal: its record, or neither where the dispatch is at fault."""

    kernel: str | None = None
    refusal: Refusal | None = None
    marks: tuple[Mark, ...] = ()


class Bench:
    """The judge of the request space. It remembers which rows ever decided something."""

    def __init__(self) -> None:
        self.decided: set[Hashable] = set()

    def __call__(self, labels: tuple[Hashable, ...]) -> Leaf:
        gates = [label for label in labels if isinstance(label, Gate)]
        claims = list(dict.fromkeys(label for label in labels if isinstance(label, Claim)))
        gaps = [label for label in labels if isinstance(label, Gap)]
        cans = [label for label in labels if isinstance(label, Can)]
        able = sorted({can.kernel for can in cans if not can.foreign})
        if gates:
            gate = min(gates, key=lambda g: g.refusal.rank)
            self.decided.add(gate.refusal.source)
            return _refuse(gate.refusal, able)
        # A measured choice stands in for the routes of its box.
        claims = [claim for claim in claims if claim.tuned] or claims
        if not claims and gaps:
            return _refuse(gaps[0].refusal, able)
        self.decided.update(claims)
        if len(claims) == 1:
            return _serve(claims[0], able, foreign=Can(claims[0].kernel, foreign=True) in cans)
        if not claims:
            return Leaf(marks=(Mark("hole", "no gate refuses it and no route claims it"),))
        sources = tuple(sorted({claim.source for claim in claims}))
        return Leaf(marks=(Mark("overlap", f"claimed by {len(claims)} rows at once", sources),))


def _refuse(refusal: Refusal, able: list[str]) -> Leaf:
    marks: list[Mark] = []
    if able and not refusal.deliberate:
        text = f"refused ({refusal.code}) although {able[0]} can serve it: the gate is narrower than the kernel"
        marks.append(Mark("narrow", text, (refusal.source, able[0])))
    if not refusal.reason.strip():
        marks.append(Mark("reason", "refused without a reason", (refusal.source,)))
    return Leaf(refusal=refusal, marks=tuple(marks))


def _serve(claim: Claim, able: list[str], *, foreign: bool) -> Leaf:
    if claim.kernel in able:
        return Leaf(kernel=claim.kernel)
    if foreign:
        text = f"policy invariant is sent to {claim.kernel}, whose contract is not the one promised for the format"
        return Leaf(kernel=claim.kernel, marks=(Mark("contract", text, (claim.source, claim.kernel)),))
    text = f"sent to {claim.kernel}, which cannot serve it"
    return Leaf(kernel=claim.kernel, marks=(Mark("outside", text, (claim.source, claim.kernel)),))


Placed = Mapping[int, Collection[tuple[Mark, Mapping[str, Value]]]]  # node -> marks, each with the part it fixes
Witness = dict[str, Value]


def partial_witnesses(diagram: Diagram, placed: Placed) -> dict[int, dict[Mark, Witness]]:
    """For every node and every mark below it, the part of the smallest request that is decided from there on.

    Smallest: T first, then N, K, then the choices in their order. Bottom up: the values along a path are independent
    of each other, so the smallest of the wholes is made of the smallest of the parts.
    """
    space = diagram.space
    below: dict[int, dict[Mark, Witness]] = {}
    for node in diagram.bottom_up():
        best: dict[Mark, Witness] = {}
        for mark, fixed in placed.get(node, ()):
            _keep(space, best, mark, dict(fixed))
        if not diagram.is_leaf(node):
            name = diagram.graph.nodes[node]["axis"]
            for condition, child in diagram.exits(node):
                for mark, partial in below[child].items():
                    value = smallest(space, name, condition, mark)
                    if value is not None and name not in partial:
                        _keep(space, best, mark, {name: value, **partial})
        below[node] = best
    return below


def witnesses(diagram: Diagram, placed: Placed) -> dict[Mark, Witness]:
    """For every mark the smallest request that meets it."""
    if not any(placed.values()):
        return {}
    found = partial_witnesses(diagram, placed)[diagram.root]
    return {mark: complete(diagram.space, mark, part) for mark, part in found.items()}


def smallest(space: Space, name: str, condition: Condition, mark: Mark) -> Value | None:
    """The least value of a condition, or the one the mark needs; None where it is not among them."""
    if isinstance(condition, Ints):
        return condition.least()
    needed = dict(mark.needs).get(name)
    if needed is not None:
        return needed if needed in condition else None
    return next(value for value in space.axis(name).values if value in condition)


def _keep(space: Space, best: dict[Mark, Witness], mark: Mark, witness: Witness) -> None:
    # Compared over all axes, the open ones at their least: all candidates of a node are filled in alike above it.
    old = best.get(mark)
    if old is None or _rank(space, mark, witness) < _rank(space, mark, old):
        best[mark] = witness


def _rank(space: Space, mark: Mark, witness: Witness) -> tuple[int, ...]:
    return order_key(space, complete(space, mark, witness))


def complete(space: Space, mark: Mark, part: Mapping[str, Value]) -> Witness:
    """The whole request: what the mark needs, and the least of every axis that does not matter."""
    needs = dict(mark.needs)
    return {a.name: part.get(a.name, needs.get(a.name, a.values[0] if a.choice else a.lo)) for a in space.axes}


def spread(diagram: Diagram, axis: str) -> dict[int, frozenset[str]]:
    """For every leaf the values of a choice axis for which some request gets there."""
    whole = frozenset(diagram.space.axis(axis).values)
    values: dict[int, frozenset[str]] = {diagram.root: frozenset()}
    # Top down, `open` marks paths on which the axis has not been asked yet: those carry all values.
    open_: dict[int, bool] = {diagram.root: True}
    for node in reversed(list(diagram.bottom_up())):
        if node not in values or diagram.is_leaf(node):
            continue
        asked = diagram.graph.nodes[node]["axis"] == axis
        for child, edge in diagram.graph.adj[node].items():
            values.setdefault(child, frozenset())
            open_.setdefault(child, False)
            if asked:
                values[child] |= edge["answer"]
            else:
                values[child] |= values[node]
                open_[child] = open_[child] or open_[node]
    return {leaf: whole if open_.get(leaf) else values[leaf] for leaf in diagram.leaves() if leaf in values}
