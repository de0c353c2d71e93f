"""Fields -> blocks: the inverse of reading raw entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen.codec import bits, numbers
from qgen.codec.bits import Bytes, Raw
from qgen.codec.operands import refused, whole_blocks
from qgen.spec.records import Field, Format


def encode(format: Format, fields: Mapping[str, NDArray[Any]]) -> Bytes:
    """uint8[n, bytes]: the blocks of `encode_planes`, for formats without planes (QgenError for others)."""
    return whole_blocks(format, encode_planes(format, fields))


def encode_planes(format: Format, fields: Mapping[str, NDArray[Any]]) -> dict[str, Bytes]:
    """{plane: uint8[n, bytes of the plane]}: blocks of any format that hold the given entries.

    fields: every block field by name, [n, entries] (or [n] where there is one entry). Integers are raw codes as
    qgen.codec.raw reads them; for float-typed fields, floats are rounded to the nearest number of the type.

    Padding bits and unused digits are zero. Raises QgenError for a missing, unknown or misshapen field, a code out of
    range, or codes that must share bits but differ in them.
    """
    wanted = [field for field in format.fields if field.scope == "block"]
    names = ", ".join(field.name for field in wanted)
    for name in fields:
        if name not in {field.name for field in wanted}:
            raise refused(format, name, "no such block field", names, "leave it out")
    for field in wanted:
        if field.name not in fields:
            raise refused(format, field.name, "no entries", f"all of {names}", "give every field of the block")
    count = len(fields[wanted[0].name]) if fields[wanted[0].name].ndim else 0
    raws = {field.name: _raw(format, field, fields[field.name], count) for field in wanted}
    regions = {plane.name: np.zeros((count, plane.bytes), dtype=np.uint8) for plane in format.planes}
    for field in wanted:
        bits.write(field, raws[field.name], regions)
    for field in wanted:
        if not np.array_equal(bits.read(field, regions), raws[field.name]):
            shared = next((part.per for part in field.parts if part.per > field.per), field.per)
            raise refused(
                format,
                field.name,
                "codes that differ in bits they share",
                f"codes alike in the bits stored once for {shared} weights",
                "make the shared bits equal",
            )
    return regions


def _raw(format: Format, field: Field, values: NDArray[Any], count: int) -> Raw:
    array = values.reshape(-1, 1) if values.ndim == 1 and field.entries == 1 else values
    if array.shape != (count, field.entries):
        raise refused(format, field.name, f"shape {values.shape}", f"({count}, {field.entries})", "reshape the entries")
    if np.issubdtype(array.dtype, np.floating):
        if field.kind != "float" or field.type is None:
            raise refused(
                format, field.name, f"{array.dtype}", "integers: raw codes", "pass what qgen.codec.raw returns"
            )
        return numbers.raw_of_floats(field.type, np.ascontiguousarray(array, dtype=np.float32))
    if not np.issubdtype(array.dtype, np.integer):
        raise refused(format, field.name, f"{array.dtype}", "integers or floats", "convert the entries")
    wide = array.astype(np.int64)
    if wide.size and (wide.min() < 0 or wide.max() >= field.levels):
        found = f"codes from {wide.min()} to {wide.max()}"
        raise refused(format, field.name, found, f"raw codes 0 to {field.levels - 1}", "pass codes as they are stored")
    return wide.astype(np.uint32)
