"""Reading the TOML of dispatch: keys checked one by one; a refusal names file, row, key, what was found and allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from qgen.errors import QgenError
from qgen.spec.reader import close, listed

_NEXT = "correct the file; docs/dispatch.md explains the grammar"


@dataclass(frozen=True)
class Entry:
    """One table of a file, with the place it has there ("route[3]")."""

    data: Mapping[str, Any]
    file: str
    path: str

    @property
    def source(self) -> str:
        """Where the table is, for findings."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def refuse(self, key: str, found: str, allowed: str) -> NoReturn:
        """Raise the QgenError (stage "dispatch") about one key of this table."""
        dotted = ".".join(part for part in (self.path, key) if part)
        raise QgenError(
            stage="dispatch",
            subject=f"{self.file}: {dotted}" if dotted else self.file,
            found=found,
            allowed=allowed,
            next=_NEXT,
        )

    def check_keys(self, keys: Iterable[str]) -> None:
        known = list(keys)
        for key in self.data:
            if key not in known:
                self.refuse(key, f"unknown key{close(key, known)}", listed(known))

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, "the key is missing" if value is None else repr(value), "a text that says something")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "the key is missing" if value is None else repr(value), "a list of texts")
        return tuple(value)

    def integer(self, key: str, least: int = 0) -> int:
        value = self.data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(key, "the key is missing" if value is None else repr(value), f"an integer >= {least}")
        return value

    def number(self, key: str, least: float) -> float:
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            self.refuse(key, "the key is missing" if value is None else repr(value), f"a number >= {least}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, repr(value), "true or false")
        return value

    def pair(self, key: str) -> tuple[int, int]:
        """An interval [lo, hi] of plain integers."""
        value = self.data.get(key)
        if not isinstance(value, list) or len(value) != 2 or not all(is_int(item) for item in value):
            self.refuse(key, repr(value), "two integers: [least, largest]")
        if value[0] > value[1]:
            self.refuse(key, f"{value}: the interval runs backwards", "[least, largest]")
        return value[0], value[1]

    def table(self, key: str, keys: Iterable[str] | None = None) -> Entry:
        """An inner table; empty where the key is left out."""
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            self.refuse(key, repr(value), "a table")
        inner = Entry(value, self.file, f"{self.path}.{key}" if self.path else key)
        if keys is not None:
            inner.check_keys(keys)
        return inner

    def entries(self, key: str, keys: Iterable[str]) -> tuple[Entry, ...]:
        """The inner tables of a list of tables; none where the key is left out."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.refuse(key, repr(value), f"a list of tables: [[{key}]]")
        base = f"{self.path}.{key}" if self.path else key
        made = tuple(Entry(item, self.file, f"{base}[{index}]") for index, item in enumerate(value))
        known = list(keys)
        for entry in made:
            entry.check_keys(known)
        return made


def is_int(value: object) -> bool:
    """Whether a TOML value is an integer (and not a boolean)."""
    return isinstance(value, int) and not isinstance(value, bool)


def read(path: Path, keys: Iterable[str]) -> Entry:
    """The top table of a TOML file. Raises QgenError when it cannot be read or holds other keys."""

    def refuse(found: str, allowed: str) -> NoReturn:
        raise QgenError(stage="dispatch", subject=str(path), found=found, allowed=allowed, next=_NEXT)

    try:
        data = tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        beside = sorted(entry.name for entry in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        refuse(f"no such file{close(path.name, beside)}", f"one of {listed(beside)}" if beside else "a TOML file")
    except OSError as error:
        refuse(f"it cannot be read: {error.strerror}", "a readable TOML file")
    except UnicodeDecodeError as error:
        refuse(f"not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}", "TOML in UTF-8")
    except tomllib.TOMLDecodeError as error:
        refuse(f"not TOML: {error}", "TOML 1.0")
    except RecursionError:
        refuse("it nests too deeply", "a few levels of tables and lists")
    entry = Entry(data, _shown(path), "")
    entry.check_keys(keys)
    return entry


def _shown(path: Path) -> str:
    """The path from specs/ on where it is one of the shipped files: findings must not depend on the machine."""
    parts = path.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("specs") :]) if "specs" in parts else str(path)
