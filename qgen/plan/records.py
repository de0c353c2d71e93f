"""The frozen records a plan is made of. A plan is complete: a template prints it and computes nothing.

Words used here: a *team* of `lanes` neighbouring threads shares one block of weights; each of its threads
(`t` = 0 .. lanes-1) reads its own 32-bit words of the block, and every word is decoded into *code words* of
four small integers, one a byte. A code word meets the four activation codes of the same elements in one
dp4a. Integer sums are kept per *group*: the elements that share one integer sub-block scale or one float step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaneInt:
    """An integer that depends on the thread's place `t` in its team: values[t]."""

    values: tuple[int, ...]

    @property
    def constant(self) -> int | None:
        """The common value, or None where it differs between threads."""
        return self.values[0] if len(set(self.values)) == 1 else None


@dataclass(frozen=True)
class LaneConstant:
    """A named per-thread constant, computed once before the loop: base + sum(factor * bits), bits of `t`."""

    name: str
    base: int
    terms: tuple[tuple[int, str], ...]  # (factor, C expression of t)


@dataclass(frozen=True)
class Words:
    """`count` neighbouring 32-bit words of the block, loaded into w[first:first+count]."""

    first: int
    count: int
    offsets: tuple[int, ...]  # bytes from the block's start, by thread
    at: str  # C text of that
    width: int  # bytes a load may take: 16, 8, 4, or 1 where the address has no alignment to count on


@dataclass(frozen=True)
class Atom:
    """One OR-ed piece of a code word: bits of w[word], either byte-strided (mask) or packed (spread)."""

    word: int
    way: str  # ">>" or "<<"
    shift: str  # a number or a lane constant
    mask: str  # of the bits after that shift
    left: int  # shift to the left behind mask or spreading; 0 where `shift` already moves them to where they land
    spread: int  # width of neighbouring fields to be spread to byte strides first, 0 where they have them
    apart: int  # bits from one such field to the next


@dataclass(frozen=True)
class Use:
    """One dp4a: code word number `code` of its decode step meets activation word `x`, sum into `group`."""

    code: int
    x: int
    group: int


@dataclass(frozen=True)
class Bits:
    """Code words cut out of loaded words by shift and mask; `flip` turns two's complement into offset codes."""

    kind = "bits"
    codes: tuple[tuple[Atom, ...], ...]
    flip: str
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Table:
    """Code words looked up in a 16-entry codebook held in four registers: halves of w[word], by right shift."""

    kind = "table"
    word: int
    shifts: tuple[str, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Digits:
    """Base-b digits of the four bytes of w[word]: code word n holds digit n of each byte (fraction encoding)."""

    kind = "digits"
    word: int
    base: int
    powers: tuple[int, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class ByteDigits:
    """The first four base-b digits of one byte, which make one code word."""

    kind = "byte_digits"
    at: str
    base: int
    pair_low: int  # b | b^2 << 16
    pair_high: int  # b^3 | b^4 << 16
    uses: tuple[Use, ...]


Step = Bits | Table | Digits | ByteDigits


@dataclass(frozen=True)
class ScalePiece:
    """Bits of one byte of the block that belong to an integer scale."""

    at: str
    shift: str
    mask: int
    left: int


@dataclass(frozen=True)
class IntScale:
    """The integer sub-block scale of one group: OR of pieces, then sign extension or an affine map."""

    name: str
    pieces: tuple[ScalePiece, ...]
    signed_byte: bool
    mul: int
    add: int


@dataclass(frozen=True)
class FloatScale:
    """A float factor of a term as stored in the block."""

    name: str
    reader: str  # device helper that turns the stored bits into float
    stored: str  # C type of the stored bits
    at: str


@dataclass(frozen=True)
class TermPlan:
    """One product of the value expression, summed over a unit: sign * product(floats) * dx * integer."""

    label: str
    negative: bool
    floats: tuple[tuple[FloatScale, ...], ...]  # per unit, in the order of the value expression
    scales: tuple[tuple[IntScale, ...], ...]  # per group; empty tuples where the term has no integer scale
    codes: bool  # the term multiplies the codes (otherwise the bare activation sums)


@dataclass(frozen=True)
class ActivationLayout:
    """How quantised activations lie in memory for one format: in the order its threads read them.

    A tile holds `tile_blocks` weight blocks (one warp's worth: tile_blocks * lanes = 32). Planes, in order:
    codes int8  [tile][chunk][thread of the warp][16]     chunk c of a thread holds its activation words 4c .. 4c+3
    scale f32   [block][scales]                           one per activation group of the block
    sums  int32 [block][lane][sum_slots]                  sum of the codes a lane meets, per group (if used)
    `words[t][j]` lists the four elements of activation word j of lane t; `block` stands for an empty slot.
    """

    name: str
    activation: str
    group: int
    block: int
    lanes: int
    tile_blocks: int
    chunks: int
    scales: int
    groups: int
    sum_slots: int
    group_words: tuple[int, ...]  # first activation word of each group, and the end
    words: tuple[tuple[tuple[int, int, int, int], ...], ...]

    def tiles(self, blocks: int) -> int:
        """Tiles needed for a row of `blocks` weight blocks."""
        return -(-blocks // self.tile_blocks)

    def scale_offset(self, blocks: int) -> int:
        """Byte offset of the scale plane for a row of `blocks` blocks."""
        return self.tiles(blocks) * self.chunks * 32 * 16

    def sums_offset(self, blocks: int) -> int:
        """Byte offset of the sums plane."""
        return self.scale_offset(blocks) + -(-self.tiles(blocks) * self.tile_blocks * self.scales * 4 // 16) * 16

    def bytes(self, blocks: int) -> int:
        """Bytes of the quantised activation of one token."""
        return self.sums_offset(blocks) + self.tiles(blocks) * 32 * self.sum_slots * 4


@dataclass(frozen=True)
class Contract:
    """The arithmetic contract: everything that decides the bits of a result.

    Block b of a row belongs to slice b mod `slices`. A slice starts at +0 and takes its blocks in increasing
    order, the units of a block in increasing order, the terms of the value in the order of the format file:
    slice = fma(coefficient, float(integer sum of the unit), slice), where coefficient = factor * dx rounded once per
    product, left to right. Slices are then added by halving: for h = slices/2, slices/4 .. 1, slice s < h takes s + h.
    Integer sums are exact, so their order is free.
    """

    activation: str
    unit: int
    slices: int
    terms: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short, stable name; equal names mean equal bits."""
        return f"{self.activation}_u{self.unit}_s{self.slices}"
