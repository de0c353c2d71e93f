"""Formats that nobody ships, as files: what they need of ksplit_mma is in none of specs/formats."""

from __future__ import annotations

HEAD = """\
name = "TOY"
doc = "made up"
source = "this test"
block = {block}
activation = "{activation}"
value = "{value}"
"""
D = '[fields.d]\ntype = "f16"\nat = 0\n'
M = '[fields.m]\ntype = "f16"\nat = 2\n'


def toml(value: str, *fields: str, block: int = 256, activation: str = "q8_g256") -> str:
    """The file of a format."""
    return HEAD.format(block=block, activation=activation, value=value) + "".join(fields)


def nibbles(at: int, extra: str = "", block: int = 256) -> str:
    """Codes as ggml likes them: low nibbles of 16 bytes, then the high ones."""
    return f"[fields.q]\nat = {at}\nwidth = 4\nshape = [16, 2, {block // 32}]\nstride = [8, 4, 128]\n{extra}"


def bytes_of(name: str, at: int, entries: int, extra: str = "", per: int = 0) -> str:
    """A field of whole bytes, one behind the other."""
    return _row(name, at, entries, 8, per or 256 // entries, extra)


def packed(name: str, at: int, entries: int, width: int, extra: str = "") -> str:
    """A field of `width` bits, one behind the other, for 256 weights."""
    return _row(name, at, entries, width, 256 // entries, extra)


def _row(name: str, at: int, entries: int, width: int, per: int, extra: str) -> str:
    address = f"at = {at}\nwidth = {width}\nshape = [{entries}]\nstride = [{width}]\n"
    return f"[fields.{name}]\nper = {per}\n{address}{extra}"


# name -> (text, "" or a part of the refusal)
MADE_UP = {
    "codes under two integer scales": (
        toml("(d*sc)*q - (m*mn)*q", D, M, packed("sc", 4, 8, 4), bytes_of("mn", 8, 8), nibbles(16)),
        "terms with codes under integer scales mn and sc",
    ),
    "codes with an integer scale and without": (
        toml("(d*sc)*q - m*q", D, M, packed("sc", 4, 8, 4), nibbles(8)),
        "terms with codes under integer scales none and sc",
    ),
    "two extra bits, packed": (
        toml(
            "d*q",
            D,
            "[fields.q]\nadd = -32\nparts = [\n  { at = 10, width = 4, shape = [16, 2], stride = [8, 4] },\n"
            "  { at = 2, width = 2, shape = [32], stride = [2], shl = 4 },\n]\n",
            block=32,
            activation="q8_g32",
        ),
        "",
    ),
    "two extra bits, packed, in blocks of 64 with a minimum": (
        toml(
            "d*q + m",
            D,
            M,
            "[fields.q]\nparts = [\n  { at = 20, width = 4, shape = [32, 2], stride = [8, 4] },\n"
            "  { at = 4, width = 2, shape = [64], stride = [2], shl = 4 },\n]\n",
            block=64,
            activation="q8_g32",
        ),
        "",
    ),
    "codebook with packed scales": (toml("(d*sc)*q", D, packed("sc", 2, 8, 4), nibbles(6, 'table = "iq4_nl"\n')), ""),
    "codebook with packed scales of 16": (
        toml("(d*sc)*q", D, packed("sc", 2, 16, 4), nibbles(10, 'table = "iq4_nl"\n')),
        "no way to share the block over 4 threads",
    ),
    "packed scales of 2 bits": (toml("(d*sc)*q", D, packed("sc", 2, 8, 2, "mul = 3\n"), nibbles(4)), ""),
    "scales in blocks of 64": (
        toml("(d*sc)*q", D, bytes_of("sc", 2, 4, per=16), nibbles(6, block=64), block=64, activation="q8_g32"),
        "integer scales in 2 units a block",
    ),
    "unsigned scales and minimums of 8 bits": (
        toml("(d*sc)*q - (m*mn)", D, M, bytes_of("sc", 4, 8), bytes_of("mn", 12, 8), nibbles(20)),
        "",
    ),
    "scales around 64": (toml("(d*sc)*q", D, bytes_of("sc", 2, 8, "signed = true\n"), nibbles(10, "add = -8\n")), ""),
    "scales around 128": (
        toml("(d*sc)*q", D, bytes_of("sc", 2, 8, "add = -128\n"), nibbles(10)),
        "scale sc is 128 below codes up to 255",
    ),
    "odd scales": (
        toml("(d*sc)*q", D, packed("sc", 2, 8, 4, "mul = 2\nadd = 1\n"), nibbles(6)),
        "scale sc is times 2 and adds 1",
    ),
    "scales that count down": (
        toml("(d*sc)*q", D, packed("sc", 2, 8, 4, "mul = -1\n"), nibbles(6)),
        "scale sc is times -1",
    ),
    "doubled codes under scales": (
        toml("(d*sc)*q", D, bytes_of("sc", 2, 8), nibbles(10, "mul = 2\nadd = -15\n")),
        "codes times 2 under integer scales",
    ),
    "codes in two's complement under scales": (
        toml("(d*sc)*q", D, bytes_of("sc", 2, 16), nibbles(18, "signed = true\n")),
        "",
    ),
    "a minimum without scale beside scales": (
        toml("(d*sc)*q + m", D, M, bytes_of("sc", 4, 8), nibbles(12)),
        "term m has no integer scale",
    ),
    "codes without scale beside scaled minimums": (toml("d*q - (m*mn)", D, M, bytes_of("mn", 4, 8), nibbles(12)), ""),
    "offset codes without scale beside scaled minimums": (
        toml("d*q - (m*mn)", D, M, bytes_of("mn", 4, 8), nibbles(12, "add = -8\n")),
        "term d*q has offset codes",
    ),
    "minimums coarser than scales": (
        toml("(d*sc)*q - (m*mn)", D, M, bytes_of("sc", 4, 16), bytes_of("mn", 20, 8), nibbles(28)),
        "8 entries of scale mn",
    ),
    "scales coarser than minimums": (
        toml("(d*sc)*q - (m*mn)", D, M, bytes_of("sc", 4, 8), bytes_of("mn", 12, 16), nibbles(28)),
        "8 entries of scale sc",
    ),
    "signed scales times 3": (
        toml("(d*sc)*q", D, bytes_of("sc", 2, 8, "signed = true\nmul = 3\n"), nibbles(10)),
        "scale sc is times 3",
    ),
    "one scale for codes and minimums": (toml("(d*sc)*q - (m*sc)", D, M, bytes_of("sc", 4, 8), nibbles(12)), ""),
    "one scale for offset codes and minimums": (
        toml("(d*sc)*q - (m*sc)", D, M, bytes_of("sc", 4, 8), nibbles(12, "add = -8\n")),
        "",
    ),
    "two scales for one code": (
        toml("(sc*mn)*q", bytes_of("sc", 0, 8), bytes_of("mn", 8, 8), nibbles(16)),
        "2 integer scales in one term",
    ),
    "a scale for bare sums only": (toml("d*q - (d*mn)", D, bytes_of("mn", 2, 4), nibbles(6)), ""),
    "six scales": (toml("(d*sc)*q", D, bytes_of("sc", 2, 2), nibbles(4)), "2 entries of scale sc"),
    "bytes as codes": (
        toml("d*q", D, "[fields.q]\nat = 2\nwidth = 8\nshape = [64]\nstride = [8]\n", block=64, activation="q8_g32"),
        "",
    ),
    "bytes around 128 under scales": (
        toml(
            "(d*sc)*q",
            D,
            bytes_of("sc", 2, 16),
            "[fields.q]\nat = 18\nwidth = 8\nshape = [256]\nstride = [8]\nadd = -128\n",
        ),
        "",
    ),
    "f32 scales in blocks of 4-byte alignment": (
        toml(
            "d*q",
            '[fields.d]\ntype = "f32"\nat = 16\n',
            nibbles(0, "add = -8\n", block=32),
            block=32,
            activation="q8_g32",
        ),
        "",
    ),
    "a minimum for every 32": (
        toml(
            "d*q + m",
            D,
            '[fields.m]\ntype = "f16"\nper = 32\nat = 2\nshape = [2]\nstride = [16]\n',
            nibbles(6, block=64),
            block=64,
            activation="q8_g32",
        ),
        "",
    ),
    "single bits under scales": (
        toml(
            "(d*sc)*q",
            D,
            bytes_of("sc", 2, 8),
            "[fields.q]\nmul = 1\nadd = -1\nat = 10\nwidth = 1\nshape = [32, 8]\nstride = [8, 1]\n",
        ),
        "",
    ),
    "blocks of 2048": (toml("d*q", D, nibbles(2, block=2048), block=2048), "bytes of shared memory"),
    "bundles with a minimum subtracted": (
        toml("d*q - m", D, M, nibbles(4, block=32), block=32, activation="q8_g32"),
        "",
    ),
    "bundles of two with codes around 8 and a minimum": (
        toml("d*q + m", D, M, nibbles(4, "add = -8\n", block=64), block=64, activation="q8_g32"),
        "",
    ),
    "odd bytes in blocks of 256": (toml("d*q", '[fields.d]\ntype = "e8m0"\nat = 0\n', nibbles(1)), ""),
}
