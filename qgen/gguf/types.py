"""GGUF tensor types by number: the plain ones with their sizes, and names for numbers that have no format file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TypeSize(NamedTuple):
    """What sizing a tensor needs: the type's name, its block in elements, the block's bytes."""

    name: str
    block: int
    bytes: int


# The types that are not quantised. Quantised ones are sized by their format files (`qgen.gguf.sizes_of`).
PLAIN_TYPES: Mapping[int, TypeSize] = {
    0: TypeSize(name="F32", block=1, bytes=4),
    1: TypeSize(name="F16", block=1, bytes=2),
    24: TypeSize(name="I8", block=1, bytes=1),
    25: TypeSize(name="I16", block=1, bytes=2),
    26: TypeSize(name="I32", block=1, bytes=4),
    27: TypeSize(name="I64", block=1, bytes=8),
    28: TypeSize(name="F64", block=1, bytes=8),
    30: TypeSize(name="BF16", block=1, bytes=2),
}

# Numbers that qgen has no format for and never sizes, for messages: activation formats, and numbers that ggml retired.
OTHER_TYPE_NAMES: Mapping[int, str] = {
    4: "Q4_2, retired",
    5: "Q4_3, retired",
    9: "Q8_1, an activation format",
    15: "Q8_K, an activation format",
    31: "Q4_0_4_4, retired",
    32: "Q4_0_4_8, retired",
    33: "Q4_0_8_8, retired",
    36: "IQ4_NL_4_4, retired",
    37: "IQ4_NL_4_8, retired",
    38: "IQ4_NL_8_8, retired",
}
