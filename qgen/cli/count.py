"""qgen count: instructions a weight by pipe, from the machine code, beside the bytes; no device."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from qgen.cli import add_forms, show_report


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "count",
        help="count the instructions a weight costs, by pipe, in a kernel's machine code",
        description="Disassembles the kernel that a call gets on sm_90 and weighs each of its basic blocks by how "
        "often a warp runs it, as the plan says. Prints instructions a weight by pipe, and microseconds for issuing "
        "them, for the pipes that take two cycles each, and for reading the weights: the highest of these is the "
        "kernel's wall. A kernel whose loops are not those of its plan is refused, and makes the exit status 1.",
    )
    verb.add_argument("format", nargs="*", metavar="FORMAT", help="default: all")
    verb.add_argument("--storage", choices=("native", "tiled"), default="native", help="default: native")
    verb.add_argument("--tokens", type=int, default=1, metavar="T", help="default: 1")
    verb.add_argument(
        "--shape", action="append", default=[], metavar="NxK", help="rows x columns (repeatable; default: 14336x4096)"
    )
    verb.add_argument("--clock", type=float, default=None, metavar="MHZ", help="default: 1980, an H200 under load")
    verb.add_argument(
        "--beside",
        action="append",
        type=Path,
        default=[],
        metavar="CSV",
        help="results.csv of `qgen bench` or `qgen profile`: measured figures beside the predicted (repeatable)",
    )
    add_forms(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """1 when a kernel could not be counted."""
    from qgen.bench import instructions
    from qgen.errors import QgenError

    if args.clock is not None and args.clock <= 0:
        raise QgenError(
            stage="count",
            subject="--clock",
            found=f"{args.clock:g} MHz",
            allowed="more than 0",
            next="leave it out for 1980",
        )
    device = instructions.H200 if args.clock is None else replace(instructions.H200, mhz=args.clock)
    report = instructions.predictions(
        args.format,
        shapes=args.shape or (instructions.SHAPE,),
        tokens=args.tokens,
        storage=args.storage,
        device=device,
        beside=args.beside,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    show_report(
        args,
        record=report.to_json(),
        table=instructions.table(report),
        sheet=instructions.csv_text(report),
        page=instructions.markdown(report),
    )
    return 1 if report.refused else 0
