"""Where qgen's own data lives: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path


def data_dir(name: str) -> Path:
    """The directory of shipped data `name` ("specs" or "templates")."""
    package = Path(__file__).resolve().parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def cache_dir() -> Path:
    """Where compiled kernels are kept: $QGEN_CACHE, else the user's cache directory. Not created here."""
    chosen = os.environ.get("QGEN_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qgen"
