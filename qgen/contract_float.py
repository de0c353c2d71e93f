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
from qgen.plan.float_contract import RUN, STEP
from qgen.plan.terms import code_field, float_fields, scale_fields
from qgen.spec.records import Field, Format

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
# uint8[N, blocks, bytes of a block], or for formats of planes {plane: uint8[N, blocks, bytes of the plane]}
Packed = U8 | Mapping[str, U8]
_PIECES = 2.0**-17  # largest relative error of a sum of x taken as two bf16
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


def pieces(sums: F32) -> tuple[F32, F32]:
    """high, low: float32 of the shape of `sums`, of bf16 each; together nearly `sums`, where that is finite."""
    high = rounded(sums, "bf16")
    with np.errstate(all="ignore"):
        return high, rounded(sums - high, "bf16")


@dataclass(frozen=True, eq=False)
class _Term:
    """Coefficients float32[N, blocks, units], and whether the codes' sum or that of x is multiplied.

    scales: float64[N, blocks, groups], integer scales of the sums of x in a folded contract
    """

    coefficients: F32
    codes: bool
    scales: F64


@dataclass(frozen=True, eq=False)
class _Read:
    """A matrix taken apart: codes float64[N, blocks, block], its terms, and the records it was read by.

    A unit is what has one sum S: a group, or where the contract is folded the block, whose codes are then taken times
    their integer scales.
    """

    contract: FloatContract
    layout: FloatFragments
    codes: F64
    terms: tuple[_Term, ...]

    @property
    def count(self) -> int:
        """Blocks of a row."""
        return int(self.codes.shape[1])

    @property
    def units(self) -> list[list[list[int]]]:
        """By unit its steps; see `steps`."""
        by_group = steps(self.layout, self.contract.group)
        return [[step for own in by_group for step in own]] if self.contract.folded else by_group


def mul_mat(format: Format, packed: Packed, x: F32, activation: str) -> F32:
    """y float32[N] for x float32[K] in the format's contract, each instruction exact and rounded once."""
    made = _read(format, packed, activation)
    values = rounded(x, activation)
    wide = values.astype(np.float64).reshape(-1, format.block)
    own = group_sums(values, made.contract.group).reshape(-1, made.layout.groups)
    slices = np.zeros((len(made.codes), made.contract.slices), dtype=np.float32)
    with np.errstate(all="ignore"):
        sums = [_sum(made, wide, unit) for unit in made.units]
        of_x = [_sum_of_x(made, term, own) for term in made.terms]
        for b in range(made.count):
            at = b % made.contract.slices
            for u in range(len(sums)):
                for term, bare in zip(made.terms, of_x, strict=True):
                    addend = sums[u][:, b] if term.codes else bare[:, b, u]
                    slices[:, at] = fma(term.coefficients[:, b, u], addend, slices[:, at])
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


def _sum(made: _Read, x: F64, unit: list[list[int]]) -> F32:
    """S of a unit for every row and block: float32[N, blocks]."""
    total = np.zeros(made.codes.shape[:2], dtype=np.float32)
    for elements in unit:
        exact = total.astype(np.float64)
        for e in elements:
            exact += made.codes[:, :, e] * x[:, e]
        total = exact.astype(np.float32)
    return total


def _sum_of_x(made: _Read, term: _Term, own: F32) -> F32:
    """X of every unit, or M: float32[N, blocks, units]. own: X by block and group, float32[blocks, groups]."""
    if not made.contract.folded:
        return np.broadcast_to(own, (len(made.codes), *own.shape))
    high, low = pieces(own)
    total = np.zeros(made.codes.shape[:2], dtype=np.float32)
    for first in range(0, own.shape[1], RUN):
        exact = total.astype(np.float64)
        for piece in (high, low):
            for g in range(first, min(first + RUN, own.shape[1])):
                exact += term.scales[:, :, g] * piece[:, g].astype(np.float64)
        total = exact.astype(np.float32)
    return total[:, :, np.newaxis]


def reference(format: Format, packed: Packed, x: F32, activation: str) -> tuple[F64, F64]:
    """The float64 dot of the decoded weights with the rounded x, and a bound on how far any kernel may be from it.

    Returns (y, bound), float64[N] each. Every rounding is at most 2^-24 of a number no larger than the sum of the
    magnitudes of all products, whose relative size is counted here: on the kernel's side what the instructions that
    a product goes through cut off, the additions of a group's x, the factors of a coefficient, the fmas of one slice
    and the additions of the tree; on the decoder's side the factors of each term and their additions. In a folded
    contract the two pieces of a group's sum are 2^-17 of it off at most. 1 percent is added for the products of such
    roundings.
    """
    made = _read(format, packed, activation)
    values = rounded(x, activation).astype(np.float64).reshape(-1, format.block)
    flat = {name: part.reshape(-1, part.shape[2]) for name, part in _planes(packed).items()}
    weights = codec.decode(format, flat if format.split else flat["block"]).astype(np.float64)
    rows, groups, group = len(made.codes), made.layout.groups, made.contract.group
    size = np.abs(values).reshape(-1, groups, group)
    with np.errstate(all="ignore"):
        y = np.einsum("nbe,be->n", weights.reshape(rows, -1, format.block), values)
        magnitude, cut, split = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        for term in made.terms:
            parts = np.abs(made.codes).reshape(rows, -1, groups, group) if term.codes else term.scales[..., np.newaxis]
            own = (parts * size).sum(axis=3) * np.abs(term.coefficients.astype(np.float64))
            magnitude += own.sum(axis=(1, 2))
            cut += _CUTS * (own * _instructions(made, term)).sum(axis=(1, 2))
            split += own.sum(axis=(1, 2)) if made.contract.folded and not term.codes else 0
    in_slice = -(-made.count // made.contract.slices) * len(made.units) * len(made.terms)
    factors = max(len(term.factors) for term in format.terms)
    added = group.bit_length() + in_slice + made.contract.slices.bit_length()
    roundings = added + 2 * (factors + 1) + len(format.terms)
    return y, 1.01 * (_EPSILON * (roundings * magnitude + cut) + _PIECES * split)


def _instructions(made: _Read, term: _Term) -> NDArray[np.int64]:
    """int64[groups]: how many instructions cut something off a sum that has what the group adds, or adds it then."""
    if not term.codes:
        runs = np.arange(made.layout.groups) // RUN
        return runs.max() + 1 - runs if made.contract.folded else np.zeros_like(runs)
    own = np.array([len(of_group) for of_group in steps(made.layout, made.contract.group)])
    return np.cumsum(own[::-1])[::-1] if made.contract.folded else own


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

    numbers = codec.codes(format, codes.name, blocks).astype(np.float64).reshape(rows, count, format.block)
    folded = plan.contract.folded
    terms = []
    for term in format.terms:
        made = np.ones((rows, count, groups), dtype=np.float32)
        scales = np.ones((rows, count, groups), dtype=np.float32)
        with np.errstate(all="ignore"):
            for field in float_fields(format, term):
                made = made * spread(field, codec.scalars(format, field.name, blocks))
            for field in scale_fields(format, term, codes):
                scale = spread(field, codec.codes(format, field.name, blocks))
                made, scales = (made, scale) if folded else (made * scale, scales)
        if folded:  # float factors are the block's
            made = made[:, :, :1]
        if codes.name in term.factors:
            numbers = numbers * np.repeat(scales.astype(np.float64), group, axis=2)
        negative = -made if term.constant < 0 else made
        terms.append(_Term(negative, codes.name in term.factors, scales.astype(np.float64)))
    return _Read(plan.contract, plan.layout, numbers, tuple(terms))
