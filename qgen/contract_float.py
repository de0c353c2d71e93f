"""The arithmetic contract of f16 and bf16 activations in NumPy, from the spec, the codec and the order of steps alone.

It judges kernels in two ways. `mul_mat` gives the bits of the contract on a machine whose instructions add exactly and
round once, as the emulator's do. `reference` gives exact results and how far a kernel on any machine may be from them.
The order of operations is the one written down in qgen.plan.float_contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qgen import codec
from qgen.contract import fma
from qgen.plan import FloatContract, FloatFragments, plan_ksplit_float
from qgen.plan.float_contract import STEP
from qgen.plan.terms import code_field, float_fields, scale_fields
from qgen.spec.records import Field, Format

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
# uint8[N, blocks, bytes of a block], or for formats of planes {plane: uint8[N, blocks, bytes of the plane]}
Packed = U8 | Mapping[str, U8]
_EPSILON = 2.0**-24  # largest relative error of one float32 rounding
# Of one instruction, in the same unit: each of 16 products and the running sum may be cut off at 2^-23 of the largest,
# and so may the result.
_CUTS = 2 * (STEP + 2)


def rounded(x: F32, activation: str) -> F32:
    """float32 array of the same shape: x rounded to the class, ties to even. NaN stays NaN."""
    with np.errstate(all="ignore"):
        if activation == "f16":
            return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32)
    up = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32)
    return np.where(np.isnan(x), x, up.view(np.float32))


def group_sums(x: F32, group: int) -> F32:
    """float32[K // group]: the sums of x float32[K], which is rounded already, by halving."""
    sums = x.reshape(-1, group)
    with np.errstate(all="ignore"):
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


@dataclass(frozen=True, eq=False)
class _Term:
    """Coefficients float32[N, blocks, groups], and whether the codes' sum or that of x is multiplied."""

    coefficients: F32
    codes: bool


@dataclass(frozen=True, eq=False)
class _Read:
    """A matrix taken apart: codes float64[N, blocks, block], its terms, and the records it was read by."""

    contract: FloatContract
    layout: FloatFragments
    codes: F64
    terms: tuple[_Term, ...]

    @property
    def count(self) -> int:
        """Blocks of a row."""
        return int(self.codes.shape[1])


def mul_mat(format: Format, packed: Packed, x: F32, activation: str) -> F32:
    """y float32[N] for x float32[K] in the format's contract, each instruction exact and rounded once."""
    made = _read(format, packed, activation)
    block, groups = format.block, made.layout.groups
    values = rounded(x, activation)
    wide = values.astype(np.float64).reshape(-1, block)
    own = group_sums(values, made.contract.group).reshape(-1, groups)
    slices = np.zeros((len(made.codes), made.contract.slices), dtype=np.float32)
    with np.errstate(all="ignore"):
        sums = [_sum(made, wide, g) for g in range(groups)]
        for b in range(made.count):
            at = b % made.contract.slices
            for g in range(groups):
                for term in made.terms:
                    addend = sums[g][:, b] if term.codes else np.broadcast_to(own[b, g], len(slices))
                    slices[:, at] = fma(term.coefficients[:, b, g], addend, slices[:, at])
        half = made.contract.slices // 2
        while half:
            slices = slices[:, :half] + slices[:, half:]
            half //= 2
    return slices[:, 0]


def steps(layout: FloatFragments, group: int) -> list[list[list[int]]]:
    """By group its steps, and of each step its elements in the order of K; empty places are left out."""
    found: list[list[list[int]]] = [[] for _ in range(layout.groups)]
    for j in range(len(layout.words[0])):
        four = [layout.words[t][j] for t in range(len(layout.words))]
        # The first two codes of every thread are the instruction's first eight products.
        elements = [e for pair in (0, 2) for word in four for e in word[pair : pair + 2] if e != layout.block]
        found[elements[0] // group].append(elements)
    return found


def _sum(made: _Read, x: F64, g: int) -> F32:
    """S of group g for every row and block: float32[N, blocks]."""
    total = np.zeros(made.codes.shape[:2], dtype=np.float32)
    for elements in steps(made.layout, made.contract.group)[g]:
        exact = total.astype(np.float64)
        for e in elements:
            exact += made.codes[:, :, e] * x[:, e]
        total = exact.astype(np.float32)
    return total


def reference(format: Format, packed: Packed, x: F32, activation: str) -> tuple[F64, F64]:
    """The float64 dot of the decoded weights with the rounded x, and a bound on how far any kernel may be from it.

    Returns (y, bound), float64[N] each. Every rounding is at most 2^-24 of a number no larger than the sum of the
    magnitudes of all products, whose relative size is counted here: on the kernel's side what the instructions of a
    group cut off, the additions of a group's x, the factors of a coefficient, the fmas of one slice and the
    additions of the tree; on the decoder's side the factors of each term and their additions. 1 percent is added for
    the products of such roundings.
    """
    made = _read(format, packed, activation)
    values = rounded(x, activation).astype(np.float64).reshape(-1, format.block)
    flat = {name: part.reshape(-1, part.shape[2]) for name, part in _planes(packed).items()}
    weights = codec.decode(format, flat if format.split else flat["block"]).astype(np.float64)
    rows, groups, group = len(made.codes), made.layout.groups, made.contract.group
    size = np.abs(values).reshape(-1, groups, group)
    with np.errstate(all="ignore"):
        y = np.einsum("nbe,be->n", weights.reshape(rows, -1, format.block), values)
        magnitude = np.zeros(rows)
        for term in made.terms:
            parts = np.abs(made.codes).reshape(rows, -1, groups, group) if term.codes else np.ones((1, 1, 1, group))
            sums = (parts * size).sum(axis=3)
            magnitude += (sums * np.abs(term.coefficients.astype(np.float64))).sum(axis=(1, 2))
    in_group = max(len(own) for own in steps(made.layout, group)) * _CUTS + group.bit_length()
    in_slice = -(-made.count // made.contract.slices) * groups * len(made.terms)
    factors = max(len(term.factors) for term in format.terms)
    roundings = in_group + in_slice + made.contract.slices.bit_length() + 2 * (factors + 1) + len(format.terms)
    return y, 1.01 * _EPSILON * roundings * magnitude


def _planes(packed: Packed) -> Mapping[str, U8]:
    return packed if isinstance(packed, Mapping) else {"block": packed}


def _read(format: Format, packed: Packed, activation: str) -> _Read:
    plan = plan_ksplit_float(format, activation)
    parts = _planes(packed)
    rows, count = next(iter(parts.values())).shape[:2]
    flat = {name: part.reshape(rows * count, -1) for name, part in parts.items()}
    blocks = flat if format.split else flat["block"]
    codes = code_field(format)
    groups, group = plan.layout.groups, plan.contract.group

    def spread(field: Field, values: NDArray[np.generic]) -> F32:
        of_group = np.arange(groups) * group // field.per
        return values.astype(np.float32)[:, of_group].reshape(rows, count, groups)

    terms = []
    for term in format.terms:
        made = np.ones((rows, count, groups), dtype=np.float32)
        with np.errstate(all="ignore"):
            for field in float_fields(format, term):
                made = made * spread(field, codec.scalars(format, field.name, blocks))
            for field in scale_fields(format, term, codes):
                made = made * spread(field, codec.codes(format, field.name, blocks))
        terms.append(_Term(-made if term.constant < 0 else made, codes.name in term.factors))
    numbers = codec.codes(format, codes.name, blocks).astype(np.float64)
    return _Read(plan.contract, plan.layout, numbers.reshape(rows, count, format.block), tuple(terms))
