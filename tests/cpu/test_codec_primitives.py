"""What the spec language can say beyond the shipped formats: made-up formats, checked by hand arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from qgen import codec
from qgen.codec.numbers import float_values, raw_of_floats
from qgen.errors import QgenError
from qgen.spec import Format, load_format
from qgen.spec.types import names_of

RNG = np.random.default_rng(21)


def made_up(folder: Path, text: str) -> Format:
    path = folder / "formats" / "toy.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text('name = "TOY"\ndoc = "made up"\n' + text, encoding="utf-8")
    return load_format(path)


def bytes_of(count: int, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return RNG.integers(0, 256, (count, size), dtype=np.uint8)


@pytest.mark.parametrize("base, digits", [(2, 8), (3, 5), (4, 4), (5, 3), (6, 3), (7, 2), (10, 2), (15, 2), (256, 1)])
@pytest.mark.parametrize("encoding", ["fraction", "positional"])
def test_digits_in_any_base(base: int, digits: int, encoding: str, tmp_path: Path) -> None:
    format = made_up(
        tmp_path,
        f'block = {digits}\nvalue = "q"\n[fields.q]\nbase = {base}\ndigits = {digits}\nencoding = "{encoding}"\n'
        f"segments = [{{ at = 0, shape = [{digits}], stride = [1] }}]\n",
    )
    every_byte = np.arange(256, dtype=np.uint8).reshape(256, 1)
    decoded = codec.decode(format, every_byte)
    for byte in range(256):
        rest, wanted = byte, []
        for n in range(digits):
            if encoding == "fraction":  # long multiplication of the fraction byte/256
                rest *= base
                wanted.append(rest // 256)
                rest %= 256
            else:
                wanted.append(byte // base ** (digits - 1 - n) % base)
        assert decoded[byte].tolist() == wanted
    every_code = np.arange(base**digits)
    codes = np.stack([every_code // base ** (digits - 1 - n) % base for n in range(digits)], axis=1)
    assert np.array_equal(codec.codes(format, "q", codec.encode(format, {"q": codes})), codes)


def test_repeated_segments_with_digits_in_reverse(tmp_path: Path) -> None:
    """Four runs of 15 digits from 3 bytes, last digit first, each followed by one digit of a common last byte."""
    format = made_up(
        tmp_path,
        'block = 64\nvalue = "q"\n[fields.q]\nadd = -1\nbase = 3\ndigits = 5\nencoding = "fraction"\nrepeat = 4\n'
        "segments = [\n  { at = 0, digit = 4, shape = [5, 3], stride = [-1, 5], step = 15 },\n"
        "  { at = 12, digit = 4, step = -1 },\n]\n",
    )
    assert format.bytes == 13 and format.field("q").entries == 64
    blocks = bytes_of(200, 13)
    decoded = codec.decode(format, blocks)
    for block, weights in zip(blocks.tolist(), decoded.tolist(), strict=True):
        for i in range(64):
            run, place = divmod(i, 16)
            byte, digit = (block[3 * run + place // 5], 4 - place % 5) if place < 15 else (block[12], 4 - run)
            assert weights[i] == (byte * 3 ** (digit + 1) >> 8) % 3 - 1


def test_fields_across_bytes_with_negative_strides(tmp_path: Path) -> None:
    """Eight 11-bit codes, the last one first, then a 17-bit common offset: no field begins or ends at a byte."""
    format = made_up(
        tmp_path,
        'block = 8\nvalue = "q - c"\npadding = [{ at = 13, bit = 1, width = 7 }]\n'
        "[fields.q]\nsigned = true\nat = 0\nbit = 77\nwidth = 11\nshape = [8]\nstride = [-11]\n"
        "[fields.c]\nper = 8\nat = 11\nwidth = 17\n",
    )
    assert format.bytes == 14
    blocks = bytes_of(300, 14)
    decoded = codec.decode(format, blocks)
    for block, weights in zip(blocks, decoded.tolist(), strict=True):
        word = int.from_bytes(block.tobytes(), "little")
        for i in range(8):
            code = word >> (77 - 11 * i) & 2047
            code -= 2048 * (code >> 10)
            assert weights[i] == code - (word >> 88 & 0x1FFFF)


def test_a_part_shared_by_many_weights_selects_the_codebook(tmp_path: Path) -> None:
    """Codes of 2 bits, a third bit per 4 weights; a table of f32 numbers of its own."""
    (tmp_path / "codebooks").mkdir()
    values = [-1.5, -0.25, 0.125, 2.0, -3.0, -0.5, 0.75, 4.5]
    (tmp_path / "codebooks" / "own.toml").write_text(
        f'name = "own"\ndoc = "two tables of four"\ntype = "f32"\nvalues = {values}\n'
    )
    format = made_up(
        tmp_path,
        'block = 16\nvalue = "q"\npadding = [{ at = 4, bit = 4, width = 4 }]\n[fields.q]\ntable = "own"\nparts = [\n'
        "  { at = 0, width = 2, shape = [16], stride = [2] },\n"
        "  { at = 4, width = 1, shape = [4], stride = [1], shl = 2, per = 4 },\n]\n",
    )
    blocks = bytes_of(100, 5)
    for block, weights in zip(blocks.tolist(), codec.decode(format, blocks).tolist(), strict=True):
        for i in range(16):
            assert weights[i] == values[(block[i // 4] >> 2 * (i % 4) & 3) + 4 * (block[4] >> i // 4 & 1)]
    with pytest.raises(QgenError, match="no integers"):
        codec.codes(format, "q", blocks)
    raw = codec.raw(format, "q", blocks)
    blocks[:, 4] &= 15
    assert np.array_equal(codec.encode(format, {"q": raw}), blocks)
    raw[0, 0] ^= 4
    with pytest.raises(QgenError, match=r"(?s)differ in bits they share.*4 weights"):
        codec.encode(format, {"q": raw})
    sampled = codec.random_blocks(format, 64, seed=0)
    assert set(codec.raw(format, "q", sampled).ravel().tolist()) == set(range(8))


def test_signs_raw_and_with_parity(tmp_path: Path) -> None:
    format = made_up(
        tmp_path,
        'block = 8\nvalue = "q*s*t"\npadding = [{ at = 3, bit = 7, width = 1 }]\n'
        "[fields.q]\nat = 0\nwidth = 2\nshape = [8]\nstride = [2]\n"
        '[fields.s]\ntype = "sign"\nat = 2\nshape = [8]\nstride = [1]\n'
        '[fields.t]\ntype = "sign7"\nat = 3\n',
    )
    blocks = bytes_of(256, 4)
    blocks[:, 3] = np.arange(256)
    for block, weights in zip(blocks.tolist(), codec.decode(format, blocks).tolist(), strict=True):
        seven = block[3] & 127
        eight = seven | (bin(seven).count("1") & 1) << 7
        for i in range(8):
            magnitude = (block[0] | block[1] << 8) >> 2 * i & 3
            assert weights[i] == magnitude * (-1) ** (block[2] >> i & 1) * (-1) ** (eight >> i & 1)


def test_row_tensor_and_sibling_scopes(tmp_path: Path) -> None:
    format = made_up(
        tmp_path,
        'block = 8\nvalue = "(ts*rs)*q*sib"\n[fields.q]\nadd = -8\nat = 0\nwidth = 4\nshape = [8]\nstride = [4]\n'
        '[fields.rs]\ntype = "bf16"\nscope = "row"\nat = 0\n[fields.ts]\ntype = "f32"\nscope = "tensor"\nat = 0\n'
        '[fields.sib]\ntype = "f32"\nscope = "sibling"\nsuffix = ".scale"\n',
    )
    rows, per_row = 5, 3
    codes = bytes_of(rows * per_row, 4)
    row_scales = [0.5, -2.0, 3.0, 0.25, 1.5]
    data = b""
    for r, scale in enumerate(row_scales):
        data += struct.pack("<f", scale)[2:] + codes[r * per_row : (r + 1) * per_row].tobytes()
    data += struct.pack("<f", 0.75)
    tensor = np.frombuffer(data, dtype=np.uint8)
    decoded = codec.decode_matrix(format, tensor, rows=rows, columns=24, siblings={"sib": -4.0})
    for r in range(rows):
        for k in range(24):
            nibble = int(codes[r * per_row + k // 8, k % 8 // 2]) >> 4 * (k % 2) & 15
            assert decoded[r, k] == 0.75 * row_scales[r] * (nibble - 8) * -4.0
    outer: dict[str, ArrayLike] = {"ts": 0.75, "rs": np.repeat(row_scales, per_row), "sib": -4.0}
    assert np.array_equal(codec.decode(format, codes, outer=outer).reshape(rows, 24), decoded)
    with pytest.raises(QgenError, match=r"(?s)sib.*no value.*'.scale' appended"):
        codec.decode_matrix(format, tensor, rows=rows, columns=24)
    with pytest.raises(QgenError, match=r"(?s)rs.*shape \(4,\)"):
        codec.decode(format, codes, outer=outer | {"rs": np.ones(4)})
    with pytest.raises(QgenError, match="field of scope row"):
        codec.raw(format, "rs", codes)


def test_planes_without_alignment_and_with_row_metadata(tmp_path: Path) -> None:
    format = made_up(
        tmp_path,
        'block = 4\nvalue = "d*q + r"\nplanes = ["codes", "scales"]\n'
        '[fields.q]\nplane = "codes"\nat = 0\nwidth = 8\nshape = [4]\nstride = [8]\n'
        '[fields.d]\nplane = "scales"\ntype = "f16"\nat = 0\n[fields.r]\nscope = "row"\nat = 0\nwidth = 16\n',
    )
    data = RNG.integers(0, 256, 2 * (2 + 3 * 4) + 2 * 3 * 2, dtype=np.uint8)
    data[28:].view(np.float16)[:] = [1, 2, 4, -1, -2, 0.5]
    decoded = codec.decode_matrix(format, data, rows=2, columns=10)  # padded to 12
    assert decoded.shape == (2, 10)
    for r in range(2):
        row = data[14 * r : 14 * r + 14]
        for k in range(10):
            scale = data[28:].view(np.float16)[3 * r + k // 4]
            assert decoded[r, k] == np.float32(scale) * row[2 + k] + int(row[0]) + 256 * int(row[1])


def test_the_order_of_float32_operations_is_the_written_one(tmp_path: Path) -> None:
    """(a*b)*q and a*(b*q) differ in the last bit somewhere; so do sums."""
    fields = (
        'block = 2\nvalue = "{}"\n[fields.a]\ntype = "f32"\nat = 0\n[fields.b]\ntype = "f32"\nat = 4\n'
        "[fields.q]\nat = 8\nwidth = 8\nshape = [2]\nstride = [8]\n"
    )
    numbers = RNG.standard_normal((500, 2)).astype(np.float32)
    blocks = np.concatenate([numbers.view(np.uint8).reshape(500, 8), bytes_of(500, 2)], axis=1)
    a, b, q = numbers[:, :1], numbers[:, 1:], blocks[:, 8:].astype(np.float32)
    wanted = {
        "a*b*q": (a * b) * q,
        "a*(b*q)": a * (b * q),
        "a - b - q": (a - b) - q,
        "a - (b - q)": a - (b - q),
        "-a*q + b*0.1": -a * q + b * np.float32(0.1),
    }
    for text, result in wanted.items():
        decoded = codec.decode(made_up(tmp_path, fields.format(text)), blocks)
        assert np.array_equal(decoded.view(np.uint32), result.view(np.uint32)), text
    assert not np.array_equal(wanted["a*b*q"], wanted["a*(b*q)"])


def e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


EIGHT_BIT: dict[str, Callable[[int], float]] = {
    "e8m0": lambda byte: math.nan if byte == 255 else 2.0 ** (byte - 127),
    "e8m0_half": lambda byte: 2.0 ** (byte - 128),
    "ue4m3": lambda byte: 0.0 if byte == 0x7F else e4m3(byte),
    "ue4m3_half": lambda byte: 0.0 if byte == 0x7F else e4m3(byte) / 2,
    "e4m3": lambda byte: math.nan if byte & 0x7F == 0x7F else (-1.0) ** (byte >> 7) * e4m3(byte),
}


@pytest.mark.parametrize("type_name", EIGHT_BIT)
def test_every_byte_of_the_8_bit_types(type_name: str) -> None:
    decoded = float_values(type_name, np.arange(256, dtype=np.uint32)).tolist()
    for byte, number in enumerate(decoded):
        wanted = EIGHT_BIT[type_name](byte)
        assert number == wanted or (math.isnan(number) and math.isnan(wanted)), byte


@pytest.mark.parametrize("type_name", ["f16", "bf16", "f32"])
def test_wide_float_types(type_name: str) -> None:
    raw = np.arange(65536, dtype=np.uint32) << np.uint32(16 if type_name == "f32" else 0)
    decoded = float_values(type_name, raw)
    for bits in range(0, 65536, 61):
        pattern = {"f16": ("<e", struct.pack("<H", bits))}.get(type_name, ("<f", struct.pack("<HH", 0, bits)))
        wanted = struct.unpack(*pattern)[0]
        assert decoded[bits] == wanted or (math.isnan(decoded[bits]) and math.isnan(wanted))


@pytest.mark.parametrize("type_name", names_of("float"))
def test_floats_go_back_to_the_nearest_number(type_name: str) -> None:
    raw = np.arange(256 if type_name in EIGHT_BIT else 65536, dtype=np.uint32)
    values = float_values(type_name, raw)
    again = float_values(type_name, raw_of_floats(type_name, values))
    finite = np.isfinite(values)
    assert np.array_equal(again[finite], values[finite])
    distinct = np.unique(values[finite])
    low, high = distinct[:-1].astype(np.float64), distinct[1:].astype(np.float64)
    for share, wanted in ((0.3, low), (0.7, high)):
        between = (low + share * (high - low)).astype(np.float32)
        nearest = float_values(type_name, raw_of_floats(type_name, between)).astype(np.float64)
        if type_name != "f32":
            assert np.array_equal(nearest, wanted)


def test_bf16_ties_go_to_even() -> None:
    ties = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FC00001], dtype=np.uint32).view(np.float32)
    assert raw_of_floats("bf16", ties).tolist() == [0x3F80, 0x3F82, 0x7F80, 0x7FC0]
