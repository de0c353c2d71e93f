"""Boxes that lie side by side and come to the same become one box: fewer, more readable rows for the same answer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from qgen.dispatch.space import Condition, Ints, Space

Outcome = TypeVar("Outcome", bound=Hashable)
Box = dict[str, Condition]


def merged(space: Space, boxes: Iterable[tuple[Box, Outcome]]) -> list[tuple[Box, Outcome]]:
    """The same partition of the space with neighbours joined, axis by axis, until nothing changes."""
    # Conditions are compared by number: one hash of a long set of names, and not one a comparison.
    numbers: dict[Condition, int] = {}
    known: list[Condition] = []

    def number(condition: Condition) -> int:
        if condition not in numbers:
            numbers[condition] = len(known)
            known.append(condition)
        return numbers[condition]

    wholes = [axis.whole for axis in space.axes]
    rows = [
        (tuple(number(where.get(a.name, whole)) for a, whole in zip(space.axes, wholes, strict=True)), to)
        for where, to in boxes
    ]
    while True:
        before = len(rows)
        for at in reversed(range(len(space.axes))):
            groups: dict[tuple[tuple[int, ...], Outcome], list[int]] = {}
            for row, to in rows:
                groups.setdefault(((*row[:at], *row[at + 1 :]), to), []).append(row[at])
            rows = [
                ((*rest[:at], joined, *rest[at:]), to)
                for (rest, to), parts in groups.items()
                for joined in (parts if len(parts) == 1 else map(number, _union([known[part] for part in parts])))
            ]
        if len(rows) == before:
            break
    named = [(axis.name, number(whole)) for axis, whole in zip(space.axes, wholes, strict=True)]
    return [
        ({name: known[part] for (name, whole), part in zip(named, row, strict=True) if part != whole}, to)
        for row, to in rows
    ]


def _union(conditions: list[Condition]) -> list[Condition]:
    ints = [c for c in conditions if isinstance(c, Ints)]
    if ints:
        return [*_residues(_neighbours(ints))]
    return [frozenset().union(*(c for c in conditions if isinstance(c, frozenset)))]


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
