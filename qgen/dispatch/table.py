"""The flat table that the proof wrote (generated/dispatch.json), and the look-up in it. No graph, no NumPy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from qgen.dispatch import trace
from qgen.dispatch.request import Decision, Request
from qgen.dispatch.space import Axis, Condition, Ints, Space, Value, holds, show
from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.spec.reader import close, listed

FILE = "dispatch.json"


@dataclass(frozen=True)
class TableRow:
    """One disjoint box of the space and what it comes to. Axes that `where` does not name are free."""

    where: Mapping[str, Condition]
    decision: Decision

    def holds(self, request: Mapping[str, Value]) -> bool:
        return all(holds(condition, request[name]) for name, condition in self.where.items())


@dataclass
class Table:
    """All rows. Every request of the space is in exactly one; `look_up` holds it to that.

    kernels: per kernel the facts an engine needs to launch it (op, family, format, file, threads, shared_bytes, ...)
    """

    space: Space
    rows: tuple[TableRow, ...]
    kernels: Mapping[str, Mapping[str, Any]]
    _index: dict[tuple[str, str], tuple[TableRow, ...]] = field(default_factory=dict, repr=False)

    def candidates(self, op: str, format: str) -> tuple[TableRow, ...]:
        """The rows that can hold for an op and a format."""
        key = (op, format)
        if key not in self._index:
            rows = (row for row in self.rows if _holds(row, "op", op) and _holds(row, "format", format))
            self._index[key] = tuple(rows)
        return self._index[key]

    def look_up(self, request: Request) -> Decision:
        """The decision for one request.

        Raises QgenError (stage "dispatch") for a request outside the space, and for a damaged table.
        """
        values = checked(self.space, request.values())
        found = [row for row in self.candidates(request.op, request.format) if row.holds(values)]
        if len(found) != 1:
            raise QgenError(
                stage="dispatch",
                subject=FILE,
                found=f"{len(found)} rows for {show(values)}",
                allowed="exactly one row a request",
                next="run `qgen build`: the table is damaged",
            )
        return found[0].decision


def _holds(row: TableRow, axis: str, value: str) -> bool:
    condition = row.where.get(axis)
    return condition is None or holds(condition, value)


def checked(space: Space, values: Mapping[str, Value]) -> dict[str, Value]:
    """The request in the order of the axes. Raises QgenError (stage "dispatch") where it lies outside the space."""
    for axis in space.axes:
        value = values[axis.name]
        if axis.choice:
            wrong = value not in axis.values
            allowed = listed(axis.values)
        else:
            wrong = isinstance(value, bool) or not isinstance(value, int) or not axis.lo <= value <= axis.hi
            allowed = f"an integer in {axis.lo}..{axis.hi}: {axis.doc}"
        if wrong:
            hint = close(str(value), axis.values) or close(str(value).upper(), axis.values)
            raise QgenError(
                stage="dispatch",
                subject=f"request, {axis.name}",
                found=f"{value!r}{hint}",
                allowed=allowed,
                next=f"give one of the allowed values for {axis.name}",
            )
    return {name: values[name] for name in space.names}


def lookup(request: Request, table: Table | None = None) -> Decision:
    """Which kernel serves a request, or why none does, from the table in generated/ (or another one). Counted.

    Raises QgenError (stage "dispatch") for a request outside the request space and for a missing or damaged table.
    """
    decision = (table or shipped()).look_up(request)
    trace.decided(request, decision)
    return decision


@cache
def shipped() -> Table:
    """The table in generated/, read once."""
    return read(data_dir("generated") / FILE)


def read(path: Path) -> Table:
    """A table as `dumps` wrote it. Raises QgenError where it is missing or damaged."""
    try:
        return loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        found, fix = f"it cannot be read: {error.strerror}", "run `qgen build`, which writes it"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found, fix = f"it is damaged: {error!r}", "run `qgen build`, which writes it anew"
    raise QgenError(stage="dispatch", subject=str(path), found=found, allowed="the table qgen wrote", next=fix)


def loads(text: str) -> Table:
    """The table in a text. Raises ValueError, KeyError or TypeError where it is damaged."""
    data = json.loads(text)
    axes = tuple(
        Axis(a["name"], a["doc"], values=tuple(a["values"]))
        if "values" in a
        else Axis(a["name"], a["doc"], lo=int(a["limits"][0]), hi=int(a["limits"][1]))
        for a in data["axes"]
    )
    space = Space(axes, source=FILE)
    kernels = {k["name"]: k for k in data["kernels"]}
    refusals = [Decision(code=r["code"], reason=r["reason"]) for r in data["refusals"]]
    rows = tuple(TableRow(_where(space, row), _decision(row, kernels, refusals)) for row in data["rows"])
    return Table(space, rows, kernels)


def _decision(row: Mapping[str, Any], kernels: Mapping[str, Any], refusals: list[Decision]) -> Decision:
    if "kernel" not in row:
        return refusals[int(row["refusal"])]
    k = kernels[row["kernel"]]
    return Decision(kernel=k["name"], file=k["file"], contract=k["contract"], quantiser=k["quantiser"])


def _where(space: Space, row: Mapping[str, Any]) -> dict[str, Condition]:
    where: dict[str, Condition] = {}
    for axis in space.axes:
        if axis.name not in row:
            continue
        value = row[axis.name]
        if axis.choice:
            where[axis.name] = frozenset(value)
        else:
            lo, hi = value["range"]
            where[axis.name] = Ints(
                lo, hi, frozenset(value.get("multiple_of", ())), frozenset(value.get("not_multiple_of", ()))
            )
    return where


def dumps(
    space: Space,
    kernels: Iterable[Mapping[str, Any]],
    refusals: Iterable[tuple[str, str]],
    rows: Iterable[tuple[Mapping[str, Condition], tuple[str, str | int]]],
) -> str:
    """The table as JSON, one row a line. A row leads to ("kernel", its name) or ("refusal", its number)."""
    axes = [
        {"name": a.name, "doc": a.doc, **({"values": list(a.values)} if a.choice else {"limits": [a.lo, a.hi]})}
        for a in space.axes
    ]
    parts: dict[str, list[Any]] = {
        "axes": axes,
        "kernels": list(kernels),
        "refusals": [{"code": code, "reason": reason} for code, reason in refusals],
        "rows": [{**_row_json(space, where), key: to} for where, (key, to) in rows],
    }
    body = ",\n".join(
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"
        for name, items in parts.items()
    )
    return "{\n" + body + "\n}\n"


def _row_json(space: Space, where: Mapping[str, Condition]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for axis in space.axes:
        condition = where.get(axis.name)
        if isinstance(condition, Ints):
            row[axis.name] = {"range": [condition.lo, condition.hi]}
            for key, divisors in (("multiple_of", condition.multiple), ("not_multiple_of", condition.indivisible)):
                if divisors:
                    row[axis.name][key] = sorted(divisors)
        elif condition is not None:
            row[axis.name] = [value for value in axis.values if value in condition]
    return row
