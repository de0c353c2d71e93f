"""The oracle against three judges: the gguf package, ggml's C library, and formulas written out weight by weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ggml_library
import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from qgen import codec
from qgen.errors import QgenError
from qgen.spec import Format, load_codebook, load_formats

FORMATS = load_formats()
GGUF = [name for name, format in FORMATS.items() if format.id is not None and format.id < 41]
GGML = [name for name, format in FORMATS.items() if format.id is not None and format.id < 100]
N = 4096

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def same_bits(ours: Floats, theirs: Floats) -> bool:
    """Equal bit for bit, except that any NaN equals any NaN."""
    assert ours.dtype == theirs.dtype == np.float32 and ours.shape == theirs.shape
    equal = ours.view(np.uint32) == theirs.view(np.uint32)
    return bool(np.all(equal | (np.isnan(ours) & np.isnan(theirs))))


def random_bytes(format: Format) -> Bytes:
    """Blocks of random bytes: every code, and scales that are subnormal, huge, Inf and NaN among them."""
    return np.random.default_rng(7).integers(0, 256, (N, format.bytes), dtype=np.uint8)


@pytest.mark.parametrize("name", GGUF)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_decode_equals_gguf(name: str) -> None:
    format = FORMATS[name]
    for blocks in (random_bytes(format), codec.random_blocks(format, N, seed=3)):
        theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
        assert same_bits(codec.decode(format, blocks), theirs.astype(np.float32))


@pytest.mark.parametrize("name", GGML)
def test_decode_equals_ggml(name: str) -> None:
    format = FORMATS[name]
    assert format.id is not None
    type_name, block, size = ggml_library.traits(format.id)
    assert (type_name.lower(), block, size) == (name.lower(), format.block, format.bytes)
    for blocks in (random_bytes(format), codec.random_blocks(format, N, seed=3)):
        assert same_bits(codec.decode(format, blocks), ggml_library.dequantize(format.id, blocks))


@pytest.mark.parametrize("name", [name for name in GGML if FORMATS[name].field("d").type == "f16"])
def test_special_scales_decode_as_in_ggml(name: str) -> None:
    format = FORMATS[name]
    assert format.id is not None
    specials = np.array(
        [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01], dtype=np.uint32
    )
    blocks = codec.random_blocks(format, 512, seed=5)
    fields: dict[str, NDArray[Any]] = {field.name: codec.raw(format, field.name, blocks) for field in format.fields}
    for field in format.fields:
        if field.type == "f16":
            count = 10 if field.name == "d" else 7  # dmin and m meet d in every combination
            fields[field.name] = np.resize(specials[:count], (512, 1))
    rewritten = codec.encode(format, fields)
    ours = codec.decode(format, rewritten)
    assert np.isnan(ours).any() and np.isinf(ours).any()
    assert same_bits(ours, ggml_library.dequantize(format.id, rewritten))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_byte_decodes_as_in_ggml(name: str) -> None:
    format = FORMATS[name]
    assert format.id is not None
    blocks = np.random.default_rng(1).integers(0, 256, (256, format.bytes), dtype=np.uint8)
    entries = format.field("d").entries
    blocks[:, :entries] = np.arange(256)[:, np.newaxis]
    assert same_bits(codec.decode(format, blocks), ggml_library.dequantize(format.id, blocks))


# What no library decodes, written out from the fact sheet with Python's own integers.


def f16(low: int, high: int) -> np.float32:
    return np.float32(np.array([low | high << 8], dtype=np.uint16).view(np.float16)[0])


def trit(byte: int, n: int) -> int:
    power: int = 3**n
    return ((byte * power % 256) * 3) >> 8


def pq2_0(block: Bytes) -> list[np.float32]:
    b = block.tolist()
    return [f16(b[0], b[1]) * np.float32((b[2 + i // 4] >> 2 * (i % 4) & 3) - 1) for i in range(128)]


def ptq1_0(block: Bytes) -> list[np.float32]:
    b = block.tolist()
    codes = []
    for i in range(128):
        if i < 80:
            codes.append(trit(b[i % 16], i // 16))
        elif i < 120:
            codes.append(trit(b[16 + i % 8], (i - 80) // 8))
        else:
            codes.append(trit(b[24 + i % 2], (i - 120) // 2))
    return [f16(b[26], b[27]) * np.float32(code - 1) for code in codes]


@pytest.mark.parametrize("name, scalar", [("PQ2_0", pq2_0), ("PTQ1_0", ptq1_0)])
def test_decode_equals_the_fact_sheet(name: str, scalar: Callable[[Bytes], list[np.float32]]) -> None:
    format = FORMATS[name]
    blocks = random_bytes(format)[:2048]
    with np.errstate(all="ignore"):
        wanted = np.array([scalar(block) for block in blocks], dtype=np.float32)
    assert same_bits(codec.decode(format, blocks), wanted)


def ninfer_code(name: str, base: list[int], high: list[int], e: int) -> int:
    code: int
    if name == "W8G32_F16S":
        return base[e] - 256 * (base[e] >> 7)
    code, width = base[e // 2] >> 4 * (e % 2) & 15, int(name[1])
    if width == 5:
        code |= (high[e // 8] >> e % 8 & 1) << 4
    if width == 6:
        code |= (high[e // 4] >> 2 * (e % 4) & 3) << 4
    return code - ((code >> width - 1) << width)


@pytest.mark.parametrize("name", ["Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S"])
def test_decode_of_planes_equals_the_fact_sheet(name: str) -> None:
    format = FORMATS[name]
    rng = np.random.default_rng(11)
    planes = {plane.name: rng.integers(0, 256, (2048, plane.bytes), dtype=np.uint8) for plane in format.planes}
    wanted = np.empty((2048, format.block), dtype=np.float32)
    with np.errstate(all="ignore"):
        for row in range(2048):
            base, high = planes["base"][row].tolist(), planes.get("high", planes["base"])[row].tolist()
            scale = f16(*planes["scale"][row].tolist())
            wanted[row] = [scale * np.float32(ninfer_code(name, base, high, e)) for e in range(format.block)]
    assert same_bits(codec.decode(format, planes), wanted)


def test_a_tensor_of_planes_lies_as_the_fact_sheet_says() -> None:
    """Group r*g + k//n; high plane at up256(N*g*B), scale plane at up256 behind it; K padded to 128."""
    format, rows, columns, groups = FORMATS["Q5G64_F16S"], 3, 200, 256 // 64
    high = -(-rows * groups * 32 // 256) * 256
    scale = -(-(high + rows * groups * 8) // 256) * 256
    data = np.random.default_rng(2).integers(0, 256, scale + rows * groups * 2, dtype=np.uint8)
    with np.errstate(all="ignore"):
        weights = codec.decode_matrix(format, data, rows=rows, columns=columns)
        for r, k in [(0, 0), (0, 63), (1, 64), (2, 199), (1, 130)]:
            g = r * groups + k // 64
            code = ninfer_code(
                "Q5G64_F16S",
                data[g * 32 : g * 32 + 32].tolist(),
                data[high + g * 8 : high + g * 8 + 8].tolist(),
                k % 64,
            )
            assert weights[r, k] == f16(*data[scale + 2 * g : scale + 2 * g + 2].tolist()) * np.float32(code)


@pytest.mark.parametrize("name", ["Q4_K", "MXFP4"])
def test_a_tensor_of_blocks(name: str) -> None:
    format = FORMATS[name]
    blocks = codec.random_blocks(format, 6, seed=1)
    weights = codec.decode_matrix(format, blocks.reshape(-1), rows=3, columns=2 * format.block)
    assert same_bits(weights, codec.decode(format, blocks).reshape(3, -1))


@pytest.mark.parametrize("name", ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s"])
def test_grids_equal_ggufs(name: str) -> None:
    theirs = getattr(gguf.quants, name.upper())
    theirs.init_grid()
    grid = load_codebook(name)
    assert grid.lanes == theirs.grid_shape[1] and grid.integral
    assert np.array_equal(np.array(grid.values), theirs.grid.reshape(theirs.grid_shape))


def test_tables_equal_ggufs() -> None:
    assert load_codebook("iq4_nl").values == gguf.quants.IQ4_NL.kvalues
    assert load_codebook("e2m1_doubled").values == gguf.quants.MXFP4.kvalues == gguf.quants.NVFP4.kvalues


# Reading fields, and writing them back.


@pytest.mark.parametrize("name", FORMATS)
def test_encode_is_the_inverse_of_raw(name: str) -> None:
    format = FORMATS[name]
    blocks = codec.random_planes(format, 300, seed=9)
    fields = {field.name: codec.raw(format, field.name, blocks) for field in format.fields}
    written = codec.encode_planes(format, fields)
    for field in format.fields:
        assert np.array_equal(codec.raw(format, field.name, written), fields[field.name])
    assert same_bits(codec.decode(format, written), codec.decode(format, blocks))
    if not any(field.segments for field in format.fields):  # digit bytes have unused values
        for plane in format.planes:
            assert np.array_equal(written[plane.name], blocks[plane.name])


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0", "Q4_0", "Q8_0"])
def test_encode_writes_what_gguf_writes(name: str) -> None:
    """gguf's quantizer chooses codes; the same codes and scales give the same bytes."""
    format = FORMATS[name]
    weights = np.random.default_rng(4).standard_normal((64, format.block)).astype(np.float32)
    theirs = gguf.quantize(weights, gguf.GGMLQuantizationType[name])
    fields = {field.name: codec.raw(format, field.name, theirs) for field in format.fields}
    assert np.array_equal(codec.encode(format, fields), theirs)


def test_encode_rounds_floats_to_the_type() -> None:
    format = FORMATS["Q4_1"]
    d = np.array([0.1, -65520.0, 1e-8, np.nan], dtype=np.float32)
    q = np.zeros((4, 32), dtype=np.int64)
    blocks = codec.encode(format, {"d": d, "m": d[:, np.newaxis], "q": q})
    with np.errstate(over="ignore"):
        wanted = d.astype(np.float16).astype(np.float32)
    assert same_bits(codec.scalars(format, "d", blocks)[:, 0], wanted)
    assert same_bits(codec.scalars(format, "m", blocks)[:, 0], wanted)


BAD_ENCODES: dict[str, tuple[dict[str, NDArray[Any]], str]] = {
    "missing": ({"d": np.ones(2)}, "no entries"),
    "unknown": ({"d": np.ones(2), "q": np.zeros((2, 32), int), "m": np.ones(2)}, "no such block field"),
    "shape": ({"d": np.ones(2), "q": np.zeros((2, 31), int)}, r"\(2, 31\)"),
    "range": ({"d": np.ones(2), "q": np.full((2, 32), 16)}, "raw codes 0 to 15"),
    "negative": ({"d": np.ones(2), "q": np.full((2, 32), -1)}, "raw codes 0 to 15"),
    "float codes": ({"d": np.ones(2), "q": np.zeros((2, 32))}, "integers: raw codes"),
    "text": ({"d": np.array(["a", "b"]), "q": np.zeros((2, 32), int)}, "integers or floats"),
}


@pytest.mark.parametrize("case", BAD_ENCODES)
def test_encode_refuses_what_does_not_fit(case: str) -> None:
    fields, message = BAD_ENCODES[case]
    with pytest.raises(QgenError, match=message):
        codec.encode(FORMATS["Q4_0"], fields)


def test_codes_are_the_integers_a_field_means() -> None:
    blocks = {name: codec.random_planes(FORMATS[name], 64, seed=2) for name in FORMATS}

    def values(name: str, field: str) -> set[int]:
        return set(codec.codes(FORMATS[name], field, blocks[name]).ravel().tolist())

    assert values("TQ1_0", "q") == {-1, 0, 1}
    assert values("Q1_0", "q") == {-1, 1}
    assert values("Q6_K", "q") == set(range(-32, 32))
    assert values("Q6_K", "sc") == set(range(-128, 128))
    assert values("IQ4_XS", "q") == set(gguf.quants.IQ4_NL.kvalues)
    assert values("IQ3_XXS", "q") == {4, 12, 20, 28, 36, 44, 52, 62}
    assert values("IQ2_XXS", "sg") == values("IQ2_S", "sg") == {-1, 1}
    assert values("IQ1_M", "sc") == set(range(1, 16, 2))
    for name, field, shape in [("IQ2_XXS", "q", 256), ("IQ2_XXS", "sg", 256), ("Q4_K", "sc", 8), ("Q4_K", "q", 256)]:
        array = codec.codes(FORMATS[name], field, blocks[name])
        assert array.dtype == np.int32 and array.shape == (64, shape)
    assert np.array_equal(codec.scalars(FORMATS["IQ1_S"], "dl", blocks["IQ1_S"]) ** 2, np.full((64, 8), 1 / 64))
    for name, field in [("IQ1_S", "dl"), ("Q4_0", "d")]:
        with pytest.raises(QgenError, match="no integers"):
            codec.codes(FORMATS[name], field, blocks[name])
    with pytest.raises(KeyError, match="no field 'x'"):
        codec.codes(FORMATS["Q4_0"], "x", blocks["Q4_0"])


@pytest.mark.parametrize("name", FORMATS)
def test_random_blocks_hold_every_code_and_moderate_scales(name: str) -> None:
    format = FORMATS[name]
    blocks = codec.random_planes(format, 128, seed=6)
    again = codec.random_planes(format, 128, seed=6)
    for plane in format.planes:
        assert blocks[plane.name].shape == (128, plane.bytes)
        assert np.array_equal(blocks[plane.name], again[plane.name])
    for field in format.fields:
        if field.kind == "float":
            scales = np.abs(codec.scalars(format, field.name, blocks))
            assert 2.0**-10 < scales.min() and scales.max() < 2.0**-3.9 and len(np.unique(scales)) > 4
        elif 128 * field.entries >= field.levels:
            assert len(np.unique(codec.raw(format, field.name, blocks))) == field.levels, field.name
    assert np.isfinite(codec.decode(format, blocks)).all()


def test_decode_works_through_many_blocks_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = codec.random_blocks(FORMATS["Q5_K"], 37, seed=8)
    whole = codec.decode(FORMATS["Q5_K"], blocks)
    monkeypatch.setattr(codec, "_CHUNK", 256 * 5)
    assert same_bits(codec.decode(FORMATS["Q5_K"], blocks), whole)
    assert codec.decode(FORMATS["Q5_K"], np.empty((0, 176), dtype=np.uint8)).shape == (0, 256)


def test_operands_that_do_not_fit_are_refused() -> None:
    q4, planes = FORMATS["Q4_0"], FORMATS["Q4G64_F16S"]
    good = codec.random_planes(planes, 2, seed=0)
    bad: list[tuple[Format, object, str]] = [
        (q4, np.zeros((2, 17), np.uint8), r"uint8\[2, 17\]"),
        (q4, np.zeros(18, np.uint8), r"uint8\[18\]"),
        (q4, np.zeros((2, 18), np.int8), r"int8\[2, 18\]"),
        (q4, [1, 2], "list"),
        (q4, good, "planes base, scale"),
        (planes, np.zeros((2, 34), np.uint8), "one array"),
        (planes, {"base": good["base"]}, "planes base"),
        (planes, {"base": good["base"][:1], "scale": good["scale"]}, r"\[1, 2\] blocks"),
    ]
    for format, blocks, message in bad:
        with pytest.raises(QgenError, match=message):
            codec.decode(format, blocks)  # type: ignore[arg-type]
    with pytest.raises(QgenError, match="planes base, scale"):
        codec.random_blocks(planes, 2, seed=0)
    with pytest.raises(QgenError, match=r"(?s)uint8\[17\].*uint8\[18\]"):
        codec.decode_matrix(q4, np.zeros(17, np.uint8), rows=1, columns=32)
    with pytest.raises(QgenError, match="every field of this format lives in its block"):
        codec.decode(q4, np.zeros((2, 18), np.uint8), outer={"d": 1.0})
