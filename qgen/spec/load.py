"""A format file -> its frozen record, resolved and checked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.spec.check import check, extents
from qgen.spec.expr import Expression, ExpressionError, Term, expand, names, parse
from qgen.spec.fields import Surroundings, build_field
from qgen.spec.keys import FORMAT
from qgen.spec.reader import Node, close, listed, read_toml
from qgen.spec.records import ROW, TENSOR, Codebook, Field, Format, Padding, Plane
from qgen.spec.tables import available, load_activation

_FORMAT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CODE_FIELD = "q"
_MAX_BLOCK = 1 << 16


def load_format(path: Path | str) -> Format:
    """The format a TOML file describes. Raises QgenError naming file, key, value found and what was allowed."""
    path = Path(path)
    node = read_toml(path, keys=FORMAT)
    _check_name(node, path)
    block = node.integer("block")
    if block > _MAX_BLOCK:
        node.refuse("block", f"{block}", f"at most {_MAX_BLOCK} weights")
    planes = _plane_names(node)
    around = Surroundings(file=path, block=block, planes=planes)
    fields, codebooks = _fields(node, around)
    expression, terms = _value(node, fields)
    draft = Format(
        name=node.text("name"),
        id=node.integer_or_none("id"),
        block=block,
        planes=tuple(Plane(name, 0) for name in planes or ("block",)),
        plane_align=node.integer("plane_align", 1),
        k_pad=node.integer("k_pad", block),
        row_bytes=0,
        tensor_bytes=0,
        padding=_padding(node, planes),
        fields=fields,
        value=node.text("value"),
        expression=expression,
        terms=terms,
        activation=_activation(node, path, block),
        codebooks=codebooks,
        doc=node.text("doc"),
        source=node.text("source") if node.has("source") else "",
    )
    size = extents(draft, file=str(path))
    for name in planes or ("block",):
        if name not in size:
            node.refuse("planes" if planes else "fields", f"nothing is stored in {name}", "a field for every plane")
    format = replace(
        draft,
        planes=tuple(Plane(plane.name, size[plane.name]) for plane in draft.planes),
        row_bytes=size.get(ROW, 0),
        tensor_bytes=size.get(TENSOR, 0),
    )
    check(format, file=str(path))
    return format


def load_formats(directory: Path | None = None) -> dict[str, Format]:
    """Every format of a folder (the shipped specs/formats by default), by name, in name order.

    Raises QgenError for a wrong file, a folder without any, or two files with one name or id.
    """
    folder = data_dir("specs") / "formats" if directory is None else directory
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise QgenError(
            stage="spec",
            subject=str(folder),
            found="no *.toml file" if folder.is_dir() else "no such folder",
            allowed="a folder of format files",
            next="give the folder that holds them (the shipped ones are in specs/formats)",
        )
    formats: dict[str, Format] = {}
    by_id: dict[int, Path] = {}
    for path in paths:
        format = load_format(path)
        if format.id is not None and format.id in by_id:
            raise QgenError(
                stage="spec",
                subject=f"{path}: id",
                found=f"{format.id}, which {by_id[format.id].name} has too",
                allowed="one id, one format",
                next="correct the id in one of the two files",
            )
        if format.id is not None:
            by_id[format.id] = path
        formats[format.name] = format
    return dict(sorted(formats.items()))


def _check_name(node: Node, path: Path) -> None:
    name = node.text("name")
    if not _FORMAT_NAME.fullmatch(name):
        node.refuse("name", f"{name!r}", "capital letters, digits and _, a letter first: it goes into kernel names")
    if path.stem != name.lower():
        node.refuse("name", f"{name!r} in a file called {path.name}", f"a file called {name.lower()}.toml")


def _plane_names(node: Node) -> tuple[str, ...]:
    planes = node.texts("planes")
    if not node.has("planes"):
        node.forbid(("plane_align", "k_pad"), "only formats with `planes` have this key")
        return ()
    if not planes:
        node.refuse("planes", "an empty list", "two or more plane names; leave the key out for whole blocks")
    for plane in planes:
        if not _FIELD_NAME.fullmatch(plane) or plane in ("block", ROW, TENSOR) or planes.count(plane) > 1:
            node.refuse("planes", f"{plane!r}", "different lower-case names other than block, row and tensor")
    block, align = node.integer("block"), node.integer("plane_align", 1)
    pad = node.integer("k_pad", block)
    if align & (align - 1):
        node.refuse("plane_align", f"{align}", "a power of two")
    if pad % block:
        node.refuse("k_pad", f"{pad}: {pad} % {block} = {pad % block}", f"a multiple of block = {block}")
    return planes


def _fields(node: Node, around: Surroundings) -> tuple[tuple[Field, ...], tuple[Codebook, ...]]:
    fields: list[Field] = []
    codebooks: dict[str, Codebook] = {}
    for name, inner in node.named("fields").items():
        if not _FIELD_NAME.fullmatch(name):
            node.refuse(f"fields.{name}", f"{name!r}", "lower-case letters, digits and _, a letter first")
        field, codebook = build_field(name, inner, around)
        fields.append(field)
        if codebook is not None:
            codebooks[codebook.name] = codebook
    code = next((field for field in fields if field.name == _CODE_FIELD), None)
    if code is None:
        found = listed(field.name for field in fields) or "none"
        node.refuse("fields", found, f"a field {_CODE_FIELD!r}: the weights' codes")
    if code.kind not in ("code", "table", "grid") or not code.per_weight:
        found = f"one entry for {code.per} weights" if code.kind in ("code", "table") else f"type {code.type}"
        node.refuse(f"fields.{_CODE_FIELD}", f"{found}: a weight has no code of its own", "a code for every weight")
    return tuple(fields), tuple(codebooks.values())


def _value(node: Node, fields: tuple[Field, ...]) -> tuple[Expression, tuple[Term, ...]]:
    text = node.text("value")
    known = tuple(field.name for field in fields)
    try:
        tree = parse(text)
        terms = expand(tree)
    except ExpressionError as error:
        node.refuse("value", f"{text!r}: {error}", "numbers and field names with + - * ( )")
    used = names(tree)
    for name in used:
        if name not in known:
            node.refuse("value", f"{text!r} names {name!r}{close(name, known)}", f"the fields {listed(known)}")
    for name in known:
        if name not in used:
            node.refuse(f"fields.{name}", f"{name} is not in value = {text!r}", "every field is used in `value`")
    for term in terms:
        if term.factors.count(_CODE_FIELD) > 1:
            found = f"{text!r} multiplies {_CODE_FIELD} by itself"
            node.refuse("value", found, f"an expression linear in {_CODE_FIELD}")
    return tree, terms


def _padding(node: Node, planes: tuple[str, ...]) -> tuple[Padding, ...]:
    found = []
    for pad in node.tables("padding"):
        regions = (*(planes or ("block",)), ROW, TENSOR)
        if planes:
            pad.need(("plane",), listed(regions))
        plane = pad.text("plane") if pad.has("plane") else "block"
        if plane not in regions:
            pad.refuse("plane", f"{plane!r}{close(plane, regions)}", listed(regions))
        found.append(Padding(plane=plane, bit=8 * pad.integer("at") + pad.integer("bit"), width=pad.integer("width")))
    return tuple(found)


def _activation(node: Node, path: Path, block: int) -> str | None:
    name = node.text_or_none("activation")
    if name is None:
        return None
    known = available("activations", path)
    if name not in known:
        node.refuse("activation", f"no activation {name!r}{close(name, known)}", listed(known))
    group = load_activation(name, beside=path).group
    if group is not None and block % group:
        found = f"{name} has groups of {group}: {block} % {group} = {block % group}"
        node.refuse("activation", found, f"an activation whose group divides block = {block}")
    return name
