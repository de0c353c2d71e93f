"""qgen: a kernel compiler for low-bit weights. Importing it does nothing; work starts when a function is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qgen.run import mul_mat, mul_mats, to_device, workspace
    from qgen.storage import repack
    from qgen.weights import Weight, load

__all__ = ["Weight", "load", "mul_mat", "mul_mats", "repack", "to_device", "workspace"]

_HOMES = {
    "Weight": "weights", "load": "weights", "repack": "storage", "mul_mat": "run", "mul_mats": "run",
    "to_device": "run", "workspace": "run",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgen' has no attribute {name!r}")
    return getattr(importlib.import_module(f"qgen.{_HOMES[name]}"), name)
