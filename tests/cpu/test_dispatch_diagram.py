"""The engine of the proofs against brute force: every class found, every witness smallest, every partition exact."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgen.dispatch.diagram import Diagram, Row, build
from qgen.dispatch.judge import Leaf, Mark, spread, witnesses
from qgen.dispatch.labels import Waste
from qgen.dispatch.ladder import Span, flagged, worst
from qgen.dispatch.merge import merged
from qgen.dispatch.space import Axis, Condition, Ints, Space, Value, holds, order_key

SPACE = Space(
    (
        Axis("op", "", ("x", "y")),
        Axis("format", "", ("A", "B", "C")),
        Axis("K", "", lo=1, hi=40),
        Axis("T", "", lo=1, hi=9),
    )
)


def everything() -> Iterator[dict[str, Value]]:
    sides: list[Sequence[Value]] = [axis.values if axis.choice else range(axis.lo, axis.hi + 1) for axis in SPACE.axes]
    for values in itertools.product(*sides):
        yield dict(zip(SPACE.names, values, strict=True))


def ints(hi: int) -> st.SearchStrategy[Ints]:
    divisors = st.frozensets(st.sampled_from([2, 3, 4, 6]), max_size=2)
    return st.builds(
        lambda a, b, multiple, indivisible: Ints(min(a, b), max(a, b), multiple, indivisible),
        st.integers(-2, hi + 3),
        st.integers(-2, hi + 3),
        divisors,
        divisors,
    )


CONDITIONS: dict[str, st.SearchStrategy[Condition]] = {
    "op": st.frozensets(st.sampled_from(["x", "y"])),
    "format": st.frozensets(st.sampled_from(["A", "B", "C"])),
    "K": ints(40),
    "T": ints(9),
}
WHERE = st.fixed_dictionaries({}, optional=CONDITIONS)
ROWS = st.lists(WHERE, max_size=5)


def labels_of(labels: tuple[Hashable, ...]) -> Hashable:
    return labels


def alive(rows: list[Row], request: dict[str, Value]) -> tuple[Hashable, ...]:
    return tuple(row.label for row in rows if all(holds(c, request[name]) for name, c in row.where.items()))


def diagram_of(boxes: list[dict[str, Condition]]) -> tuple[Diagram, list[Row]]:
    rows = [Row(i, where) for i, where in enumerate(boxes)]
    return build(SPACE, rows, labels_of), rows


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_every_request_gets_what_its_rows_say(boxes: list[dict[str, Condition]]) -> None:
    diagram, rows = diagram_of(boxes)
    for request in everything():
        assert diagram.decide(request) == alive(rows, request)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_boxes_and_merged_boxes_are_partitions(boxes: list[dict[str, Condition]]) -> None:
    diagram, rows = diagram_of(boxes)
    split = [*diagram.boxes()]
    joined = merged(SPACE, split)
    assert len(joined) <= len(split)
    for request in everything():
        for parts in (split, joined):
            found = [to for where, to in parts if all(holds(c, request[name]) for name, c in where.items())]
            assert found == [alive(rows, request)]


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_witnesses_are_the_smallest(boxes: list[dict[str, Condition]]) -> None:
    diagram, rows = diagram_of(boxes)
    marks = {leaf: Mark("m", str(diagram.outcome(leaf))) for leaf in diagram.leaves()}
    found = witnesses(diagram, {leaf: [(mark, {})] for leaf, mark in marks.items()})
    smallest: dict[Hashable, dict[str, Value]] = {}
    for request in everything():
        key = str(alive(rows, request))
        if key not in smallest or order_key(SPACE, request) < order_key(SPACE, smallest[key]):
            smallest[key] = request
    assert {mark.text: witness for mark, witness in found.items()} == smallest


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["op", "format"]))
def test_spread_names_every_value_that_leads_there(boxes: list[dict[str, Condition]], axis: str) -> None:
    diagram, rows = diagram_of(boxes)
    expected: dict[Hashable, set[Value]] = {}
    for request in everything():
        expected.setdefault(alive(rows, request), set()).add(request[axis])
    assert {diagram.outcome(leaf): set(values) for leaf, values in spread(diagram, axis).items()} == expected


@settings(max_examples=60, deadline=None)
@given(ROWS, st.lists(st.integers(0, 4), min_size=5, max_size=5))
def test_gates_behind_a_certain_one_change_nothing(boxes: list[dict[str, Condition]], ranks: list[int]) -> None:
    def first(labels: tuple[Hashable, ...]) -> Hashable:
        return min((str(label) for label in labels), default="none")

    plain = [Row(rank, where) for where, rank in zip(boxes, ranks, strict=False)]
    gates = [Row(row.label, row.where, int(str(row.label))) for row in plain]
    one, other = build(SPACE, plain, first), build(SPACE, gates, first)
    for request in everything():
        assert one.decide(request) == other.decide(request)


@settings(max_examples=200, deadline=None)
@given(ints(300))
def test_least_is_the_least(condition: Ints) -> None:
    members = [x for x in range(condition.lo, condition.hi + 1) if x in condition]
    assert condition.least() == (members[0] if members else None)


def test_equal_parts_are_shared() -> None:
    """The same question below two formats is one node."""
    rows = [Row("t", {"T": Ints(1, 1)})]
    diagram = build(SPACE, rows, labels_of)
    assert diagram.graph.number_of_nodes() == 3


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(0, 300),
    st.integers(1, 16),
    st.floats(1.01, 20.0, allow_nan=False),
)
def test_waste_is_solved_exactly(columns: int, lo: int, more: int, least: int, bound: float) -> None:
    limit = Waste(least, bound)
    found = [t for a, b, _ in flagged(Span(Ints(lo, lo + more), "k", columns), limit) for t in range(a, b + 1)]
    computed = {t: -(-t // columns) * columns for t in range(lo, lo + more + 1)}
    assert found == [t for t, n in computed.items() if n > max(least, bound * t)]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 200))
def test_the_worst_of_a_rung_is_the_worst(columns: int, lo: int, more: int) -> None:
    ratios = {t: -(-t // columns) * columns / t for t in range(lo, lo + more + 1)}
    ratio, t = worst(columns, Ints(lo, lo + more))
    assert ratio == ratios[t] == max(ratios.values())


def test_a_leaf_keeps_its_marks_apart() -> None:
    assert Leaf(marks=(Mark("hole", ""),)) != Leaf(marks=(Mark("overlap", ""),))


@pytest.mark.parametrize("value", ["A", "B"])
def test_a_restricted_space_asks_less(value: str) -> None:
    part = SPACE.restrict({"format": value})
    diagram = build(part, [Row("a", {"format": frozenset({"A"})})], labels_of)
    assert diagram.graph.number_of_nodes() == 1
    with pytest.raises(KeyError):
        SPACE.restrict({"colour": "red"})
