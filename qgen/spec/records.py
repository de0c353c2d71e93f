"""The frozen records a spec file becomes. They hold what the file says plus what follows from it; nothing mutates them.

Addresses are little-endian throughout: bit `b` of a region is bit `b % 8` of its byte `b // 8`.
A region is a plane of the block ("block" for array-of-struct formats), or "row" (the bytes in front of every row's
blocks), or "tensor" (the bytes behind the last row).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from qgen.spec.expr import Expression
from qgen.spec.expr import Term as Term  # a record too, for those who look for it here
from qgen.spec.types import TYPES

ROW, TENSOR = "row", "tensor"


def _largest_power_of_two(value: int) -> int:
    return value & -value


def mixed_radix(index: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Sum of digit_j * stride_j, where the digits are `index` written in the mixed radix `shape`, first fastest."""
    address = 0
    for extent, step in zip(shape, stride, strict=True):
        index, digit = divmod(index, extent)
        address += digit * step
    return address


@dataclass(frozen=True)
class Plane:
    """One region of the block: `bytes` per block, contiguous over the blocks of the tensor."""

    name: str
    bytes: int

    @property
    def alignment(self) -> int:
        """Byte alignment that holds for every block: the largest power of two <= 16 dividing the block's bytes."""
        return min(16, _largest_power_of_two(self.bytes))


@dataclass(frozen=True)
class Part:
    """`width` bits of every entry, found at bit address `bit` + mixed_radix(entry); they land at code bit `shl`.

    bit:    absolute bit address of entry 0 inside the region `plane` (8*at + bit of the file)
    shape:  mixed radix of the entry index, first digit fastest; empty for a single entry
    stride: bits per step of each digit; may be negative, may cross byte borders
    per:    weights that share one entry of this part; a multiple of the field's own `per`
    """

    plane: str
    bit: int
    width: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    shl: int
    per: int

    @property
    def entries(self) -> int:
        return prod(self.shape)

    def address(self, entry: int) -> int:
        """Bit address of this part's entry (its own entries: `per` weights each)."""
        return self.bit + mixed_radix(entry, self.shape, self.stride)


@dataclass(frozen=True)
class DigitSegment:
    """A run of entries stored as base-b digits; `digit` and `stride` count digits: address = digits * byte + index.

    index 0 is the first, most significant digit of its byte. `repeat` of the file is already unrolled.
    """

    plane: str
    digit: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def entries(self) -> int:
        return prod(self.shape)

    def address(self, entry: int) -> int:
        """Digit address of this segment's entry."""
        return self.digit + mixed_radix(entry, self.shape, self.stride)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Bits the file declares to carry nothing: `width` bits from bit address `bit` of region `plane`."""

    plane: str
    bit: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """A table of numbers a code indexes.

    lanes:  weights served by one index: 1 for a scalar table, 4 or 8 for a grid
    type:   "int8" or "f32"
    values: one number per index, or for a grid one tuple of `lanes` numbers per index
    """

    name: str
    type: str
    lanes: int
    values: tuple[int | float, ...] | tuple[tuple[int | float, ...], ...]
    doc: str

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """All numbers in order, the vectors of a grid one after the other."""
        flat: list[int | float] = []
        for value in self.values:
            flat.extend(value if isinstance(value, tuple) else (value,))
        return tuple(flat)

    @property
    def integral(self) -> bool:
        """Whether every number is an integer."""
        return all(number == int(number) for number in self.numbers)


@dataclass(frozen=True, kw_only=True)
class Activation:
    """How x is handed to the dot product.

    kind:     "integer" (quantised per group) or "float" (rounded to `type`)
    group:    consecutive x that share a scale (integer kind), else None
    bits:     bits of one code or number
    scale:    type of the group's scale (integer kind), else None
    rounding: "nearest_even"
    type:     "int8", "bf16", ...
    """

    name: str
    kind: str
    type: str
    bits: int
    group: int | None
    scale: str | None
    rounding: str
    doc: str


@dataclass(frozen=True, kw_only=True)
class Field:
    """One named quantity of a block.

    per:      consecutive weights that share one entry
    entries:  block // per (1 for row, tensor and sibling scope)
    type:     None for plain codes, or a name of qgen.spec.types.TYPES
    signed:   None, or the width of a two's complement code
    mul, add: a code means mul*code + add
    table:    codebook name (one number per code), or None
    grid:     codebook name (one vector per code), or None
    lanes:    weights an entry serves separately: the grid's width, 8 for sign7, else 1 (the entry serves all alike)
    width:    bits of one entry's code; 0 for digits
    parts:    bit fields OR-ed into the code; empty for digits and siblings
    segments: digit runs, concatenated over the entry index; with base, digits (per byte) and encoding
    encoding: "fraction" (byte/256 written in base b) or "positional" (the byte itself, most significant digit first)
    scope:    "block", "row", "tensor", or "sibling" (another tensor, named this one's name + suffix)
    """

    name: str
    per: int
    entries: int
    type: str | None
    signed: int | None
    mul: float
    add: float
    table: str | None
    grid: str | None
    lanes: int
    width: int
    parts: tuple[Part, ...]
    segments: tuple[DigitSegment, ...]
    base: int | None
    digits: int | None
    encoding: str | None
    scope: str
    suffix: str | None
    doc: str

    @property
    def kind(self) -> str:
        """How an entry becomes a number: "code", "table", "grid", "float" or "sign"."""
        if self.type is not None:
            return TYPES[self.type].kind
        return "table" if self.table else "grid" if self.grid else "code"

    @property
    def levels(self) -> int:
        """How many different raw codes an entry can hold."""
        return self.base if self.base is not None else 1 << self.width

    @property
    def per_weight(self) -> bool:
        """Whether neighbouring weights get separate numbers from this field."""
        return self.per == max(1, self.lanes)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A weight format: everything its file says, resolved and checked.

    id:           GGUF tensor type number, or None
    block:        weights that share one record
    planes:       regions of the block in file order; one plane "block" for array-of-struct formats
    plane_align:  bytes each plane of a tensor is aligned to (planes only; 1 otherwise)
    k_pad:        columns of a row are padded to a multiple of this (`block` unless declared)
    row_bytes:    metadata bytes in front of every row's blocks
    tensor_bytes: metadata bytes behind the last row
    value:        the expression as written; `expression` its tree, in the association the decoder keeps;
                  `terms` the same as a sum of products, in source order
    activation:   name of the activation its dot product takes, or None
    codebooks:    the codebooks its fields name
    """

    name: str
    id: int | None
    block: int
    planes: tuple[Plane, ...]
    plane_align: int
    k_pad: int
    row_bytes: int
    tensor_bytes: int
    padding: tuple[Padding, ...]
    fields: tuple[Field, ...]
    value: str
    expression: Expression
    terms: tuple[Term, ...]
    activation: str | None
    codebooks: tuple[Codebook, ...]
    doc: str
    source: str

    @property
    def bytes(self) -> int:
        """Bytes of one block over all planes (row and tensor metadata not counted)."""
        return sum(plane.bytes for plane in self.planes)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes / self.block

    @property
    def alignment(self) -> int:
        """Byte alignment native storage guarantees for every block: a power of two <= 16 (the worst plane's)."""
        aligned = min(plane.alignment for plane in self.planes)
        return min(aligned, _largest_power_of_two(self.row_bytes)) if self.row_bytes else aligned

    @property
    def split(self) -> bool:
        """Whether a tensor is stored as separate planes instead of whole blocks."""
        return self.planes[0].name != "block"

    def field(self, name: str) -> Field:
        """The field called `name`; KeyError when the format has none."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name} has no field {name!r}; it has {', '.join(f.name for f in self.fields)}")

    def codebook(self, name: str) -> Codebook:
        """The codebook called `name`; KeyError when no field names it."""
        for codebook in self.codebooks:
            if codebook.name == name:
                return codebook
        raise KeyError(f"{self.name} uses no codebook {name!r}")

    def region_bytes(self, region: str) -> int:
        """Bytes of a plane, of the "row" metadata or of the "tensor" metadata."""
        if region == ROW:
            return self.row_bytes
        if region == TENSOR:
            return self.tensor_bytes
        return next(plane.bytes for plane in self.planes if plane.name == region)
