"""The arithmetic contract of the kernels with f16 or bf16 activations, and what in a format decides it."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.refuse import refuse
from qgen.plan.terms import FLOAT_READERS, code_field, float_fields, scale_fields
from qgen.spec import Field, Format, load_activation

CLASSES = ("bf16", "f16")  # activation classes; the names of their files in specs/activations
EXACT = {"f16": 2048, "bf16": 256}  # the largest whole number up to which a class holds all
STEP = 16  # products of one tensor-core instruction
RUN = 8  # groups whose sums of x one instruction multiplies: a high and a low piece each
SLICES = 8
_LARGEST_MINIMUM = 127  # integer scale of a sum of x: what a byte under the high byte of a bf16 can count


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

    Where `folded`, integer scales are part of what an instruction multiplies. Each code times its integer scale is a
    whole number that the class holds exactly. S is then a sum of the whole block: it starts at +0 and takes the steps
    of all its groups in order, of 16 products (code * scale) * x. X of a group is split in two: high = bf16(X) and
    low = bf16(X - high), each rounded to nearest, ties to even. M, the sum of the groups' scale * X, starts at +0 and
    takes one instruction m16n8k16 in bf16 for each eight groups in turn: products of their scales with the high pieces,
    then of the same scales with the low ones. Once a block, the terms in the order of the format file:
    slice = fma(coefficient, S or M, slice), where coefficient is the product of the term's float factors only. An x
    or an X that is infinite can make NaN of M.

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
    folded: bool

    @property
    def name(self) -> str:
        """A short, stable name; equal names mean equal bits of one format on one device."""
        return f"{self.activation}_g{self.group}_s{self.slices}{'_folded' if self.folded else ''}"


def float_contract(format: Format, activation: str) -> FloatContract:
    """The contract of `format` with activations of a class. Raises QgenError (stage "plan") where it has none."""
    codes = code_field(format)
    if activation not in CLASSES or load_activation(activation).kind != "float":
        refuse(format, f"activation {activation}", f"a class of float activations: {', '.join(CLASSES)}")
    group = group_of(format, codes)
    folded = _folds(format, codes, activation)
    inside, bare = {codes.name}, "M" if folded else "X"
    if folded:
        inside |= {field.name for term in format.terms for field in scale_fields(format, term, codes)}
    return FloatContract(
        activation=activation,
        group=group,
        slices=SLICES,
        terms=tuple(
            ("-" if t.constant < 0 else "+")
            + "*".join([*(n for n in t.factors if n not in inside), "S" if codes.name in t.factors else bare])
            for t in format.terms
        ),
        folded=folded,
    )


def whole_numbers(format: Format, field: Field) -> tuple[float, ...]:
    """What the raw codes 0, 1 .. of an integer field mean: signed, mul, add and the codebook are applied."""
    if field.table:
        return tuple(map(float, format.codebook(field.table).numbers))
    half = 1 << field.signed - 1 if field.signed else field.levels
    return tuple(field.mul * (raw if raw < half else raw - 2 * half) + field.add for raw in range(field.levels))


def _folds(format: Format, codes: Field, activation: str) -> bool:
    """Whether integer scales are multiplied by the instructions; see FloatContract.folded."""
    coded = [term for term in format.terms if codes.name in term.factors]
    bare = [term for term in format.terms if codes.name not in term.factors]
    if len(coded) != 1 or len(bare) > 1:
        return False
    scales = scale_fields(format, coded[0], codes)
    if len(scales) != 1 or scales[0].per == format.block:
        return False
    if any(field.per != format.block for term in format.terms for field in float_fields(format, term)):
        return False
    numbers = whole_numbers(format, scales[0])
    reach = max(map(abs, whole_numbers(format, codes))) * max(map(abs, numbers))
    if reach > EXACT[activation] or any(number != int(number) for number in numbers):
        return False
    if not bare:
        return True
    minimums = scale_fields(format, bare[0], codes)
    if len(minimums) != 1 or minimums[0].per != scales[0].per or minimums[0].entries % RUN:
        return False
    numbers = whole_numbers(format, minimums[0])
    return all(number == int(number) and 0 <= number <= _LARGEST_MINIMUM for number in numbers)


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
