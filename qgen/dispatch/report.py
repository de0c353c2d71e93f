"""A proof as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qgen.dispatch.gate_proof import KINDS as GATE_KINDS
from qgen.dispatch.gate_proof import GateFinding, GateProof
from qgen.dispatch.proof import KINDS, Finding, Proof

_SHOWN = 8  # findings of one kind in the text


def proof_json(proof: Proof) -> dict[str, Any]:
    """Everything a program may want to know about a proof."""
    graph = proof.diagram.graph
    return {
        "proved": proof.ok,
        "seconds": round(proof.seconds, 3),
        "requests": proof.requests,
        "axes": {a.name: len(a.values) if a.choice else [a.lo, a.hi] for a in proof.space.axes},
        "graph": {"nodes": graph.number_of_nodes(), "edges": graph.number_of_edges()},
        "kernels": {name: sorted(archs) for name, archs in sorted(proof.reached.items())},
        "invariant": [
            {"op": op, "format": format, "T": [list(span) for span in spans]}
            for (op, format), spans in sorted(proof.coverage.items())
        ],
        "columns": [
            {
                "op": r.op,
                "format": r.format,
                "T": list(r.t),
                "computed_at_a_time": r.columns,
                "worst_ratio": round(r.worst, 3),
                "worst_T": r.worst_t,
            }
            for r in proof.rungs
        ],
        "findings": [_finding_json(f) for f in proof.findings],
    }


def _finding_json(f: Finding) -> dict[str, Any]:
    return {
        "kind": f.kind,
        "op": f.op,
        "text": f.text,
        "sources": list(f.sources),
        "formats": list(f.formats),
        "witness": f.witness,
    }


def proof_text(proof: Proof) -> str:
    """The summary `qgen check-dispatch` prints."""
    graph = proof.diagram.graph
    leaves = proof.diagram.leaves()
    sizes = " x ".join(f"{len(a.values)} {a.name}" for a in proof.space.axes if a.choice and len(a.values) > 1)
    ranges = ", ".join(f"{a.name} {a.lo}..{a.hi}" for a in reversed(proof.space.axes) if not a.choice)
    lines = [
        f"{proof.requests:.2e} requests: {sizes}; {ranges}",
        f"graph of {graph.number_of_nodes()} nodes and {graph.number_of_edges()} edges: "
        f"{len(proof.reached)} kernels, {len(leaves) - len(proof.reached)} refusals",
        "",
        *_verdicts(KINDS, proof.findings),
        *_served(proof),
        *_invariant(proof),
        *_columns(proof),
        f"{_verdict(proof.ok, len(proof.findings))} in {proof.seconds:.2f} s",
    ]
    return "\n".join(lines)


def _verdict(ok: bool, count: int) -> str:
    return "proved: every request reaches exactly one kernel or one refusal" if ok else f"NOT proved: {count} findings"


def _verdicts(kinds: Mapping[str, str], findings: Sequence[Finding | GateFinding]) -> list[str]:
    """One line a kind of fault, and below it what was found."""
    lines = []
    for kind, meaning in kinds.items():
        found = [f for f in findings if f.kind == kind]
        lines.append(f"  {'none' if not found else len(found)!s:>5}  {meaning}")
        for f in found[:_SHOWN]:
            lines += ["         " + line for line in str(f).splitlines()]
        if len(found) > _SHOWN:
            lines.append(f"         ... and {len(found) - _SHOWN} more: --json lists all")
    return [*lines, ""]


def _served(proof: Proof) -> list[str]:
    """Per op what is served at all."""
    lines = []
    for op in proof.space.axis("op").values:
        kernels = [k for k in proof.catalog.kernels if k.op == op and k.name in proof.reached]
        formats = {k.format for k in kernels}
        missing = [name for name in proof.space.axis("format").values if name not in formats]
        if not kernels:
            lines.append(f"  {op:20} refused for every format")
            continue
        lines.append(
            f"  {op:20} {len(formats)} formats, {len(kernels)} kernels"
            + (f"; refused: {', '.join(missing)}" if missing else "")
        )
    return [*lines, ""]


def _invariant(proof: Proof) -> list[str]:
    """Which T policy "invariant" serves, grouped by equal stretches."""
    groups: dict[tuple[str, str], list[str]] = {}
    for (op, format), spans in sorted(proof.coverage.items()):
        if op == "quantize_activation":
            continue
        shown = ", ".join(f"{lo}..{hi}" if lo != hi else str(lo) for lo, hi in spans)
        groups.setdefault((op, shown), []).append(format)
    return [
        f"  policy invariant: {op} T = {spans} under one contract each for {', '.join(formats)}"
        for (op, spans), formats in groups.items()
    ]


def _columns(proof: Proof) -> list[str]:
    """The worst of the ladders."""
    if not proof.rungs:
        return []
    r = max(proof.rungs, key=lambda r: r.worst)
    return [
        f"  columns computed over columns needed: at most {r.worst:.2f} x "
        f"({r.op} {r.format}, T = {r.worst_t} on rung {r.columns})",
        "",
    ]


def gates_json(proof: GateProof) -> dict[str, Any]:
    """A foreign dispatch's proof for programs."""
    return {
        "engine": proof.engine.name,
        "file": proof.engine.source,
        "proved": proof.ok,
        "seconds": round(proof.seconds, 3),
        "findings": [
            {"kind": f.kind, "text": f.text, "sources": list(f.sources), "witness": f.witness} for f in proof.findings
        ],
    }


def gates_text(proof: GateProof) -> str:
    """A foreign dispatch's proof for people."""
    lines = [
        f"{proof.engine.name}: {proof.engine.doc} ({proof.engine.source})",
        "",
        *_verdicts(GATE_KINDS, proof.findings),
        f"{_verdict(proof.ok, len(proof.findings))} in {proof.seconds:.2f} s",
    ]
    return "\n".join(lines)
