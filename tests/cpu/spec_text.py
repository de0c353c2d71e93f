"""Spec files as data that tests can change and write again."""

from __future__ import annotations

from typing import Any


def dump(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{dump(key)} = {dump(item)}" for key, item in value.items()) + " }"
    return repr(value)


def dump_file(data: dict[str, Any]) -> str:
    """A whole file as TOML."""
    return "".join(f"{dump(key)} = {dump(value)}\n" for key, value in data.items())


Place = tuple[str | int, ...]


def places(data: Any, path: Place = ()) -> list[Place]:
    """The path of every value in a tree of dicts and lists."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in inner for found in [(*path, key), *places(value, (*path, key))]]


def at(data: Any, place: Place) -> Any:
    """The value at a path."""
    for key in place:
        data = data[key]
    return data
