"""The command line: one module a verb, each with add(subparsers) and run(args) -> exit status. No logic here."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qgen.errors import QgenError

VERBS = ("build", "check_dispatch", "explain", "formats", "show", "verify", "schema", "bench", "profile", "count")


def parser() -> argparse.ArgumentParser:
    """The whole command line, help included."""
    top = argparse.ArgumentParser(
        prog="qgen",
        description="A kernel compiler for low-bit weights: a format is one TOML file, out comes checked CUDA.",
        epilog="Start with `qgen formats`, then `qgen show TQ1_0`. Every verb explains itself: qgen VERB --help.",
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        importlib.import_module(f"qgen.cli.{verb}").add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for findings or a QgenError, 2 for a wrong command line."""
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except QgenError as error:
        if getattr(args, "json", False):
            fields = ("stage", "subject", "found", "allowed", "next")
            print(json.dumps({"error": {name: getattr(error, name) for name in fields}}, indent=1))
        else:
            print(f"qgen {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("qgen: stopped", file=sys.stderr)
        return 130


def emit_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, indent=1))


def add_forms(verb: argparse.ArgumentParser) -> None:
    """Where a report without a clock goes, and in which form."""
    verb.add_argument("--out", type=Path, default=None, metavar="DIR", help="write report.md, results.json, .csv")
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything for programs instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")


def show_report(args: argparse.Namespace, *, record: Any, table: str, sheet: str, page: str) -> None:
    """Write a report where --out says, and print it in the form asked for. Raises QgenError where it cannot be
    written."""
    from qgen.bench.writing import write_files

    if args.out:
        write_files(args.out, record=record, sheet=sheet, page=page)
    if args.json:
        emit_json(record)
    else:
        print((sheet if args.csv else table).rstrip("\n"))
