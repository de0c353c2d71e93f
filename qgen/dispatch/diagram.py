"""From labelled boxes to a decision graph over the whole request space: the engine of every proof.

Each row says in which box of the space its label holds. Two requests in which the same labels hold are the same to
every judge, so the space falls apart into finitely many classes and nothing is sampled. The graph asks about one axis
after the other (choices by value, integers first by divisibility and then by interval) and shares equal parts; a leaf
is what the judge makes of the labels that hold there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx

from qgen.dispatch.space import Axis, Condition, Ints, Space, Value, Where

Judge = Callable[[tuple[Hashable, ...]], Hashable]


@dataclass(frozen=True)
class Row:
    """A box of the space and what holds in it. Axes that `where` does not name are free.

    rank: rows of rank >= 0 are gates: once one is certain, gates of a higher rank do not matter and are left out.
    """

    label: Hashable
    where: Where
    rank: int = -1


@dataclass(frozen=True)
class Step:
    """One question on the way of a request: the axis, the answer that was taken, and the node it leads to."""

    axis: str
    answer: str
    node: int


@dataclass
class Diagram:
    """The decision graph. Nodes are numbers; leaves carry `outcome`, others axis, kind and, to divide, modulus.

    An edge carries `answer`: a frozenset of values (choice), a bool (divides), or a tuple of intervals (range).
    """

    space: Space
    graph: nx.DiGraph
    root: int
    _exits: dict[int, list[tuple[Condition, int]]] = field(default_factory=dict, repr=False)

    def is_leaf(self, node: int) -> bool:
        return "outcome" in self.graph.nodes[node]

    def outcome(self, node: int) -> Hashable:
        """What the judge said at a leaf."""
        outcome: Hashable = self.graph.nodes[node]["outcome"]
        return outcome

    def leaves(self) -> list[int]:
        return [node for node in self.graph if self.is_leaf(node)]

    def next(self, node: int, request: Mapping[str, Value]) -> int:
        """The node one question further. KeyError when the request lacks the axis."""
        value = request[self.graph.nodes[node]["axis"]]
        for child, edge in self.graph.adj[node].items():
            if self._takes(node, edge["answer"], value):
                return int(child)
        raise AssertionError(f"node {node} has no edge for {value!r}: the request was not checked against the space")

    def _takes(self, node: int, answer: object, value: Value) -> bool:
        if isinstance(answer, frozenset):
            return value in answer
        if isinstance(answer, bool):
            return (int(value) % int(self.graph.nodes[node]["modulus"]) == 0) is answer
        assert isinstance(answer, tuple)
        return any(lo <= int(value) <= hi for lo, hi in answer)

    def walk(self, request: Mapping[str, Value]) -> list[Step]:
        """The path of one request, the leaf last."""
        steps, node = [], self.root
        while not self.is_leaf(node):
            axis, child = self.graph.nodes[node]["axis"], self.next(node, request)
            steps.append(Step(axis, self.show_answer(node, child), child))
            node = child
        return steps

    def decide(self, request: Mapping[str, Value]) -> Hashable:
        """The outcome of one request."""
        node = self.root
        while not self.is_leaf(node):
            node = self.next(node, request)
        return self.outcome(node)

    def show_answer(self, node: int, child: int) -> str:
        """The predicate on an edge, as a person reads it."""
        data, answer = self.graph.nodes[node], self.graph.edges[node, child]["answer"]
        axis = self.space.axis(data["axis"])
        if isinstance(answer, frozenset):
            return show_names(axis, answer)
        if isinstance(answer, bool):
            return f"{axis.name} % {data['modulus']} {'==' if answer else '!='} 0"
        spans = ", ".join(show_span(axis, lo, hi) for lo, hi in answer)
        return f"{axis.name} {spans}"

    def exits(self, node: int) -> list[tuple[Condition, int]]:
        """Every way through the questions about one axis that start at `node`: the condition, and where it leads."""
        if node not in self._exits:
            self._exits[node] = list(self._ways(node))
        return self._exits[node]

    def _ways(self, node: int) -> Iterator[tuple[Condition, int]]:
        axis = self.space.axis(self.graph.nodes[node]["axis"])
        if axis.choice:
            for child, edge in self.graph.adj[node].items():
                yield edge["answer"], child
            return
        stack = [(node, Ints(axis.lo, axis.hi))]
        while stack:
            at, ints = stack.pop()
            data = self.graph.nodes[at]
            if data.get("axis") != axis.name:
                if ints.least() is not None:
                    yield ints, at
                continue
            for child, edge in self.graph.adj[at].items():
                answer = edge["answer"]
                if answer is True:
                    stack.append((child, Ints(ints.lo, ints.hi, ints.multiple | {data["modulus"]}, ints.indivisible)))
                elif answer is False:
                    stack.append((child, Ints(ints.lo, ints.hi, ints.multiple, ints.indivisible | {data["modulus"]})))
                else:
                    stack += [(child, ints.meet(Ints(lo, hi))) for lo, hi in answer]

    def bottom_up(self) -> Iterator[int]:
        """Every node after all nodes it leads to."""
        yield from reversed(list(nx.topological_sort(self.graph)))

    def boxes(self) -> Iterator[tuple[dict[str, Condition], Hashable]]:
        """The whole space as disjoint boxes with their outcomes: the graph's paths. Axes not asked are left out."""
        stack: list[tuple[int, dict[str, Condition]]] = [(self.root, {})]
        while stack:
            node, where = stack.pop()
            if self.is_leaf(node):
                yield where, self.outcome(node)
                continue
            name = self.graph.nodes[node]["axis"]
            for condition, child in reversed(self.exits(node)):
                stack.append((child, {**where, name: condition}))


def show_names(axis: Axis, names: frozenset[str]) -> str:
    """A set of values, by what is missing where that is shorter."""
    ordered = [value for value in axis.values if value in names]
    missing = [value for value in axis.values if value not in names]
    if len(ordered) == 1:
        return f"{axis.name} = {ordered[0]}"
    if not missing:
        return f"any {axis.name}"
    if len(missing) < len(ordered):
        return f"{axis.name} other than {', '.join(missing)}"
    return f"{axis.name} one of {', '.join(ordered)}"


def show_span(axis: Axis, lo: int, hi: int) -> str:
    """An interval, without the ends of the axis."""
    if lo == hi:
        return f"= {lo}"
    if lo == axis.lo and hi == axis.hi:
        return "any"
    return f">= {lo}" if hi == axis.hi else f"<= {hi}" if lo == axis.lo else f"in {lo}..{hi}"


def build(space: Space, rows: Sequence[Row], judge: Judge) -> Diagram:
    """The decision graph of `rows` over all of `space`."""
    return _Builder(space, rows, judge).run()


class _Builder:
    def __init__(self, space: Space, rows: Sequence[Row], judge: Judge) -> None:
        self.space, self.rows, self.judge = space, rows, judge
        self.graph: nx.DiGraph = nx.DiGraph()
        self.unique: dict[Hashable, int] = {}
        self.memo: dict[Hashable, int] = {}
        position = {axis.name: i for i, axis in enumerate(space.axes)}
        self.last = [max((position[name] for name in row.where), default=-1) for row in rows]
        self.gates = sum(1 << i for i, row in enumerate(rows) if row.rank >= 0)
        self.masks = [self._value_masks(axis) if axis.choice else {} for axis in space.axes]
        self.ranges = [{} if axis.choice else self._ranges(axis) for axis in space.axes]
        self.ranged = [sum(1 << i for i in ranges) for ranges in self.ranges]

    def _value_masks(self, axis: Axis) -> dict[str, int]:
        """Per value of a choice axis, the rows that hold for it."""
        masks = dict.fromkeys(axis.values, 0)
        for i, row in enumerate(self.rows):
            condition = row.where.get(axis.name)
            for value in axis.values if condition is None else masks.keys() & condition:  # type: ignore[operator]
                masks[value] |= 1 << i
        return masks

    def _ranges(self, axis: Axis) -> dict[int, tuple[Ints, int, int]]:
        """By row its condition on an integer axis, and from where to where it holds, the end not included."""
        made = {}
        for i, row in enumerate(self.rows):
            if isinstance(c := row.where.get(axis.name), Ints):
                made[i] = c, max(axis.lo, min(c.lo, axis.hi + 1)), max(axis.lo, min(c.hi + 1, axis.hi + 1))
        return made

    def run(self) -> Diagram:
        return Diagram(self.space, self.graph, root=self._axis(0, (1 << len(self.rows)) - 1))

    def _axis(self, position: int, alive: int) -> int:
        alive = self._prune(position, alive)
        key = (position, alive)
        if key not in self.memo:
            if position == len(self.space.axes):
                outcome = self.judge(tuple(self.rows[i].label for i in _bits(alive)))
                self.memo[key] = self._node(("leaf", outcome), {"outcome": outcome})
            elif self.space.axes[position].choice:
                self.memo[key] = self._choice(position, alive)
            else:
                self.memo[key] = self._integer(position, alive, frozenset(), frozenset())
        return self.memo[key]

    def _prune(self, position: int, alive: int) -> int:
        """Drop the gates behind one that is certain: whatever they say, it comes first."""
        first = min((self.rows[i].rank for i in _bits(alive & self.gates) if self.last[i] < position), default=None)
        if first is None:
            return alive
        return alive & ~sum(1 << i for i in _bits(alive & self.gates) if self.rows[i].rank > first)

    def _choice(self, position: int, alive: int) -> int:
        axis = self.space.axes[position]
        groups: dict[int, list[str]] = {}
        for value in axis.values:
            groups.setdefault(alive & self.masks[position][value], []).append(value)
        answers: dict[int, frozenset[str]] = {}
        for mask, values in groups.items():
            child = self._axis(position + 1, mask)
            answers[child] = answers.get(child, frozenset()) | frozenset(values)
        return self._inner("choice", axis.name, 0, answers)

    def _integer(self, position: int, alive: int, multiple: frozenset[int], indivisible: frozenset[int]) -> int:
        """Ask one open question of divisibility, or, when none is left, about the interval."""
        axis = self.space.axes[position]
        conditions = [(i, self.ranges[position][i][0]) for i in _bits(alive & self.ranged[position])]
        moduli = {m for _, c in conditions for m in c.multiple | c.indivisible} - multiple - indivisible
        if not moduli:
            return self._range(position, alive, Ints(axis.lo, axis.hi, multiple, indivisible))
        m = max(moduli)
        answers: dict[int, bool] = {}
        for holds in (True, False):
            inside = multiple | {m} if holds else multiple
            outside = indivisible if holds else indivisible | {m}
            if Ints(axis.lo, axis.hi, inside, outside).least() is None:
                continue
            lost = sum(1 << i for i, c in conditions if m in (c.indivisible if holds else c.multiple))
            answers[self._integer(position, alive & ~lost, inside, outside)] = holds
        return self._inner("divides", axis.name, m, answers)

    def _range(self, position: int, alive: int, inside: Ints) -> int:
        axis = self.space.axes[position]
        # Rows by the cut behind their last value, and by that of their first: which ones an interval loses.
        begin: dict[int, int] = {}
        ended: dict[int, int] = {}
        lost = alive & self.ranged[position]
        for i in _bits(lost):
            _, lo, end = self.ranges[position][i]
            if lo < end:
                begin[lo] = begin.get(lo, 0) | 1 << i
                ended[end] = ended.get(end, 0) | 1 << i
        cuts = {axis.lo, axis.hi + 1, *begin, *ended}
        ordered = sorted(cuts)
        spans: list[list[int]] = []  # lo, hi, child
        whole = not inside.multiple and not inside.indivisible
        for lo, end in zip(ordered, ordered[1:], strict=False):
            lost = lost & ~begin.get(lo, 0) | ended.get(lo, 0)
            if not whole and inside.meet(Ints(lo, end - 1)).least() is None:
                # Nothing there has the divisibility asked before: the interval can go with a neighbour.
                if spans:
                    spans[-1][1] = end - 1
                continue
            child = self._axis(position + 1, alive & ~lost)
            if spans and spans[-1][2] == child:
                spans[-1][1] = end - 1
            else:
                spans.append([lo if spans else axis.lo, end - 1, child])
        answers: dict[int, tuple[tuple[int, int], ...]] = {}
        for lo, hi, child in spans:
            answers[child] = (*answers.get(child, ()), (lo, hi))
        return self._inner("range", axis.name, 0, answers)

    def _inner(self, kind: str, axis: str, modulus: int, answers: Mapping[int, object]) -> int:
        if len(answers) == 1:
            return next(iter(answers))
        key = (kind, axis, modulus, tuple(sorted(answers.items(), key=lambda item: item[0])))
        data = {"axis": axis, "kind": kind, **({"modulus": modulus} if modulus else {})}
        fresh = key not in self.unique
        node = self._node(key, data)
        if fresh:
            for child, answer in answers.items():
                self.graph.add_edge(node, child, answer=answer)
        return node

    def _node(self, key: Hashable, data: dict[str, object]) -> int:
        if key not in self.unique:
            self.unique[key] = len(self.unique)
            self.graph.add_node(self.unique[key], **data)
        return self.unique[key]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
