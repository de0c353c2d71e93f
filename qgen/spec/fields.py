"""One field of a format file -> its frozen record, with everything that can be judged without the other fields."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from qgen.spec.reader import Node, close, listed
from qgen.spec.records import ROW, TENSOR, Codebook, DigitSegment, Field, Part
from qgen.spec.tables import available, load_codebook
from qgen.spec.types import TYPES, names_of

_BIT_KEYS = ("at", "bit", "width", "shape", "stride", "shl")
_DIGIT_KEYS = ("base", "digits", "encoding", "segments", "repeat")
_CODE_KEYS = ("signed", "mul", "add", "table", "grid")
_MAX_CODE_BITS = 24
_MAX_NUMBER = 1 << _MAX_CODE_BITS  # float32 holds every integer up to here exactly


@dataclass(frozen=True)
class Surroundings:
    """What a field needs to know of its format: file, weights per block, plane names (empty: no planes)."""

    file: Path
    block: int
    planes: tuple[str, ...]


@dataclass(frozen=True)
class _Numbering:
    """How entries become numbers, before it is known where the bits are."""

    type: str | None
    scope: str
    per: int
    lanes: int
    codebook: Codebook | None


def build_field(name: str, node: Node, around: Surroundings) -> tuple[Field, Codebook | None]:
    """The field `name` and the codebook it names. Raises QgenError."""
    numbering = _numbering(node, around)
    entries = around.block // numbering.per
    parts: tuple[Part, ...] = ()
    segments: tuple[DigitSegment, ...] = ()
    width = 0
    if numbering.scope == "sibling":
        node.forbid((*_BIT_KEYS, *_DIGIT_KEYS, "parts", "plane"), "a sibling field lives in another tensor: no address")
    elif node.has("base"):
        segments = _segments(node, numbering, around, entries)
    else:
        node.forbid(_DIGIT_KEYS, "only digit fields (those with `base`) have this key")
        parts = _parts(node, numbering, around)
        width = _code_width(node, parts, numbering)
    _check_levels(node, numbering, node.integer("base") if segments else 1 << width)
    field = Field(
        name=name,
        per=numbering.per,
        entries=entries,
        type=numbering.type,
        signed=width if node.flag("signed") else None,
        mul=node.number("mul", 1.0),
        add=node.number("add", 0.0),
        table=node.text_or_none("table"),
        grid=node.text_or_none("grid"),
        lanes=numbering.lanes,
        width=width,
        parts=parts,
        segments=segments,
        base=node.integer_or_none("base"),
        digits=node.integer_or_none("digits"),
        encoding=node.text_or_none("encoding"),
        scope=numbering.scope,
        suffix=node.text_or_none("suffix"),
        doc=node.text("doc") if node.has("doc") else "",
    )
    return field, numbering.codebook


def _check_levels(node: Node, numbering: _Numbering, levels: int) -> None:
    """Every code finds an entry in its codebook, or means a number float32 holds."""
    book = numbering.codebook
    if book is not None and len(book.values) != levels:
        key = "grid" if node.has("grid") else "table"
        node.refuse(key, f"{book.name} has {len(book.values)} entries", f"one for each of the {levels} codes")
    reach = abs(node.number("mul", 1.0)) * (levels - 1) + abs(node.number("add"))
    if numbering.type is None and reach > _MAX_NUMBER:
        key = "mul" if node.has("mul") else "add"
        node.refuse(key, f"codes up to {levels - 1} come to mean {reach:g}", f"numbers up to 2^24 = {_MAX_NUMBER}")


def _numbering(node: Node, around: Surroundings) -> _Numbering:
    type_name = node.text_or_none("type")
    scope = node.text("scope") if node.has("scope") else "block"
    if type_name is not None:
        node.forbid(_CODE_KEYS, f"only plain codes have this key, and type {type_name} is none")
        node.forbid(("base",), f"only plain codes can be digits, and type {type_name} is none")
    if scope == "sibling":
        node.need(("suffix", "type"), "a sibling field names the other tensor's suffix and number type")
        if type_name not in names_of("float"):
            node.refuse("type", f"{type_name!r}", listed(names_of("float")))
    else:
        node.forbid(("suffix",), 'only fields of scope "sibling" have a suffix')
    if node.has("mul") and node.number("mul") == 0.0:
        node.refuse("mul", "0: every code would mean the same", "any other number")
    codebook = _codebook(node, around)
    lanes = codebook.lanes if codebook else TYPES[type_name].lanes if type_name else 1
    return _Numbering(type_name, scope, _per(node, around, type_name, scope, lanes), lanes, codebook)


def _codebook(node: Node, around: Surroundings) -> Codebook | None:
    for key in node.has("table", "grid"):
        other = "grid" if key == "table" else "table"
        node.forbid((other, "mul", "add", "signed"), f"a code that indexes a {key} has no {other}, mul, add or signed")
        name, known = node.text(key), available("codebooks", around.file)
        if name not in known:
            node.refuse(key, f"no codebook {name!r}{close(name, known)}", listed(known))
        book = load_codebook(name, beside=around.file)
        if (book.lanes > 1) != (key == "grid"):
            kind = f"a grid of {book.lanes}-vectors" if book.lanes > 1 else "a table of single numbers"
            node.refuse(key, f"{name} is {kind}", f"a {key}; use the key {other!r} for {name}")
        return book
    return None


def _per(node: Node, around: Surroundings, type_name: str | None, scope: str, lanes: int) -> int:
    if scope != "block":
        node.forbid(("per",), f"a field of scope {scope!r} is one entry")
        return around.block
    single = lanes > 1 or type_name is None or TYPES[type_name].kind == "sign"
    per = node.integer("per", lanes if single else around.block)
    if around.block % per:
        rest = f"{around.block} % {per} = {around.block % per}"
        node.refuse("per", f"{per}: {rest}", f"divisors of block = {around.block}")
    if lanes > 1 and per != lanes:
        served = f"{per}, but one entry serves {lanes} weights"
        node.refuse("per", served, f"{lanes}, which is the default: leave it out")
    return per


def _plane(node: Node, outer: Node, around: Surroundings, scope: str) -> str:
    holder = node if node.has("plane") else outer
    if scope != "block" or not around.planes:
        holder.forbid(("plane",), "only block fields of a format with `planes` name a plane")
        return {"row": ROW, "tensor": TENSOR}.get(scope, "block")
    holder.need(("plane",), f"one of the format's planes: {listed(around.planes)}")
    plane = holder.text("plane")
    if plane not in around.planes:
        holder.refuse("plane", f"{plane!r}{close(plane, around.planes)}", listed(around.planes))
    return plane


def _parts(node: Node, numbering: _Numbering, around: Surroundings) -> tuple[Part, ...]:
    if not node.has("parts"):
        node.need(("at",), "a field says where its bits are: `at`, or several `parts`, or `base` with `segments`")
        return (_part(node, node, numbering, around, numbering.per),)
    node.forbid(_BIT_KEYS, "with `parts`, each part has its own address")
    inner = node.tables("parts")
    if len(inner) < 2:
        node.refuse("parts", f"{len(inner)} parts", "two or more; a single one is written in the field itself")
    return tuple(_part(part, node, numbering, around, part.integer("per", numbering.per)) for part in inner)


def _part(node: Node, outer: Node, numbering: _Numbering, around: Surroundings, per: int) -> Part:
    node.need(("at",), "a byte offset")
    if per % numbering.per or around.block % per:
        node.refuse(
            "per", f"{per}", f"a multiple of the field's per = {numbering.per} that divides block = {around.block}"
        )
    if node is outer and numbering.type is not None:
        fixed = TYPES[numbering.type].width
        width = node.integer("width", fixed)
        if width != fixed:
            node.refuse("width", f"{width}", f"{fixed}, which type {numbering.type} fixes: leave it out")
    else:
        node.need(("width",), "bits per entry")
        width = node.integer("width")
    if width > 32:
        node.refuse("width", f"{width}", "1 to 32")
    shape, stride = _shape(node, around.block // per, f"{around.block} weights, {per} to an entry")
    plane = _plane(node, outer, around, numbering.scope)
    return Part(plane, 8 * node.integer("at") + node.integer("bit"), width, shape, stride, node.integer("shl"), per)


def _shape(node: Node, entries: int, reason: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and stride of a node, the shape's product checked against `entries` (0: not checked)."""
    shape, stride = node.integers("shape"), node.integers("stride")
    if len(shape) != len(stride):
        node.refuse("stride", f"{len(stride)} strides for {len(shape)} digits of shape", "one stride for each digit")
    if entries and prod(shape) != entries:
        product = "*".join(map(str, shape)) or "no shape"
        node.refuse("shape", f"{product} = {prod(shape)} entries", f"{entries} entries: {reason}")
    return shape, stride


def _code_width(node: Node, parts: tuple[Part, ...], numbering: _Numbering) -> int:
    """Bits of the code the parts make, each written exactly once."""
    key = "parts" if node.has("parts") else "shl"
    owner: dict[int, int] = {}
    for index, part in enumerate(parts):
        for bit in range(part.shl, part.shl + part.width):
            if bit in owner:
                both = f"parts {owner[bit]} and {index} both write bit {bit} of the code"
                node.refuse(key, both, "one part for each bit")
            owner[bit] = index
            if bit >= 32:
                node.refuse(key, f"shl {part.shl} + width {part.width} = {part.shl + part.width} bits", "at most 32")
    width = max(owner) + 1
    missing = [bit for bit in range(width) if bit not in owner]
    if missing:
        node.refuse(key, f"no part writes bit {missing[0]} of the {width}-bit code", "every bit from 0 to the highest")
    if numbering.type is not None and width != TYPES[numbering.type].width:
        node.refuse(key, f"the parts make {width} bits", f"{TYPES[numbering.type].width} bits (type {numbering.type})")
    if numbering.type is None and width > _MAX_CODE_BITS:
        node.refuse(key if node.has("parts") else "width", f"a {width}-bit code", f"at most {_MAX_CODE_BITS} bits")
    if node.flag("signed") and width < 2:
        node.refuse("signed", "a 1-bit two's complement code", "codes of 2 bits or more")
    return width


def _segments(node: Node, numbering: _Numbering, around: Surroundings, entries: int) -> tuple[DigitSegment, ...]:
    node.forbid((*_BIT_KEYS, "parts"), "a digit field (one with `base`) has its addresses in `segments`")
    node.forbid(("signed",), "digits are unsigned; use `add`")
    node.need(("digits", "encoding", "segments"), "a digit field has `digits` to a byte, `encoding` and `segments`")
    base, digits = node.integer("base"), node.integer("digits")
    if base > 256 or digits > 8 or base**digits > 256:  # the first two keep the power small
        power = f"{base}^{digits} = {base**digits}" if base <= 256 and digits <= 8 else f"{base}^{digits}"
        node.refuse("digits", f"{power} > 256", "base^digits <= 256: the digits of a byte")
    inner = node.tables("segments")
    repeat = node.integer("repeat", 1)
    if repeat > entries:
        node.refuse("repeat", f"{repeat} repetitions", f"at most the {entries} entries of the field")
    runs = []
    for segment in inner:
        segment.need(("at",), "a byte offset")
        if repeat > 1:
            segment.need(("step",), "with `repeat`, every segment says how many digits it moves on")
        else:
            segment.forbid(("step",), "only with the field's `repeat`")
        shape, stride = _shape(segment, 0, "")
        plane = _plane(segment, node, around, numbering.scope)
        start = digits * segment.integer("at") + segment.integer("digit")
        runs.append((DigitSegment(plane, start, shape, stride), segment.integer("step")))
    unrolled = tuple(
        DigitSegment(run.plane, run.digit + turn * step, run.shape, run.stride)
        for turn in range(repeat)
        for run, step in runs
    )
    total = sum(segment.entries for segment in unrolled)
    if total != entries:
        sizes = " + ".join(str(run.entries) for run, _ in runs) or "0"
        counted = f"{repeat} * ({sizes})" if repeat > 1 else sizes
        short = f": entry {total} has no code" if total < entries else ""
        node.refuse(
            "segments",
            f"{counted} = {total} entries{short}",
            f"{entries} entries: {around.block} weights, {numbering.per} to an entry",
        )
    return unrolled
