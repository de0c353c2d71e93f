"""The proof as one HTML page that needs no network: formats against T as coloured cells, a path on every click."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qgen.dispatch.emission import kernel_facts
from qgen.dispatch.explain import show_condition
from qgen.dispatch.judge import Leaf
from qgen.dispatch.merge import merged
from qgen.dispatch.proof import KINDS, Proof
from qgen.dispatch.report import proof_json
from qgen.dispatch.routes import Routes
from qgen.dispatch.space import Condition, Ints, Space
from qgen.emit import emit_text
from qgen.errors import QgenError


@dataclass(frozen=True)
class Page:
    """What dispatch/page.html.j2 receives: the title, and all data as JSON that cannot end its script element."""

    title: str
    data: str


def write(path: Path, proof: Proof, routes: Routes) -> None:
    """Write the page. Raises QgenError (stage "dispatch") where the file cannot be written."""
    try:
        path.write_text(html(proof, routes), encoding="utf-8")
    except OSError as error:
        raise QgenError(
            stage="dispatch",
            subject=str(path),
            found=f"it cannot be written: {error.strerror}",
            allowed="a file in a writable folder",
            next="give another path to --html",
        ) from error


def html(proof: Proof, routes: Routes) -> str:
    """The page of a proof, of one that does not hold as well."""
    data = json.dumps(page_data(proof, routes), separators=(",", ":")).replace("<", "\\u003c")
    return emit_text("dispatch/page.html.j2", Page(title="qgen dispatch", data=data))


def page_data(proof: Proof, routes: Routes) -> dict[str, Any]:
    """Axes, outcomes, rows (disjoint boxes) and findings. A row's conditions carry what a person reads of them."""
    outcomes: dict[Leaf, int] = {}
    boxes = [(where, leaf) for where, leaf in proof.diagram.boxes() if isinstance(leaf, Leaf)]
    rows = [
        {"where": _where_json(proof.space, where), "to": outcomes.setdefault(leaf, len(outcomes))}
        for where, leaf in merged(proof.space, boxes)
    ]
    facts = {k.name: kernel_facts(k) for k in proof.catalog.kernels}
    return {
        "axes": [
            {"name": a.name, "doc": a.doc, "values": list(a.values)}
            if a.choice
            else {"name": a.name, "doc": a.doc, "lo": a.lo, "hi": a.hi}
            for a in proof.space.axes
        ],
        "own": {name: f.activation for name, f in proof.catalog.facts.items()},
        "waste": {op: [w.columns, w.bound] for op, w in routes.waste.items()},
        "outcomes": [_outcome_json(leaf, facts) for leaf in outcomes],
        "rows": rows,
        "kinds": KINDS,
        "summary": proof_json(proof) | {"kernels": len(proof.reached)},
    }


def _outcome_json(leaf: Leaf, facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    marks = [{"kind": mark.kind, "text": mark.text} for mark in leaf.marks]
    if leaf.kernel:
        return {"kernel": facts[leaf.kernel], "marks": marks}
    if leaf.refusal:
        refusal = {
            "code": leaf.refusal.code,
            "reason": leaf.refusal.reason,
            "source": leaf.refusal.source,
            "rank": leaf.refusal.rank,
        }
        return {"refusal": refusal, "marks": marks}
    return {"marks": marks}


def _where_json(space: Space, where: dict[str, Condition]) -> dict[str, Any]:
    """Names as lists, integers as [lo, hi, divisors, non-divisors, text]."""
    row: dict[str, Any] = {}
    for axis in space.axes:
        condition = where.get(axis.name)
        if isinstance(condition, Ints):
            text = show_condition(axis, condition)
            row[axis.name] = [
                condition.lo,
                condition.hi,
                sorted(condition.multiple),
                sorted(condition.indivisible),
                text,
            ]
        elif condition is not None:
            row[axis.name] = [value for value in axis.values if value in condition]
    return row
