"""How stored integers, codes and their scales, become numbers of an activation class: every step of it is exact."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from qgen.plan.float_contract import EXACT
from qgen.plan.refuse import refuse
from qgen.plan.terms import code_offset
from qgen.spec import Field, Format

# What a byte under the class's high byte counts from.
_ORIGIN = {"f16": 1024, "bf16": 128}
_FLIP = "0x80808080u"


@dataclass(frozen=True)
class Convert:
    """How four stored integers, one a byte, become numbers of the class; every step is exact.

    flip:   what is XOR-ed to the word first, "" for nothing
    signed: bytes are two's complement and taken apart (bf16); otherwise they are counted from 0
    steps:  fused multiply-adds behind that, as packed pairs (factor, summand)
    alone:  the summand as a number, where all that is left to do is to add it
    """

    flip: str
    signed: bool
    steps: tuple[tuple[str, str], ...]
    alone: int | None


@dataclass(frozen=True)
class Fold:
    """How a code and its integer scale become their product.

    scale:   how the bytes of a scale word become numbers of the class
    summand: a packed pair: its product with the scale is what one fused multiply-add takes besides the widened code
             and the scale; "" where the class does not hold all such products, so that codes become numbers first
    """

    scale: Convert
    summand: str


def convert_codes(
    format: Format, codes: Field, activation: str, table: tuple[int, ...]
) -> tuple[Convert, tuple[int, ...]]:
    """How codes become numbers, and the codebook as it is stored. Refuses codes that the class rounds."""
    origin = _ORIGIN[activation]
    if codes.table:
        # The codebook is stored so that it begins at 0, where its span allows.
        base = -min(table)
        signed, mul, add = max(table) + base > origin - 1, 1, -base
        table = table if signed else tuple(v + base for v in table)
        low, high = (min(table), max(table)) if signed else (0, max(table))
        add = 0 if signed else add
    else:
        signed, mul, add = codes.width == 8, int(codes.mul), code_offset(codes)
        low, high = (-128, 127) if signed else (0, codes.levels - 1)
    reach, exact = max(abs(mul * low + add), abs(mul * high + add)), EXACT[activation]
    if reach > exact:
        refuse(format, f"codes that mean up to {reach}", f"at most {exact}, up to which {activation} is exact")
    return _convert(activation, signed, mul, add), table


def plan_fold(activation: str, scales: tuple[float, ...], convert: Convert) -> Fold:
    """scales: all numbers that a scale can be, of the bytes of its scale word; convert: that of its codes."""
    if min(scales) < 0:
        scale = _convert(activation, True, 1, 0)
    elif max(scales) < _ORIGIN[activation]:
        scale = _convert(activation, False, 1, 0)
    else:  # bf16 has no room for bytes beyond 127: as two's complement they are 128 less
        scale = Convert(_FLIP, True, ((_bits(activation, 1), _bits(activation, 128)),), 128)
    add = convert.alone
    fused = add is not None and not convert.signed and all(_held(activation, add * int(s)) for s in scales)
    return Fold(scale, _bits(activation, add) if fused and add is not None else "")


def _convert(activation: str, signed: bool, mul: int, add: int) -> Convert:
    """Of bytes in two's complement, or counted from 0, that mean mul * byte + add."""
    origin = _ORIGIN[activation]
    flip, apart = "", signed and activation == "bf16"
    if signed and not apart:  # bytes counted from -128
        flip, add = _FLIP, add - 128 * mul
    one = _bits(activation, 1)
    steps: tuple[tuple[str, str], ...]
    if apart:
        steps = () if (mul, add) == (1, 0) else ((_bits(activation, mul), _bits(activation, add)),)
        return Convert(flip, apart, steps, add if mul == 1 else None)
    if mul == 1:
        return Convert(flip, apart, ((one, _bits(activation, add - origin)),), add - origin)
    steps = ((one, _bits(activation, -origin)), (_bits(activation, mul), _bits(activation, add)))
    return Convert(flip, apart, steps, None)


def _held(activation: str, value: int) -> bool:
    """Whether the class holds a whole number exactly."""
    size = abs(value)
    digits = (size // (size & -size)).bit_length() if size else 0
    return digits <= EXACT[activation].bit_length() - 1 and (activation != "f16" or size < 1 << 16)


def _bits(activation: str, value: int) -> str:
    """A pair of the same number, as the text of a register."""
    if activation == "f16":
        bits = int.from_bytes(struct.pack("<e", value), "little")
    else:
        bits = int.from_bytes(struct.pack("<f", value), "little") >> 16
    return f"0x{bits * 0x10001:08x}u"
