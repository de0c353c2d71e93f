"""Small good format files, and what is wrong with them after a change: the table behind the tests of refusals."""

from __future__ import annotations

from pathlib import Path

TOY = """
name = "TOY"
doc = "a small block"
block = 32
activation = "q8_g32"
value = "d*q"

[fields.d]
type = "f16"
at = 0

[fields.q]
add = -8
at = 2
width = 4
shape = [16, 2]
stride = [8, 4]
"""

DIGITS = """
name = "TOY"
doc = "ternary"
block = 20
value = "d*q"

[fields.d]
type = "f16"
at = 4

[fields.q]
add = -1
base = 3
digits = 5
encoding = "fraction"
segments = [{ at = 0, shape = [4, 5], stride = [5, 1] }]
"""

PLANES = """
name = "TOY"
doc = "two planes"
block = 32
value = "s*q"
planes = ["base", "scale"]

[fields.s]
type = "f16"
plane = "scale"
at = 0

[fields.q]
plane = "base"
at = 0
width = 4
shape = [32]
stride = [4]
"""

PARTS = """
name = "TOY"
doc = "five bits in two parts"
block = 32
value = "d*q"

[fields.d]
type = "f16"
at = 0

[fields.q]
parts = [
  { at = 6, width = 4, shape = [16, 2], stride = [8, 4] },
  { at = 2, width = 1, shape = [32], stride = [1], shl = 4 },
]
"""


def write(folder: Path, text: str, name: str = "toy.toml") -> Path:
    """The text as a format file of a specs tree of its own."""
    path = folder / "formats" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def edited(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


# (base text, changes, fragments the message must hold)
REFUSED: dict[str, tuple[str, list[tuple[str, str]], list[str]]] = {
    "unknown key": (TOY, [("width = 4", "widht = 4")], ["fields.q.widht", "unknown key", "did you mean 'width'"]),
    "unknown top key": (TOY, [("block = 32", "block = 32\nbytes = 18")], ["toy.toml: bytes", "unknown key"]),
    "missing key": (TOY, [("block = 32\n", "")], ["toy.toml: block", "missing"]),
    "wrong type": (TOY, [("block = 32", 'block = "32"')], ["toy.toml: block", "'32'", "an integer"]),
    "bool is no integer": (TOY, [("block = 32", "block = true")], ["toy.toml: block", "True", "an integer"]),
    "list of the wrong type": (TOY, [("[16, 2]", '["16", 2]')], ["fields.q.shape", "a list of integers"]),
    "below the minimum": (TOY, [("at = 2", "at = -2")], ["fields.q.at", "-2", ">= 0"]),
    "absurd number": (TOY, [("at = 2", "at = 99999999999")], ["fields.q.at", "99999999999", "below"]),
    "far away": (TOY, [("at = 2", "at = 2000000000")], ["fields.q", "at byte 2000000000", "at most"]),
    "bad name": (TOY, [('"TOY"', '"toy-1"')], ["toy.toml: name", "'toy-1'", "capital letters"]),
    "name and file differ": (TOY, [('"TOY"', '"TOY2"')], ["toy.toml: name", "'TOY2'", "toy2.toml"]),
    "empty doc": (TOY, [('"a small block"', '" "')], ["toy.toml: doc", "empty"]),
    "huge block": (TOY, [("block = 32", "block = 1000000")], ["toy.toml: block", "1000000", "at most 65536"]),
    "unknown activation": (TOY, [("q8_g32", "q8_g23")], ["activation", "'q8_g23'", "did you mean 'q8_g32'", "q8_g256"]),
    "activation group": (TOY, [("q8_g32", "q8_g256")], ["activation", "groups of 256", "32 % 256 = 32"]),
    "shape": (TOY, [("[16, 2]", "[16, 3]")], ["fields.q.shape", "16*3 = 48 entries", "32 entries"]),
    "shape without stride": (TOY, [("stride = [8, 4]\n", "")], ["fields.q.stride", "0 strides for 2 digits"]),
    "per not dividing block": (
        TOY,
        [("add = -8", "add = -8\nper = 5")],
        ["fields.q.per", "32 % 5 = 2", "divisors of block = 32"],
    ),
    "overlapping fields": (TOY, [("at = 2", "at = 1")], ["fields.q", "bit 0 of byte 1", "read twice", "d[0]", "q[0]"]),
    "overlapping entries": (TOY, [("[8, 4]", "[8, 3]")], ["read twice", "q[0]", "q[16]", "bit 3 of byte 2"]),
    "bit never read": (TOY, [("at = 2", "at = 3")], ["bit 0 of byte 2", "never read", "144 of 8*19 = 152", "padding"]),
    "negative address": (TOY, [("[8, 4]", "[8, -20]")], ["fields.q", "q[16] is at bit -4", "before block begins"]),
    "padding over a field": (
        TOY,
        [("value =", "padding = [{ at = 1, width = 8 }]\nvalue =")],
        ["padding[0]", "bit 0 of byte 1", "read twice"],
    ),
    "padding without width": (
        TOY,
        [("value =", "padding = [{ at = 18 }]\nvalue =")],
        ["padding[0].width", "missing"],
    ),
    "no width": (TOY, [("width = 4\n", "")], ["fields.q.width", "missing"]),
    "no address": (TOY, [("at = 2\n", "")], ["fields.q.at", "missing", "where its bits are"]),
    "width of a type": (TOY, [('type = "f16"', 'type = "f16"\nwidth = 8')], ["fields.d.width", "8", "16"]),
    "unsupported type": (TOY, [('"f16"', '"f8"')], ["fields.d.type", "'f8'", "bf16", "ue4m3_half"]),
    "type and mul": (TOY, [('type = "f16"', 'type = "f16"\nmul = 2')], ["fields.d.mul", "only plain codes"]),
    "type and base": (DIGITS, [("base = 3", 'base = 3\ntype = "f16"')], ["fields.q", "only plain codes"]),
    "mul of zero": (TOY, [("add = -8", "mul = 0")], ["fields.q.mul", "every code would mean the same"]),
    "numbers beyond float32": (TOY, [("add = -8", "mul = 9000000")], ["fields.q.mul", "1.35e+08", "2^24"]),
    "signed bit": (TOY, [("width = 4", "width = 1\nsigned = true")], ["fields.q.signed", "1-bit"]),
    "unknown codebook": (TOY, [("add = -8", 'table = "iq4_ln"')], ["fields.q.table", "did you mean 'iq4_nl'"]),
    "grid as a table": (TOY, [("add = -8", 'table = "iq2_xs"')], ["fields.q.table", "8-vectors", "'grid'"]),
    "table as a grid": (TOY, [("add = -8", 'grid = "iq4_nl"')], ["fields.q.grid", "single numbers", "'table'"]),
    "unknown grid": (TOY, [("add = -8", 'grid = "iq9"')], ["fields.q.grid", "no codebook 'iq9'", "iq1_s"]),
    "table of another size": (
        PARTS,
        [("[fields.q]", '[fields.q]\ntable = "iq4_nl"')],
        ["fields.q.table", "iq4_nl has 16 entries", "32 codes"],
    ),
    "table and add": (TOY, [("add = -8", 'add = -8\ntable = "iq4_nl"')], ["fields.q.add", "indexes a table"]),
    "per of a grid": (
        TOY,
        [("add = -8", 'grid = "iq2_xxs"\nper = 4'), ("width = 4", "width = 8")],
        ["fields.q.per", "4, but one entry serves 8", "leave it out"],
    ),
    "digits do not fit a byte": (DIGITS, [("digits = 5", "digits = 6")], ["fields.q.digits", "3^6 = 729 > 256"]),
    "digits far too many": (DIGITS, [("digits = 5", "digits = 2000000000")], ["fields.q.digits", "3^2000000000"]),
    "base too large": (DIGITS, [("base = 3", "base = 4")], ["fields.q.digits", "4^5 = 1024 > 256"]),
    "no encoding": (DIGITS, [('encoding = "fraction"\n', "")], ["fields.q.encoding", "missing"]),
    "unknown encoding": (DIGITS, [('"fraction"', '"fractional"')], ["fields.q.encoding", "did you mean 'fraction'"]),
    "element without a code": (
        DIGITS,
        [("[4, 5]", "[4, 4]")],
        ["fields.q.segments", "16 entries", "entry 16 has no code"],
    ),
    "too many digits": (DIGITS, [("block = 20", "block = 10")], ["fields.q.segments", "20 entries", "10 entries"]),
    "digit read twice": (DIGITS, [("[5, 1]", "[5, 0]")], ["digit 0 of byte 0", "read twice", "q[0]", "q[4]"]),
    "digits over a field": (DIGITS, [("at = 4", "at = 3")], ["fields.q", "bit 0 of byte 3", "read twice", "d[0]"]),
    "signed digits": (DIGITS, [("add = -1", "signed = true")], ["fields.q.signed", "use `add`"]),
    "segments without base": (
        DIGITS,
        [("base = 3\n", "")],
        ["fields.q", "only digit fields"],
    ),
    "address beside segments": (DIGITS, [("add = -1", "at = 0")], ["fields.q.at", "segments"]),
    "step without repeat": (DIGITS, [("[5, 1] }", "[5, 1], step = 5 }")], ["segments[0].step", "repeat"]),
    "repeat without step": (DIGITS, [("add = -1", "repeat = 2")], ["segments[0].step", "missing"]),
    "one part": (
        PARTS,
        [("  { at = 2, width = 1, shape = [32], stride = [1], shl = 4 },\n", "")],
        ["fields.q.parts", "1 parts", "two or more"],
    ),
    "parts write one bit twice": (PARTS, [("shl = 4", "shl = 3")], ["parts 0 and 1 both write bit 3"]),
    "parts leave a bit out": (PARTS, [("shl = 4", "shl = 5")], ["no part writes bit 4"]),
    "part of another per": (PARTS, [("shl = 4", "shl = 4, per = 3")], ["parts[1].per", "3", "divides block = 32"]),
    "unknown key of a part": (PARTS, [("shl = 4", "shift = 4")], ["fields.q.parts[1].shift", "unknown key"]),
    "at beside parts": (PARTS, [("parts =", "at = 0\nparts =")], ["fields.q.at", "each part"]),
    "too wide": (TOY, [("width = 4", "width = 40")], ["fields.q.width", "40", "1 to 32"]),
    "unknown field in value": (TOY, [('"d*q"', '"d*q*s"')], ["toy.toml: value", "'s'", "the fields d, q"]),
    "unused field": (TOY, [('"d*q"', '"q"')], ["fields.d", "d is not in value"]),
    "value is no expression": (TOY, [('"d*q"', '"d*(q"')], ["toy.toml: value", "ends where ')'"]),
    "value with a strange sign": (TOY, [('"d*q"', '"d/q"')], ["toy.toml: value", "'/' at column 2"]),
    "value not linear": (TOY, [('"d*q"', '"d*q*q"')], ["toy.toml: value", "multiplies q by itself"]),
    "value far too deep": (TOY, [('"d*q"', f'"d*q{"*(1" * 60}{")" * 60}"')], ["toy.toml: value", "more than 100"]),
    "value far too long": (TOY, [('"d*q"', '"d*q' + "*(1+d)" * 12 + '"')], ["toy.toml: value", "more than 64"]),
    "no code field": (TOY, [("[fields.q]", "[fields.w]"), ('"d*q"', '"d*w"')], ["fields", "d, w", "a field 'q'"]),
    "code for several weights": (
        TOY,
        [("add = -8", "per = 2"), ("[16, 2]", "[16]"), ("[8, 4]", "[8]"), ("width = 4", "width = 8")],
        ["fields.q", "one entry for 2 weights", "a code for every weight"],
    ),
    "code is a float": (TOY, [("add = -8", 'type = "f16"\nper = 1'), ("width = 4\n", "")], ["fields.q", "type f16"]),
    "bad field name": (TOY, [("[fields.d]", "[fields.D]"), ('"d*q"', '"D*q"')], ["fields.D", "lower-case"]),
    "field is no table": (TOY, [("[fields.d]", "[fields]\nx = 3\n[fields.d]")], ["fields", "a table of tables"]),
    "plane without planes": (TOY, [("at = 2", 'at = 2\nplane = "base"')], ["fields.q.plane", "with `planes`"]),
    "no plane": (PLANES, [('plane = "base"\n', "")], ["fields.q.plane", "missing", "base, scale"]),
    "unknown plane": (PLANES, [('plane = "base"', 'plane = "bass"')], ["fields.q.plane", "did you mean 'base'"]),
    "plane twice": (PLANES, [('["base", "scale"]', '["base", "base"]')], ["planes", "'base'", "different"]),
    "empty plane": (
        PLANES,
        [('["base", "scale"]', '["base", "scale", "high"]')],
        ["planes", "nothing is stored in high"],
    ),
    "plane called row": (PLANES, [('["base", "scale"]', '["row", "scale"]')], ["planes", "'row'"]),
    "k_pad": (PLANES, [("block = 32", "block = 32\nk_pad = 48")], ["k_pad", "48 % 32 = 16", "a multiple"]),
    "k_pad without planes": (TOY, [("block = 32", "block = 32\nk_pad = 64")], ["k_pad", "with `planes`"]),
    "plane_align": (PLANES, [("block = 32", "block = 32\nplane_align = 48")], ["plane_align", "48", "power of two"]),
    "sibling with an address": (
        TOY,
        [('type = "f16"', 'type = "f32"\nscope = "sibling"\nsuffix = ".scale"')],
        ["fields.d.at", "another tensor"],
    ),
    "sibling without a suffix": (
        TOY,
        [('type = "f16"\nat = 0', 'type = "f32"\nscope = "sibling"')],
        ["fields.d.suffix", "missing"],
    ),
    "suffix without sibling": (TOY, [('"f16"', '"f16"\nsuffix = ".scale"')], ["fields.d.suffix", "sibling"]),
    "row metadata with per": (TOY, [('"f16"', '"f16"\nscope = "row"\nper = 32')], ["fields.d.per", "one entry"]),
    "not TOML": (TOY, [("block = 32", "block = = 32")], ["toy.toml", "not TOML", "line 4"]),
    "key twice": (TOY, [("block = 32", "block = 32\nblock = 64")], ["toy.toml", "not TOML"]),
}
