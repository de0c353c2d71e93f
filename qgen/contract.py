"""The arithmetic contract in NumPy: the bits every kernel of a format must produce, from the spec and the codec alone.

It never sees a plan's launch shapes or a template, so that it can judge them. The order of operations is the one
written down in qgen.plan.records.Contract.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qgen import codec
from qgen.plan import contract
from qgen.plan.terms import code_field, float_fields, scale_fields
from qgen.spec import load_activation
from qgen.spec.records import Field, Format

F32 = NDArray[np.float32]
_EPSILON = float(np.finfo(np.float32).eps) / 2  # largest relative error of one float32 rounding


@dataclass(frozen=True)
class Quantised:
    """An int8 activation: codes int8[K], scales float32[K // group]; x is about codes * scale of their group."""

    codes: NDArray[np.int8]
    scales: F32
    group: int

    def values(self) -> NDArray[np.float64]:
        """What the codes stand for, float64[K]."""
        with np.errstate(all="ignore"):
            return self.codes.astype(np.float64) * np.repeat(self.scales.astype(np.float64), self.group)


def quantise(x: F32, activation: str) -> Quantised:
    """x float32[K] as the device quantises it, bit for bit: scale = amax / 127, code = rint(x * (127 / amax))."""
    group = load_activation(activation).group
    assert group is not None
    rows = x.reshape(-1, group)
    with np.errstate(all="ignore"):
        # np.maximum keeps a NaN, as the kernel's comparison of bit patterns does.
        largest = np.maximum.reduce(np.abs(rows), axis=1)
        inverse = np.float32(127) / largest
        inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
        codes = np.nan_to_num(np.rint(rows * inverse[:, None]), nan=0.0)
        return Quantised(codes=codes.astype(np.int8).reshape(-1), scales=largest / np.float32(127), group=group)


def fma(a: F32, b: F32, c: F32) -> F32:
    """float32 a * b + c rounded once. a * b is exact in float64; the sum is rounded to odd there, then to float32."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = c.astype(np.float64)
        total = product + addend
        # Knuth's two-sum: the exact error of the float64 addition.
        back = total - product
        error = (product - (total - back)) + (addend - back)
        bits = total.view(np.int64)
        even = (bits & 1) == 0
        toward = np.where((error > 0) == (total > 0), bits + 1, bits - 1)
        odd = np.where(np.isfinite(total) & (error != 0) & even & (total != 0), toward, bits)
        return odd.view(np.float64).astype(np.float32)


def mul_mat(format: Format, blocks: NDArray[np.uint8], x: F32) -> F32:
    """y float32[N] for blocks uint8[N, K // block, block bytes] and x float32[K], in the format's contract."""
    agreed = contract(format)
    rows, count = blocks.shape[:2]
    quantised = quantise(x, agreed.activation)
    units = format.block // agreed.unit
    a = quantised.codes.astype(np.int64).reshape(count, units, agreed.unit)
    terms = [
        (np.einsum("nbue,bue->nbu", integers, a), factor) for integers, factor in _terms(format, blocks, agreed.unit)
    ]
    dx = _per_unit(quantised, count, units, agreed.unit)
    slices = np.zeros((rows, agreed.slices), dtype=np.float32)
    with np.errstate(all="ignore"):
        for block in range(count):
            at = block % agreed.slices
            for unit in range(units):
                for sums, factor in terms:
                    coefficient = factor[:, block, unit] * dx[block, unit]
                    slices[:, at] = fma(coefficient, sums[:, block, unit].astype(np.float32), slices[:, at])
        half = agreed.slices // 2
        while half:
            slices = slices[:, :half] + slices[:, half:]
            half //= 2
    return slices[:, 0]


def _terms(format: Format, blocks: NDArray[np.uint8], unit: int) -> list[tuple[NDArray[np.int64], F32]]:
    """Per term of the value: its integers int64[N, blocks, units, unit] and float factors float32[N, blocks, units]."""
    rows, count, size = blocks.shape
    flat = blocks.reshape(rows * count, size)
    codes = code_field(format)
    units = format.block // unit

    def per_element(field: Field) -> NDArray[np.int64]:
        values = codec.codes(format, field.name, flat).astype(np.int64)
        return np.repeat(values, format.block // values.shape[1], axis=1).reshape(rows, count, units, unit)

    found = []
    for term in format.terms:
        integers = np.ones((rows, count, units, unit), dtype=np.int64)
        if codes.name in term.factors:
            integers *= per_element(codes)
        for field in scale_fields(format, term, codes):
            integers *= per_element(field)
        factor = np.ones((rows, count, units), dtype=np.float32)
        with np.errstate(all="ignore"):
            for field in float_fields(format, term):
                scale = codec.scalars(format, field.name, flat)
                factor = factor * np.repeat(scale, units // scale.shape[1], axis=1).reshape(rows, count, units)
        found.append((integers, -factor if term.constant < 0 else factor))
    return found


def reference(format: Format, blocks: NDArray[np.uint8], x: F32) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The float64 dot of the decoded weights with the quantised x, and a bound on how far any kernel may be from it.

    Returns (y, bound), float64[N] each. Every rounding is at most 2^-24 of a number no larger than the sum of the
    magnitudes of all products, whose relative size is counted here: on the kernel's side the factors of a coefficient,
    the conversion of the integer, the fmas of one slice and the additions of the tree; on the decoder's side the
    factors of each term and their additions. 1 percent is added for the products of such roundings.
    """
    agreed = contract(format)
    quantised = quantise(x, agreed.activation)
    rows, count = blocks.shape[:2]
    units = format.block // agreed.unit
    weights = codec.decode(format, blocks.reshape(rows * count, -1)).astype(np.float64).reshape(rows, -1)
    a = np.abs(quantised.codes.astype(np.int64)).reshape(count, units, agreed.unit)
    dx = _per_unit(quantised, count, units, agreed.unit).astype(np.float64)
    with np.errstate(all="ignore"):
        y = weights @ quantised.values()
        magnitude = sum(
            (np.einsum("nbue,bue->nbu", np.abs(integers), a) * np.abs(factor.astype(np.float64)) * dx).sum(axis=(1, 2))
            for integers, factor in _terms(format, blocks, agreed.unit)
        )
    in_slice = -(-count // agreed.slices) * units * len(format.terms)
    factors = max(len(term.factors) for term in format.terms)
    roundings = in_slice + agreed.slices.bit_length() + 2 * (factors + 1) + len(format.terms)
    return y, 1.01 * _EPSILON * roundings * np.asarray(magnitude)


def _per_unit(quantised: Quantised, count: int, units: int, unit: int) -> F32:
    return np.repeat(quantised.scales, quantised.group // unit).reshape(count, units)
