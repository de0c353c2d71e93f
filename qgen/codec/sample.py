"""Random blocks for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from qgen.codec import bits, numbers
from qgen.codec.bits import Bytes, Raw
from qgen.codec.operands import whole_blocks
from qgen.spec.records import Field, Format

_EXPONENTS = (-9.0, -5.0)  # float scales have magnitudes from 2^-9 to 2^-5
_BYTES = {  # first and last byte of about the same magnitudes in the 8-bit types
    "e8m0": (118, 122),
    "e8m0_half": (119, 123),
    "e4m3": (1, 23),
    "ue4m3": (1, 23),
    "ue4m3_half": (2, 31),
}


def random_blocks(format: Format, n: int, seed: int) -> Bytes:
    """uint8[n, bytes]: n blocks of `random_planes`, for formats without planes (QgenError for others)."""
    return whole_blocks(format, random_planes(format, n, seed))


def random_planes(format: Format, n: int, seed: int) -> dict[str, Bytes]:
    """{plane: uint8[n, bytes of the plane]}: n random blocks of any format; the same for the same seed.

    Float scales are finite and moderate (2^-9 to 2^-5, of both signs in types that have one). All other bits are
    random, padding included; every code value of every field occurs wherever n * entries >= the number of its values.
    Bytes of digits take all 256 values, also those that no encoder writes.
    """
    rng = np.random.default_rng(seed)
    regions = {plane.name: rng.integers(0, 256, (n, plane.bytes), dtype=np.uint8) for plane in format.planes}
    for field in format.fields:
        independent = all(part.per == field.per for part in field.parts)
        if field.kind == "float" and field.scope == "block":
            bits.write(field, _scales(field, n, rng), regions)
        elif field.scope == "block" and independent and not field.segments:
            bits.write(field, _every_code(field, n, rng), regions)
    return regions


def _scales(field: Field, n: int, rng: np.random.Generator) -> Raw:
    assert field.type is not None
    shape = (n, field.entries)
    if field.type in _BYTES:
        first, last = _BYTES[field.type]
        return rng.integers(first, last + 1, shape, dtype=np.uint32)
    magnitude = np.exp2(rng.uniform(*_EXPONENTS, shape))
    signed = np.where(rng.integers(0, 2, shape) == 1, -magnitude, magnitude)
    return numbers.raw_of_floats(field.type, signed.astype(np.float32))


def _every_code(field: Field, n: int, rng: np.random.Generator) -> Raw:
    """Shuffled codes, each value as often as the next (give or take one)."""
    codes = np.arange(n * field.entries, dtype=np.uint32) % np.uint32(field.levels)
    start = rng.integers(0, field.levels, dtype=np.uint32)
    return rng.permutation((codes + start) % np.uint32(field.levels)).reshape(n, field.entries)
