"""The proof: the graph over the whole request space, and every way in which it is not what a dispatch must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from qgen.archs import Arch
from qgen.dispatch import checks, ladder
from qgen.dispatch.diagram import Diagram, Row, build
from qgen.dispatch.judge import Bench, Can, Leaf, Mark, Witness, complete, partial_witnesses, spread
from qgen.dispatch.kernels import Catalog, Kernel
from qgen.dispatch.labels import INVARIANT, Claim, Gate
from qgen.dispatch.routes import Routes
from qgen.dispatch.space import Ints, Space, Where, holds, order_key, show

KINDS = {
    "hole": "requests that no gate refuses and no route claims",
    "overlap": "requests that are claimed more than once",
    "outside": "requests sent to a kernel that cannot serve them",
    "narrow": "requests refused although a kernel can serve them",
    "reason": "refusals that do not say why",
    "duplicate": "two kernels of one name",
    "dead": "compiled kernels that no request reaches",
    "dead_route": "rows that never decide anything",
    "launch": "kernels that cannot start on an architecture that reaches them",
    "compiled": "kernels that are reached where they were not compiled",
    "waste": "more columns computed than allowed",
    "rung": "rungs that are compiled, but not used where they would save columns",
    "order": "rungs of a ladder out of order",
    "contract": "policy invariant mixes contracts",
    "quantiser": "matmul kernels whose quantiser is refused",
    "disagree": "ops that must serve alike and do not",
}


@dataclass(frozen=True)
class Finding:
    """One thing the proof found. witness: the smallest request that shows it; None where no request can."""

    kind: str
    op: str
    text: str
    sources: tuple[str, ...] = ()
    witness: Witness | None = None
    formats: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"\n    rows:    {'; '.join(self.sources)}" if self.sources else ""
        also = f"\n    formats: {', '.join(self.formats)}" if len(self.formats) > 1 else ""
        shown = f"\n    request: {show(self.witness)}" if self.witness else ""
        return f"{self.kind}: {self.text}{shown}{where}{also}"


@dataclass(frozen=True)
class Rung:
    """A stretch of T that kernels of one column capacity serve, and the most columns computed per column needed."""

    op: str
    format: str
    t: tuple[int, int]
    columns: int
    worst: float
    worst_t: int


@dataclass
class Proof:
    """What `prove` found out. It holds when `findings` is empty."""

    space: Space
    catalog: Catalog
    diagram: Diagram
    findings: tuple[Finding, ...]
    reached: Mapping[str, frozenset[str]]  # kernel -> architectures
    seconds: float
    requests: int  # in the space
    coverage: Mapping[tuple[str, str], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings


def prove(
    space: Space,
    catalog: Catalog,
    routes: Routes,
    archs: Mapping[str, Arch],
    *,
    report: checks.Report | None = None,
    emitted: Iterable[str] | None = None,
    like: Mapping[str, str] | None = None,
    restricted: Collection[str] = (),
) -> Proof:
    """Prove the dispatch over all of `space`.

    report:  the compiler's figures; left out, registers and static shared memory are not looked at
    emitted: names of the kernels that are generated; left out, those that a route claims
    like:    op -> the op it must agree with
    restricted: the axes on which `space` is only a part of what the routes were read for
    """
    started = time.perf_counter()
    names = routes.kernels if emitted is None else frozenset(emitted)
    kernels = [k for k in catalog.kernels if k.name in names]
    by_name = {k.name: k for k in kernels}
    bench = Bench()
    diagram = build(space, [*routes.rows, *_able(space, kernels, routes)], bench)
    reached: dict[str, frozenset[str]] = {}
    for leaf, values in spread(diagram, "arch").items():
        outcome = diagram.outcome(leaf)
        if isinstance(outcome, Leaf) and outcome.kernel:
            reached[outcome.kernel] = reached.get(outcome.kernel, frozenset()) | values
    boxes = checks.served_boxes(diagram)
    # Everything is reported by name: with two kernels of one name the rest would be about who knows which.
    findings = [*_duplicates(catalog, space)]
    if not findings:
        findings += _located(diagram, _place(diagram, by_name, routes, archs, report, reached))
        # A part of the space reaches a part of the kernels and rows, which says nothing about the others.
        findings += _dead(diagram, kernels, reached, report, routes) if "policy" not in restricted else ()
        findings += _idle_rows(routes, bench, space) if not restricted else ()
        findings += _aside(checks.quantiser_faults(space, boxes, catalog))
        findings += _aside(checks.op_faults(space, boxes, like or {}))
    return Proof(
        space=space,
        catalog=catalog,
        diagram=diagram,
        findings=tuple(findings),
        reached=reached,
        seconds=time.perf_counter() - started,
        requests=_size(space),
        coverage=_coverage(boxes, by_name),
        rungs=tuple(_rungs(space, boxes, by_name)),
    )


def _size(space: Space) -> int:
    return prod(len(axis.values) if axis.choice else axis.hi - axis.lo + 1 for axis in space.axes)


def _able(space: Space, kernels: Iterable[Kernel], routes: Routes) -> Iterator[Row]:
    """What each kernel can serve. Policy "invariant" asks for the contract that the routes promise."""
    others = frozenset(space.axis("policy").values) - {INVARIANT}
    for kernel in kernels:
        activations = kernel.where.get("activation", space.axis("activation").whole)
        assert isinstance(activations, frozenset)
        promised = {routes.promises.get((kernel.op, kernel.format, name)) for name in activations}
        if kernel.contract is None or promised == {kernel.contract}:
            yield Row(Can(kernel.name), kernel.where)
        else:
            yield Row(Can(kernel.name), {**kernel.where, "policy": others})
            yield Row(Can(kernel.name, foreign=True), {**kernel.where, "policy": frozenset({INVARIANT})})


# ---- marks that have a place in the graph -----------------------------------------------------------------------


def _place(
    diagram: Diagram,
    kernels: Mapping[str, Kernel],
    routes: Routes,
    archs: Mapping[str, Arch],
    report: checks.Report | None,
    reached: Mapping[str, frozenset[str]],
) -> dict[int, list[tuple[Mark, Witness]]]:
    placed: dict[int, list[tuple[Mark, Witness]]] = {}
    for leaf in diagram.leaves():
        outcome = diagram.outcome(leaf)
        assert isinstance(outcome, Leaf)
        marks = [*outcome.marks]
        if outcome.kernel is not None and outcome.kernel in kernels:
            marks += checks.launch_marks(kernels[outcome.kernel], reached.get(outcome.kernel, ()), archs, report)
        placed[leaf] = [(mark, {}) for mark in marks]
    span_of = _span_of(diagram, kernels)
    rungs: dict[str, frozenset[int]] = {}
    for kernel in kernels.values():
        rungs[kernel.ladder] = rungs.get(kernel.ladder, frozenset()) | {kernel.columns}
    invariant = ladder.reachable_under(diagram, "policy", INVARIANT)
    for node in ladder.entries(diagram):
        spans = ladder.spans_at(diagram, node, span_of)
        if not spans:
            continue
        limit = routes.waste.get(kernels[spans[0].kernel].op) if spans[0].kernel in kernels else None
        found = [*ladder.disordered(spans)]
        found += [*ladder.wasted(spans, limit), *ladder.bypassed(spans, limit, rungs)] if limit else []
        found += [*ladder.mixed(spans)] if node in invariant else []
        placed.setdefault(node, []).extend((mark, dict(fixed)) for mark, fixed in found)
    return placed


def _span_of(diagram: Diagram, kernels: Mapping[str, Kernel]) -> Callable[[int], ladder.Span | None]:
    def span(leaf: int) -> ladder.Span | None:
        outcome = diagram.outcome(leaf)
        if not isinstance(outcome, Leaf) or outcome.kernel is None or outcome.kernel not in kernels:
            return None
        k = kernels[outcome.kernel]
        return ladder.Span(Ints(0, 0), k.name, k.columns, k.ladder, k.contract)

    return span


def _located(diagram: Diagram, placed: Mapping[int, list[tuple[Mark, Witness]]]) -> Iterator[Finding]:
    """One finding an op and mark, with all the formats it touches and the smallest request among them."""
    space = diagram.space
    if not any(placed.values()):
        return
    below = partial_witnesses(diagram, placed)
    for op in space.axis("op").values:
        found: dict[Mark, tuple[Witness, list[str]]] = {}
        for format in space.axis("format").values:
            for mark, part in below[_node_of(diagram, op, format)].items():
                witness = complete(space, mark, {**part, "op": op, "format": format})
                first, touched = found.setdefault(mark, (witness, []))
                touched.append(format)
                if order_key(space, witness) < order_key(space, first):
                    found[mark] = (witness, touched)
        for mark, (witness, touched) in found.items():
            yield Finding(mark.kind, op, mark.text, mark.sources, witness, tuple(touched))


def _node_of(diagram: Diagram, op: str, format: str) -> int:
    """Where a request stands after op and format, which the space asks about first."""
    node = diagram.root
    while not diagram.is_leaf(node) and diagram.graph.nodes[node]["axis"] in ("op", "format"):
        node = diagram.next(node, {"op": op, "format": format})
    return node


# ---- findings without a place -----------------------------------------------------------------------------------


def _duplicates(catalog: Catalog, space: Space) -> Iterator[Finding]:
    seen: dict[str, Kernel] = {}
    for kernel in catalog.kernels:
        first = seen.setdefault(kernel.name, kernel)
        if first is not kernel:
            text = f"{kernel.name} is the name of two kernels, in {first.file} and {kernel.file}"
            witness = checks.first_of(space, kernel.where, {})
            yield Finding("duplicate", kernel.op, text, (kernel.name,), witness, (kernel.format,))


def _dead(
    diagram: Diagram,
    kernels: Iterable[Kernel],
    reached: Mapping[str, frozenset[str]],
    report: checks.Report | None,
    routes: Routes,
) -> Iterator[Finding]:
    archs = diagram.space.axis("arch").values
    if report is None:  # as `qgen build` would compile them: where a row claims them and they can run
        claimed = routes.archs(diagram.space)
        pairs = [
            (k, a) for k in kernels for a in claimed.get(k.name, archs)
            if a in archs and (k.archs is None or holds(k.archs, a))
        ]  # fmt: skip
    else:
        pairs = [(k, a) for k in kernels for a in archs if (k.name, a) in report]
        known = {k.name for k in kernels}
        for name in sorted({entry for entry, arch in report if arch in archs} - known):
            yield Finding("dead", "", f"{name} was compiled, but no route names it", (name,))
    for dead in checks.dead_kernels(diagram, pairs, reached):
        k = dead.kernel
        where = ", ".join(dead.archs)
        text = f"no request reaches {k.name} on {where}; the smallest it could serve comes to {dead.instead}"
        yield Finding("dead", k.op, text, (k.name,), dead.witness, (k.format,))


def _idle_rows(routes: Routes, bench: Bench, space: Space) -> Iterator[Finding]:
    """Routes and gates that decide nothing anywhere: what they were written for is decided before them."""
    idle: dict[str, list[Row]] = {}
    for row in routes.rows:
        key = (
            row.label
            if isinstance(row.label, Claim)
            else row.label.refusal.source
            if isinstance(row.label, Gate)
            else None
        )
        if key is not None and key not in bench.decided:
            idle.setdefault(row.label.source if isinstance(row.label, Claim) else str(key), []).append(row)
    for source, rows in idle.items():
        formats = sorted({name for row in rows for name in row.where.get("format", ())})  # type: ignore[union-attr]
        ops = sorted({name for row in rows for name in row.where.get("op", ())})  # type: ignore[union-attr]
        witness = next((w for row in rows if (w := checks.first_of(space, row.where, {}))), None)
        text = "the row decides nothing: every request it is about is decided by another"
        yield Finding("dead_route", ", ".join(ops), text, (source,), witness, tuple(formats))


def _aside(faults: Mapping[Mark, Witness]) -> Iterator[Finding]:
    for mark, witness in faults.items():
        yield Finding(mark.kind, "", mark.text, mark.sources, witness, (str(witness.get("format", "")),))


def _coverage(
    boxes: Iterable[tuple[Where, str]], kernels: Mapping[str, Kernel]
) -> dict[tuple[str, str], tuple[tuple[int, int], ...]]:
    """Per (op, format) the T that policy "invariant" serves for some shape, as merged intervals."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for where, name in boxes:
        policy, t = where.get("policy"), where.get("T")
        if (policy is None or holds(policy, INVARIANT)) and isinstance(t, Ints):
            spans.setdefault((kernels[name].op, kernels[name].format), []).append((t.lo, t.hi))
    return {key: _merged(found) for key, found in spans.items()}


def _rungs(space: Space, boxes: Iterable[tuple[Where, str]], kernels: Mapping[str, Kernel]) -> Iterator[Rung]:
    """What each kernel with a column capacity computes in vain, by stretches of T."""
    found: set[tuple[str, str, int, int, int]] = set()
    for where, name in boxes:
        kernel, t = kernels[name], where.get("T", space.axis("T").whole)
        if kernel.columns and isinstance(t, Ints):
            found.add((kernel.op, kernel.format, t.lo, t.hi, kernel.columns))
    for op, format, lo, hi, columns in sorted(found):
        ratio, t_of = ladder.worst(columns, Ints(lo, hi))
        yield Rung(op, format, (lo, hi), columns, ratio, t_of)


def _merged(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted(spans):
        if merged and lo <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        else:
            merged.append((lo, hi))
    return tuple(merged)
