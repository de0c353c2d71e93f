"""qgen bench: times of the kernels on this device, beside both read floors and the peers."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qgen.cli import emit_json
from qgen.errors import QgenError

if TYPE_CHECKING:  # what needs a device is imported when it is asked for
    from qgen.bench.ladder import Options
    from qgen.bench.machine import Machine
    from qgen.bench.records import Report

Run = Callable[[argparse.Namespace], int]


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
    kinds = verb.add_subparsers(dest="what", metavar="", title="or, instead", required=False)
    ladder = _add_sweep(
        kinds,
        "ladder",
        "sweep token counts: every rung beside the kernel that a call gets",
        "through every rung of the format's ladder and, at T = 1, through the mat-vec",
        formats="all with a ladder",
        shapes="14336x4096",
        sweep="1:32:1",
        run=run_ladder,
    )
    ladder.add_argument(
        "--activation", default="", metavar="CLASS", help="f16 or bf16 (default: int8, as the format's file says)"
    )
    _add_sweep(
        kinds,
        "multirow",
        "a few tokens by dp4a: every number of rows a team, beside the ladder",
        "through the family multirow with every number of rows a team, beside the narrowest rung that holds the tokens "
        "and, at T = 1, the mat-vec",
        formats="with no --shape either, 15 matrices of public models",
        shapes="14336x4096",
        sweep="1,2,3,4,5,8",
        run=run_multirow,
    )


def _add_sweep(
    kinds: Any, name: str, help: str, what: str, *, formats: str, shapes: str, sweep: str, run: Run
) -> argparse.ArgumentParser:
    kind: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=help,
        description=f"Times a call for every token count of the sweep, {what}; on cold weights, activation "
        "quantisation included. Every result is compared bit for bit with single-column calls of the same run; any "
        "difference makes the exit status 1.",
    )
    kind.add_argument(
        "--format", action="append", default=[], metavar="NAME", help=f"a format (repeatable; default: {formats})"
    )
    kind.add_argument("--n", type=int, default=None, metavar="N", help="rows; with --k, in place of --shape")
    kind.add_argument("--k", type=int, default=None, metavar="K", help="columns")
    kind.add_argument(
        "--shape", action="append", default=[], metavar="NxK", help=f"rows x columns (repeatable; default: {shapes})"
    )
    kind.add_argument(
        "--sweep", default=sweep, metavar="A:B:STEP", help=f"token counts; commas join several (default: {sweep})"
    )
    kind.add_argument("--repeat", type=int, default=30, metavar="N", help="passes of each kernel (default: 30)")
    kind.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="write report.md, results.json, .csv, plots"
    )
    kind.add_argument("--no-plots", action="store_true", help="no pictures in DIR (they need Matplotlib)")
    kind.add_argument("--label", default="", metavar="TEXT", help="a remark for the report")
    form = kind.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything for programs instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")
    kind.set_defaults(run=run, activation="")
    return kind


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
    from qgen.bench.ladder import bench_ladder

    return _run_sweep(args, "ladder", bench_ladder)


def run_multirow(args: argparse.Namespace) -> int:
    """1 when a result differs from single-column calls or the device failed on the way."""
    from qgen.bench.multirow import bench_multirow

    return _run_sweep(args, "multirow", bench_multirow)


def _run_sweep(args: argparse.Namespace, name: str, bench: Callable[[Options, Machine], Report]) -> int:
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
    report = bench(options, CudaMachine())
    if args.out:
        page = partial(ladder_text.markdown, title=f"qgen bench {name}")
        try:
            write(report, args.out, plots=not args.no_plots, page=page, draw=partial(plots.write_ladder, name=name))
        except QgenError as error:
            print(f"qgen {error}", file=sys.stderr)  # the figures are not lost with their pictures
    if args.json:
        emit_json(report.to_json())
    elif args.csv:
        print(texts.csv_text(report), end="")
    else:
        print(ladder_text.table(report))
    return 0 if report.ok else 1
