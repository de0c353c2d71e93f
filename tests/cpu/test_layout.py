"""Where bits and digits lie: held against FORMATS.md's formulas, which are written another way (bytes and shifts)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from qgen.errors import QgenError
from qgen.layout import Digit, Piece, check, code_range, digit, entry_of, matrix, pieces, region_of
from qgen.spec import Format, load_format, load_formats

FORMATS = load_formats()

# bytes per block and guaranteed alignment, from the fact sheet's tables
SIZES = {
    "Q1_0": (18, 2), "Q2_0": (18, 2), "Q4_0": (18, 2), "Q4_1": (20, 4), "Q5_0": (22, 2), "Q5_1": (24, 8),
    "Q8_0": (34, 2), "IQ4_NL": (18, 2), "MXFP4": (17, 1), "NVFP4": (36, 4), "TQ1_0": (54, 2), "TQ2_0": (66, 2),
    "PQ2_0": (34, 2), "PTQ1_0": (28, 4), "Q2_K": (84, 4), "Q3_K": (110, 2), "Q4_K": (144, 16), "Q5_K": (176, 16),
    "Q6_K": (210, 2), "IQ2_XXS": (66, 2), "IQ2_XS": (74, 2), "IQ2_S": (82, 2), "IQ3_XXS": (98, 2), "IQ3_S": (110, 2),
    "IQ1_S": (50, 2), "IQ1_M": (56, 8), "IQ4_XS": (136, 8), "Q4G64_F16S": (34, 2), "Q5G64_F16S": (42, 2),
    "Q6G64_F16S": (50, 2), "W8G32_F16S": (34, 2),
}  # fmt: skip


def test_sizes_are_derived_right() -> None:
    assert {name: (format.bytes, format.alignment) for name, format in FORMATS.items()} == SIZES
    assert FORMATS["TQ1_0"].bits_per_weight == 1.6875 and FORMATS["PTQ1_0"].bits_per_weight == 1.75


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if (format.id or 999) < 41])
def test_id_block_and_bytes_agree_with_gguf(name: str) -> None:
    format = FORMATS[name]
    kind = gguf.GGMLQuantizationType[name]
    assert kind.value == format.id
    assert gguf.GGML_QUANT_SIZES[kind] == (format.block, format.bytes)


def nibble_halves(first: int) -> Callable[[int], tuple[int, int]]:
    return lambda i: (first + i % 16, 4 * (i // 16))


# (format, field, code bit where the piece lands) -> entry -> (byte, shift), as the fact sheet's c(byte, shift, width)
MAPS: dict[tuple[str, str, int], Callable[[int], tuple[int, int]]] = {
    ("Q1_0", "q", 0): lambda i: (2 + i // 8, i % 8),
    ("Q2_0", "q", 0): lambda i: (2 + i // 4, 2 * (i % 4)),
    ("Q4_0", "q", 0): nibble_halves(2),
    ("Q5_1", "q", 0): nibble_halves(8),
    ("Q5_1", "q", 4): lambda i: (4 + i // 8, i % 8),
    ("MXFP4", "q", 0): nibble_halves(1),
    ("NVFP4", "q", 0): lambda i: (4 + 8 * (i // 16) + i % 8, 4 * (i % 16 // 8)),
    ("TQ2_0", "q", 0): lambda i: (32 * (i // 128) + i % 32, 2 * (i % 128 // 32)),
    ("Q2_K", "mn", 0): lambda s: (s, 4),
    ("Q3_K", "q", 2): lambda i: (i % 32, i // 32),
    ("Q3_K", "sc", 0): lambda s: (96 + s % 8, 4 * (s // 8)),
    ("Q3_K", "sc", 4): lambda s: (104 + s % 4, 2 * (s // 4)),
    ("Q4_K", "sc", 0): lambda s: (4 + s, 0) if s < 4 else (8 + s, 0),
    ("Q4_K", "sc", 4): lambda s: (4 + s, 4) if s < 4 else (s, 6),
    ("Q4_K", "mn", 0): lambda s: (8 + s, 0) if s < 4 else (8 + s, 4),
    ("Q4_K", "mn", 4): lambda s: (8 + s, 4) if s < 4 else (4 + s, 6),
    ("Q5_K", "q", 0): lambda i: (48 + 32 * (i // 64) + i % 32, 4 * (i % 64 // 32)),
    ("Q5_K", "q", 4): lambda i: (16 + i % 32, i // 32),
    ("Q6_K", "q", 0): lambda i: (64 * (i // 128) + i % 64, 4 * (i % 128 // 64)),
    ("Q6_K", "q", 4): lambda i: (128 + 32 * (i // 128) + i % 32, 2 * (i % 128 // 32)),
    ("IQ4_XS", "sc", 4): lambda s: (2 + s // 4, 2 * (s % 4)),
    ("IQ3_S", "q", 8): lambda q: (66 + q // 8, q % 8),
}


@pytest.mark.parametrize("name, field_name, shl", MAPS)
def test_pieces_are_where_the_fact_sheet_has_them(name: str, field_name: str, shl: int) -> None:
    field = FORMATS[name].field(field_name)
    for entry in range(field.entries):
        piece = next(piece for piece in pieces(field, entry) if piece.shl == shl)
        assert divmod(piece.bit, 8) == MAPS[name, field_name, shl](entry), entry


def test_pieces_of_a_scattered_scale() -> None:
    field = FORMATS["IQ1_M"].field("d")
    wanted = [Piece("block", 8 * (48 + 2 * t) + 12, 4, 4 * t) for t in range(4)]
    assert list(pieces(field, 0)) == wanted


def ternary(entry: int, runs: list[tuple[int, int]]) -> tuple[int, int]:
    """(byte, digit) by the stage rule: a run of r bytes holds 5r weights, n*r + m in digit n of byte m."""
    first = 0
    for length, digits in runs:
        if entry < length * digits:
            return first + entry % length, entry // length
        entry -= length * digits
        first += length
    raise AssertionError


@pytest.mark.parametrize("name, runs", [("TQ1_0", [(32, 5), (16, 5), (4, 4)]), ("PTQ1_0", [(16, 5), (8, 5), (2, 4)])])
def test_digits_are_where_the_fact_sheet_has_them(name: str, runs: list[tuple[int, int]]) -> None:
    field = FORMATS[name].field("q")
    for entry in range(FORMATS[name].block):
        assert digit(field, entry) == Digit("block", *ternary(entry, runs))
    assert pieces(field, 0) == ()


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_is_read_once(name: str) -> None:
    format = FORMATS[name]
    check(format)
    read = 0
    for field in format.fields:
        if field.segments:
            places = {(place.plane, place.byte) for place in (digit(field, e) for e in range(field.entries))}
            read += 8 * len(places)
        read += sum(piece.width for entry in range(field.entries) for piece in pieces(field, entry))
    assert read == 8 * format.bytes


def test_check_refuses_a_record_whose_bytes_are_wrong() -> None:
    format = FORMATS["Q4_0"]
    for size, fragment in ((17, "reads byte 17"), (19, "never read")):
        wrong = dataclasses.replace(format, planes=(dataclasses.replace(format.planes[0], bytes=size),))
        with pytest.raises(QgenError, match=fragment):
            check(wrong)


def test_entries_and_lanes() -> None:
    format = FORMATS["IQ2_XXS"]
    assert entry_of(format.field("d"), 255) == (0, 0)
    assert entry_of(format.field("sc"), 255) == (7, 0)
    assert entry_of(format.field("q"), 253) == (31, 5)
    assert entry_of(format.field("sg"), 9) == (1, 1)
    assert entry_of(FORMATS["Q4_0"].field("q"), 9) == (9, 0)


def test_asking_for_what_is_not_there() -> None:
    q = FORMATS["Q4_0"].field("q")
    for entry in (-1, 32):
        with pytest.raises(IndexError, match="entries 0 to 31"):
            pieces(q, entry)
        with pytest.raises(IndexError, match="entries 0 to 31"):
            digit(q, entry)
    with pytest.raises(ValueError, match="not stored as digits"):
        digit(q, 0)
    with pytest.raises(ValueError, match="unbounded"):
        code_range(FORMATS["Q4_0"], FORMATS["Q4_0"].field("d"))


def test_code_ranges() -> None:
    wanted = {
        ("Q1_0", "q"): (-1, 1),
        ("Q4_0", "q"): (-8, 7),
        ("Q8_0", "q"): (-128, 127),
        ("TQ1_0", "q"): (-1, 1),
        ("TQ2_0", "q"): (-1, 2),
        ("Q3_K", "sc"): (-32, 31),
        ("Q6_K", "sc"): (-128, 127),
        ("IQ4_NL", "q"): (-127, 113),
        ("IQ3_XXS", "q"): (4, 62),
        ("IQ3_XXS", "sg"): (-1, 1),
        ("IQ1_S", "sc"): (1, 15),
        ("IQ1_S", "dl"): (-0.125, 0.125),
        ("Q5G64_F16S", "q"): (-16, 15),
    }
    for (name, field), limits in wanted.items():
        assert code_range(FORMATS[name], FORMATS[name].field(field)) == limits


def test_a_matrix_of_whole_blocks() -> None:
    placed = matrix(FORMATS["Q4_K"], rows=3, columns=512)
    (span,) = placed.spans
    assert (span.plane, span.offset, span.row_stride, span.block_bytes) == ("block", 0, 288, 144)
    assert (placed.blocks, placed.total, placed.tensor_offset) == (2, 864, 864)
    with pytest.raises(QgenError, match="K = 640: 640 % 256 = 128"):
        matrix(FORMATS["Q4_K"], rows=3, columns=640)
    with pytest.raises(QgenError, match="0 rows by 256"):
        matrix(FORMATS["Q4_K"], rows=0, columns=256)


def test_a_matrix_of_planes() -> None:
    """The fact sheet's figures: K padded to 128, planes base, high, scale, each aligned to 256 bytes."""
    placed = matrix(FORMATS["Q5G64_F16S"], rows=5, columns=200)
    groups = 256 // 64
    high = -(-5 * groups * 32 // 256) * 256
    scale = -(-(high + 5 * groups * 8) // 256) * 256
    assert [(span.plane, span.offset) for span in placed.spans] == [("base", 0), ("high", high), ("scale", scale)]
    assert [span.row_stride for span in placed.spans] == [128, 32, 8]
    assert placed.blocks == groups and placed.total == scale + 5 * groups * 2


SCOPED = """
name = "SCOPED"
doc = "a row scale in front of the blocks, a tensor scale behind them, another in a sibling tensor"
block = 8
value = "ts*(rs*q)*sib"
[fields.rs]
type = "f16"
scope = "row"
at = 0
[fields.ts]
type = "f32"
scope = "tensor"
at = 0
[fields.sib]
type = "f32"
scope = "sibling"
suffix = ".scale"
[fields.q]
at = 0
width = 4
shape = [8]
stride = [4]
"""


def scoped(folder: Path) -> Format:
    path = folder / "scoped.toml"
    path.write_text(SCOPED)
    return load_format(path)


def test_row_metadata_adds_to_the_row_stride(tmp_path: Path) -> None:
    format = scoped(tmp_path)
    assert (format.bytes, format.row_bytes, format.tensor_bytes, format.alignment) == (4, 2, 4, 2)
    placed = matrix(format, rows=3, columns=24)
    (span,) = placed.spans
    assert (span.offset, span.row_stride, span.block_bytes) == (2, 2 + 3 * 4, 4)
    assert placed.tensor_offset == 3 * 14 and placed.total == 3 * 14 + 4
    assert region_of(format.field("rs")) == "row" and region_of(format.field("ts")) == "tensor"
    assert region_of(format.field("sib")) is None and format.field("sib").suffix == ".scale"
