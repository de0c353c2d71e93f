"""Everything a proof says about T: columns computed in vain, rungs out of order, contracts that change on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from qgen.dispatch.diagram import Diagram
from qgen.dispatch.judge import Mark
from qgen.dispatch.labels import INVARIANT, Waste
from qgen.dispatch.space import Ints, Value


@dataclass(frozen=True)
class Span:
    """A stretch of T that one kernel serves. columns: its rung; ladder: what its rungs have in common."""

    t: Ints
    kernel: str
    columns: int = 0
    ladder: str = ""
    contract: str | None = None


Placed = Iterator[tuple[Mark, Mapping[str, Value]]]
KernelOf = Callable[[int], Span | None]  # leaf -> what serves there; its t is not looked at


def spans_at(diagram: Diagram, node: int, kernel_of: KernelOf, axis: str = "T") -> list[Span]:
    """What serves which T below a node at which T has not been asked about, in order of T."""
    if diagram.is_leaf(node):
        ways = [(diagram.space.axis(axis).whole, node)]
    else:
        ways = diagram.exits(node)
    spans = []
    for condition, leaf in ways:
        kernel = kernel_of(leaf)
        if kernel is not None:
            assert isinstance(condition, Ints)
            spans.append(Span(condition, kernel.kernel, kernel.columns, kernel.ladder, kernel.contract))
    return sorted(spans, key=lambda span: (span.t.lo, span.t.hi))


def entries(diagram: Diagram, axis: str = "T") -> list[int]:
    """The nodes at which T comes up: the first question about it, and leaves that are reached without one."""
    graph = diagram.graph

    def about(node: int) -> bool:
        return bool(diagram.is_leaf(node) or graph.nodes[node]["axis"] == axis)

    return [
        node
        for node in graph
        if about(node) and (node == diagram.root or any(not about(before) for before in graph.pred[node]))
    ]


def wasted(spans: Iterable[Span], limit: Waste) -> Placed:
    """Stretches of T for which more columns are computed than allowed, with the smallest T of each."""
    for span in spans:
        for lo, hi, computed in flagged(span, limit):
            ends = f"{computed / lo:.1f} x at T = {lo}" + (f", {computed / hi:.1f} x at T = {hi}" if hi > lo else "")
            text = (
                f"{span.kernel} computes {computed} columns for T = {lo}{f'..{hi}' if hi > lo else ''}: {ends}; "
                f"allowed are {limit.columns} columns or {limit.bound:g} x"
            )
            yield Mark("waste", text, (span.kernel,)), {"T": lo}


def worst(columns: int, t: Ints) -> tuple[float, int]:
    """The largest ratio of columns computed to columns needed on a stretch, and the T that has it.

    Within one tile count the ratio falls with T, so only the first T and the first of the next tile count.
    """
    tiles = -(-t.lo // columns)
    first = [(tiles * columns / t.lo, t.lo)]
    if tiles * columns < t.hi:
        first.append(((tiles + 1) * columns / (tiles * columns + 1), tiles * columns + 1))
    return max(first)


def flagged(span: Span, limit: Waste) -> Iterator[tuple[int, int, int]]:
    """(first T, last T, columns computed) of every wasteful stretch. Exact: solved per number of tiles, not sampled."""
    c = span.columns
    if c < 1:
        return
    tiles = -(-span.t.lo // c)
    while (tiles - 1) * c + 1 <= span.t.hi:
        computed = tiles * c
        first = max(span.t.lo, (tiles - 1) * c + 1)
        # computed > bound * T, that is T < computed / bound
        last = min(span.t.hi, computed, ceil(computed / limit.bound) - 1)
        if computed > limit.columns and first <= last:
            yield first, last, computed
        # The more tiles, the smaller the part that is wasted: if the next tile's first T passes, all later ones do.
        if (tiles * c + 1) * limit.bound >= (tiles + 1) * c:
            return
        tiles += 1


def bypassed(spans: Sequence[Span], limit: Waste, ladders: Mapping[str, frozenset[int]]) -> Placed:
    """Wasteful stretches that a narrower rung of the same ladder, compiled but not used here, would hold.

    ladders: the rungs of each ladder that are compiled for anything at all.
    """
    used = {span.columns for span in spans}
    for span in spans:
        for lo, hi, computed in flagged(span, limit):
            unused = sorted(r for r in ladders.get(span.ladder, ()) if lo <= r < computed and r not in used)
            if unused:
                rungs = ", ".join(map(str, unused))
                text = (
                    f"rungs {rungs} of ladder {span.ladder} are compiled but unreachable here: T = {lo}..{hi} runs "
                    f"rung {span.columns} ({span.kernel})"
                )
                yield Mark("rung", text, (span.kernel,)), {"T": lo}


def disordered(spans: Sequence[Span]) -> Placed:
    """A rung that serves larger T than a wider rung before it, though the wider one would hold them in one tile."""
    for before, after in zip(spans, spans[1:], strict=False):
        same = before.ladder and before.ladder == after.ladder
        if same and after.t.lo <= before.columns and after.columns < before.columns:
            text = (
                f"rung {before.columns} ({before.kernel}, T up to {before.t.hi}) comes before the narrower rung "
                f"{after.columns} ({after.kernel}) for T = {after.t.lo}.."
            )
            yield Mark("order", text, (before.kernel, after.kernel)), {"T": after.t.lo}


def mixed(spans: Sequence[Span]) -> Placed:
    """Two contracts among the T of one shape: the bits of a column would depend on T."""
    for span in spans[1:]:
        if span.contract != spans[0].contract:
            text = (
                f"policy invariant mixes contracts: T = {spans[0].t.least()} runs {spans[0].kernel} "
                f"({spans[0].contract}), T = {span.t.least()} runs {span.kernel} ({span.contract})"
            )
            least = span.t.least()
            assert least is not None  # the diagram has no ways that nobody can go
            yield Mark("contract", text, (spans[0].kernel, span.kernel), (("policy", INVARIANT),)), {"T": least}
            return


def reachable_under(diagram: Diagram, axis: str, value: str) -> set[int]:
    """The nodes on some path of a request whose choice `axis` is `value`."""
    seen, stack = {diagram.root}, [diagram.root]
    while stack:
        node = stack.pop()
        asked = not diagram.is_leaf(node) and diagram.graph.nodes[node]["axis"] == axis
        for child, edge in diagram.graph.adj[node].items():
            if child not in seen and (not asked or value in edge["answer"]):
                seen.add(child)
                stack.append(child)
    return seen
