"""The words of a condition in a routes or gates file: names, intervals, divisors, and the facts they may refer to."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass

from qgen.dispatch.kernels import Facts
from qgen.dispatch.reader import Entry, is_int
from qgen.dispatch.space import Axis, Condition, Ints, Space, check_choice
from qgen.spec.reader import close, listed

_TERM = re.compile(r"([a-z][a-z0-9_]*)(?:\s*([+-])\s*(\d+))?")
_INT_KEYS = ("range", "multiple_of", "not_multiple_of")
OWN, PLANNED, PLANNED_FLOATS = "own", "planned", "planned_floats"


@dataclass(frozen=True)
class Words:
    """What names stand for while the conditions of one row are read for one format.

    A format without kernels has no planned storage that it could be held to: another gate refuses it.
    """

    space: Space
    facts: Facts | None = None
    planned: frozenset[str] | None = None

    def conditions(self, entry: Entry, skip: tuple[str, ...] = ()) -> dict[str, Condition]:
        """The conditions of a table whose keys are axes. Raises QgenError for an unknown axis, name or number."""
        known = self.space.names
        where: dict[str, Condition] = {}
        for key in entry.data:
            if key in skip:
                continue
            if key not in known:
                entry.refuse(key, f"no axis {key!r}{close(key, known)}", listed(known))
            axis = self.space.axis(key)
            where[key] = self._choice(entry, key, axis) if axis.choice else self.integers(entry, key, axis)
        return where

    def _choice(self, entry: Entry, key: str, axis: Axis) -> Condition:
        value = entry.data[key]
        if value == PLANNED and key == "format" and self.planned is not None:
            return self.planned
        if value == OWN and key == "activation" and self.facts is not None:
            own = self.facts.activation
            return check_choice(entry, key, axis, [own] if own else [])
        if value == PLANNED and key == "activation" and self.facts is not None:
            return check_choice(entry, key, axis, [*self.facts.taken])
        if value == PLANNED and key == "storage" and self.facts is not None:
            return check_choice(entry, key, axis, self.facts.stored or axis.values)
        if value == PLANNED_FLOATS and key == "storage" and self.facts is not None:
            # A storage that no kernel of the format reads is for the gate that asks for a planned one.
            only = {*self.facts.stored} - {*self.facts.stored_floats} if self.facts.stored_floats else set()
            return check_choice(entry, key, axis, [name for name in axis.values if name not in only])
        if isinstance(value, str):
            allowed = {
                "format": f' or "{PLANNED}"',
                "activation": f', "{OWN}" or "{PLANNED}"',
                "storage": f', "{PLANNED}" or "{PLANNED_FLOATS}"',
            }
            words = allowed if self.planned else {}
            entry.refuse(key, repr(value), f"a list of {listed(axis.values)}{words.get(key, '')}")
        return check_choice(entry, key, axis, entry.texts(key))

    def integers(self, entry: Entry, key: str, axis: Axis) -> Ints:
        """[least, largest], or { range, multiple_of, not_multiple_of } with any of the three."""
        value = entry.data[key]
        inner = entry.table(key, _INT_KEYS) if isinstance(value, dict) else None
        if inner is None:
            lo, hi = self.interval(entry, key, axis)
            return Ints(lo, hi)
        lo, hi = self.interval(inner, "range", axis) if "range" in inner.data else (axis.lo, axis.hi)
        divisors = {name: self._divisor(inner, name, axis) for name in _INT_KEYS[1:] if name in inner.data}
        return Ints(lo, hi, frozenset(divisors.get("multiple_of", ())), frozenset(divisors.get("not_multiple_of", ())))

    def _divisor(self, entry: Entry, key: str, axis: Axis) -> set[int]:
        value = self.number(entry, key, entry.data[key], axis)
        if value < 1 or (value == 1 and key == "not_multiple_of"):
            entry.refuse(key, f"{value}", "a divisor of 1 or more (2 or more for not_multiple_of)")
        return {value} - {1}

    def interval(self, entry: Entry, key: str, axis: Axis) -> tuple[int, int]:
        """[least, largest] on an axis. Raises QgenError for one that runs backwards or leaves the axis."""
        value = entry.data[key]
        if not isinstance(value, list) or len(value) != 2:
            entry.refuse(key, repr(value), "[least, largest]")
        lo, hi = (self.number(entry, key, item, axis) for item in value)
        if lo > hi:
            entry.refuse(key, f"{value}: {lo} > {hi}, the interval runs backwards", "[least, largest]")
        if lo < axis.lo or hi > axis.hi:
            entry.refuse(key, f"{value}", f"within the limits of {axis.name}: {axis.lo}..{axis.hi}")
        return lo, hi

    def number(self, entry: Entry, key: str, value: object, axis: Axis | None = None) -> int:
        """An integer, "max" (the axis' end), or a fact of the format, plus or minus an integer."""
        if is_int(value):
            return int(value)  # type: ignore[call-overload, no-any-return]
        facts = self.facts.numbers if self.facts else {}
        known: dict[str, int] = {**facts, **({"max": axis.hi, "min": axis.lo} if axis else {})}
        match = _TERM.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1] not in known:
            hint = close(match[1], known) if match else ""
            entry.refuse(key, f"{value!r}{hint}", f'an integer, or one of {listed(known)}, also with "+ 1" behind it')
        return known[match[1]] + (int(f"{match[2]}{match[3]}") if match[2] else 0)


def fill(entry: Entry, key: str, words: Mapping[str, object]) -> str:
    """The text of `key` with {word} replaced. Raises QgenError for a word there is not."""
    text = entry.text(key)
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        entry.refuse(key, f"{text!r}: {error}", "{word} in braces, others doubled")
    for name in names:
        if name not in words:
            entry.refuse(key, f"{{{name}}}{close(name, words)}", listed(words))
    return text.format_map(words)
