"""What callers hand in, checked: block arrays, plane arrays, values from outside the block."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgen.codec.bits import Bytes
from qgen.codec.numbers import F32
from qgen.errors import QgenError
from qgen.spec.records import Field, Format

Blocks = NDArray[np.uint8] | Mapping[str, NDArray[np.uint8]]


def refused(format: Format, subject: str, found: str, allowed: str, next: str) -> QgenError:
    return QgenError(stage="codec", subject=f"{format.name}: {subject}", found=found, allowed=allowed, next=next)


def regions_of(format: Format, blocks: Blocks) -> dict[str, Bytes]:
    """The arrays of `blocks` by plane, each uint8[n, bytes of the plane], all of one n. Raises QgenError."""
    arrays = blocks if isinstance(blocks, Mapping) else {"block": blocks}
    wanted = [plane.name for plane in format.planes]
    if sorted(arrays) != sorted(wanted):
        found = f"planes {', '.join(sorted(arrays))}" if isinstance(blocks, Mapping) else "one array"
        shape = f"a dict of arrays {', '.join(wanted)}" if format.split else f"one uint8[n, {format.bytes}] array"
        raise refused(format, "blocks", found, shape, "pass what random_blocks or encode returns for this format")
    counts = set()
    for plane in format.planes:
        array = arrays[plane.name]
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.shape[1:] != (plane.bytes,):
            found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise refused(format, plane.name, found, f"uint8[n, {plane.bytes}]", "reshape the bytes to whole blocks")
        counts.add(len(array))
    if len(counts) > 1:
        raise refused(format, "blocks", f"{sorted(counts)} blocks", "as many in every plane", "pass matching planes")
    return {plane.name: arrays[plane.name] for plane in format.planes}


def whole_blocks(format: Format, planes: Mapping[str, Bytes]) -> Bytes:
    """The one array of a format without planes. Raises QgenError for a format with planes."""
    if format.split:
        names = ", ".join(plane.name for plane in format.planes)
        raise refused(format, "blocks", f"planes {names}", "formats of whole blocks", "call the function for planes")
    return planes["block"]


def outer_values(format: Format, outer: Mapping[str, ArrayLike], count: int) -> dict[str, F32]:
    """Numbers of the fields that live outside the block, each float32[count, 1]. Raises QgenError."""
    fields = {field.name: field for field in format.fields if field.scope != "block"}
    for name in outer:
        if name not in fields:
            allowed = ", ".join(fields) or "none: every field of this format lives in its block"
            raise refused(format, name, f"a value for {name}", allowed, "leave it out")
    values = {}
    for name, field in fields.items():
        if name not in outer:
            raise refused(
                format, name, "no value", _place(field), f"pass outer={{{name!r}: value}}, or use decode_matrix"
            )
        array = np.asarray(outer[name], dtype=np.float32)
        if array.shape not in ((), (1,), (count,), (count, 1)):
            raise refused(format, name, f"shape {array.shape}", f"one number, or {count} (one a block)", "reshape it")
        values[name] = np.broadcast_to(array.reshape(-1, 1), (count, 1))
    return values


def _place(field: Field) -> str:
    if field.scope == "sibling":
        return f"a number from the tensor called like this one with {field.suffix!r} appended"
    return f"a number from the {field.scope}'s metadata"
