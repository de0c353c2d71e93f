"""The proved graph, numbered and flat: dispatch.json for Python and other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qgen.dispatch import table
from qgen.dispatch.judge import Leaf
from qgen.dispatch.kernels import Kernel
from qgen.dispatch.merge import merged
from qgen.dispatch.proof import Proof


@dataclass(frozen=True)
class Ends:
    """What the graph ends in, numbered: kernels in plan order, refusals by code and reason."""

    kernels: tuple[Kernel, ...]
    refusals: dict[tuple[str, str], int]  # (code, reason) -> number, in order

    @classmethod
    def of(cls, proof: Proof) -> Ends:
        """Kernels and refusals that some request reaches."""
        found: dict[tuple[str, str], None] = {}
        for leaf in sorted(proof.diagram.leaves()):
            outcome = proof.diagram.outcome(leaf)
            if isinstance(outcome, Leaf) and outcome.refusal is not None:
                found[outcome.refusal.code, outcome.refusal.reason] = None
        kernels = tuple(k for k in proof.catalog.kernels if k.name in proof.reached)
        return cls(kernels, {refusal: number for number, refusal in enumerate(sorted(found))})

    def place(self, leaf: Leaf) -> tuple[str, str | int]:
        """How a table row names the outcome."""
        if leaf.kernel is not None:
            return "kernel", leaf.kernel
        assert leaf.refusal is not None
        return "refusal", self.refusals[leaf.refusal.code, leaf.refusal.reason]


def flat(proof: Proof, ends: Ends) -> str:
    """dispatch.json."""
    boxes = [(where, ends.place(leaf)) for where, leaf in proof.diagram.boxes() if isinstance(leaf, Leaf)]
    rows = merged(proof.space, boxes)
    return table.dumps(proof.space, [kernel_facts(k) for k in ends.kernels], ends.refusals, rows)


def kernel_facts(k: Kernel) -> dict[str, Any]:
    """What an engine needs to know about a kernel, for JSON."""
    return {
        "name": k.name,
        "file": k.file,
        "op": k.op,
        "family": k.family,
        "format": k.format,
        "contract": k.contract,
        "quantiser": k.quantiser,
        "columns": k.columns,
        "threads": k.threads,
        "shared_bytes": k.shared_bytes,
        "rows": k.rows,
        "alignment": k.alignment,
    }
