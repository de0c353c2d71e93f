"""qgen formats: what qgen can read, and what it has kernels for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from qgen.cli import emit_json
from qgen.errors import QgenError
from qgen.plan import (
    FloatKsplitPlan,
    FloatWgmmaPlan,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    Plan,
    WgmmaPlan,
    entries,
    plan_all,
)
from qgen.spec import Format, load_format, load_formats

_INTEGER = MatvecPlan | MultirowPlan | KsplitPlan | FusedPlan | WgmmaPlan  # what multiplies int8 activations


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "formats",
        help="list the formats, or check one format file",
        description="Lists every format of specs/formats with its size, activation and kernels. "
        "With a file: reads and checks that format file and says what qgen can make of it.",
    )
    verb.add_argument("file", nargs="?", type=Path, help="a format TOML to check instead")
    verb.add_argument("--json", action="store_true", help="for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Always 0 unless a file is refused."""
    if args.file:
        one = load_format(args.file)
        formats = {one.name: one}
    else:
        formats = load_formats()
    plans, refused = plan_all(formats)
    own = {name: [p for p in plans if p.format == name] for name in formats}
    if args.json:
        emit_json([_row(f, own[name], refused.get(name)) for name, f in sorted(formats.items())])
        return 0
    print(f"{'format':12} {'id':>4} {'block':>6} {'bytes':>6} {'bpw':>7} {'align':>5}  {'activation':10} kernels")
    for name, format in sorted(formats.items()):
        made = "; ".join(_counts(own[name])) or f"none: {refused[name].found}"
        number = "-" if format.id is None else str(format.id)
        print(
            f"{name:12} {number:>4} {format.block:>6} {format.bytes:>6} {format.bits_per_weight:>7.4f} "
            f"{format.alignment:>5}  {format.activation or '-':10} {made}"
        )
    return 0


def _counts(plans: list[Plan]) -> list[str]:
    """How many mul_mat kernels there are for what: the activation a format names first."""
    integer = []
    for plan in plans:
        if isinstance(plan, _INTEGER):
            named = "mul_mat T=1" if isinstance(plan, MatvecPlan) else plan.family
            over = f"{plan.family} over tiles" if isinstance(plan, FusedPlan | WgmmaPlan) else "over tiles"
            integer.append(f"{named if plan.storage == 'native' else over}: {len(entries(plan))}")
    floats: dict[str, list[str]] = {}
    for plan in plans:
        if isinstance(plan, FloatKsplitPlan | FloatWgmmaPlan):
            over = f"{plan.family} over tiles" if isinstance(plan, FloatWgmmaPlan) else "over tiles"
            named = plan.layout.activation if plan.storage == "native" else over
            floats.setdefault(plan.layout.activation, []).append(f"{named}: {len(plan.rungs)}")
    return [", ".join(integer)] * bool(integer) + [", ".join(counts) for counts in floats.values()]


def _row(format: Format, plans: list[Plan], refusal: QgenError | None) -> dict[str, Any]:
    multiply = (p for p in plans if isinstance(p, _INTEGER | FloatKsplitPlan | FloatWgmmaPlan))
    return {
        "name": format.name,
        "id": format.id,
        "block": format.block,
        "bytes": format.bytes,
        "bits_per_weight": format.bits_per_weight,
        "alignment": format.alignment,
        "activation": format.activation,
        "kernels": [name for plan in multiply for name in entries(plan)],
        "refused": refusal.found if refusal else None,
        "doc": format.doc,
    }
