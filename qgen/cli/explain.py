"""qgen explain: one request, the way it goes through the dispatch, and why the neighbours were not taken."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qgen.cli import emit_json
from qgen.dispatch import Request
from qgen.dispatch.space import show

if TYPE_CHECKING:
    from qgen.dispatch.explain import Explanation


_SHOWN = 3  # answers not taken, of each question


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "explain",
        help="which kernel serves a request, and why not another",
        description="Walks one request through the proved dispatch graph. Prints every question on the way, the kernel "
        "or the refusal at its end, and what kept the request from the neighbours.",
        epilog="qgen explain --op mul_mat --format Q5_K --arch sm_90 -T 1 -N 5120 -K 6144",
    )
    verb.add_argument("--op", default="mul_mat", help="operation (default: mul_mat)")
    verb.add_argument("--format", required=True, help="weight format, as `qgen formats` lists them")
    verb.add_argument("--arch", required=True, metavar="SM", help="architecture, for example sm_90")
    verb.add_argument("-T", type=int, default=1, help="tokens (default: 1)")
    verb.add_argument("-N", type=int, required=True, help="rows: output features")
    verb.add_argument("-K", type=int, required=True, help="columns: input features")
    verb.add_argument("--activation", help="how x comes (default: the format's own)")
    verb.add_argument("--storage", default="native", help="native or tiled (default: native)")
    verb.add_argument("--epilogue", default="none", help="default: none")
    verb.add_argument("--policy", default="fastest", help="fastest or invariant (default: fastest)")
    verb.add_argument("--strided", action="store_true", help="x or y are not dense")
    verb.add_argument("--json", action="store_true", help="for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 for an explanation, of a refusal too; QgenError for a request that is none."""
    # The graph library takes a moment to load: only those who ask for an explanation wait for it.
    from qgen.dispatch import shipped
    from qgen.dispatch.explain import explain
    from qgen.plan import plan_all
    from qgen.spec import load_formats

    formats = load_formats()
    own = formats[args.format].activation if args.format in formats else None
    request = Request(
        op=args.op,
        format=args.format,
        activation=args.activation or own or "f32",
        T=args.T,
        N=args.N,
        K=args.K,
        arch=args.arch,
        storage=args.storage,
        epilogue=args.epilogue,
        policy=args.policy,
        contiguous=not args.strided,
    )
    plans, refused = plan_all(formats)
    proof, routes = shipped.proof_and_routes(plans, refused)
    made = explain(proof, routes, request)
    if args.json:
        emit_json(made.json())
    else:
        _print(made)
    return 0


def _print(made: Explanation) -> None:
    print(show(made.request))
    print()
    for turn in made.turns:
        print(f"  {turn.answer}")
        for answer, behind in turn.others[:_SHOWN]:
            print(f"      not {answer}: {behind}")
        if len(turn.others) > _SHOWN:
            print(f"      not {len(turn.others) - _SHOWN} more: --json lists them")
    print()
    if made.leaf.refusal:
        print(f"refused ({made.leaf.refusal.code}): {made.leaf.refusal.reason}")
    elif made.leaf.kernel:
        facts = made.kernel
        print(f"kernel {facts['name']}")
        print(f"  family {facts['family']}, contract {facts['contract'] or 'none'}, file {facts['file']}")
        print(
            f"  {facts['threads']} threads a block, {facts['shared_bytes']} bytes of shared memory, "
            f"{facts['rows']} rows a step"
        )
        if facts["columns"] > 1:
            print(f"  a ladder's rung of {facts['columns']} columns: computes that many tokens at a time")
        if facts["quantiser"]:
            print(f"  x comes from {facts['quantiser']}")
    else:
        print("the dispatch is at fault here: " + "; ".join(mark.text for mark in made.leaf.marks))
    print(f"  decided by {made.source}" if made.source else "")
    if made.neighbours:
        print("\nneighbours")
        for neighbour in made.neighbours:
            print(f"  {neighbour.kernel}\n      {neighbour.because}")
