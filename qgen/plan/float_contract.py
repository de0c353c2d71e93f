"""The arithmetic contract of the kernels with f16 or bf16 activations, and what in a format decides it."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.refuse import refuse
from qgen.plan.terms import FLOAT_READERS, code_field
from qgen.spec import Field, Format, load_activation

CLASSES = ("bf16", "f16")  # activation classes; the names of their files in specs/activations
STEP = 16  # products of one tensor-core instruction
SLICES = 8


@dataclass(frozen=True)
class FloatContract:
    """Everything that decides the bits of a result, from T = 1 up; for one format and activation class.

    x is rounded to the class (nearest, ties to even; an f16 beyond 65504 becomes Inf), and nothing else happens to it.
    The codes of a block, as whole numbers, are exact in the class. A group is the longest run of weights that share
    all scales. Its sum S starts at +0 and takes steps of 16 products, one instruction m16n8k16 each, in the order of
    the activation's layout, which says which 16 elements a step has. X, the sum of the group's x, is taken by halving:
    element e < h takes e + h, for h = group/2, group/4 .. 1, in float32.
    Block b of a row belongs to slice b mod `slices`. A slice starts at +0 and takes its blocks in increasing order, the
    groups of a block in increasing order, the terms of the value in the order of the format file:
    slice = fma(coefficient, S or X, slice), where coefficient is the product of the term's float factors and then its
    integer scale, left to right, each product rounded to float32. Slices are then added by halving.

    Within one instruction the hardware decides: products are exact, but how it rounds and in what order it adds
    the 16 of them and the running sum is its own, and may differ between architectures. A result therefore differs from
    exact arithmetic by a bound that qgen.float_contract computes, not by a known rounding. But a column of an
    instruction depends on no other column, and no launch shape changes an order: on one device every column has the
    bits of a call with that column alone, for every T.
    """

    activation: str
    group: int
    slices: int
    terms: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short, stable name; equal names mean equal bits of one format on one device."""
        return f"{self.activation}_g{self.group}_s{self.slices}"


def float_contract(format: Format, activation: str) -> FloatContract:
    """The contract of `format` with activations of a class. Raises QgenError (stage "plan") where it has none."""
    codes = code_field(format)
    if activation not in CLASSES or load_activation(activation).kind != "float":
        refuse(format, f"activation {activation}", f"a class of float activations: {', '.join(CLASSES)}")
    return FloatContract(
        activation=activation,
        group=group_of(format, codes),
        slices=SLICES,
        terms=tuple(
            ("-" if t.constant < 0 else "+")
            + "*".join([*(n for n in t.factors if n != codes.name), "S" if codes.name in t.factors else "X"])
            for t in format.terms
        ),
    )


def group_of(format: Format, codes: Field) -> int:
    """Weights that share all scales: the least `per` among the factors. Refuses groups that no step fits into."""
    factors = [format.field(name) for term in format.terms for name in term.factors if name != codes.name]
    outside = next((f for f in factors if f.scope != "block"), None)
    if outside is not None:
        refuse(format, f"{outside.name} is stored outside the blocks", "factors that a block holds")
    unread = next((f for f in factors if f.type is not None and f.type not in FLOAT_READERS), None)
    if unread is not None:
        refuse(format, f"scale {unread.name} is of type {unread.type}", ", ".join(FLOAT_READERS))
    group = min([format.block, *(f.per for f in factors)])
    if group % STEP or group & (group - 1):
        refuse(format, f"{group} weights share a scale", f"a power of two, at least {STEP}")
    return group
