"""qgen schema: the JSON Schema of a format file, so that editors complete it."""

from __future__ import annotations

import argparse
from typing import Any

from qgen.cli import emit_json
from qgen.spec import schema


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "schema",
        help="print the JSON Schema of a format file",
        description="Prints the JSON Schema (draft 2020-12) of a format TOML. Point your editor's TOML "
        "plug-in at it: qgen schema > format.schema.json",
    )
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Always 0."""
    emit_json(schema())
    return 0
