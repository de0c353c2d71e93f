"""The request space as data: its axes, conditions on them, and the smallest request that meets a set of conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import lcm
from pathlib import Path

from qgen.dispatch.reader import Entry, read
from qgen.paths import data_dir
from qgen.spec.reader import close, listed

Value = str | int


@dataclass(frozen=True)
class Ints:
    """A condition on an integer axis: lo <= x <= hi, a multiple of each of `multiple`, of none of `indivisible`."""

    lo: int
    hi: int
    multiple: frozenset[int] = frozenset()
    indivisible: frozenset[int] = frozenset()

    def __contains__(self, x: int) -> bool:
        return (
            self.lo <= x <= self.hi
            and all(x % m == 0 for m in self.multiple)
            and all(x % m != 0 for m in self.indivisible)
        )

    def least(self) -> int | None:
        """The smallest member, or None when there is none."""
        return _least(self)

    def meet(self, other: Ints) -> Ints:
        """The condition that asks for both."""
        return Ints(
            max(self.lo, other.lo),
            min(self.hi, other.hi),
            self.multiple | other.multiple,
            self.indivisible | other.indivisible,
        )

    def __str__(self) -> str:
        parts = [f"{self.lo}..{self.hi}" if self.lo != self.hi else str(self.lo)]
        parts += [f"a multiple of {m}" for m in sorted(self.multiple)]
        parts += [f"no multiple of {m}" for m in sorted(self.indivisible)]
        return ", ".join(parts)


@cache
def _least(ints: Ints) -> int | None:
    step = lcm(*ints.multiple)
    if any(step % m == 0 for m in ints.indivisible):
        return None
    # Every residue 1 modulo the lcm of `indivisible` passes, so the search ends soon where hi lets it.
    x = -(-ints.lo // step) * step
    while x <= ints.hi:
        if all(x % m != 0 for m in ints.indivisible):
            return x
        x += step
    return None


Condition = frozenset[str] | Ints


def holds(condition: Condition, value: Value) -> bool:
    """Whether a value meets a condition of its own kind (a name a set, an integer an Ints)."""
    return int(value) in condition if isinstance(condition, Ints) else str(value) in condition


Where = Mapping[str, Condition]  # axes that are not named are free


@dataclass(frozen=True)
class Axis:
    """One axis: a choice among `values`, or (values empty) an integer from lo to hi."""

    name: str
    doc: str
    values: tuple[str, ...] = ()
    lo: int = 0
    hi: int = 0

    @property
    def choice(self) -> bool:
        return bool(self.values)

    @property
    def whole(self) -> Condition:
        """The condition every request meets."""
        return frozenset(self.values) if self.choice else Ints(self.lo, self.hi)

    def rank(self, value: Value) -> int:
        """How far along the axis a value is; the smallest witness has the smallest ranks."""
        return self.values.index(str(value)) if self.choice else int(value)


@dataclass(frozen=True)
class Space:
    """All axes, in the order in which a graph asks about them."""

    axes: tuple[Axis, ...]
    source: str = ""

    def axis(self, name: str) -> Axis:
        """The axis called `name`; KeyError when there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(f"no axis {name!r} in {listed(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def restrict(self, chosen: Mapping[str, str]) -> Space:
        """The part of the space in which each axis of `chosen` has that one value. KeyError for an unknown axis."""
        for name in chosen:
            self.axis(name)
        return replace(
            self, axes=tuple(replace(a, values=(chosen[a.name],)) if a.name in chosen else a for a in self.axes)
        )

    def without(self, names: Iterable[str]) -> Space:
        """The space projected on the other axes."""
        dropped = set(names)
        return replace(self, axes=tuple(axis for axis in self.axes if axis.name not in dropped))


def order_key(space: Space, request: Mapping[str, Value]) -> tuple[int, ...]:
    """Compares requests: the smaller T first, then N, K and other integers from last to first, then the choices."""
    integers = [axis for axis in reversed(space.axes) if not axis.choice]
    choices = [axis for axis in space.axes if axis.choice]
    return tuple(axis.rank(request[axis.name]) for axis in (*integers, *choices) if axis.name in request)


def show(request: Mapping[str, Value]) -> str:
    """A request as a person reads it."""
    return " ".join(f"{name}={value}" for name, value in request.items())


def load_space(path: Path | None = None) -> Space:
    """The shipped request space (specs/requests.toml), or another file of the same grammar.

    Raises QgenError naming the file, the axis, what was found and what was allowed.
    """
    file = path or data_dir("specs") / "requests.toml"
    top = read(file, ("axis",))
    axes = tuple(_axis(entry, file.parent) for entry in top.entries("axis", ("name", "doc", "values", "limits")))
    if not axes:
        top.refuse("axis", "no axis", "one [[axis]] or more")
    seen: set[str] = set()
    for axis in axes:
        if axis.name in seen:
            top.refuse("axis", f"two axes called {axis.name!r}", "one entry an axis")
        seen.add(axis.name)
    names = [axis.name for axis in axes]
    if names[:2] != ["op", "format"] or names[-1] != "T":
        top.refuse(
            "axis", listed(names), "op and format first, T last: the proof reports by op and format, ladders by T"
        )
    return Space(axes, source=str(file))


def _axis(entry: Entry, root: Path) -> Axis:
    name, doc = entry.text("name"), entry.text("doc")
    if ("values" in entry.data) == ("limits" in entry.data):
        entry.refuse("values", f"axis {name!r} has both or neither", "either values (a choice) or limits (an integer)")
    if "limits" in entry.data:
        lo, hi = entry.pair("limits")
        return Axis(name=name, doc=doc, lo=lo, hi=hi)
    values: list[str] = []
    for item in entry.texts("values"):
        if item.startswith("specs/"):
            values += _names_in(entry, root / item.removeprefix("specs/"))
        else:
            values.append(item)
    doubled = sorted({value for value in values if values.count(value) > 1})
    if doubled or not values:
        entry.refuse("values", f"{listed(doubled)} twice" if doubled else "no value", "different names, one or more")
    return Axis(name=name, doc=doc, values=tuple(values))


def _names_in(entry: Entry, folder: Path) -> list[str]:
    """What the files of a spec folder are called: formats in capitals, architectures oldest first."""
    stems = sorted(path.stem for path in folder.glob("*.toml"))
    if not stems:
        entry.refuse("values", f"{folder} holds no *.toml", "a folder of spec files")
    if folder.name == "formats":
        return [stem.upper() for stem in stems]
    return sorted(stems, key=lambda stem: int(stem[3:])) if folder.name == "archs" else stems


def check_choice(entry: Entry, key: str, axis: Axis, names: Iterable[str]) -> frozenset[str]:
    """Names of a choice axis. Raises QgenError for one the axis does not have."""
    for name in names:
        if name not in axis.values:
            entry.refuse(key, f"no {axis.name} {name!r}{close(name, axis.values)}", listed(axis.values))
    return frozenset(names)
