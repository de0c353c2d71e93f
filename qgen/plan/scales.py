"""Integer sub-block scales four at a time: entries 4q .. 4q+3 of a block as the bytes of one word, per thread."""

from __future__ import annotations

from dataclasses import dataclass

from qgen import layout
from qgen.plan.lanes import Names
from qgen.plan.records import LaneInt
from qgen.plan.refuse import refuse
from qgen.spec import Field, Format


@dataclass(frozen=True)
class ScaleAtom:
    """One OR-ed piece of a scale word: the word at byte `at`, shifted right, masked or spread, shifted left."""

    at: str
    aligned: bool  # `at` is a multiple of 4 in a block aligned to 4
    shift: str
    mask: str
    left: int
    spread: int


@dataclass(frozen=True)
class ScaleWord:
    """Thread t of a quad makes the word of entries 4 (t mod words) ..; `signed` bytes, or unsigned ones."""

    name: str
    words: int
    atoms: tuple[ScaleAtom, ...]
    mul: int
    bias: str  # what is subtracted from every byte, in packed form; "" for nothing
    signed: bool


def plan_scale_word(format: Format, field: Field, names: Names) -> ScaleWord:
    """The packed form of an integer scale field. Raises QgenError (stage "plan") where it has none."""
    if field.entries % 4 or field.entries > 16:
        refuse(format, f"{field.entries} entries of scale {field.name}", "4, 8 or 16 a block")
    words = field.entries // 4
    if 4 % words:
        refuse(format, f"{words} words of scale {field.name} for 4 threads", "1, 2 or 4 words")
    width = max(p.width + p.shl for p in field.parts)
    if field.mul < 1 or field.add > 0 or (field.signed and field.mul != 1):
        refuse(
            format,
            f"scale {field.name} is times {field.mul:g} and adds {field.add:g}",
            "times 1 or more, minus 0 or more",
        )
    if field.signed == 8:
        low, high = -128, 127
    else:
        low, high = int(field.add), ((1 << width) - 1) * int(field.mul) + int(field.add)
    if low < -128 or high > (255 if low >= 0 else 127) or (field.signed or 8) != 8:
        refuse(format, f"scale {field.name} spans {low} .. {high}", "scales that fit a byte")
    atoms = []
    for part in range(len(field.parts)):
        offsets, shifts, kinds = [], [], set()
        for t in range(4):
            places = [layout.pieces(field, 4 * (t % words) + k)[part] for k in range(4)]
            first = places[0]
            if all(p.bit == first.bit + 8 * k for k, p in enumerate(places)):
                kinds.add(0)
            elif all(p.bit == first.bit + first.width * k for k, p in enumerate(places)):
                kinds.add(first.width)
            else:
                refuse(
                    format,
                    f"scale {field.name}: entries {4 * (t % words)} .. lie scattered",
                    "entries 8 bits or one width apart",
                )
            offsets.append(first.bit // 8)
            shifts.append(first.bit % 8)
        if len(kinds) != 1:
            refuse(format, f"scale {field.name} is packed in two ways", "one packing a part")
        spread = kinds.pop()
        first = layout.pieces(field, 0)[part]
        atoms.append(
            ScaleAtom(
                at=names.at(LaneInt(tuple(offsets))),
                aligned=names.aligned(LaneInt(tuple(offsets)), 4),
                shift=names.text(LaneInt(tuple(shifts))),
                mask="" if first.width == 8 else f"0x{((1 << first.width) - 1) * 0x01010101:08x}u",
                left=first.shl,
                spread=spread,
            )
        )
    bias = -int(field.add)
    if bias and high + bias > 127:  # the top bit of each byte keeps the subtraction from borrowing of the next
        refuse(
            format,
            f"scale {field.name} is {bias} below codes up to {high + bias}",
            "offset scales with codes up to 127",
        )
    return ScaleWord(
        name=field.name,
        words=words,
        atoms=tuple(atoms),
        mul=int(field.mul),
        bias=f"0x{bias * 0x01010101:08x}u" if bias else "",
        signed=low < 0,
    )
