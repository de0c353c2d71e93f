"""A TOML file read key by key against the grammar's tables; a refusal names file, key, value and what was allowed."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from qgen.errors import QgenError
from qgen.spec.keys import ENTRIES, Key

_HINT = "correct the file; specs/README.md explains the grammar, `qgen schema` prints it for your editor"
_LARGEST = 1 << 31  # no offset, stride or width of a real format comes near; keeps the arithmetic below small

_KINDS = {
    "text": "a text",
    "int": "an integer",
    "number": "a number",
    "bool": "true or false",
    "ints": "a list of integers",
    "numbers": "a list of numbers",
    "texts": "a list of texts",
    "tables": "a list of tables",
    "named": "a table of tables",
}


def close(name: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' for the closest of `known`, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _fits(value: object, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "int":
        return _is_int(value)
    if kind == "number":
        return _is_number(value)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "named":
        return isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())
    single = {"ints": "int", "numbers": "number", "texts": "text"}
    if kind in single:
        return isinstance(value, list) and all(_fits(item, single[kind]) for item in value)
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


class Node:
    """One table of a spec file: its keys are checked against the grammar when it is made.

    Raises QgenError for unknown or missing keys and values of the wrong kind.
    """

    def __init__(self, data: Mapping[str, Any], *, file: str, path: str, keys: Mapping[str, Key]) -> None:
        self.data, self.file, self.path, self.keys = data, file, path, keys
        for name in data:
            if name not in keys:
                self.refuse(name, f"unknown key{close(name, keys)}", listed(keys))
        for name, key in keys.items():
            if name in data:
                self._check(name, key)
            elif key.required:
                self.refuse(name, "the key is missing", f"{_KINDS[key.kind]}: {key.doc}")

    def _check(self, name: str, key: Key) -> None:
        value = self.data[name]
        if not _fits(value, key.kind):
            self.refuse(name, f"{value!r}", f"{_KINDS[key.kind]}: {key.doc}")
        if key.choices and value not in key.choices:
            self.refuse(name, f"{value!r}{close(value, key.choices)}", listed(key.choices))
        if key.kind == "text" and not value.strip():
            self.refuse(name, "an empty text", key.doc)
        for number in value if key.kind in ("ints", "numbers") else [value] if key.kind in ("int", "number") else []:
            if key.minimum is not None and number < key.minimum:
                self.refuse(name, f"{value!r}", f"integers >= {key.minimum}: {key.doc}")
            if abs(number) >= _LARGEST:
                self.refuse(name, f"{value!r}", f"numbers below {_LARGEST}")

    def where(self, key: str = "") -> str:
        dotted = ".".join(part for part in (self.path, key) if part)
        return f"{self.file}: {dotted}" if dotted else self.file

    def refuse(self, key: str, found: str, allowed: str, next: str = _HINT) -> NoReturn:
        raise QgenError(stage="spec", subject=self.where(key), found=found, allowed=allowed, next=next)

    def has(self, *names: str) -> tuple[str, ...]:
        """Those of `names` that the file gives."""
        return tuple(name for name in names if name in self.data)

    def forbid(self, names: Iterable[str], because: str) -> None:
        for name in self.has(*names):
            self.refuse(name, f"{name} = {self.data[name]!r}", because)

    def need(self, names: Iterable[str], because: str) -> None:
        for name in names:
            if name not in self.data:
                self.refuse(name, f"{name} is missing", because)

    def text(self, name: str) -> str:
        return str(self.data[name])

    def text_or_none(self, name: str) -> str | None:
        return str(self.data[name]) if name in self.data else None

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.data.get(name, default))

    def integer_or_none(self, name: str) -> int | None:
        return int(self.data[name]) if name in self.data else None

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.data.get(name, default))

    def flag(self, name: str) -> bool:
        return bool(self.data.get(name, False))

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(int(item) for item in self.data.get(name, ()))

    def numbers(self, name: str) -> tuple[int | float, ...]:
        return tuple(self.data.get(name, ()))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self.data.get(name, ()))

    def tables(self, name: str) -> tuple[Node, ...]:
        """The inner tables of a list of tables."""
        inner = ENTRIES[self.keys[name].entry]
        base = f"{self.path}.{name}" if self.path else name
        return tuple(
            Node(item, file=self.file, path=f"{base}[{index}]", keys=inner)
            for index, item in enumerate(self.data.get(name, ()))
        )

    def named(self, name: str) -> dict[str, Node]:
        """The inner tables of a table of tables, by name, in file order."""
        inner = ENTRIES[self.keys[name].entry]
        return {
            key: Node(item, file=self.file, path=f"{name}.{key}", keys=inner) for key, item in self.data[name].items()
        }


def read_toml(path: Path, *, keys: Mapping[str, Key]) -> Node:
    """The top table of a TOML file. Raises QgenError when it cannot be read or its keys do not fit."""

    def refuse(found: str, allowed: str, next: str = _HINT) -> NoReturn:
        raise QgenError(stage="spec", subject=str(path), found=found, allowed=allowed, next=next)

    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        beside = sorted(entry.name for entry in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        allowed = f"one of {listed(beside)}" if beside else "a TOML file"
        refuse(f"no such file{close(path.name, beside)}", allowed, "give the path of an existing file")
    except OSError as error:
        refuse(f"it cannot be read: {error.strerror}", "a readable TOML file", "give the path of a readable file")
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        refuse(f"not UTF-8: byte {raw[error.start]:#04x} at offset {error.start}", "TOML in UTF-8")
    except tomllib.TOMLDecodeError as error:
        refuse(f"not TOML: {error}", "TOML 1.0")
    except RecursionError:
        refuse("not TOML qgen can read: it nests too deeply", "a few levels of tables and lists")
    return Node(data, file=str(path), path="", keys=keys)
