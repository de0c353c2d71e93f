"""The bit ledger: every bit of every region is read exactly once, or declared to be padding."""

from __future__ import annotations

from typing import NoReturn

from qgen.errors import QgenError
from qgen.spec.records import ROW, TENSOR, Field, Format

_MAX_BITS = 1 << 20  # a block of 128 KiB; a bigger one is a slip of the pen


class _Ledger:
    """For each region: bit address -> who reads it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.regions: dict[str, dict[int, str]] = {}

    def refuse(self, key: str, found: str, allowed: str) -> NoReturn:
        raise QgenError(
            stage="spec",
            subject=f"{self.file}: {key}" if key else self.file,
            found=found,
            allowed=allowed,
            next="correct the address (at, bit, width, shape, stride) or declare [[padding]]; see specs/README.md",
        )

    def claim(self, key: str, reader: str, region: str, first: int, width: int) -> None:
        if first < 0:
            self.refuse(key, f"{reader} is at bit {first}: before {region} begins", "addresses >= 0")
        if first + width > _MAX_BITS:
            self.refuse(key, f"{reader} is at byte {first // 8}", f"at most {_MAX_BITS // 8} bytes in a block")
        bits = self.regions.setdefault(region, {})
        for bit in range(first, first + width):
            if bit in bits:
                place = f"bit {bit % 8} of byte {bit // 8} of {region}"
                self.refuse(key, f"{place} is read twice: by {bits[bit]} and by {reader}", "every bit read once")
            bits[bit] = reader

    def claim_digits(self, key: str, field: Field) -> None:
        """The digits of a byte share its bits: the byte is claimed once, and each of its digits may be read once."""
        assert field.digits is not None
        readers: dict[tuple[str, int], int] = {}
        claimed: set[tuple[str, int]] = set()
        entry = 0
        for segment in field.segments:
            for local in range(segment.entries):
                address = segment.address(local)
                byte, index = divmod(address, field.digits)
                earlier = readers.setdefault((segment.plane, address), entry)
                if earlier != entry:
                    place = f"digit {index} of byte {byte} of {segment.plane}"
                    both = f"by {field.name}[{earlier}] and by {field.name}[{entry}]"
                    self.refuse(key, f"{place} is read twice: {both}", "every digit read once")
                if (segment.plane, byte) not in claimed:
                    claimed.add((segment.plane, byte))
                    self.claim(key, f"{field.name}[{entry}]", segment.plane, 8 * byte, 8)
                entry += 1


def _ledger(format: Format, file: str) -> _Ledger:
    ledger = _Ledger(file)
    for field in format.fields:
        key = f"fields.{field.name}"
        for index, part in enumerate(field.parts):
            label = f"part {index} of " if len(field.parts) > 1 else ""
            for entry in range(part.entries):
                ledger.claim(key, f"{label}{field.name}[{entry}]", part.plane, part.address(entry), part.width)
        if field.segments:
            ledger.claim_digits(key, field)
    for index, pad in enumerate(format.padding):
        ledger.claim(f"padding[{index}]", f"padding[{index}]", pad.plane, pad.bit, pad.width)
    return ledger


def extents(format: Format, *, file: str) -> dict[str, int]:
    """Bytes of each region, up to its last bit that is read or padding. Raises QgenError on overlap."""
    return {region: max(bits) // 8 + 1 for region, bits in _ledger(format, file).regions.items()}


def check(format: Format, *, file: str | None = None) -> None:
    """Refuse (QgenError) a format in which a bit or digit is read twice, a bit is never read, or one lies outside.

    file: named in the error; the format's name by default.
    """
    ledger = _ledger(format, file or format.name)
    for region in (*(plane.name for plane in format.planes), ROW, TENSOR):
        bits, size = ledger.regions.get(region, {}), format.region_bytes(region)
        beyond = next((bit for bit in bits if bit >= 8 * size), None)
        if beyond is not None:
            ledger.refuse("", f"{bits[beyond]} reads byte {beyond // 8} of {region}", f"bytes 0 to {size - 1}")
        free = next((bit for bit in range(8 * size) if bit not in bits), None)
        if free is not None:
            place = f"bit {free % 8} of byte {free // 8} of {region}"
            ledger.refuse(
                "",
                f"{place} is never read: {len(bits)} of 8*{size} = {8 * size} bits are",
                "every bit read once, or declared as [[padding]]",
            )
