"""Formats nobody ships: second ones of every known kind, which Python does not know, and ones that planners refuse."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from qgen.spec import Format, load_format

_FOLDER = tempfile.TemporaryDirectory(prefix="qgen-made-formats-")
_HEAD = {"doc": '"made up"', "activation": '"q8_g32"', "value": '"d*q"', "block": "32"}
_K = {"block": "256", "activation": '"q8_g256"'}
_SCALED = {"value": '"d*sc*q"'}


def _text(q: str, fields: str | None = None, **head: str) -> str:
    """A format file: its head (TOML values by key), its fields but for q (an f16 scale in front), and q."""
    lines = "".join(f"{key} = {value}\n" for key, value in (_HEAD | head).items())
    return f"{lines}{_float('d') if fields is None else fields}[fields.q]\n{q}"


def _float(name: str, at: int = 0, type: str = "f16", rest: str = "") -> str:
    return f'[fields.{name}]\ntype = "{type}"\nat = {at}\n{rest}'


def _bits(at: int, width: int, shape: list[int], stride: list[int]) -> str:
    return f"at = {at}\nwidth = {width}\nshape = {shape}\nstride = {stride}\n"


def _parts(*parts: tuple[int, int, list[int], list[int], int], first_bit: int = 0) -> str:
    """parts: (at, width, shape, stride, shl) each; the last one begins at bit `first_bit` of its byte."""
    bits = [0] * (len(parts) - 1) + [first_bit]
    texts = (
        f"{{ at = {at}, bit = {bit}, width = {width}, shape = {shape}, stride = {stride}, shl = {shl} }}"
        for (at, width, shape, stride, shl), bit in zip(parts, bits, strict=True)
    )
    return f"parts = [{', '.join(texts)}]\n"


def _nibbles(at: int) -> str:
    return _bits(at, 4, [16, 2], [8, 4])


def _bytes(width: int = 8) -> str:
    return _bits(2, width, [32], [8])


def _tops(bit: int) -> str:
    """Padding above the low `bit` bits of bytes 2 to 33."""
    return "[" + ", ".join(f"{{ at = {at}, bit = {bit}, width = {8 - bit} }}" for at in range(2, 34)) + "]"


def _digits(base: int, digits: int, add: int, *segments: tuple[int, list[int], list[int]]) -> str:
    """segments: (at, shape, stride in digits) each."""
    texts = (f"{{ at = {at}, shape = {shape}, stride = {stride} }}" for at, shape, stride in segments)
    return f'base = {base}\ndigits = {digits}\nadd = {add}\nencoding = "fraction"\nsegments = [{", ".join(texts)}]\n'


def _scales(rest: str, per: int = 8) -> str:
    """An integer scale behind the f16 one."""
    return f"{_float('d')}[fields.sc]\nper = {per}\n{rest}"


def _of_8(rest: str, codes_at: int = 6, value: str = '"d*sc*q"', **head: str) -> str:
    """4-bit codes with an integer scale to every 8 elements, in the bytes from 2 on."""
    return _text(_nibbles(codes_at), _scales(rest), value=value, **head)


def _looked_up(scale: str) -> str:
    q = 'table = "iq4_nl"\n' + _bits(6, 4, [8, 2, 4], [8, 4, 64])
    return _text(q, _scales(scale, per=16), block="64", padding="[{ at = 5, width = 8 }]", **_SCALED)


_LOW_FOUR = (2, 4, [4], [4], 0)
_HIGH_TWO = (4, 2, [4], [2], 4)
_BYTE_EACH = _bits(2, 8, [4], [8])

# name -> file. Each must plan, be printed, run in the emulator and give the contract's bits.
RUNS: dict[str, str] = {
    # bits
    "BITS3": _text("add = -4\n" + _parts((2, 2, [8, 4], [8, 2], 0), (10, 1, [32], [1], 2))),
    "BITS5_APART": _text(_parts((2, 4, [32], [4], 0), (18, 1, [32], [1], 4))),  # every other fifth bit
    "BITS6_APART": _text("add = -32\n" + _parts((2, 4, [32], [4], 0), (18, 2, [32], [2], 4))),
    "BITS1_SMALL": _text("mul = 2\nadd = -1\n" + _bits(2, 1, [32], [1])),  # blocks of 6 bytes
    "BITS7": _text("add = -64\n" + _bytes(7), padding=_tops(7)),
    "BYTE_UNSIGNED": _text(_bytes()),
    "BYTE_OFFSET": _text(_bytes() + "add = -128\nmul = 2\n"),
    "BYTE_SIGNED_OFFSET": _text(_bytes() + "signed = true\nadd = 1\n"),
    "TWOS4": _text(_nibbles(2) + "signed = true\n"),
    "TWOS4_AFFINE": _text(_nibbles(2) + "signed = true\nmul = -3\nadd = 1\n"),
    "PACKED_PAIRS": _text(_parts((2, 4, [16, 2], [8, 4], 0), (18, 2, [32], [2], 4))),
    "PACKED_NIBBLES": _text("signed = true\n" + _parts((2, 4, [16, 2], [8, 4], 0), (18, 4, [32], [4], 4))),
    "TWOS6": _text("signed = true\n" + _parts((2, 4, [16, 2], [8, 4], 0), (18, 2, [8, 4], [8, 2], 4))),
    "BLOCK96": _text(_bits(4, 4, [48, 2], [8, 4]), _float("d") + _float("m", 2, "bf16"), block="96", value='"d*q + m"'),
    "BLOCK160": _text("add = -2\n" + _bits(2, 2, [8, 4, 5], [8, 2, 64]), block="160"),
    "BLOCK512": _text(_bits(2, 2, [128, 4], [8, 2]), block="512", activation='"q8_g256"'),
    "BYTES256": _text("signed = true\n" + _bits(2, 8, [256], [8]), **_K),
    # digits
    "BASE5": _text(_digits(5, 3, -2, (0, [32, 3], [3, 1])), _float("d", 32), block="96"),
    "BASE4": _text(_digits(4, 4, -2, (2, [2, 4, 4], [4, 8, 1]))),
    "BASE3_GAPS": _text(  # words of which the last bytes hold no digits
        _digits(3, 5, -1, (2, [6, 5], [5, 1]), (8, [2], [1])), padding="[{ at = 9, width = 8 }]"
    ),
    "BASE3_UNEVEN": _text(_digits(3, 5, -1, (2, [95], [1]), (21, [1], [1])), block="96"),  # groups of unlike length
    # codebooks
    "TABLE_SCALED": _looked_up("add = -5\n" + _parts(_LOW_FOUR, _HIGH_TWO)),
    "TABLE_SCALED_HIGH_FIRST": _looked_up("add = -32\n" + _parts(_HIGH_TWO, _LOW_FOUR)),
    # scales and terms
    "SCALE_SIGNED": _of_8("signed = true\nmul = 2\nadd = 1\n" + _BYTE_EACH),
    "SCALE_AFFINE": _of_8("mul = 3\nadd = -7\n" + _BYTE_EACH),
    "SCALES_OF_8": _text(
        "add = -8\n" + _bits(34, 4, [128, 2], [8, 4]), _scales(_bits(2, 8, [32], [8])), **_K, **_SCALED
    ),
    "SCALES_TO_510": _text(
        "add = -8\n" + _bits(10, 4, [128, 2], [8, 4]),
        _scales("mul = 2\n" + _bits(2, 8, [8], [8]), per=32),
        **_K,
        **_SCALED,
    ),
    "SCALES_APART": _text(
        "add = -8\n" + _bits(10, 4, [128, 2], [8, 4]), _scales(_bits(2, 8, [2, 4], [32, 8]), per=32), **_K, **_SCALED
    ),
    "SCALES_12": _text(_bits(14, 4, [48, 2], [8, 4]), _scales(_bits(2, 8, [12], [8])), block="96", **_SCALED),
    "ZERO_POINTS": _text(_nibbles(4), _scales(_bits(2, 4, [4], [4])).replace("sc", "z"), value='"d*(q - z)"'),
    "TWO_SCALES": _text(_nibbles(4), _float("d") + _float("e", 2), value='"d*q - e*q"'),
    "NEGATED": _text(_nibbles(2), value='"-d*q"'),
    "SHIFTED": _text(_nibbles(2), value='"d*q - 1"'),
    "BARE": _text(_nibbles(0) + "add = -8\n", "", value='"q"'),
    "F32": _text(_nibbles(4), _float("d", 0, "f32")),
    "BF16": _text(_nibbles(2), _float("d", 0, "bf16")),
    "E8M0": _text(_nibbles(1), _float("d", 0, "e8m0")),
    "UE4M3": _text(_nibbles(2), _float("d", 0, "ue4m3", "per = 16\nshape = [2]\nstride = [8]\n")),
}

# name -> (file, what the refusal says)
REFUSED: dict[str, tuple[str, str]] = {
    "SIGNS": (
        _text(_nibbles(6), _float("d") + _float("s", 2, "sign", "shape = [32]\nstride = [1]\n"), value='"d*s*q"'),
        "its codes are not one plain field",
    ),
    "POSITIONAL": (_text(_digits(3, 5, -1, (2, [32], [1]))).replace("fraction", "positional"), "positional"),
    "NINE_BITS": (_text(_parts((2, 8, [32], [8], 0), (34, 1, [32], [1], 8))), "codes of 9 bits"),
    "BASE200": (_text(_digits(200, 1, 0, (2, [32], [1]))), "base 200"),
    "TABLE_IN_PARTS": (
        _text('table = "iq4_nl"\n' + _parts((2, 2, [8, 4], [8, 2], 0), (10, 2, [8, 4], [8, 2], 2))),
        "indexed by other than one 4-bit part",
    ),
    "TABLE_HALF_EMPTY": (_text('table = "iq4_nl"\n' + _bytes(4), padding=_tops(4)), "byte 2 holds one codebook index"),
    "TABLE_WIDE": (_text('table = "wide"\n' + _nibbles(2)), "codebook wide holds 300"),
    "HALF_CODES": (_text(_nibbles(2) + "mul = 0.5\n"), "codes map to mul 0.5"),
    "NO_ACTIVATION": (_text(_nibbles(2)).replace('activation = "q8_g32"\n', ""), "no activation"),
    "FLOAT_ACTIVATION": (_text(_nibbles(2), activation='"bf16"'), "activation bf16 is not int8"),
    "TWICE": (_text(_nibbles(2), value='"2*d*q"'), "constant 2.0"),
    "SQUARED_SCALE": (_of_8(_BYTE_EACH, value='"d*sc*sc*q"'), "2 integer scales in one term: sc, sc"),
    "SCATTERED": (
        _text(_nibbles(1), '[fields.d]\ntype = "f16"\n' + _parts((0, 8, [], [], 0), (17, 8, [], [], 8))),
        "scale d is scattered over 2 places",
    ),
    "ODD_SCALE": (_text(_nibbles(3), _float("d", 1), padding="[{ at = 0, width = 8 }]"), "scale d at byte 1"),
    "E4M3": (_of_8('type = "e4m3"\nat = 2\nshape = [4]\nstride = [8]\n'), "scale sc is of type e4m3"),
    "SIGNED_IN_PARTS": (
        _of_8("signed = true\n" + _parts(_LOW_FOUR, (4, 4, [4], [4], 4))),
        "signed scale sc is not one whole byte",
    ),
    "HALF_SCALES": (_of_8("mul = 0.5\n" + _BYTE_EACH), "scale sc is not a plain integer"),
    "SCALE_CROSSES": (
        _of_8(_bits(2, 7, [4], [7]), padding="[{ at = 5, bit = 4, width = 4 }]"),
        "scale sc crosses a byte",
    ),
    "CODE_CROSSES": (_text(_bits(2, 3, [32], [3])), "crosses a byte: bit 6 + width 3 > 8"),
    "PART_CROSSES": (
        _text(
            _parts((2, 4, [32, 2], [8, 4], 0), (34, 1, [64], [1], 4), first_bit=2),
            block="64",
            padding="[{ at = 34, width = 2 }, { at = 42, bit = 2, width = 14 }]",
        ),
        "crosses a 32-bit word",
    ),
    "UNEVEN_PART": (_text(_parts((2, 4, [32], [4], 0), (18, 1, [4, 8], [8, 1], 4))), "neither byte-strided nor packed"),
    "LATE_DIGITS": (
        _text(_digits(3, 5, -1, (2, [4, 8], [1, 5])).replace("at = 2", "at = 2, digit = 1")),
        "digits ((1,), (2,), (3,), (4,)) of a word",
    ),
    "WORDS_LEFT_OVER": (
        _text(_digits(3, 5, -1, (2, [51, 5], [5, 1]), (53, [1], [1])), **_K),
        "13 words do not divide over 4 threads",
    ),
    "UNLIKE_GROUPS": (
        _text(
            _digits(3, 5, -1, (18, [48, 5], [5, 1]), (66, [4, 4], [5, 1])),
            _scales(_bits(2, 8, [16], [8]), per=16),
            **_K,
            **_SCALED,
        ),
        "gives each the same groups of 16 elements",
    ),
    "PLANES": (
        _text(
            'plane = "base"\n' + _nibbles(0),
            _float("d", rest='plane = "scale"\n'),
            planes='["base", "scale"]',
        ),
        "planes base, scale",
    ),
    "VAST_SUMS": (
        _of_8(_parts(*((2 + 4 * i, 8, [4], [8], 8 * i) for i in range(3))), codes_at=14),
        "an integer sum of a unit can reach",
    ),
    "SUMS_OF_4": (
        _text("add = -8\n" + _bits(66, 4, [128, 2], [8, 4]), _scales(_bits(2, 8, [64], [8]), per=4), **_K, **_SCALED),
        "4 x 16 activation sums a block",
    ),
    "LARGE_BLOCKS": (
        _text("signed = true\n" + _bits(2, 8, [256], [8]), block="256"),
        "staging its 258-byte blocks takes more than 65536 bytes",
    ),
}


@cache
def made(name: str) -> Format:
    """The format called `name` above, read from a file like any other. Raises QgenError for a wrong file."""
    folder = Path(_FOLDER.name) / "formats"
    folder.mkdir(exist_ok=True)
    books = Path(_FOLDER.name) / "codebooks"
    if not books.exists():
        books.mkdir()
        values = [*range(-7, 8), 300]
        (books / "wide.toml").write_text(f'name = "wide"\ndoc = "beyond int8"\ntype = "f32"\nvalues = {values}\n')
    path = folder / f"{name.lower()}.toml"
    text = RUNS[name] if name in RUNS else REFUSED[name][0]
    path.write_text(f'name = "{name}"\n{text}', encoding="utf-8")
    return load_format(path)
