"""Compiled kernels on disk: one directory each, complete or absent, with the source beside the machine code.

A directory holds kernel.cu, the headers it includes, kernel.cubin and resources.json. It is filled under another
name and published by one rename, so a reader never meets half of it; what was damaged since is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from qgen.build.resources import Resources
from qgen.errors import QgenError
from qgen.paths import cache_dir


@dataclass(frozen=True)
class Request:
    """Everything that decides the machine code. `headers` maps include names to their complete text."""

    name: str
    arch: str
    compiler: str
    options: tuple[str, ...]
    text: str
    headers: Mapping[str, str]

    @property
    def key(self) -> str:
        """A digest over all of it (hex)."""
        digest = hashlib.sha256()
        for part in (self.name, self.arch, self.compiler, *self.options, self.text, *_flat(self.headers)):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    @property
    def directory(self) -> Path:
        """Where its result lives; readable to people, unique by the key."""
        return cache_dir() / "kernels" / f"{self.name}.{self.arch}.{self.key[:16]}"


@dataclass(frozen=True)
class Stored:
    """A complete cache entry: the machine code, its entries' resources, and the compiler's warnings."""

    cubin: bytes
    entries: tuple[Resources, ...]
    warnings: tuple[str, ...]


def load(request: Request) -> Stored | None:
    """The stored result, or None when it is absent or not exactly as it was published."""
    directory = request.directory
    try:
        record = json.loads((directory / "resources.json").read_text(encoding="utf-8"))
        cubin = (directory / "kernel.cubin").read_bytes()
        source = (directory / "kernel.cu").read_text(encoding="utf-8")
        if hashlib.sha256(cubin).hexdigest() != record["cubin_sha256"] or source != request.text:
            return None
        return Stored(
            cubin=cubin,
            entries=tuple(Resources(**row) for row in record["entries"]),
            warnings=tuple(record["warnings"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def publish(request: Request, stored: Stored) -> None:
    """Write the result under its key. Raises QgenError when the cache cannot be written."""
    final = request.directory
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=final.parent))
        try:
            _fill(draft, request, stored)
            _move(draft, final, request)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise QgenError(
            stage="build",
            subject=f"cache of compiled kernels {final.parent}",
            found=f"it cannot be written: {error.strerror or error}",
            allowed="a writable directory on a disk with room",
            next="set QGEN_CACHE to such a directory and run the command again",
        ) from error


def _fill(draft: Path, request: Request, stored: Stored) -> None:
    (draft / "kernel.cu").write_text(request.text, encoding="utf-8", newline="")
    (draft / "kernel.cubin").write_bytes(stored.cubin)
    for name, text in request.headers.items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    record = {
        "name": request.name,
        "arch": request.arch,
        "compiler": request.compiler,
        "options": list(request.options),
        "cubin_sha256": hashlib.sha256(stored.cubin).hexdigest(),
        "entries": [asdict(entry) for entry in stored.entries],
        "warnings": list(stored.warnings),
    }
    (draft / "resources.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _move(draft: Path, final: Path, request: Request) -> None:
    try:
        os.rename(draft, final)
        return
    except OSError:
        # A directory is in the way: either another process was faster, or it is a damaged one.
        if load(request) is not None:
            return
    damaged = draft.with_name(draft.name + "-damaged")
    with suppress(FileNotFoundError):
        os.rename(final, damaged)
    shutil.rmtree(damaged, ignore_errors=True)
    os.rename(draft, final)


def _flat(headers: Mapping[str, str]) -> Sequence[str]:
    return [part for name in sorted(headers) for part in (name, headers[name])]
