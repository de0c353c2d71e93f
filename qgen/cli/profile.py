"""qgen profile: a kernel's memory traffic and pipes by Nsight Compute, beside the emulator's count."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from qgen.cli import emit_json


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "profile",
        help="count a kernel's memory traffic with ncu and in the emulator",
        description="Launches one kernel of FORMAT once on cold weights under Nsight Compute (ncu), and runs the same "
        "text in the emulator on a sample of rows. Prints how many bytes of the weights each of them saw requested, "
        "then occupancy, pipe utilisation and instructions. Whatever is missing here is named and left out.",
    )
    verb.add_argument("format", metavar="FORMAT")
    verb.add_argument("--shape", default=None, metavar="NxK", help="rows x columns (default: 14336x4096)")
    verb.add_argument(
        "--kernel", default=None, metavar="NAME", help="an instance of the format (default: the routed one)"
    )
    verb.add_argument("--out", type=Path, default=None, metavar="FILE", help="also write everything as JSON to FILE")
    verb.add_argument("--json", action="store_true", help="print for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or a QgenError for a format, shape or kernel that does not exist."""
    from qgen.bench import profile

    result = profile.profile(args.format, args.shape or profile.SHAPE, args.kernel)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    if args.json:
        emit_json(result.to_json())
    else:
        print(profile.text(result))
    return 0
