"""How the packed codes of a block are dealt to the threads of its team: every legal deal, cheapest chosen elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from qgen import layout
from qgen.plan.refuse import refuse
from qgen.spec import Field, Format

EMPTY = -1  # a byte of a code word that belongs to no element


@dataclass(frozen=True)
class Source:
    """The codes of the main part that share one word of each thread: offsets[t] and, by slot, their elements."""

    offsets: tuple[int, ...]
    slots: tuple[int, ...]  # bit shift inside the byte, or digit number
    elements: dict[tuple[int, int], tuple[int, ...]]  # (t, slot) -> four elements
    whole_byte: bool  # ByteDigits: one byte instead of a word


def main_slots(format: Format, codes: Field) -> dict[int, dict[int, int]]:
    """byte -> slot -> element, over the widest part of a bit field or the digits of a base-b field."""
    found: dict[int, dict[int, int]] = {}
    for element in range(format.block):
        if codes.base:
            digit = layout.digit(codes, element)
            found.setdefault(digit.byte, {})[digit.index] = element
            continue
        main = max(layout.pieces(codes, element), key=lambda p: p.width)
        byte, shift = divmod(main.bit, 8)
        if shift + main.width > 8:
            refuse(
                format,
                f"code of element {element} crosses a byte: bit {shift} + width {main.width} > 8",
                "codes whose widest part stays inside one byte",
            )
        found.setdefault(byte, {})[shift] = element
    return found


def regions(slots: dict[int, dict[int, int]]) -> list[list[int]]:
    """Maximal runs of neighbouring bytes that hold the same slots."""
    runs: list[list[int]] = []
    for byte in sorted(slots):
        if runs and byte == runs[-1][-1] + 1 and slots[byte].keys() == slots[byte - 1].keys():
            runs[-1].append(byte)
        else:
            runs.append([byte])
    return runs


def _assignments(words: int, lanes: int) -> Iterator[list[list[int]]]:
    """Ways to deal `words` neighbouring words to `lanes` threads: [t] -> word numbers. Blocked deals come first."""
    if lanes == 1:
        yield [list(range(words))]
        return
    each = words // lanes
    yield [list(range(t * each, (t + 1) * each)) for t in range(lanes)]
    if words & (words - 1) or lanes & (lanes - 1):
        return
    bits, need = words.bit_length() - 1, lanes.bit_length() - 1
    for chosen in itertools.combinations(reversed(range(bits)), need):  # chosen[0] is the highest bit of t
        deal: list[list[int]] = [[] for _ in range(lanes)]
        for word in range(words):
            t = 0
            for bit in chosen:
                t = t * 2 + (word >> bit & 1)
            deal[t].append(word)
        yield deal


def region_sources(
    format: Format, region: list[int], slots: dict[int, dict[int, int]], codes: Field, lanes: int
) -> list[list[Source]]:
    """Every way to share one region: each a list of sources."""
    keys = tuple(sorted(slots[region[0]]))
    if codes.base and keys == (0, 1, 2, 3) and len(region) % lanes == 0 and (len(region) // lanes) % 4:
        each = len(region) // lanes
        deal = [region[t * each : (t + 1) * each] for t in range(lanes)]
        return [
            [
                Source(
                    offsets=tuple(d[i] for d in deal),
                    slots=(0,),
                    whole_byte=True,
                    elements={(t, 0): tuple(slots[d[i]][n] for n in range(4)) for t, d in enumerate(deal)},
                )
                for i in range(each)
            ]
        ]
    words = -(-len(region) // 4)
    if words % lanes:
        refuse(
            format,
            f"bytes {region[0]}..{region[-1]} hold codes: {words} words do not divide over {lanes} threads",
            "code bytes that divide evenly over the threads of a team",
        )
    ways = []
    for assignment in _assignments(words, lanes):
        sources = []
        for i in range(words // lanes):
            offsets = tuple(region[0] + 4 * assignment[t][i] for t in range(lanes))
            elements = {
                (t, key): tuple(
                    slots[b][key] if b in slots and b <= region[-1] else EMPTY
                    for b in range(offsets[t], offsets[t] + 4)
                )
                for t in range(lanes)
                for key in keys
            }
            sources.append(Source(offsets=offsets, slots=keys, elements=elements, whole_byte=False))
        ways.append(sources)
    return ways
