"""Another engine's dispatch, written down as TOML: its axes, kernels, predicates and the walk between them.

[[axis]]    what the engine looks at (name, doc, values or limits); T, if there is one, comes last
[[kernel]]  what is compiled: name, set (what predicates guard), when (boxes it can compute), columns, ladder
[[gate]]    a predicate as the engine writes it: yes (boxes). capability: its yes promises a kernel at the end of
            the walk. guards, scope: for requests in scope it decides whether a kernel of that set is used.
[[step]]    the walk: `ask` a gate and go on at yes or no, or split into `cases` ({ when, to }). A place to go is
            { step }, { kernels = set }, { kernel = name } or { refuse = reason }. The first step is the start.
[waste]     more columns than max(columns, bound * T) for T tokens is waste
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qgen.dispatch.labels import Waste
from qgen.dispatch.reader import Entry, read
from qgen.dispatch.space import Axis, Ints, Space, Where
from qgen.dispatch.terms import Words
from qgen.spec.reader import close, listed

_PLACES = ("step", "kernels", "kernel", "refuse")


@dataclass(frozen=True)
class ForeignKernel:
    """A compiled kernel and the boxes it can compute. columns: tokens at a time; 0 where T does not matter."""

    name: str
    set: str
    when: tuple[Where, ...]
    columns: int
    ladder: str
    source: str


@dataclass(frozen=True)
class ForeignGate:
    """A predicate. guards: the kernel set it decides about, for requests in `scope`; "" for none."""

    name: str
    yes: tuple[Where, ...]
    capability: bool
    guards: str
    scope: Where
    source: str


@dataclass(frozen=True)
class Place:
    """Where the walk goes: one of step, kernels (a set), kernel, refuse."""

    kind: str
    name: str


@dataclass(frozen=True)
class Case:
    """One branch of a split."""

    when: Where
    to: Place


@dataclass(frozen=True)
class ForeignStep:
    """One station of the walk: a question to a gate, or a split into cases."""

    name: str
    source: str
    ask: str = ""
    yes: Place | None = None
    no: Place | None = None
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True)
class Engine:
    """A whole foreign dispatch."""

    name: str
    doc: str
    space: Space
    kernels: tuple[ForeignKernel, ...]
    gates: Mapping[str, ForeignGate]
    steps: Mapping[str, ForeignStep]
    start: str
    waste: Waste | None
    source: str


def load_gates(path: Path) -> Engine:
    """Read a gates file. Raises QgenError naming the file, the row, what was found and what was allowed."""
    top = read(path, ("name", "doc", "axis", "kernel", "gate", "step", "waste"))
    space = Space(tuple(_axis(entry) for entry in top.entries("axis", ("name", "doc", "values", "limits"))), top.file)
    _check_axes(top, space)
    words = Words(space)
    kernels = _kernels(top, words)
    sets = {kernel.set for kernel in kernels}
    gates: dict[str, ForeignGate] = {}
    for entry in top.entries("gate", ("name", "doc", "yes", "capability", "guards", "scope")):
        _fresh(entry, gates)
        gates[entry.text("name")] = _gate(entry, words, sets)
    entries = top.entries("step", ("name", "doc", "ask", "yes", "no", "cases"))
    names = [entry.text("name") for entry in entries]
    steps: dict[str, ForeignStep] = {}
    for entry in entries:
        _fresh(entry, steps)
        steps[entry.text("name")] = _step(entry, words, names, gates, kernels)
    if not names:
        top.refuse("step", "no step", "one [[step]] or more, the first is the start")
    _check_walk(top, steps, names[0])
    waste = None
    if "waste" in top.data:
        inner = top.table("waste", ("columns", "bound"))
        waste = Waste(inner.integer("columns", 1), inner.number("bound", 1.01))
    return Engine(top.text("name"), top.text("doc"), space, kernels, gates, steps, names[0], waste, top.file)


def _axis(entry: Entry) -> Axis:
    name, doc = entry.text("name"), entry.text("doc")
    if ("values" in entry.data) == ("limits" in entry.data):
        entry.refuse("values", f"axis {name!r} has both or neither", "either values (a choice) or limits (an integer)")
    if "limits" in entry.data:
        lo, hi = entry.pair("limits")
        return Axis(name=name, doc=doc, lo=lo, hi=hi)
    values = entry.texts("values")
    if not values or len(set(values)) != len(values):
        entry.refuse("values", listed(values) or "none", "different names, one or more")
    return Axis(name=name, doc=doc, values=values)


def _check_axes(top: Entry, space: Space) -> None:
    names = space.names
    if not names or len(set(names)) != len(names):
        top.refuse("axis", listed(names) or "no axis", "one [[axis]] or more, each with its own name")
    if "T" in names[:-1]:
        top.refuse("axis", listed(names), "T last: ladders are judged by it")


def _fresh(entry: Entry, seen: Mapping[str, object]) -> None:
    if entry.text("name") in seen:
        entry.refuse("name", f"{entry.text('name')!r} again", "a name of its own")


def _boxes(entry: Entry, key: str, words: Words) -> tuple[Where, ...]:
    """A list of boxes; at least one, [{}] for everything."""
    boxes = entry.entries(key, words.space.names)
    if not boxes:
        entry.refuse(key, "no box", "a list of boxes: [{ axis = ... }]; [{}] for everything")
    return tuple(words.conditions(box) for box in boxes)


def _kernels(top: Entry, words: Words) -> tuple[ForeignKernel, ...]:
    kernels = []
    seen: dict[str, object] = {}
    for entry in top.entries("kernel", ("name", "doc", "set", "when", "columns", "ladder")):
        _fresh(entry, seen)
        name = entry.text("name")
        seen[name] = entry
        columns = entry.integer("columns", 1) if "columns" in entry.data else 0
        ladder = entry.text("ladder") if "ladder" in entry.data else ""
        if ladder and not columns:
            entry.refuse("columns", "a rung without columns", "how many tokens it computes at a time")
        kernels.append(
            ForeignKernel(name, entry.text("set"), _boxes(entry, "when", words), columns, ladder, entry.source)
        )
    return tuple(kernels)


def _gate(entry: Entry, words: Words, sets: set[str]) -> ForeignGate:
    guards = entry.text("guards") if "guards" in entry.data else ""
    if guards and guards not in sets:
        entry.refuse("guards", f"no set {guards!r}{close(guards, sets)}", listed(sorted(sets)))
    # An empty list is a gate that never says yes.
    yes = _boxes(entry, "yes", words) if entry.data.get("yes") != [] else ()
    scope = words.conditions(entry.table("scope"))
    capability = entry.flag("capability", default=False)
    return ForeignGate(entry.text("name"), yes, capability, guards, scope, entry.source)


def _step(
    entry: Entry,
    words: Words,
    names: list[str],
    gates: Mapping[str, ForeignGate],
    kernels: tuple[ForeignKernel, ...],
) -> ForeignStep:
    name = entry.text("name")
    known: dict[str, list[str]] = {
        "step": names,
        "kernels": sorted({k.set for k in kernels}),
        "kernel": [k.name for k in kernels],
    }
    if ("ask" in entry.data) == ("cases" in entry.data):
        entry.refuse("ask", "both or neither of ask and cases", "one of the two")
    if "ask" in entry.data:
        ask = entry.text("ask")
        if ask not in gates:
            entry.refuse("ask", f"no gate {ask!r}{close(ask, gates)}", listed(gates))
        return ForeignStep(name, entry.source, ask, _place(entry, "yes", known), _place(entry, "no", known))
    cases = entry.entries("cases", ("when", "to"))
    if not cases:
        entry.refuse("cases", "no case", "a list of { when = { axis = ... }, to = ... }")
    made = tuple(Case(words.conditions(case.table("when")), _place(case, "to", known)) for case in cases)
    return ForeignStep(name, entry.source, cases=made)


def _place(entry: Entry, key: str, known: Mapping[str, list[str]]) -> Place:
    inner = entry.table(key, _PLACES)
    if len(inner.data) != 1:
        entry.refuse(key, f"{dict(inner.data)}", f"exactly one of {listed(_PLACES)}")
    (kind,) = inner.data
    name = inner.text(kind)
    if kind in known and name not in known[kind]:
        inner.refuse(kind, f"no {kind} {name!r}{close(name, known[kind])}", listed(known[kind]))
    return Place(kind, name)


def _check_walk(top: Entry, steps: Mapping[str, ForeignStep], start: str) -> None:
    """That the walk has an end and every step is on it."""
    done: set[str] = set()

    def visit(name: str, behind: tuple[str, ...]) -> None:
        if name in behind:
            top.refuse("step", f"{' -> '.join((*behind, name))}", "a walk that does not come back to where it was")
        if name not in done:
            step = steps[name]
            for place in (step.yes, step.no, *(case.to for case in step.cases)):
                if place is not None and place.kind == "step":
                    visit(place.name, (*behind, name))
            done.add(name)

    visit(start, ())
    for name in steps:
        if name not in done:
            top.refuse("step", f"no way leads to step {name!r}", "steps that the walk can reach")


def intersect(a: Where, b: Where) -> Where | None:
    """Both boxes at once; None where they exclude each other."""
    both = dict(a)
    for name, condition in b.items():
        if name in both:
            mine = both[name]
            if isinstance(mine, Ints) and isinstance(condition, Ints):
                both[name] = mine.meet(condition)
            elif isinstance(mine, frozenset) and isinstance(condition, frozenset):
                both[name] = mine & condition
        else:
            both[name] = condition
    possible = all(c.least() is not None if isinstance(c, Ints) else bool(c) for c in both.values())
    return both if possible else None
