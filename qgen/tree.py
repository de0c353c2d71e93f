"""generated/ as a set: written whole or not at all, pruned by its manifest, compared without touching it.

The manifest lists every file qgen wrote. A file it does not list belongs to someone else: it is never changed or
removed, and `check` reports it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from qgen.errors import QgenError

MANIFEST = "manifest.json"
_STAGING = ".qgen-staging"
_OWN_KEYS = ("path", "kind", "digest")


@dataclass(frozen=True)
class File:
    """One file to generate: its complete text, what it is ("kernel", "table", ...), further keys of its manifest row.

    `fields` holds JSON values; the keys path, kind and digest are taken.
    """

    text: str
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of the manifest. `digest` is "sha256:" and the hex digest of the file's bytes."""

    path: str
    kind: str
    digest: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """What `write` did, as paths below the root; the manifest itself counts as a file."""

    changed: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """One way generated/ is not what it should be: kind is "missing", "changed", "stale" or "foreign"."""

    path: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.detail}"


def read_manifest(root: Path) -> tuple[Row, ...]:
    """The manifest's rows in path order. Raises QgenError when it is missing or not as qgen writes it."""
    path = root / MANIFEST

    def refuse(found: str, next: str) -> NoReturn:
        raise QgenError(stage="tree", subject=str(path), found=found, allowed="the manifest qgen wrote", next=next)

    try:
        rows = json.loads(path.read_bytes())
        if not isinstance(rows, list):
            raise TypeError("not a list of rows")
        return tuple(_row(item) for item in rows)
    except FileNotFoundError:
        refuse("it does not exist", "run `qgen build`")
    except OSError as error:
        refuse(f"it cannot be read: {error.strerror}", "make it readable")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        refuse(
            f"it is damaged: {error}",
            f"restore it (git checkout {path}), or move {root} away, and run `qgen build`",
        )


def write(root: Path, files: Mapping[str, File]) -> Written:
    """Make `root` hold exactly `files` (by path below it, with /) and their manifest, beside files of other people.

    Only files whose bytes differ are written, each by one rename; files the previous manifest lists and `files` does
    not are removed. Any error or interrupt before the end puts everything back as it was. Should the process be
    killed, each file is either the old or the new one, the manifest lists all of them, and the next call finishes.

    Raises QgenError for an unusable path, a foreign file in the way, another build at work, or a failing disk.
    """
    wanted = _render(files)
    created = not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            shutil.rmtree(root / _STAGING, ignore_errors=True)
            before = {row.path for row in read_manifest(root)} if (root / MANIFEST).exists() else set()
            changed = [path for path, data in wanted.items() if _current(root, path) != data]
            for path in changed:
                _check_room(root, path, ours=path == MANIFEST or path in before)
            stale = before - wanted.keys()
            removed = sorted(path for path in stale if (root / path).is_file() and not _blocked(root, path))
            if changed or removed:
                _commit(root, wanted, changed, removed)
            return Written(changed=tuple(changed), removed=tuple(removed))
    except OSError as error:
        raise QgenError(
            stage="tree",
            subject=error.filename or str(root),
            found=f"it cannot be written: {error.strerror or error}; everything is as it was before",
            allowed="a writable folder on a disk with room",
            next="mend that and run `qgen build` again",
        ) from error
    finally:
        if created:
            with suppress(OSError):
                root.rmdir()  # succeeds only where nothing was written


def check(root: Path, files: Mapping[str, File]) -> list[Difference]:
    """What `write(root, files)` would change, and what it would leave as foreign; empty when all is in order.

    Reads only. Raises QgenError for an unusable path in `files`.
    """
    wanted = _render(files)
    try:
        listed = {row.path for row in read_manifest(root)}
    except QgenError:
        listed = set()  # the manifest itself then shows below, as missing or changed
    found = []
    for path, data in wanted.items():
        current = _current(root, path)
        if current is None:
            found.append(Difference(path, "missing", "not there"))
        elif current != data:
            found.append(Difference(path, "changed", _first_difference(current, data)))
    for path in _present(root):
        if path in wanted:
            continue
        if path in listed:
            found.append(Difference(path, "stale", "no longer generated"))
        elif path.startswith(_STAGING + "/"):
            found.append(Difference(path, "foreign", "left by a killed build; the next one removes it"))
        else:
            found.append(Difference(path, "foreign", "not written by qgen; move it elsewhere"))
    return sorted(found, key=lambda difference: difference.path)


def _render(files: Mapping[str, File]) -> dict[str, bytes]:
    """Every file's bytes by path, in path order, the manifest last."""
    rendered: dict[str, bytes] = {}
    rows = []
    for path in sorted(files):
        file = files[path]
        _check_path(path)
        for key in file.fields:
            if key in _OWN_KEYS:
                _refuse_file(path, f"a manifest field called {key!r}", f"names other than {', '.join(_OWN_KEYS)}")
        data = file.text.encode()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        row = {"path": path, "kind": file.kind, "digest": digest} | dict(sorted(file.fields.items()))
        try:
            rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError) as error:
            _refuse_file(path, f"manifest fields that are not JSON: {error}", "texts, numbers, lists and tables")
        rendered[path] = data
    rendered[MANIFEST] = _lines(rows)
    return rendered


def _lines(rows: list[str]) -> bytes:
    return ("[\n" + ",\n".join(rows) + "\n]\n").encode()


def _row(item: Mapping[str, Any]) -> Row:
    _check_path(item["path"])
    fields = {key: value for key, value in item.items() if key not in _OWN_KEYS}
    return Row(path=item["path"], kind=item["kind"], digest=item["digest"], fields=fields)


def _check_path(path: str) -> None:
    pure = PurePosixPath(path)
    if (
        not pure.parts
        or pure.is_absolute()
        or str(pure) != path
        or ".." in pure.parts
        or "\\" in path
        or pure.parts[0] in (MANIFEST, _STAGING)
    ):
        _refuse_file(path, "not usable as a path in generated/", f"relative paths with /, not {MANIFEST} or {_STAGING}")


def _refuse_file(path: str, found: str, allowed: str) -> NoReturn:
    raise QgenError(stage="tree", subject=repr(path), found=found, allowed=allowed, next="correct what names this file")


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One writer at a time; the lock goes with the process, so a killed build leaves none behind."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise QgenError(
                stage="tree",
                subject=str(root),
                found="another qgen build is writing it",
                allowed="one build at a time",
                next="wait for it, then run `qgen build` again",
            ) from None
        yield
    finally:
        os.close(handle)


def _current(root: Path, path: str) -> bytes | None:
    try:
        return (root / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _check_room(root: Path, path: str, *, ours: bool) -> None:
    """Refuse to write over, or through, what qgen did not make."""
    place = root / path
    wrong = _blocked(root, path)
    if wrong or place.is_symlink() or place.is_dir() or (place.exists() and not ours):
        raise QgenError(
            stage="tree",
            subject=str(wrong[0] if wrong else place),
            found="something is there that qgen did not write",
            allowed=f"nothing, or a file that {MANIFEST} lists",
            next="move it away and run `qgen build` again",
        )


def _blocked(root: Path, path: str) -> list[Path]:
    """The folders on the way to `path` that are links (they lead out of the tree) or no folders at all."""
    parts = PurePosixPath(path).parts
    parents = [root.joinpath(*parts[:depth]) for depth in range(1, len(parts))]
    return [parent for parent in parents if parent.is_symlink() or (parent.exists() and not parent.is_dir())]


def _commit(root: Path, wanted: Mapping[str, bytes], changed: list[str], removed: list[str]) -> None:
    """Stage everything, then rename it into place; undo the renames if anything stops them."""
    staging = root / _STAGING
    undo: list[tuple[Path, Path | None]] = []  # (place, its old file in staging; None where there was none)
    made: list[Path] = []
    try:
        staging.mkdir()
        steps: list[tuple[str, Path | None]] = []  # (path, its new file in staging; None to remove it)
        for number, path in enumerate(changed):
            if path != MANIFEST:
                steps.append((path, _stage(staging / f"new-{number}", wanted[path])))
        steps.extend((path, None) for path in removed)
        # While files move, the manifest lists old and new ones: should the process be killed, none becomes foreign.
        interim = _stage(staging / "interim", _interim(root, wanted[MANIFEST]))
        steps = [(MANIFEST, interim), *steps, (MANIFEST, _stage(staging / "manifest", wanted[MANIFEST]))]
        for number, (path, new) in enumerate(steps):
            place = root / path
            made.extend(_make_parents(place.parent))
            old = staging / f"old-{number}" if place.exists() else None
            undo.append((place, old))
            if old is not None and new is not None:
                _keep(place, old)
            if new is not None:
                os.replace(new, place)
            elif old is not None:
                os.replace(place, old)
    except BaseException:
        for place, old in reversed(undo):
            if old is None:
                place.unlink(missing_ok=True)
            elif old.exists():
                os.replace(old, place)
        _prune(made)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _prune([parent for path in removed for parent in (root / path).parents if root in parent.parents])


def _interim(root: Path, new: bytes) -> bytes:
    """The rows of the manifest on disk that the new one drops, and the new one's."""
    rows = {row["path"]: row for row in json.loads(new)}
    old = json.loads((root / MANIFEST).read_bytes()) if (root / MANIFEST).exists() else []
    rows = {**{row["path"]: row for row in old}, **rows}
    return _lines([json.dumps(rows[path], ensure_ascii=False) for path in sorted(rows)])


def _stage(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _keep(place: Path, old: Path) -> None:
    try:
        os.link(place, old)
    except OSError:
        shutil.copy2(place, old)  # a file system without hard links


def _make_parents(folder: Path) -> list[Path]:
    """Create the folder; returns those that were not there, outermost first."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _prune(folders: list[Path]) -> None:
    """Remove those of the folders that are empty, innermost first."""
    for folder in sorted(set(folders), key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            folder.rmdir()


def _present(root: Path) -> list[str]:
    """Every file below the root, links included and not followed."""
    found: list[str] = []
    for folder, names, files in os.walk(root):
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        found.extend((Path(folder) / name).relative_to(root).as_posix() for name in files + links)
    return sorted(found)


def _first_difference(current: bytes, wanted: bytes) -> str:
    found = current.decode(errors="replace").splitlines(keepends=True)
    expected = wanted.decode().splitlines(keepends=True)
    for number, (left, right) in enumerate(zip(found, expected, strict=False), start=1):
        if left != right:
            return f"line {number}: found {_short(left)}, expected {_short(right)}"
    number = min(len(found), len(expected)) + 1
    if len(found) > len(expected):
        return f"line {number}: found {_short(found[number - 1])}, expected the end of the file"
    return f"line {number}: found the end of the file, expected {_short(expected[number - 1])}"


def _short(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:60] + "...")
