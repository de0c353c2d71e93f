"""qgen check-dispatch: prove that every request reaches exactly one kernel or one refusal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from qgen.cli import emit_json


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "check-dispatch",
        help="prove the dispatch, or another engine's",
        description="Proves over the whole request space, not on samples, that every request reaches exactly one "
        "kernel or one refusal, that every compiled kernel is reached and can start, and that the gates agree. "
        "Names the smallest request for everything it finds.",
        epilog="Exit status 0 only when proved. docs/dispatch.md says how to read the answer.",
    )
    verb.add_argument("--policy", metavar="P", help="for one policy only: fastest or invariant")
    verb.add_argument("--arch", metavar="SM", help="for one architecture only")
    verb.add_argument("--html", type=Path, metavar="FILE", help="also write a page to look at, without network")
    verb.add_argument("--gates", type=Path, metavar="FILE", help="check another engine's tables (specs/gates) instead")
    verb.add_argument("--root", type=Path, metavar="DIR", help="the generated tree, if not generated/")
    verb.add_argument("--json", action="store_true", help="for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when proved, 1 when anything was found."""
    # The graph library takes a moment to load: only those who prove something wait for it.
    from qgen import generate
    from qgen.dispatch import gate_proof, gates, page, report, shipped
    from qgen.plan import plan_all
    from qgen.spec import load_formats

    if args.gates:
        foreign = gate_proof.prove_gates(gates.load_gates(args.gates))
        if args.json:
            emit_json(report.gates_json(foreign))
        else:
            print(report.gates_text(foreign))
        return 0 if foreign.ok else 1
    legal, refused = plan_all(load_formats())
    plans = shipped.keep_routed(legal, refused)
    compiled = shipped.read_report(args.root or generate.generated_dir())
    proof, routes = shipped.proof_and_routes(plans, refused, report=compiled, policy=args.policy, arch=args.arch)
    if args.html:
        page.write(args.html, proof, routes)
    if args.json:
        emit_json(report.proof_json(proof))
    else:
        print(report.proof_text(proof))
        if args.html:
            print(f"look at it: {args.html}")
    return 0 if proof.ok else 1
