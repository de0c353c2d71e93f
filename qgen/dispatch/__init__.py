"""Dispatch: which kernel serves a request, or why none does; proved over the whole request space.

At run time only the flat table is read (`lookup`). The graph and the proof load when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from qgen.dispatch.choose import routed_batch, routed_float, routed_instance, routed_repack
from qgen.dispatch.request import Decision, Request
from qgen.dispatch.table import Table, lookup

if TYPE_CHECKING:
    from qgen.dispatch.shipped import files, keep_routed, prove_shipped, read_report, routed_archs

__all__ = [
    "Decision", "Request", "Table", "files", "keep_routed", "lookup", "prove_shipped", "read_report",
    "routed_archs", "routed_batch", "routed_float", "routed_instance", "routed_repack",
]  # fmt: skip

_HOMES = dict.fromkeys(("files", "keep_routed", "prove_shipped", "read_report", "routed_archs"), "shipped")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgen.dispatch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"qgen.dispatch.{_HOMES[name]}"), name)
