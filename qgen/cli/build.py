"""qgen build: write generated/, compile it for every architecture, prove the dispatch."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from pathlib import Path
from typing import Any

from qgen import archs, generate, tree
from qgen.cli import emit_json
from qgen.errors import QgenError


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "build",
        help="generate all kernels, compile them without a GPU, record their resources",
        description="Plans every kernel, compiles each for every architecture with NVRTC (no GPU, no toolkit needed), "
        "records registers, spills, stack and shared memory, and writes generated/: only changed files, stale ones "
        "removed, all or nothing. A kernel that spills is an error.",
    )
    verb.add_argument("--check", action="store_true", help="write nothing; fail if generated/ differs in any byte")
    verb.add_argument("--out", type=Path, default=None, metavar="DIR", help="write here instead of generated/")
    verb.add_argument(
        "--arch", action="append", metavar="SM", help="compile for this architecture only (no report then)"
    )
    verb.add_argument("--json", action="store_true", help="print a summary for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build or check; 1 when --check finds differences."""
    started = time.monotonic()
    known = archs.load_archs()
    for name in args.arch or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise QgenError(
                stage="build",
                subject=f"--arch {name}",
                found="no such architecture" + (f" (did you mean {near[0]}?)" if near else ""),
                allowed=", ".join(known),
                next="name one of these, or add a file to specs/archs",
            )
    made = generate.generate()
    cubins = generate.compile_sources(made, args.arch or list(known))
    root = args.out or generate.generated_dir()
    if args.arch:
        # Resources of some architectures are no report of the whole.
        files = None
    else:
        files = generate.all_files(made, cubins)
    summary: dict[str, Any] = {
        "kernels": sum(len(s.kernels) for s in made.sources),
        "sources": len(made.sources),
        "architectures": args.arch or list(known),
        "compiled": len(cubins),
        "refused": {name: reason.found for name, reason in made.refused.items()},
        "root": str(root),
    }
    status = 0
    if files is not None and args.check:
        differences = tree.check(root, files)
        summary["differences"] = [str(d) for d in differences]
        status = 1 if differences else 0
    elif files is not None:
        written = tree.write(root, files)
        summary["changed"], summary["removed"] = list(written.changed), list(written.removed)
    summary["seconds"] = round(time.monotonic() - started, 1)
    if args.json:
        emit_json(summary)
    else:
        _print(summary, checked=args.check)
    if status and not args.json:  # the summary names the differences
        raise QgenError(
            stage="build",
            subject=str(root),
            found=f"{len(summary['differences'])} differences between generated/ and what qgen makes now",
            allowed="no difference",
            next="run `qgen build`, read the diff and commit it",
        )
    return status


def _print(summary: dict[str, Any], *, checked: bool) -> None:
    print(
        f"{summary['kernels']} kernels in {summary['sources']} files, each compiled for "
        f"{', '.join(summary['architectures'])}: no spills"
    )
    for name, reason in summary["refused"].items():
        print(f"  no kernels for {name}: {reason}")
    for difference in summary.get("differences", ()):
        print(f"  {difference}", file=sys.stderr)
    if "changed" in summary:
        print(f"{summary['root']}: {len(summary['changed'])} files written, {len(summary['removed'])} removed")
    elif checked and not summary.get("differences"):
        print(f"{summary['root']}: up to date")
    print(f"done in {summary['seconds']} s")
