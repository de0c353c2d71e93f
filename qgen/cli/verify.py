"""qgen verify: run the kernels on a real model file and compare with the oracle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from qgen.cli import emit_json


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "verify",
        help="run every quantised matrix of a GGUF file against the oracle",
        description="Multiplies every quantised matrix of MODEL.gguf by random vectors, on the GPU if "
        "there is one and otherwise in the emulator on a stated sample of rows, and compares each result "
        "with the NumPy oracle. Exit status 1 on any mismatch.",
    )
    verb.add_argument("model", type=Path, metavar="MODEL.gguf")
    verb.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="where kernels run (default: auto)"
    )
    verb.add_argument("--rows", type=int, default=None, metavar="N", help="compare N rows of each matrix")
    verb.add_argument("--tokens", type=int, default=1, metavar="T", help="vectors at a time (default: 1)")
    verb.add_argument("--seed", type=int, default=0, help="seed of the vectors and of the sample (default: 0)")
    verb.add_argument("--json", action="store_true", help="print the report for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """1 when any matrix fails."""
    from qgen.verify import verify

    report = verify(args.model, device=args.device, rows=args.rows, tokens=args.tokens, seed=args.seed)
    if args.json:
        emit_json(report.to_json())
    else:
        print(report.table())
    return 0 if report.ok else 1
