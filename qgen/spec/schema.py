"""The JSON Schema of a format file, from the same tables the reader walks: editors complete and check with it."""

from __future__ import annotations

from typing import Any

from qgen.spec.keys import ENTRIES, FORMAT, Key

_ITEMS = {"ints": "integer", "numbers": "number", "texts": "string"}
_SINGLES = {"text": "string", "int": "integer", "number": "number", "bool": "boolean"}

# What the tables cannot say: which keys call for which others.
_REQUIRES: dict[str, dict[str, list[str]]] = {
    "format": {"plane_align": ["planes"], "k_pad": ["planes"]},
    "field": {
        "shape": ["stride"],
        "stride": ["shape"],
        "base": ["digits", "encoding", "segments"],
        "digits": ["base"],
        "encoding": ["base"],
        "segments": ["base"],
        "repeat": ["segments"],
        "suffix": ["scope", "type"],
    },
    "part": {"shape": ["stride"], "stride": ["shape"]},
    "segment": {"shape": ["stride"], "stride": ["shape"]},
}
_REQUIRED = {"part": ["at", "width"], "segment": ["at"]}
_FIELD_PLACES = [{"required": [key]} for key in ("at", "parts", "segments", "suffix")]


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a format file, as plain dicts and lists."""
    definitions = {name: _table(keys, name) for name, keys in ENTRIES.items()}
    definitions["field"]["oneOf"] = _FIELD_PLACES
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "qgen format file",
        "description": "A low-bit weight format; specs/README.md explains the notation.",
        **_table(FORMAT, "format"),
        "$defs": definitions,
    }


def _table(keys: dict[str, Key], name: str) -> dict[str, Any]:
    required = [key for key, entry in keys.items() if entry.required] + _REQUIRED.get(name, [])
    table: dict[str, Any] = {
        "type": "object",
        "properties": {key: _key(entry) for key, entry in keys.items()},
        "additionalProperties": False,
    }
    if required:
        table["required"] = required
    if name in _REQUIRES:
        table["dependentRequired"] = _REQUIRES[name]
    return table


def _key(key: Key) -> dict[str, Any]:
    described: dict[str, Any] = {"description": key.doc}
    inner = {"$ref": f"#/$defs/{key.entry}"}
    if key.kind in _SINGLES:
        described["type"] = _SINGLES[key.kind]
        if key.kind == "text":
            described["minLength"] = 1
        if key.choices:
            described["enum"] = list(key.choices)
        if key.minimum is not None:
            described["minimum"] = key.minimum
    elif key.kind in _ITEMS:
        item: dict[str, Any] = {"type": _ITEMS[key.kind]}
        if key.minimum is not None:
            item["minimum"] = key.minimum
        described |= {"type": "array", "items": item}
    elif key.kind == "tables":
        described |= {"type": "array", "items": inner}
    else:
        described |= {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"},
            "additionalProperties": inner,
        }
    return described
