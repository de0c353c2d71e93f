"""Boxes that lie side by side and come to the same become one box: fewer, more readable rows for the same answer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from qgen.dispatch.space import Axis, Condition, Ints, Space

Outcome = TypeVar("Outcome", bound=Hashable)
Box = dict[str, Condition]


def merged(space: Space, boxes: Iterable[tuple[Box, Outcome]]) -> list[tuple[Box, Outcome]]:
    """The same partition of the space with neighbours joined, axis by axis, until nothing changes."""
    rows = list(boxes)
    while True:
        before = len(rows)
        for axis in reversed(space.axes):
            rows = _along(axis, rows)
        if len(rows) == before:
            return rows


def _along(axis: Axis, rows: list[tuple[Box, Outcome]]) -> list[tuple[Box, Outcome]]:
    groups: dict[Hashable, list[tuple[Box, Outcome]]] = {}
    for where, outcome in rows:
        rest = frozenset((name, condition) for name, condition in where.items() if name != axis.name)
        groups.setdefault((rest, outcome), []).append((where, outcome))
    joined: list[tuple[Box, Outcome]] = []
    for group in groups.values():
        if len(group) == 1:
            joined += group
            continue
        where, outcome = group[0]
        for condition in _union(axis, [w.get(axis.name, axis.whole) for w, _ in group]):
            rest_of = {name: c for name, c in where.items() if name != axis.name}
            joined.append((rest_of if condition == axis.whole else {**rest_of, axis.name: condition}, outcome))
    return joined


def _union(axis: Axis, conditions: list[Condition]) -> list[Condition]:
    if axis.choice:
        return [frozenset().union(*(c for c in conditions if isinstance(c, frozenset)))]
    ints = [c for c in conditions if isinstance(c, Ints)]
    return [*_residues(_neighbours(ints))]


def _neighbours(ints: list[Ints]) -> list[Ints]:
    """Join intervals that touch and ask for the same divisibility."""
    found: list[Ints] = []
    for c in sorted(ints, key=lambda c: (sorted(c.multiple), sorted(c.indivisible), c.lo)):
        last = found[-1] if found else None
        if last and (last.multiple, last.indivisible, last.hi + 1) == (c.multiple, c.indivisible, c.lo):
            found[-1] = Ints(last.lo, c.hi, c.multiple, c.indivisible)
        else:
            found.append(c)
    return found


def _residues(ints: list[Ints]) -> list[Ints]:
    """Join the multiples of m with the rest of the same interval."""
    found = list(ints)
    for c in ints:
        for m in sorted(c.multiple):
            rest = Ints(c.lo, c.hi, c.multiple - {m}, c.indivisible | {m})
            if c in found and rest in found:
                found = [other for other in found if other not in (c, rest)]
                found.append(Ints(c.lo, c.hi, c.multiple - {m}, c.indivisible))
    return found
