"""specs/routes and specs/tuned -> labelled boxes: what is refused with which reason, what is claimed by which kernel.

A request passes the gates of its op in the order of the file; the first that does not let it through names the
refusal. Among the routes there is no order: each request behind the gates is claimed by exactly one, which the proof
checks. A measured choice (specs/tuned) replaces the route in its own box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qgen.dispatch.claims import CHOOSE, Claims
from qgen.dispatch.diagram import Row
from qgen.dispatch.kernels import Catalog, Facts
from qgen.dispatch.labels import Claim, Gate, Refusal, Waste
from qgen.dispatch.reader import Entry, read
from qgen.dispatch.space import Condition, Ints, Space, Where
from qgen.dispatch.terms import OWN, PLANNED, PLANNED_FLOATS, fill
from qgen.paths import data_dir
from qgen.spec.reader import close, listed

_TOP = ("op", "class", "gate", "route", "invariant", "waste")
_GATE = ("code", "reason", "when", "require", "deliberate")
_TUNED_TOP = ("arch", "device", "driver", "date", "command", "choice")
_TUNED = ("op", "figure", "replaced")


@dataclass(frozen=True)
class Routes:
    """All rows of all ops, and what the proof must hold them against."""

    rows: tuple[Row, ...]
    waste: Mapping[str, Waste] = field(default_factory=dict)
    # (op, format, activation) -> contract under policy "invariant"
    promises: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Every claim once, in file order."""
        return tuple(dict.fromkeys(row.label for row in self.rows if isinstance(row.label, Claim)))

    @property
    def kernels(self) -> frozenset[str]:
        """The names of all kernels some row claims: what is worth generating."""
        return frozenset(claim.kernel for claim in self.claims)

    def archs(self, space: Space) -> dict[str, frozenset[str]]:
        """By kernel, the architectures on which some row claims it: where it is worth compiling."""
        every = frozenset(space.axis("arch").values)
        found: dict[str, frozenset[str]] = {}
        for row in self.rows:
            if isinstance(row.label, Claim):
                where = row.where.get("arch", every)
                assert isinstance(where, frozenset)
                found[row.label.kernel] = found.get(row.label.kernel, frozenset()) | where
        return found


def load_routes(space: Space, catalog: Catalog, folder: Path | None = None, tuned: Path | None = None) -> Routes:
    """The shipped routes and measured choices, or those of other folders.

    Raises QgenError naming the file, the row, what was found and what was allowed.
    """
    specs = data_dir("specs")
    folder = folder or specs / "routes"
    ops = space.axis("op").values
    rows: list[Row] = []
    waste: dict[str, Waste] = {}
    claims: dict[str, Claims] = {}
    for op in ops:
        top = read(folder / f"{op}.toml", _TOP)
        if top.text("op") != op:
            top.refuse("op", repr(top.text("op")), f"{op!r}, as the file is called")
        claims[op] = Claims(space, catalog, op, top)
        rows += [*_gates(claims[op], top), *claims[op].routes()]
        if "waste" in top.data:
            inner = top.table("waste", ("columns", "bound"))
            waste[op] = Waste(inner.integer("columns", 1), inner.number("bound", 1.01))
    for path in sorted(folder.glob("*.toml")):
        if path.stem not in ops:
            read(path, _TOP).refuse("", f"no op {path.stem!r}{close(path.stem, ops)}", f"files called {listed(ops)}")
    for path in sorted((tuned or specs / "tuned").glob("*.toml")):
        rows += _tuned(space, claims, path)
    promises = {(op, *key): name for op in ops for key, name in claims[op].promises().items()}
    return Routes(tuple(rows), waste, promises)


# ---- gates ------------------------------------------------------------------------------------------------------


def _gates(claims: Claims, top: Entry) -> Iterator[Row]:
    """The boxes each gate keeps out. One row for all formats where the gate says the same to all."""
    op = claims.op
    for rank, entry in enumerate(top.entries("gate", _GATE)):
        code, reason = entry.text("code"), entry.text("reason")
        deliberate = entry.flag("deliberate", default=False)
        for facts in claims.catalog.facts.values() if _speaks_of_format(entry, reason) else (None,):
            text = fill(entry, "reason", _reason_words(op, facts))
            gate = Gate(Refusal(code, text, entry.source, deliberate, rank))
            for where in _kept_out(claims, entry, facts):
                yield Row(gate, {"op": frozenset({op}), **where}, rank)


def _kept_out(claims: Claims, entry: Entry, facts: Facts | None) -> Iterator[Where]:
    """`when` without `require`; the boxes of one gate may overlap, they say the same."""
    words = claims.words(facts)
    when = words.conditions(entry.table("when"))
    if facts is not None:
        when["format"] = _both(when.get("format", frozenset({facts.format})), frozenset({facts.format}))
    if not all(_possible(condition) for condition in when.values()):
        return
    if "require" not in entry.data:
        yield when
        return
    require = words.conditions(entry.table("require"))
    if not require:
        entry.refuse("require", "an empty table", "what a request must meet; leave it out to refuse all of `when`")
    for name, condition in require.items():
        for missing in complement(claims.space.axis(name).whole, condition):
            both = _both(when[name], missing) if name in when else missing
            if _possible(both):
                yield {**when, name: both}


def complement(whole: Condition, condition: Condition) -> Iterator[Condition]:
    """What is left of an axis outside `condition`; the parts may overlap."""
    if isinstance(condition, frozenset):
        assert isinstance(whole, frozenset)
        if whole - condition:
            yield whole - condition
        return
    assert isinstance(whole, Ints)
    if whole.lo < condition.lo:
        yield Ints(whole.lo, condition.lo - 1)
    if condition.hi < whole.hi:
        yield Ints(condition.hi + 1, whole.hi)
    for m in sorted(condition.multiple):
        yield Ints(whole.lo, whole.hi, indivisible=frozenset({m}))
    for m in sorted(condition.indivisible):
        yield Ints(whole.lo, whole.hi, multiple=frozenset({m}))


def _both(a: Condition, b: Condition) -> Condition:
    if isinstance(a, frozenset):
        assert isinstance(b, frozenset)
        return a & b
    assert isinstance(b, Ints)
    return a.meet(b)


def _possible(condition: Condition) -> bool:
    return bool(condition) if isinstance(condition, frozenset) else condition.least() is not None


def _speaks_of_format(entry: Entry, reason: str) -> bool:
    """Whether a gate's box or reason differs between formats."""
    if "{" in reason.replace("{op}", ""):
        return True
    values = [*entry.table("when").data.items(), *entry.table("require").data.items()]
    return any(word not in ("max", "min") for key, value in values for word in _words_of(key, value))


def _words_of(key: str, value: object) -> Iterator[str]:
    """The facts a condition names: words among integers, and a choice written as one word."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _words_of(key, [0, *item] if isinstance(item, list) else [0, item])
    elif isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            yield from (item for item in value if isinstance(item, str))
    elif value in {"activation": (OWN, PLANNED), "storage": (PLANNED, PLANNED_FLOATS)}.get(key, ()):
        yield str(value)


def _reason_words(op: str, facts: Facts | None) -> dict[str, object]:
    words: dict[str, object] = {"op": op}
    if facts is not None:
        words |= {"format": facts.format, "own": facts.activation or "none", "refused": facts.refused}
        words |= {"taken": listed(facts.taken) if facts.taken else "none", **facts.numbers}
        words |= {"stored": listed(facts.stored) if facts.stored else "none"}
        words |= {"stored_floats": listed(facts.stored_floats) if facts.stored_floats else "none"}
    return words


# ---- measured choices -------------------------------------------------------------------------------------------


def _tuned(space: Space, claims: Mapping[str, Claims], path: Path) -> Iterator[Row]:
    """Measured choices of one device. Each carries the figure that made it, so that it can be measured again."""
    top = read(path, _TUNED_TOP)
    for key in ("device", "driver", "date", "command"):
        top.text(key)
    archs = space.axis("arch").values
    arch = top.text("arch")
    if arch not in archs:
        top.refuse("arch", f"no architecture {arch!r}{close(arch, archs)}", listed(archs))
    keys = (*_TUNED, *CHOOSE[1:], *(name for name in space.names if name not in ("op", "format", "arch")))
    for entry in top.entries("choice", keys):
        op = entry.text("op")
        if op not in claims:
            entry.refuse("op", f"no op {op!r}{close(op, claims)}", listed(claims))
        entry.number("figure", 0.0)
        entry.number("replaced", 0.0)
        yield from claims[op].choice(entry, arch)
