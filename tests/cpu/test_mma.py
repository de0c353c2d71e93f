"""The emulator's tensor-core instructions, and the helpers beside them, against NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from qgen import contract_float, emulate
from qgen.emulate import Buffer, Program
from qgen.errors import QgenError

# Every thread hands its own words in and its own sums out: fragments are built and read here, not in the kernel.
_MMA = """
extern "C" __global__ void {name}(const uint32_t* a, const uint32_t* b, uint32_t* d) {{
    const int lane = threadIdx.x;
    uint32_t A[{a}], B[{b}];
    for (int i = 0; i < {a}; ++i) A[i] = qgen_load_u32(a + {a} * lane + i);
    for (int i = 0; i < {b}; ++i) B[i] = qgen_load_u32(b + {b} * lane + i);
    int sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = 1000 * lane + i;
    {call}
    for (int i = 0; i < 4; ++i) qgen_store_u32(d + 4 * lane + i, (uint32_t)sum[i]);
}}
"""
_K16 = "qgen_mma_k16(sum, A[0], A[1], B[0]);"
_UNSIGNED = "qgen_mma_k16_unsigned(sum, A[0], A[1], B[0]);"
_ENTRIES = (
    _MMA.format(name="k32", a=4, b=2, call="qgen_mma_k32(sum, A[0], A[1], A[2], A[3], B[0], B[1]);"),
    _MMA.format(name="k16", a=2, b=1, call=_K16),
    _MMA.format(name="k16_unsigned", a=2, b=1, call=_UNSIGNED),
    _MMA.format(name="some_threads", a=2, b=1, call=f"if (lane < 31) {_K16}"),
    _MMA.format(name="two_kinds", a=2, b=1, call=f"if (lane % 2) {_K16} else {_UNSIGNED}"),
)

_HELPERS = """
extern "C" __global__ void words(const uint32_t* a, const uint32_t* b, uint32_t* out) {
    const uint32_t v = qgen_load_u32(a + threadIdx.x), w = qgen_load_u32(b + threadIdx.x);
    uint32_t r[16] = {
        qgen_prmt(v, w, v >> 16),
        (uint32_t)qgen_unsigned_byte<0>(v), (uint32_t)qgen_unsigned_byte<1>(v), (uint32_t)qgen_unsigned_byte<2>(v),
        (uint32_t)qgen_unsigned_byte<3>(v),
        (uint32_t)qgen_signed_byte<0>(v), (uint32_t)qgen_signed_byte<1>(v), (uint32_t)qgen_signed_byte<2>(v),
        (uint32_t)qgen_signed_byte<3>(v),
        qgen_spread<1>(v), qgen_spread<2>(v), qgen_spread<4>(v),
        (uint32_t)(qgen_keep(a) == a && qgen_keep((int)v) == (int)v), 0, 0, 0,
    };
    for (int i = 0; i < 16; ++i) qgen_store_u32(out + 16 * threadIdx.x + i, r[i]);
}

extern "C" __global__ void halving(const float* x, float* y) {
    float v[8];
    for (int i = 0; i < 8; ++i) v[i] = qgen_load_f32(x + i);
    qgen_store_f32(y, qgen_halving_sum<8>(v));
    for (int i = 0; i < 8; ++i) v[i] = qgen_load_f32(x + i);
    qgen_store_f32(y + 1, qgen_halving_sum<2>(v));
    qgen_store_f32(y + 2, qgen_halving_sum<1>(v));
}
"""


@cache
def program() -> Program:
    headers = '#include "qgen_mma.cuh"\n#include "qgen_parts.cuh"\n'
    return emulate.compile(headers + "".join(_ENTRIES) + _HELPERS, "test_mma")


# Thread 4g + t of a warp, by PTX's tables of m16n8k16 and m16n8k32 for 8-bit integers.
LANE = np.arange(32)
G, T = LANE // 4, LANE % 4


def fragments_a(a: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """uint32[32, 2 or 4] from A uint8[16, k]: register i holds row g + 8 (i mod 2), columns 16 (i / 2) + 4t .. + 3."""
    registers = a.shape[1] // 8
    parts = [
        np.stack([a[G + 8 * (i % 2), 16 * (i // 2) + 4 * T + byte] for byte in range(4)], axis=1)
        for i in range(registers)
    ]
    return np.stack(parts, axis=1).copy().view(np.uint32).reshape(32, registers)


def fragments_b(b: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """uint32[32, 1 or 2] from B uint8[k, 8]: register i holds column g, rows 16 i + 4t .. + 3."""
    registers = b.shape[0] // 16
    parts = [np.stack([b[16 * i + 4 * T + byte, G] for byte in range(4)], axis=1) for i in range(registers)]
    return np.stack(parts, axis=1).copy().view(np.uint32).reshape(32, registers)


def matrix_d(d: NDArray[np.int32]) -> NDArray[np.int32]:
    """D int32[16, 8] from int32[32, 4]: entry i of a thread is row g + 8 (i / 2), column 2t + i mod 2."""
    full = np.zeros((16, 8), dtype=np.int32)
    for i in range(4):
        full[G + 8 * (i // 2), 2 * T + i % 2] = d[:, i]
    return full


def multiply(entry: str, a: NDArray[np.uint8], b: NDArray[np.uint8], order: str = "forward") -> NDArray[np.int32]:
    """What the instruction adds to its accumulators, as int32[16, 8]."""
    d = np.zeros((32, 4), dtype=np.int32)
    args = [Buffer("a", fragments_a(a)), Buffer("b", fragments_b(b)), Buffer("d", d, writable=True)]
    program().launch(entry, grid=1, block=32, args=args, order=order, seed=3)  # type: ignore[arg-type]
    d -= (1000 * LANE[:, None] + np.arange(4)).astype(np.int32)
    return matrix_d(d)


@pytest.mark.parametrize(
    ("entry", "k", "kind"), [("k32", 32, np.int8), ("k16", 16, np.int8), ("k16_unsigned", 16, np.uint8)]
)
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_products(entry: str, k: int, kind: type[np.int8] | type[np.uint8], order: str) -> None:
    rng = np.random.default_rng(k)
    for extreme in (False, True):
        a, b = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((16, k), (k, 8)))
        if extreme:
            a[:], b[:] = 0x80, 0x80
        wanted = a.view(kind).astype(np.int32) @ b.view(np.int8).astype(np.int32)
        assert np.array_equal(multiply(entry, a, b, order), wanted)


@pytest.mark.parametrize(("entry", "k"), [("k32", 32), ("k16", 16), ("k16_unsigned", 16)])
def test_every_element_meets_its_own(entry: str, k: int) -> None:
    """One 1 in A and B numbered by its place: a swapped row, column or k would show."""
    b = np.arange(8 * k, dtype=np.uint8).reshape(k, 8) % 127
    for row in range(16):
        for at in range(k):
            a = np.zeros((16, k), dtype=np.uint8)
            a[row, at] = 1
            wanted = np.zeros((16, 8), dtype=np.int32)
            wanted[row] = b[at]
            assert np.array_equal(multiply(entry, a, b), wanted)


@pytest.mark.parametrize("entry", ["some_threads", "two_kinds"])
def test_a_warp_that_is_not_of_one_mind_is_a_fault(entry: str) -> None:
    a, b = np.zeros((16, 16), dtype=np.uint8), np.zeros((16, 8), dtype=np.uint8)
    with pytest.raises(QgenError, match="qgen_mma_k16"):
        multiply(entry, a, b)


def test_bytes_and_fields() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 1 << 32, 256, dtype=np.uint32) for _ in range(2))
    a[:4] = 0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F
    out = np.zeros((256, 16), dtype=np.uint32)
    args = [Buffer("a", a), Buffer("b", b), Buffer("out", out, writable=True)]
    program().launch("words", grid=1, block=256, args=args)
    for v, w, found in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        own = v.to_bytes(4, "little")
        assert found[0] == permuted(v, w, v >> 16)
        assert found[1:5] == list(own)
        assert found[5:9] == [byte % (1 << 32) for byte in np.frombuffer(bytes(own), dtype=np.int8).tolist()]
        for place, width in ((9, 1), (10, 2), (11, 4)):
            fields = [v >> width * i & (1 << width) - 1 for i in range(4)]
            assert found[place] == int.from_bytes(bytes(fields), "little")
        assert found[12] == 1


def permuted(a: int, b: int, selectors: int) -> int:
    """PTX prmt in its default mode: nibble i picks byte i of eight; its top bit asks for copies of that byte's sign."""
    both = (a | b << 32).to_bytes(8, "little")
    picked = []
    for i in range(4):
        selector = selectors >> 4 * i & 15
        byte = both[selector & 7]
        picked.append((255 if byte & 128 else 0) if selector & 8 else byte)
    return int.from_bytes(bytes(picked), "little")


def test_halving_adds_halves() -> None:
    x = np.array([1e8, 1.0, -1e8, 3.0, 7.0, 1e-3, 2.0, 5.0], dtype=np.float32)
    y = np.zeros(3, dtype=np.float32)
    program().launch("halving", grid=1, block=1, args=[Buffer("x", x), Buffer("y", y, writable=True)])
    v = x.copy()
    for h in (4, 2, 1):
        v = v[:h] + v[h : 2 * h]
    assert y[0] == v[0] and y[0] != x.sum(dtype=np.float32)
    assert y[1] == x[0] + x[1]
    assert y[2] == y[1], "halving one value changes nothing"


# ---- f16 and bf16 ------------------------------------------------------------------------------------------------

_FLOATS = """
extern "C" __global__ void {name}(const uint32_t* a, const uint32_t* b, float* d) {{
    const int lane = threadIdx.x;
    uint32_t A[4];
    for (int i = 0; i < 4; ++i) A[i] = qgen_load_u32(a + 4 * lane + i);
    float sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = (float)(lane + i);
    qgen_mma_{name}(sum, A, qgen_load_u32(b + 2 * lane), qgen_load_u32(b + 2 * lane + 1));
    for (int i = 0; i < 4; ++i) qgen_store_f32(d + 4 * lane + i, sum[i]);
}}

extern "C" __global__ void {name}_numbers(const float* x, const uint32_t* codes, uint32_t* out) {{
    const int i = blockIdx.x * 32 + threadIdx.x;
    qgen_store_u32(out + 4 * i, qgen_{name}::rounded(qgen_load_f32(x + i)));
    const uint2 wide = qgen_widen<qgen_{name}>(qgen_load_u32(codes + i));
    qgen_store_u32(out + 4 * i + 1, wide.x);
    qgen_store_u32(out + 4 * i + 2, wide.y);
    qgen_store_u32(out + 4 * i + 3, qgen_{name}::fma(wide.x, qgen_{name}::one, wide.y));
}}
"""


@cache
def floats() -> Program:
    text = '#include "qgen_float.cuh"\n' + _FLOATS.format(name="f16") + _FLOATS.format(name="bf16")
    return emulate.compile(text, "test_mma_floats")


def wide(bits: NDArray[np.generic], name: str) -> NDArray[np.float64]:
    """The numbers of 16-bit patterns."""
    bits = bits.astype(np.uint16)
    if name == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_float_products_meet_their_own(name: str) -> None:
    """Whole numbers, whose sums are exact: a swapped row, column or k would show."""
    rng = np.random.default_rng(9)
    a, b = rng.integers(-120, 121, (16, 16)), rng.integers(-120, 121, (16, 8))
    one = (a.astype(np.float16) if name == "f16" else a.astype(np.float32)).view("u2" if name == "f16" else "u4")
    two = (b.astype(np.float16) if name == "f16" else b.astype(np.float32)).view("u2" if name == "f16" else "u4")
    if name == "bf16":
        one, two = one >> 16, two >> 16
    # Register i of A: row g + 8 (i mod 2), columns 8 (i / 2) + 2t, + 1; of B: column g, rows 8 i + 2t, + 1.
    pairs_a = np.stack(
        [
            one[G + 8 * (i % 2), 8 * (i // 2) + 2 * T]
            | one[G + 8 * (i % 2), 8 * (i // 2) + 2 * T + 1].astype("u4") << 16
            for i in range(4)
        ],
        axis=1,
    )
    pairs_b = np.stack([two[8 * i + 2 * T, G] | two[8 * i + 2 * T + 1, G].astype("u4") << 16 for i in range(2)], axis=1)
    d = np.zeros((32, 4), dtype=np.float32)
    args = [Buffer("a", pairs_a.astype("u4")), Buffer("b", pairs_b.astype("u4")), Buffer("d", d, writable=True)]
    floats().launch(name, grid=1, block=32, args=args, order="shuffle", seed=2)
    d -= (LANE[:, None] + np.arange(4)).astype(np.float32)
    assert np.array_equal(d, d.astype(np.int32)) and np.array_equal(matrix_d(d.astype(np.int32)), a @ b)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_numbers_are_rounded_to_even_and_codes_are_whole(name: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    # Every exponent that matters, ties, subnormals, the edge of overflow.
    x[:2048] = (rng.standard_normal(2048) * 2.0 ** rng.uniform(-30, 20, 2048)).astype(np.float32)
    x[1024:2048] = (x[1024:2048].view(np.uint32) & 0xFFFFE000 | 0x1000).view(np.float32)
    x[:8] = 0.0, -0.0, 65519.99, 65520, np.inf, np.nan, 2.0**-25, 3 * 2.0**-25
    codes = rng.integers(0, 1 << 32, 4096, dtype=np.uint32)
    if name == "bf16":
        codes &= 0x7F7F7F7F  # more has no room there
    out = np.zeros((4096, 4), dtype=np.uint32)
    args = [Buffer("x", x), Buffer("codes", codes), Buffer("out", out, writable=True)]
    floats().launch(f"{name}_numbers", grid=128, block=32, args=args)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wanted = contract_float.rounded(x, name).astype(np.float64)
    found = wide(out[:, 0], name)
    assert ((found == wanted) | (np.isnan(found) & np.isnan(wanted))).all()
    assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(wanted)].all()
    origin = {"f16": 1024, "bf16": 128}[name]
    four = codes.view(np.uint8).reshape(-1, 4)
    for column, low in ((1, 0), (2, 2)):
        for half in (0, 1):
            assert np.array_equal(wide(out[:, column] >> 16 * half, name), origin + four[:, low + half].astype(float))
    exact = 2 * origin + four[:, 0].astype(float) + four[:, 2]
    assert (np.abs(wide(out[:, 3], name) - exact) <= {"f16": 1, "bf16": 1}[name]).all()


def test_signed_bytes_as_bf16() -> None:
    text = """#include "qgen_float.cuh"
extern "C" __global__ void signed_bytes(const uint32_t* codes, uint32_t* out) {
    const uint2 wide = qgen_widen<qgen_bf16>(qgen_load_u32(codes + threadIdx.x));
    qgen_store_u32(out + 2 * threadIdx.x, qgen_signed_bf16(wide.x));
    qgen_store_u32(out + 2 * threadIdx.x + 1, qgen_signed_bf16(wide.y));
}
"""
    codes = np.arange(256, dtype=np.uint8)
    out = np.zeros(256, dtype=np.uint16)
    args = [Buffer("codes", codes), Buffer("out", out, writable=True)]
    emulate.compile(text, "test_signed_bytes").launch("signed_bytes", grid=1, block=64, args=args)
    assert np.array_equal(wide(out, "bf16"), codes.view(np.int8).astype(float))
