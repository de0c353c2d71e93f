"""The grammar of the spec files, as tables: every key, its kind and meaning. Reader and JSON Schema both walk them."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.spec.types import TYPES


@dataclass(frozen=True)
class Key:
    """One key a table may hold.

    kind:    "text", "int", "number", "bool", "ints", "numbers", "texts" (lists), "tables" (a list of tables) or
             "named" (a table of tables)
    choices: the texts allowed, where they are fixed
    minimum: the least integer allowed (of each item, for lists)
    entry:   the keys of the inner tables, for kinds "tables" and "named"
    """

    kind: str
    doc: str
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    entry: str = ""


_ADDRESS = {
    "plane": Key("text", "which plane holds it (formats with planes only)"),
    "at": Key("int", "byte offset of entry 0 in its block, row prefix or tensor tail", minimum=0),
    "bit": Key("int", "further bit offset of entry 0 (default 0); little-endian, may exceed 7", minimum=0),
    "width": Key("int", "bits per entry; left out where `type` fixes it", minimum=1),
    "shape": Key("ints", "mixed radix of the entry index, first digit fastest; left out for a single entry", minimum=1),
    "stride": Key("ints", "bits from one step of each digit of `shape` to the next; may be negative"),
}

PART = {
    **_ADDRESS,
    "shl": Key("int", "code bit where these bits land (default 0)", minimum=0),
    "per": Key("int", "weights that share one entry of this part, if more than the field's `per`", minimum=1),
}

SEGMENT = {
    "plane": _ADDRESS["plane"],
    "at": _ADDRESS["at"],
    "digit": Key(
        "int", "further digit offset of entry 0 (default 0); digit 0 of a byte is the most significant", minimum=0
    ),
    "shape": _ADDRESS["shape"],
    "stride": Key(
        "ints", "stored digits from one step of each digit of `shape` to the next; digit address = digits*byte + index"
    ),
    "step": Key("int", "digits this segment moves on at every repetition (with `repeat`)"),
}

PADDING = {
    "plane": _ADDRESS["plane"],
    "at": Key("int", "byte offset of the unused bits", required=True, minimum=0),
    "bit": _ADDRESS["bit"],
    "width": Key("int", "how many bits are unused", required=True, minimum=1),
}

FIELD = {
    "doc": Key("text", "what the field is, one line"),
    "per": Key(
        "int",
        "consecutive weights that share one entry (default: 1 for codes and signs, the whole block for number types, "
        "the vector width for grids and sign7)",
        minimum=1,
    ),
    "type": Key("text", "number or sign type of the bits; left out for plain codes", choices=tuple(TYPES)),
    "scope": Key(
        "text",
        'where the field lives: "block" (default), "row" (bytes before each row\'s blocks), "tensor" (bytes behind the '
        'last row), "sibling" (another tensor)',
        choices=("block", "row", "tensor", "sibling"),
    ),
    "suffix": Key("text", "the sibling tensor is called as this tensor with this appended (scope sibling)"),
    "signed": Key("bool", "true: the code is two's complement"),
    "mul": Key("number", "a code c means mul*c + add (default 1)"),
    "add": Key("number", "a code c means mul*c + add (default 0)"),
    "table": Key("text", "codebook of numbers the code indexes"),
    "grid": Key("text", "codebook of vectors the code indexes; a code serves as many weights as a vector is long"),
    **{key: entry for key, entry in PART.items() if key != "per"},
    "parts": Key("tables", "two or more bit fields OR-ed into one code", entry="part"),
    "base": Key("int", "codes are digits in this base, several to a byte", minimum=2),
    "digits": Key("int", "digits to a byte", minimum=1),
    "encoding": Key(
        "text",
        '"fraction": byte/256 written in the base; "positional": the byte itself written in the base; digit 0 first',
        choices=("fraction", "positional"),
    ),
    "segments": Key("tables", "runs of digits, one after the other over the entry index", entry="segment"),
    "repeat": Key("int", "the segments are walked this many times, each moving on by its `step`", minimum=2),
}

FORMAT = {
    "name": Key("text", "the format's name; the file is called the same in lower case", required=True),
    "id": Key("int", "GGUF tensor type number, where it has one", minimum=0),
    "doc": Key("text", "one line for people", required=True),
    "source": Key("text", "where the layout is documented"),
    "block": Key("int", "weights that share one record", required=True, minimum=1),
    "activation": Key("text", "activation the dot product takes: a file of specs/activations"),
    "value": Key(
        "text", "a weight, from the fields with + - * ( ); computed in float32 just as written", required=True
    ),
    "planes": Key("texts", "regions of a tensor in file order, when blocks are split over several"),
    "plane_align": Key("int", "each plane starts at a multiple of this many bytes", minimum=1),
    "k_pad": Key("int", "rows are padded to a multiple of this many columns", minimum=1),
    "padding": Key("tables", "bits that carry nothing", entry="padding"),
    "fields": Key("named", "the fields of a block; the weights' codes are called q", required=True, entry="field"),
}

CODEBOOK = {
    "name": Key("text", "the codebook's name; the file is called the same", required=True),
    "doc": Key("text", "one line for people", required=True),
    "source": Key("text", "where the numbers are documented"),
    "type": Key("text", "type of the numbers", required=True, choices=("int8", "f32")),
    "values": Key("numbers", "a scalar table: the number of every index"),
    "lanes": Key("int", "a grid: numbers per vector", minimum=2),
    "levels": Key("numbers", "a grid: the numbers its digits stand for"),
    "vectors": Key("text", "a grid: one word per index, one digit per number; a digit is the index of a level"),
}

ACTIVATION = {
    "name": Key("text", "the activation's name; the file is called the same", required=True),
    "doc": Key("text", "the rule, in words", required=True),
    "kind": Key("text", "integer: quantised per group; float: rounded", required=True, choices=("integer", "float")),
    "type": Key("text", "type of one number", required=True, choices=("int8", "f32", "f16", "bf16")),
    "group": Key("int", "consecutive x that share a scale (integer)", minimum=1),
    "scale": Key("text", "type of the scale (integer)", choices=("f32", "f16")),
    "rounding": Key("text", "how x*127/amax or x is rounded", required=True, choices=("nearest_even",)),
}

ENTRIES: dict[str, dict[str, Key]] = {"part": PART, "segment": SEGMENT, "padding": PADDING, "field": FIELD}
