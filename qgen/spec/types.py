"""The types a field's bits can have besides plain codes: widths and meanings. Decoding itself is `qgen.codec`'s."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldType:
    """One entry of the type table.

    width: bits of one entry
    kind:  "float" (the bits are a number with its own exponent) or "sign" (the bits say which weights are negated)
    lanes: consecutive weights that one entry serves separately (8 for sign7, else 1)
    doc:   the decoding rule, special cases included
    """

    width: int
    kind: str
    lanes: int
    doc: str


TYPES: dict[str, FieldType] = {
    "f16": FieldType(16, "float", 1, "IEEE binary16"),
    "bf16": FieldType(16, "float", 1, "bfloat16: the upper half of a binary32"),
    "f32": FieldType(32, "float", 1, "IEEE binary32"),
    "e8m0": FieldType(8, "float", 1, "2^(e-127); e = 255 is NaN (OCP MX)"),
    "e8m0_half": FieldType(8, "float", 1, "2^(e-128), for every e: e = 255 gives 2^127, as ggml decodes it"),
    "ue4m3": FieldType(
        8,
        "float",
        1,
        "e = bits 3..6, m = bits 0..2, bit 7 ignored: e = 0 gives m*2^-9, else (1+m/8)*2^(e-7); the byte 0x7F gives 0",
    ),
    "ue4m3_half": FieldType(8, "float", 1, "half of ue4m3"),
    "e4m3": FieldType(8, "float", 1, "OCP E4M3: bit 7 is the sign, the rest as ue4m3, but 0x7F and 0xFF are NaN"),
    "sign": FieldType(1, "sign", 1, "one bit: 0 gives +1, 1 gives -1"),
    "sign7": FieldType(
        7,
        "sign",
        8,
        "seven bits serve 8 weights: bit j set gives -1 for weight j; the eighth weight takes the parity of the seven",
    ),
}


def names_of(kind: str) -> tuple[str, ...]:
    """The type names of one kind, in table order."""
    return tuple(name for name, entry in TYPES.items() if entry.kind == kind)
