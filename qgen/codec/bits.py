"""Raw entries out of bytes and back: addresses come from the spec, nothing here knows what a code means.

A block's bytes are handed around as regions: {plane, "row" or "tensor": uint8[n, bytes of the region]}.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qgen.spec.records import DigitSegment, Field, Part

Bytes = NDArray[np.uint8]
Raw = NDArray[np.uint32]
Regions = Mapping[str, Bytes]


def read(field: Field, regions: Regions) -> Raw:
    """uint32[n, entries]: the bits (or digits) of every entry as stored."""
    if field.segments:
        return np.concatenate([_read_digits(field, segment, regions) for segment in field.segments], axis=1)
    pieces = [_read_bits(field, part, regions) << np.uint32(part.shl) for part in field.parts]
    raw = pieces[0]
    for piece in pieces[1:]:
        raw = raw | piece
    return raw


def write(field: Field, raw: Raw, regions: Regions) -> None:
    """Put `raw` (uint32[n, entries]) where `read` finds it. A digit field's unused digits become zero."""
    if field.segments:
        _write_digits(field, raw, regions)
    for part in field.parts:
        mask = np.uint32((1 << part.width) - 1)
        _write_bits(field, part, raw >> np.uint32(part.shl) & mask, regions)


def _bit_addresses(field: Field, part: Part) -> NDArray[np.int64]:
    """Bit address of the part for every entry of the field; entries share one where the part's `per` is larger."""
    entries = (entry * field.per // part.per for entry in range(field.entries))
    return np.array([part.address(entry) for entry in entries], dtype=np.int64)


def _read_bits(field: Field, part: Part, regions: Regions) -> Raw:
    data = regions[part.plane]
    address = _bit_addresses(field, part)
    byte, shift = address >> 3, address & 7
    touched = int((shift + part.width + 7 >> 3).max())
    if int(byte.max()) + touched > data.shape[1]:
        data = np.pad(data, ((0, 0), (0, touched)))
    word = data[:, byte].astype(np.uint64)
    for step in range(1, touched):
        word |= data[:, byte + step].astype(np.uint64) << np.uint64(8 * step)
    return (word >> shift.astype(np.uint64) & np.uint64((1 << part.width) - 1)).astype(np.uint32)


def _write_bits(field: Field, part: Part, piece: Raw, regions: Regions) -> None:
    data = regions[part.plane]
    for column, address in enumerate(_bit_addresses(field, part).tolist()):
        for bit in range(part.width):
            byte, place = divmod(address + bit, 8)
            value = (piece[:, column] >> np.uint32(bit) & np.uint32(1)).astype(np.uint8)
            data[:, byte] = data[:, byte] & np.uint8(~(1 << place) & 0xFF) | value << np.uint8(place)


def _digit_addresses(field: Field, segment: DigitSegment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(byte, index in the byte) of every entry of the segment."""
    assert field.digits is not None
    address = np.array([segment.address(entry) for entry in range(segment.entries)], dtype=np.int64)
    return address // field.digits, address % field.digits


def _read_digits(field: Field, segment: DigitSegment, regions: Regions) -> Raw:
    assert field.base is not None and field.digits is not None
    byte, index = _digit_addresses(field, segment)
    value = regions[segment.plane][:, byte].astype(np.uint32)
    if field.encoding == "fraction":
        # value/256 in base b: digit n is floor(value * b^(n+1) / 256) mod b.
        power = (field.base ** (index + 1)).astype(np.uint32)
        return (value * power >> np.uint32(8)) % np.uint32(field.base)
    power = (field.base ** (field.digits - 1 - index)).astype(np.uint32)
    return value // power % np.uint32(field.base)


def _write_digits(field: Field, raw: Raw, regions: Regions) -> None:
    assert field.base is not None and field.digits is not None
    totals: dict[tuple[str, int], Raw] = {}
    first = 0
    for segment in field.segments:
        for local, (byte, index) in enumerate(zip(*_digit_addresses(field, segment), strict=True)):
            place = (segment.plane, int(byte))
            digit = raw[:, first + local] * np.uint32(field.base ** (field.digits - 1 - int(index)))
            totals[place] = totals[place] + digit if place in totals else digit
        first += segment.entries
    scale = field.base**field.digits
    for (plane, byte), total in totals.items():
        if field.encoding == "fraction":
            # The least byte whose fraction begins with these digits: ceil(total * 256 / scale).
            total = (total * np.uint32(256) + np.uint32(scale - 1)) // np.uint32(scale)
        regions[plane][:, byte] = total.astype(np.uint8)
