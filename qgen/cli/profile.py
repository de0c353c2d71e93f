"""qgen profile: a kernel's memory traffic and instructions by Nsight Compute, beside what is predicted of them."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from qgen.cli import add_forms, show_report


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "profile",
        help="count kernels' memory traffic and instructions with ncu, beside what is predicted",
        description="Launches the kernel that a call of FORMAT gets once on cold weights under Nsight Compute (ncu), "
        "runs the same text in the emulator on a sample of rows, and counts its machine code as `qgen count` does. "
        "Prints how many bytes of the weights each saw requested, instructions a weight by pipe, predicted and "
        "counted, then occupancy, pipes and stalls. Whatever is missing here is named and left out.",
    )
    verb.add_argument("format", nargs="*", metavar="FORMAT", help="default: all")
    verb.add_argument("--storage", choices=("native", "tiled"), default="native", help="default: native")
    verb.add_argument("--tokens", type=int, default=1, metavar="T", help="default: 1")
    verb.add_argument("--shape", default=None, metavar="NxK", help="rows x columns (default: 14336x4096)")
    verb.add_argument(
        "--kernel", default=None, metavar="NAME", help="an instance of the one format named (default: the routed one)"
    )
    add_forms(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or a QgenError for a format, shape or kernel that does not exist."""
    from qgen.bench import instructions, profile, profile_text

    report = profile.profiles(
        args.format,
        shape=args.shape or instructions.SHAPE,
        tokens=args.tokens,
        storage=args.storage,
        kernel=args.kernel,
        command=shlex.join(["qgen", *sys.argv[1:]]),
    )
    show_report(
        args,
        record=report.to_json(),
        table=profile_text.text(report),
        sheet=profile_text.csv_text(report),
        page=profile_text.markdown(report),
    )
    return 0
