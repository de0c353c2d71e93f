"""Codebooks and activations: the small files that formats name."""

from __future__ import annotations

from pathlib import Path

from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.spec.keys import ACTIVATION, CODEBOOK
from qgen.spec.reader import Node, close, listed, read_toml
from qgen.spec.records import Activation, Codebook

_INT8 = (-128, 127)


def directory(kind: str, beside: Path | None = None) -> tuple[Path, ...]:
    """Where files of a kind ("codebooks", "activations") are: next to a format file's own folder, then shipped."""
    shipped = data_dir("specs") / kind
    if beside is None:
        return (shipped,)
    own = beside.resolve().parent.parent / kind
    return (own, shipped) if own != shipped.resolve() else (shipped,)


def available(kind: str, beside: Path | None = None) -> tuple[str, ...]:
    """The names of a kind's files, in name order."""
    found = {path.stem for folder in directory(kind, beside) for path in folder.glob("*.toml")}
    return tuple(sorted(found))


def _find(kind: str, name: str, beside: Path | None) -> Path:
    for folder in directory(kind, beside):
        if name in {path.stem for path in folder.glob("*.toml")}:
            return folder / f"{name}.toml"
    known = available(kind, beside)
    raise QgenError(
        stage="spec",
        subject=f"{kind}: {name}",
        found=f"no specs/{kind}/{name}.toml{close(name, known)}",
        allowed=listed(known),
        next=f"name one of these, or add specs/{kind}/{name}.toml",
    )


def _named(node: Node, path: Path) -> str:
    name = node.text("name")
    if name != path.stem:
        node.refuse("name", f"{name!r} in a file called {path.name}", f"{path.stem!r}: the file is called as its name")
    return name


def _check_number(node: Node, key: str, value: int | float) -> None:
    if node.text("type") == "int8":
        if not isinstance(value, int) or not _INT8[0] <= value <= _INT8[1]:
            node.refuse(key, f"{value!r}", f"integers from {_INT8[0]} to {_INT8[1]} (type int8)")


def load_codebook(name: str, *, beside: Path | None = None) -> Codebook:
    """The codebook `name`, looked up next to the format file `beside` and then among the shipped ones.

    Raises QgenError when there is none or its file is wrong.
    """
    path = _find("codebooks", name, beside)
    node = read_toml(path, keys=CODEBOOK)
    _named(node, path)
    values: tuple[int | float, ...] | tuple[tuple[int | float, ...], ...]
    if node.has("values"):
        node.forbid(("lanes", "levels", "vectors"), "a scalar table has `values` only")
        values = node.numbers("values")
        for value in values:
            _check_number(node, "values", value)
        lanes = 1
    else:
        node.need(("lanes", "levels", "vectors"), "a table has `values`; a grid has `lanes`, `levels` and `vectors`")
        lanes = node.integer("lanes")
        values = _vectors(node, lanes)
    if len(values) < 2 or len(values) & (len(values) - 1):
        node.refuse("values" if lanes == 1 else "vectors", f"{len(values)} entries", "a power of two, at least 2")
    return Codebook(name=name, type=node.text("type"), lanes=lanes, values=values, doc=node.text("doc"))


def _vectors(node: Node, lanes: int) -> tuple[tuple[int | float, ...], ...]:
    levels = node.numbers("levels")
    if not 2 <= len(levels) <= 10:
        node.refuse("levels", f"{len(levels)} levels", "2 to 10: a digit of a vector is the index of a level")
    for value in levels:
        _check_number(node, "levels", value)
    digits = "0123456789"[: len(levels)]
    vectors = []
    for index, word in enumerate(node.text("vectors").split()):
        if len(word) != lanes or any(letter not in digits for letter in word):
            node.refuse("vectors", f"word {index} is {word!r}", f"{lanes} digits from {digits[0]} to {digits[-1]}")
        vectors.append(tuple(levels[int(letter)] for letter in word))
    return tuple(vectors)


def load_activation(name: str, *, beside: Path | None = None) -> Activation:
    """The activation `name`. Raises QgenError when there is none or its file is wrong."""
    path = _find("activations", name, beside)
    node = read_toml(path, keys=ACTIVATION)
    _named(node, path)
    kind, number = node.text("kind"), node.text("type")
    if kind == "integer":
        node.need(("group", "scale"), "an integer activation has a `group` and a `scale`")
        if number != "int8":
            node.refuse("type", f"{number!r}", "int8 (kind integer)")
    else:
        node.forbid(("group", "scale"), "only integer activations have `group` and `scale`")
        if number == "int8":
            node.refuse("type", f"{number!r}", "f32, f16, bf16 (kind float)")
    return Activation(
        name=name,
        kind=kind,
        type=number,
        bits={"int8": 8, "f16": 16, "bf16": 16, "f32": 32}[number],
        group=node.integer_or_none("group"),
        scale=node.text_or_none("scale"),
        rounding=node.text("rounding"),
        doc=node.text("doc"),
    )
