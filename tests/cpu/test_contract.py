"""The contract's NumPy mirror against slow scalar arithmetic on exact fractions, written from the contract's words."""

from __future__ import annotations

import ctypes
from fractions import Fraction

import numpy as np
import pytest
from kernel_cases import FORMATS, make_operands, vector
from numpy.typing import NDArray

from qgen import codec, contract, plan
from qgen.plan import MatvecPlan
from qgen.plan.terms import code_field
from qgen.spec import Field, Format, load_activation

F32 = NDArray[np.float32]
PLANNED = [p.format for p in plan.plan_all(FORMATS)[0] if isinstance(p, MatvecPlan)]
LARGEST = Fraction(2**24 - 1) * 2**104
LEAST = Fraction(1, 2**149)  # the unit of subnormal float32


def rounded(exact: Fraction) -> np.float32:
    """The float32 nearest to a fraction, ties to even, by integer arithmetic alone. A zero is +0."""
    magnitude = abs(exact)
    if magnitude == 0:
        return np.float32(0)
    # The magnitude lies between 2^(size - 1) and 2^(size + 1).
    size = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    unit = max(LEAST, Fraction(2) ** (size - 24))
    while magnitude >= unit * 2**24:
        unit *= 2
    steps = round(magnitude / unit)  # Python rounds halves of fractions to even
    if steps * unit > LARGEST:
        return np.float32(np.inf if exact > 0 else -np.inf)
    return np.float32(float(steps * unit) * (1 if exact > 0 else -1))


def exactly(value: np.float32) -> Fraction:
    return Fraction(float(value))


def bits_of(values: F32) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def floats(rng: np.random.Generator, count: int, low: int, high: int) -> F32:
    """Random signs and mantissas, exponent fields from low to high (0: subnormal)."""
    exponent = rng.integers(low, high + 1, count, dtype=np.uint32) << np.uint32(23)
    rest = rng.integers(0, 1 << 23, count, dtype=np.uint32) | rng.integers(0, 2, count, dtype=np.uint32) << np.uint32(
        31
    )
    return (exponent | rest).astype(np.uint32).view(np.float32)


# ---- fma -------------------------------------------------------------------------------------------------------------


def triples() -> list[tuple[F32, F32, F32]]:
    """Operands of every size; addends that nearly cancel the product, and ones a rounding to float64 would lose."""
    rng = np.random.default_rng(1)
    n = 400
    found = []
    for (low_a, high_a), (low_c, high_c) in (
        ((0, 254), (0, 254)),
        ((100, 150), (80, 170)),
        ((0, 70), (0, 10)),
        ((120, 190), (200, 254)),
    ):
        found.append((floats(rng, n, low_a, high_a), floats(rng, n, low_a, high_a), floats(rng, n, low_c, high_c)))
    a, b = floats(rng, n, 100, 150), floats(rng, n, 100, 150)
    product = a.astype(np.float64) * b.astype(np.float64)
    with np.errstate(all="ignore"):
        found.append((a, b, (-product).astype(np.float32)))  # cancels all but the product's own rounding
    # c half an ulp away from a tie that a tiny product breaks: rounding twice would go wrong.
    c = np.float32(2) ** rng.integers(-20, 20, n).astype(np.float32) * (1 + rng.integers(0, 2**23, n) / 2**23).astype(
        np.float32
    )
    half = (np.spacing(c) / 2).astype(np.float32)
    tiny = (1 + np.where(rng.integers(0, 2, n) == 1, 1, -1) * 2.0**-23).astype(np.float32)
    found.append((half, tiny, c))
    return found


@pytest.mark.parametrize("number", range(6))
def test_fma_rounds_the_exact_result_once(number: int) -> None:
    a, b, c = triples()[number]
    with np.errstate(all="ignore"):
        wanted = np.array([rounded(exactly(x) * exactly(y) + exactly(z)) for x, y, z in zip(a, b, c, strict=True)])
    zero = wanted == 0  # the sign of an exact zero is the next test's
    got = contract.fma(a, b, c)
    np.testing.assert_array_equal(bits_of(got)[~zero], bits_of(wanted)[~zero])
    assert (got[zero] == 0).all()


def test_fma_of_zeros_infinities_and_nan_is_the_c_librarys() -> None:
    library = ctypes.CDLL(None).fmaf
    library.restype = ctypes.c_float
    library.argtypes = [ctypes.c_float] * 3
    values = np.array([0.0, -0.0, 1.0, -1.5, 1e-45, -3e-39, 3e38, np.inf, -np.inf, np.nan], dtype=np.float32)
    a, b, c = (grid.reshape(-1) for grid in np.meshgrid(values, values, values))
    got = contract.fma(a, b, c)
    wanted = np.array(
        [library(float(x), float(y), float(z)) for x, y, z in zip(a, b, c, strict=True)], dtype=np.float32
    )
    assert (np.isnan(got) == np.isnan(wanted)).all()
    real = ~np.isnan(wanted)
    np.testing.assert_array_equal(bits_of(got)[real], bits_of(wanted)[real])


# ---- the activation quantiser ----------------------------------------------------------------------------------------


def slow_quantise(group: F32) -> tuple[list[int], np.float32]:
    """Codes and scale of one group of finite numbers, from the words of the activation's file."""
    largest = max(abs(exactly(x)) for x in group)
    scale = rounded(largest / 127)
    inverse = rounded(127 / largest) if largest else np.float32(np.inf)
    if not np.isfinite(inverse):
        return [0] * len(group), scale
    return [round(exactly(rounded(exactly(x) * exactly(inverse)))) for x in group], scale


@pytest.mark.parametrize(("activation", "size"), [("q8_g32", 32), ("q8_g64", 64), ("q8_g128", 128), ("q8_g256", 256)])
def test_quantise_rounds_as_written(activation: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((24, size), dtype=np.float32)
    scales = [0.0, 1e-45, 1e-41, 1e-38, 3.7e-37, 4e-37, 1e-30, 1e-3, 1.0, 127.0, 1e20, 3e37]
    with np.errstate(all="ignore"):
        x[: len(scales)] *= np.array(scales, dtype=np.float32)[:, np.newaxis]
    x[12:16] = np.clip(np.round(x[12:16] * 200) / 2, -127, 127)  # ties: halves, with a largest of 127
    x[12:16, 3] = [127, -127, 127, -127]
    x[16] = -np.abs(x[16])
    x[17] = np.float32(3.4e38)
    x[18, 1:] = 0
    got = contract.quantise(x.reshape(-1), activation)
    assert got.group == size and got.codes.dtype == np.int8
    for number, group in enumerate(x):
        codes, scale = slow_quantise(group)
        assert got.codes[number * size : (number + 1) * size].tolist() == codes, number
        assert bits_of(got.scales)[number] == bits_of(np.array([scale]))[0], number
    assert np.abs(got.codes.astype(int)).max() == 127
    # Ties went to even codes, both ways.
    tied = x[12:16].reshape(-1) % 1 == 0.5
    assert tied.any() and (got.codes[12 * size : 16 * size][tied] % 2 == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_quantise_keeps_what_is_no_number_in_its_groups_scale(value: float) -> None:
    x = np.ones((4, 32), dtype=np.float32)
    x[2, 5] = value
    got = contract.quantise(x.reshape(-1), "q8_g32")
    assert np.isnan(got.scales[2]) if np.isnan(value) else np.isposinf(got.scales[2])
    assert not got.codes[64:96].any()
    assert np.isfinite(got.scales[[0, 1, 3]]).all() and (got.codes[:64] == 127).all()


# ---- mul_mat ---------------------------------------------------------------------------------------------------------


def code_of(format: Format, field: Field, raw: int) -> int:
    """What one stored code means, from the field's record."""
    if field.table:
        return int(format.codebook(field.table).numbers[raw])
    if field.signed and raw >= 1 << (field.signed - 1):
        raw -= 1 << field.signed
    return int(field.mul) * raw + int(field.add)


def slow_mul_mat(format: Format, row: NDArray[np.uint8], x: F32) -> np.float32:
    """One row times x by the contract: element by element in integers, then fraction by fraction."""
    agreed = plan.contract(format)
    group = load_activation(agreed.activation).group or 0
    quantised = [slow_quantise(x[i : i + group]) for i in range(0, x.size, group)]
    floats_of = {f.name: codec.scalars(format, f.name, row) for f in format.fields if f.kind == "float"}
    codes_of = {
        f.name: [[code_of(format, f, raw) for raw in block] for block in codec.raw(format, f.name, row).tolist()]
        for f in format.fields
        if f.kind != "float"
    }
    slices = [np.float32(0)] * agreed.slices
    for block in range(len(row)):
        for unit in range(format.block // agreed.unit):
            dx = quantised[(block * format.block + unit * agreed.unit) // group][1]
            for term in format.terms:
                fields = [format.field(name) for name in term.factors]
                total = 0
                for element in range(unit * agreed.unit, (unit + 1) * agreed.unit):
                    number, place = divmod(block * format.block + element, group)
                    product = quantised[number][0][place]
                    for field in fields:
                        if field.kind != "float":
                            product *= codes_of[field.name][block][element // field.per]
                    total += product
                coefficient = np.float32(1)
                for field in fields:
                    if field.kind == "float":
                        scale = floats_of[field.name][block, unit * agreed.unit // field.per]
                        coefficient = rounded(exactly(coefficient) * exactly(scale))
                coefficient = rounded(exactly(coefficient) * exactly(dx)) * np.float32(np.sign(term.constant))
                at = block % agreed.slices
                slices[at] = rounded(exactly(coefficient) * exactly(rounded(Fraction(total))) + exactly(slices[at]))
    while len(slices) > 1:
        half = len(slices) // 2
        slices = [rounded(exactly(slices[s]) + exactly(slices[s + half])) for s in range(half)]
    return slices[0]


@pytest.mark.parametrize("format", PLANNED)
def test_mul_mat_is_the_written_contract(format: str) -> None:
    chosen = FORMATS[format]
    blocks = plan.contract(chosen).slices + 2
    row = codec.random_blocks(chosen, blocks, seed=7)
    x = vector(blocks * chosen.block, seed=7)
    wanted = np.array([slow_mul_mat(chosen, row, x)])
    np.testing.assert_array_equal(bits_of(contract.mul_mat(chosen, row[np.newaxis], x)), bits_of(wanted))


def test_codes_of_the_slow_product_are_the_codecs() -> None:
    for name in PLANNED:
        field = code_field(FORMATS[name])
        block = codec.random_blocks(FORMATS[name], 3, seed=1)
        raw = codec.raw(FORMATS[name], field.name, block)
        wanted = [[code_of(FORMATS[name], field, int(r)) for r in row] for row in raw]
        assert codec.codes(FORMATS[name], field.name, block).tolist() == wanted


# ---- NaN and Inf -----------------------------------------------------------------------------------------------------


def test_a_nan_or_infinite_scale_reaches_its_row_and_no_other() -> None:
    format = FORMATS["Q8_0"]
    packed = codec.random_blocks(format, 5 * 40, seed=3).reshape(5, 40, -1)
    packed[1, 35, :2] = np.frombuffer(np.float16(np.nan).tobytes(), dtype=np.uint8)
    packed[3, 0, :2] = np.frombuffer(np.float16(np.inf).tobytes(), dtype=np.uint8)
    y = contract.mul_mat(format, packed, np.linspace(0.5, 1.5, 40 * 32, dtype=np.float32))
    assert np.isnan(y).tolist() == [False, True, False, False, False]
    assert np.isinf(y).tolist() == [False, False, False, True, False]


def test_a_nan_or_infinity_in_x_reaches_every_row() -> None:
    format = FORMATS["Q4_K"]
    packed = codec.random_blocks(format, 5 * 3, seed=3).reshape(5, 3, -1)
    for value in (np.nan, np.inf, -np.inf):
        x = vector(3 * 256, seed=3)
        x[300] = value
        assert np.isnan(contract.mul_mat(format, packed, x)).all()  # its codes are 0, its scale is Inf or NaN


# ---- the bound on the distance to the oracle -------------------------------------------------------------------------


@pytest.mark.parametrize("format", PLANNED)
@pytest.mark.parametrize("turns", [1, 3])
def test_the_bound_holds_and_is_not_vacuous(format: str, turns: int) -> None:
    """Within it lies the mirror; outside it a wrong code, a lost block, an error of a few ulp of the magnitude."""
    chosen = FORMATS[format]
    blocks = turns * plan.contract(chosen).slices + 1
    packed = codec.random_blocks(chosen, 8 * blocks, seed=9).reshape(8, blocks, -1)
    x = vector(blocks * chosen.block, seed=9)
    given = make_operands(chosen, packed, x)
    assert (np.abs(given.wanted - given.exact) <= given.bound).all() and (given.bound > 0).all()

    quantised = contract.quantise(x, plan.contract(chosen).activation).values()
    weights = codec.decode(chosen, packed.reshape(8 * blocks, -1)).reshape(8, -1).astype(np.float64)
    exact = weights @ quantised
    np.testing.assert_allclose(given.exact, exact, rtol=0, atol=0)
    # Terms that cancel (codes against minimums) make the counted magnitude larger than that of the weights.
    ulp = 2.0**-23 * (np.abs(weights) @ np.abs(quantised)) * len(chosen.terms) * 2
    assert (given.bound < (16 + turns * chosen.block / plan.contract(chosen).unit * len(chosen.terms)) * ulp).all()

    without = np.abs(weights[:, -chosen.block :] @ quantised[-chosen.block :])
    assert np.median(without / given.bound) > 10, "a lost block would pass"
    largest = np.argmax(np.abs(quantised))
    steps = np.abs(weights[:, largest] * quantised[largest])
    assert np.median(steps[steps > 0] / given.bound[steps > 0]) > 10, "a wrong weight would pass"
