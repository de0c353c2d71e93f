"""qgen bench: times of the kernels on this device, beside both read floors and the peers."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from qgen.cli import emit_json
from qgen.errors import QgenError


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "bench",
        help="time the kernels on this device, beside the read floors",
        description="Times mul_mat for every format on cold weights, with and without the quantisation of the "
        "activation, beside two floors measured in the same rounds: reading the same bytes kernel by kernel, and as a "
        "chain of dependent launches. Each kernel's result is judged in the same run; a wrong one gets no time and "
        "makes the exit status 1.",
    )
    verb.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="a format (repeatable; default: all)"
    )
    verb.add_argument(
        "--shape", action="append", default=[], metavar="NxK", help="rows x columns (repeatable; default: four shapes)"
    )
    verb.add_argument("--candidates", action="store_true", help="time every compiled variant, not only the routed one")
    verb.add_argument("--repeat", type=int, default=None, metavar="N", help="passes of each kernel (default: 30)")
    verb.add_argument("--quick", action="store_true", help="three formats, one shape, five passes: a smoke test")
    verb.add_argument("--floors-only", action="store_true", help="measure only the floors, from 4 to 512 MB")
    verb.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="write report.md, results.json, .csv, plots"
    )
    verb.add_argument("--no-plots", action="store_true", help="no pictures in DIR (they need Matplotlib)")
    verb.add_argument("--label", default="", metavar="TEXT", help="a remark for the report")
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything for programs instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")
    verb.set_defaults(run=run)
    _add_ladder(verb.add_subparsers(dest="what", metavar="", title="or, instead", required=False))


def _add_ladder(kinds: Any) -> None:
    kind = kinds.add_parser(
        "ladder",
        help="sweep token counts: every rung beside the kernel that a call gets",
        description="Times a call for every token count of the sweep, through every rung of the format's ladder and, "
        "at T = 1, through the mat-vec; on cold weights, activation quantisation included. Every result is compared "
        "bit for bit with single-column calls of the same run; any difference makes the exit status 1.",
    )
    kind.add_argument(
        "--format",
        action="append",
        default=[],
        metavar="NAME",
        help="a format (repeatable; default: all with a ladder)",
    )
    kind.add_argument(
        "--activation", default="", metavar="CLASS", help="f16 or bf16 (default: int8, as the format's file says)"
    )
    kind.add_argument("--n", type=int, default=None, metavar="N", help="rows; with --k, in place of --shape")
    kind.add_argument("--k", type=int, default=None, metavar="K", help="columns")
    kind.add_argument(
        "--shape", action="append", default=[], metavar="NxK", help="rows x columns (repeatable; default: 14336x4096)"
    )
    kind.add_argument(
        "--sweep", default="1:32:1", metavar="A:B:STEP", help="token counts; commas join several (default: 1:32:1)"
    )
    kind.add_argument("--repeat", type=int, default=30, metavar="N", help="passes of each kernel (default: 30)")
    kind.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="write report.md, results.json, .csv, a plot"
    )
    kind.add_argument("--no-plots", action="store_true", help="no pictures in DIR (they need Matplotlib)")
    kind.add_argument("--label", default="", metavar="TEXT", help="a remark for the report")
    form = kind.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything for programs instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")
    kind.set_defaults(run=run_ladder)


def run(args: argparse.Namespace) -> int:
    """1 when a kernel gave wrong bits or the device failed on the way."""
    from qgen.bench import report as texts
    from qgen.bench import session
    from qgen.bench.cuda import CudaMachine
    from qgen.bench.writing import write

    options = session.Options(
        formats=args.format,
        shapes=args.shape,
        every=args.candidates,
        passes=args.repeat,
        quick=args.quick,
        floors_only=args.floors_only,
        label=args.label,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    report = session.bench(options, CudaMachine())
    if args.out:
        try:
            write(report, args.out, plots=not args.no_plots)
        except QgenError as error:
            print(f"qgen {error}", file=sys.stderr)  # the figures are not lost with their pictures
    if args.json:
        emit_json(report.to_json())
    elif args.csv:
        print(texts.csv_text(report), end="")
    else:
        print(texts.table(report))
    return 0 if report.ok else 1


def run_ladder(args: argparse.Namespace) -> int:
    """1 when a result differs from single-column calls or the device failed on the way."""
    from qgen.bench import ladder, ladder_text, plots
    from qgen.bench import report as texts
    from qgen.bench.cuda import CudaMachine
    from qgen.bench.writing import write

    if (args.n is None) != (args.k is None):
        raise QgenError(
            stage="bench",
            subject="--n and --k",
            found="one of them",
            allowed="both, or --shape NxK",
            next="add the other",
        )
    options = ladder.Options(
        formats=args.format,
        shapes=[*args.shape, *([f"{args.n}x{args.k}"] if args.n is not None else [])],
        sweep=args.sweep,
        passes=args.repeat,
        activation=args.activation,
        label=args.label,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    report = ladder.bench_ladder(options, CudaMachine())
    if args.out:
        try:
            write(report, args.out, plots=not args.no_plots, page=ladder_text.markdown, draw=plots.write_ladder)
        except QgenError as error:
            print(f"qgen {error}", file=sys.stderr)  # the figures are not lost with their pictures
    if args.json:
        emit_json(report.to_json())
    elif args.csv:
        print(texts.csv_text(report), end="")
    else:
        print(ladder_text.table(report))
    return 0 if report.ok else 1
