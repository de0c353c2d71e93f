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
    slots: tuple[tuple[int, ...], ...]  # [i][t]: bit shift inside the byte, digit number, or half of a codebook word
    elements: tuple[tuple[tuple[int, ...], ...], ...]  # [i][t]: the four elements of slot i
    whole_byte: bool  # one byte whose leading digits make one code word, instead of a word


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


def regions(slots: dict[int, dict[int, int]], *, straight: bool = False) -> list[list[int]]:
    """Maximal runs of neighbouring bytes that hold the same slots; with `straight`, of neighbouring elements too."""
    runs: list[list[int]] = []
    for byte in sorted(slots):
        follows = (
            bool(runs)
            and byte == runs[-1][-1] + 1
            and slots[byte].keys() == slots[byte - 1].keys()
            and not (straight and any(e != slots[byte - 1][s] + 1 for s, e in slots[byte].items()))
        )
        if follows:
            runs[-1].append(byte)
        else:
            runs.append([byte])
    return runs


# A deal says what each thread takes: [t] -> (word numbers, slot numbers); every word comes with every slot named.
Deal = list[tuple[list[int], list[int]]]


def _deals(words: int, slots: int, lanes: int, uniform: bool) -> Iterator[Deal]:
    """Ways to deal `words` neighbouring words of `slots` code words each to `lanes` threads. Blocked deals come first.

    With `uniform`, slots may be dealt too: the threads that meet in one tensor-core instruction must hold codes of
    one group, which for small groups means sharing a word.
    """
    every = list(range(slots))
    if lanes == 1:
        yield [(list(range(words)), every)]
        return
    if words % lanes == 0:
        each = words // lanes
        yield [(list(range(t * each, (t + 1) * each)), every) for t in range(lanes)]
    if lanes & (lanes - 1):
        return
    word_bits = [("word", b) for b in reversed(range(words.bit_length() - 1))] if not words & (words - 1) else []
    slot_bits = [("slot", b) for b in reversed(range(slots.bit_length() - 1))] if not slots & (slots - 1) else []
    pool = word_bits + (slot_bits if uniform else [])
    for chosen in itertools.combinations(pool, lanes.bit_length() - 1):  # chosen[0] is the highest bit of t
        deal: Deal = []
        for t in range(lanes):
            taken: dict[str, list[int]] = {"word": list(range(words)), "slot": every}
            for place, (kind, bit) in enumerate(reversed(chosen)):
                taken[kind] = [i for i in taken[kind] if (i >> bit & 1) == (t >> place & 1)]
            deal.append((taken["word"], taken["slot"]))
        yield deal


def region_sources(
    format: Format, region: list[int], slots: dict[int, dict[int, int]], codes: Field, lanes: int, *, uniform: bool
) -> list[list[Source]]:
    """Every way to share one region: each a list of sources."""
    keys = tuple(sorted(slots[region[0]]))
    each = -(-len(region) // lanes)
    if codes.base and keys == (0, 1, 2, 3) and each % 4 and (len(region) % lanes == 0 or uniform):
        return [[_byte_source(region, slots, lanes, each, i) for i in range(each)]]
    words = -(-len(region) // 4)

    def elements(offset: int, key: int) -> tuple[int, ...]:
        if codes.table:  # a half of a codebook word holds both nibbles of two bytes
            return tuple(slots[offset + 2 * key + k // 2][4 * (k % 2)] for k in range(4))
        return tuple(slots[b][key] if region[0] <= b <= region[-1] else EMPTY for b in range(offset, offset + 4))

    choices = (0, 1) if codes.table else keys
    ways = []
    for deal in _deals(words, len(choices), lanes, uniform):
        sources = []
        for i in range(len(deal[0][0])):
            offsets = tuple(region[0] + 4 * taken[i] for taken, _ in deal)
            dealt = tuple(tuple(choices[mine[j]] for _, mine in deal) for j in range(len(deal[0][1])))
            found = tuple(tuple(elements(offsets[t], row[t]) for t in range(lanes)) for row in dealt)
            sources.append(Source(offsets=offsets, slots=dealt, elements=found, whole_byte=False))
        ways.append(sources)
    if uniform and words % lanes and each < 4 and not codes.table and len(region) % lanes == 0:
        ways.append([_ragged_source(region, slots, choices, lanes, each)])
    if not ways:
        refuse(
            format,
            f"bytes {region[0]}..{region[-1]} hold codes: {words} words do not divide over {lanes} threads",
            "code bytes that divide evenly over the threads of a team",
        )
    return ways


def _byte_source(region: list[int], slots: dict[int, dict[int, int]], lanes: int, each: int, i: int) -> Source:
    """Byte i of every thread's share, as one code word of its four digits; threads without a byte get none."""
    places = [t * each + i for t in range(lanes)]
    bytes_ = [region[p] if p < len(region) else None for p in places]
    return Source(
        # A thread without a byte decodes the one of the thread `len(region)` places before: its activations are 0.
        offsets=tuple(region[p % len(region)] for p in places),
        slots=((0,) * lanes,),
        elements=(tuple(tuple(slots[b][n] for n in range(4)) if b is not None else (EMPTY,) * 4 for b in bytes_),),
        whole_byte=True,
    )


def _ragged_source(
    region: list[int], slots: dict[int, dict[int, int]], keys: tuple[int, ...], lanes: int, each: int
) -> Source:
    """A word of which only the first `each` bytes are this thread's; the others meet activations of 0."""
    offsets = tuple(region[t * each] for t in range(lanes))
    found = tuple(
        tuple(tuple(slots[o + k][key] if k < each else EMPTY for k in range(4)) for o in offsets) for key in keys
    )
    return Source(offsets=offsets, slots=tuple((k,) * lanes for k in keys), elements=found, whole_byte=False)
