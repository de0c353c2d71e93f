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
    verb.add_argument(
        "--model",
        default=None,
        metavar="NAME",
        help="instead of matrices: one decode step of a model of specs/models, as one graph of dependent calls, in "
        "tokens a second",
    )
    verb.add_argument(
        "--sweep", default=None, metavar="A:B:STEP", help="token counts of --model; commas join several (default: 1)"
    )
    _add_storage(verb)
    verb.add_argument("--candidates", action="store_true", help="time every compiled variant, not only the routed one")
    verb.add_argument("--repeat", type=int, default=None, metavar="N", help="passes of each kernel (default: 30)")
    verb.add_argument("--quick", action="store_true", help="three formats, one shape, five passes: a smoke test")
    verb.add_argument("--floors-only", action="store_true", help="measure only the floors, from 4 to 512 MB")
    verb.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="write report.md, results.json, .csv, plots"
    )
    verb.add_argument("--no-plots", action="store_true", help="no pictures in DIR (they need Matplotlib)")
    _add_peer(verb)
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
        "through every rung of the format's ladder and, at T = 1, through the mat-vec; over tiles through the kernels "
        "that quantise by themselves instead, and for more tokens through those for warpgroups that suit as many",
        formats="all with a ladder",
        shapes="14336x4096",
        sweep="1:32:1",
        run=run_ladder,
    )
    _add_storage(ladder)
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
    _add_peer(kind)
    kind.add_argument("--label", default="", metavar="TEXT", help="a remark for the report")
    form = kind.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything for programs instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")
    kind.set_defaults(run=run, activation="", storage="native")
    return kind


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage",
        choices=("native", "tiled"),
        default="native",
        help="how the weights lie: as in the file, or repacked to tiles (default: native)",
    )


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME",
        help="time another library on the same matrices in the same run: ggml=/path/to/libggml-cuda.so, humming or "
        "torch (repeatable); one that is missing or lacks a case is named and left out",
    )


def run(args: argparse.Namespace) -> int:
    """1 when a kernel gave wrong bits or the device failed on the way."""
    if args.model is not None:
        return run_model(args)
    if args.sweep is not None:
        raise QgenError(
            stage="bench",
            subject="--sweep",
            found="token counts for matrices",
            allowed="--sweep beside --model, or after `ladder` or `multirow`",
            next="write `qgen bench ladder --sweep ...`",
        )
    from qgen.bench import report as texts
    from qgen.bench import session
    from qgen.bench.cuda import CudaMachine

    options = session.Options(
        formats=args.format,
        shapes=args.shape,
        storage=args.storage,
        every=args.candidates,
        passes=args.repeat,
        quick=args.quick,
        floors_only=args.floors_only,
        peers=args.peer,
        label=args.label,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    report = session.bench(options, CudaMachine())
    return _show(args, report, texts.table(report))


def run_model(args: argparse.Namespace) -> int:
    """1 when a product of the step is wrong or the device failed on the way."""
    from qgen.bench import model, model_text, plots
    from qgen.bench.cuda import CudaMachine

    others = {"--shape": args.shape, "--candidates": args.candidates, "--floors-only": args.floors_only}
    given = [name for name, value in others.items() if value]
    if given:
        raise QgenError(
            stage="bench",
            subject=", ".join(given),
            found="beside --model",
            allowed="--model with --format, --sweep, --repeat, --quick, --peer and what says where the report goes",
            next="leave one of the two out",
        )
    options = model.Options(
        model=args.model,
        formats=args.format,
        sweep=args.sweep or model.SWEEP,
        storage=args.storage,
        passes=args.repeat,
        quick=args.quick,
        peers=args.peer,
        label=args.label,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    report = model.bench_model(options, CudaMachine())
    files = {"page": model_text.markdown, "draw": plots.write_model, "sheet": model_text.csv_text}
    return _show(args, report, model_text.table(report), **files)


def _show(args: argparse.Namespace, report: Report, table: str, **files: Any) -> int:
    """Write the report where --out says, print it, and return the exit status. files: as for `writing.write`."""
    from qgen.bench.report import csv_text
    from qgen.bench.writing import write

    if args.out:
        try:
            write(report, args.out, plots=not args.no_plots, **files)
        except QgenError as error:
            print(f"qgen {error}", file=sys.stderr)  # the figures are not lost with their pictures
    if args.json:
        emit_json(report.to_json())
    elif args.csv:
        print(files.get("sheet", csv_text)(report), end="")
    else:
        print(table)
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
    from qgen.bench.cuda import CudaMachine

    if args.model is not None:
        raise QgenError(
            stage="bench",
            subject="--model",
            found=f"before `{name}`",
            allowed="--model with --sweep, and no further word",
            next=f"write `qgen bench --model {args.model} --sweep {args.sweep}`",
        )
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
        storage=args.storage,
        peers=args.peer,
        label=args.label,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    report = bench(options, CudaMachine())
    page = partial(ladder_text.markdown, title=f"qgen bench {name}")
    draw = partial(plots.write_ladder, name=name)
    return _show(args, report, ladder_text.table(report), page=page, draw=draw)
