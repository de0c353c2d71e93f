"""How a team of threads shares one block: which words each thread loads, and how they become code words.

Everything here is derived from the exact bit map of a format (qgen.layout). The result is one straight-line
program for all threads of a team; only byte offsets and shifts may differ between threads (LaneInt).
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

from qgen import layout
from qgen.errors import QgenError
from qgen.plan.records import Atom, Bits, ByteDigits, Digits, LaneConstant, LaneInt, Step, Table, Use, Words
from qgen.plan.refuse import refuse
from qgen.plan.share import EMPTY, Source, main_slots, region_sources, regions
from qgen.spec import Field, Format


@dataclass(frozen=True)
class CodeWord:
    """Four neighbouring codes of each thread: elements[t] has four element numbers (EMPTY where none)."""

    elements: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LaneProgram:
    """Loads, decode steps and the code words they make, in the order the activation words are numbered."""

    loads: tuple[Words, ...]
    steps: tuple[Step, ...]
    code_words: tuple[CodeWord, ...]  # by activation word number
    group_words: tuple[int, ...]
    lane_groups: tuple[tuple[int, ...], ...]  # [t] -> the groups of the block this thread meets
    word_count: int


def block_byte(offset: int) -> str:
    """C text of a byte offset from the start of the staged memory that is the same for all threads."""
    return f"b + {offset}" if offset else "b"


class Names:
    """Lane constants by value: the same per-thread integer gets the same name."""

    def __init__(self, format: Format, lanes: int) -> None:
        self.format = format
        self.lanes = lanes
        self.constants: dict[tuple[int, ...], LaneConstant] = {}
        self.origins: dict[tuple[int, ...], LaneConstant] = {}

    def at(self, offset: LaneInt) -> str:
        """C text of a byte offset from the start of the staged memory, where the block starts at `b`.

        Offsets that differ by a number share their origin, which the number is then added to, as loads can.
        """
        base = offset.values[0]
        if offset.constant is not None:
            return block_byte(base)
        slope = tuple(v - base for v in offset.values)
        if slope not in self.origins:
            self.origins[slope] = self._linear(LaneInt(slope), f"from{len(self.origins)}")
        name = self.origins[slope].name
        return f"{name} + {base}" if base else name

    def aligned(self, offset: LaneInt, size: int) -> bool:
        """Whether every thread's byte offset is a multiple of `size` where the block lies."""
        return size <= self.format.alignment and all(v % size == 0 for v in offset.values)

    def follows(self, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
        """Whether the words at `second` lie right behind those at `first`, byte offsets by thread."""
        return second == tuple(v + 4 for v in first)

    def text(self, value: LaneInt) -> str:
        """C text of `value`: a number, or the name of a lane constant."""
        if value.constant is not None:
            return str(value.constant)
        if value.values not in self.constants:
            self.constants[value.values] = self._linear(value, f"lane{len(self.constants)}")
        return self.constants[value.values].name

    def _linear(self, value: LaneInt, name: str) -> LaneConstant:
        base = value.values[0]
        bits = [1 << i for i in range(self.lanes.bit_length() - 1)]
        factors = [value.values[b] - base for b in bits]
        for t, v in enumerate(value.values):
            if v != base + sum(f for b, f in zip(bits, factors, strict=True) if t & b):
                refuse(self.format, f"offsets {value.values} by thread", "offsets linear in the bits of the thread")
        if all(f == factors[0] * b for b, f in zip(bits, factors, strict=True)):
            return LaneConstant(name=name, base=base, terms=((factors[0], "t"),))
        terms = tuple((f, f"(t >> {i} & 1)") for i, f in enumerate(factors) if f)
        return LaneConstant(name=name, base=base, terms=terms)


class _Registers:
    """Words wanted by the steps, as offsets per thread; numbered once all are known."""

    def __init__(self) -> None:
        self.wanted: set[tuple[int, ...]] = set()

    def want(self, offsets: tuple[int, ...]) -> tuple[int, ...]:
        self.wanted.add(offsets)
        return offsets

    def numbers(self) -> dict[tuple[int, ...], int]:
        return {offsets: i for i, offsets in enumerate(sorted(self.wanted))}


def code_flip(codes: Field) -> int:
    """The bit to flip in every code so that a dp4a, whose operands are int8, takes it: see code_offset.

    Narrow two's complement becomes unsigned, and an unsigned byte two's complement. 0 where nothing is to do.
    """
    if codes.table or codes.base or codes.signed == 8:
        return 0
    return 1 << (codes.signed - 1) if codes.signed else 128 if codes.width == 8 else 0


def _extra_atom(
    format: Format, codes: Field, part: int, words: tuple[tuple[int, ...], ...], registers: _Registers
) -> tuple[tuple[int, ...], tuple[int, ...], int, int, int]:
    """Where part number `part` of four codes lies: (word offsets, shifts, width, left, 0 mask | bits apart)."""
    offsets, shifts, modes = [], [], set()
    width = left = 0
    for elements in words:
        if all(e == EMPTY for e in elements):
            refuse(format, "a thread without codes of its own", "codes for every thread")
        places = [(k, layout.pieces(codes, e)[part]) for k, e in enumerate(elements) if e != EMPTY]
        k0, first = places[0]
        width, left = first.width, first.shl
        if all(p.bit == first.bit + 8 * (k - k0) for k, p in places):
            modes.add(0)
            start = first.bit - 8 * k0
            offsets.append(start // 8)
            shifts.append(start % 8)
        elif (apart := _apart(places)) and width <= apart <= 4:
            modes.add(apart)
            start = first.bit - apart * k0
            base = 8 * _first_byte(format, codes, part)
            word = (start - base) // 32
            offsets.append(base // 8 + 4 * word)
            shifts.append(start - base - 32 * word)
            if shifts[-1] + 3 * apart + width > 32:
                refuse(format, f"part {part} of a code word crosses a 32-bit word", "packed parts of at most 8 bits")
        else:
            refuse(
                format,
                f"part {part} of elements {elements} is neither byte-strided nor packed",
                "parts whose neighbours lie 8 bits, or one width to 4 bits, apart",
            )
    if len(modes) != 1:
        refuse(format, f"part {part} is packed differently for different threads", "one packing a part")
    return registers.want(tuple(offsets)), tuple(shifts), width, left, modes.pop()


@functools.cache
def _first_byte(format: Format, codes: Field, part: int) -> int:
    """The first byte of the block that holds bits of part number `part` of any code."""
    return min(layout.pieces(codes, e)[part].bit for e in range(format.block)) // 8


def _apart(places: list[tuple[int, layout.Piece]]) -> int:
    """The equal distance in bits of neighbouring pieces, numbered; 0 where there is none."""
    k0, first = places[0]
    if len(places) == 1:
        return first.width
    apart, rest = divmod(places[1][1].bit - first.bit, places[1][0] - k0)
    return 0 if rest or any(p.bit != first.bit + apart * (k - k0) for k, p in places) else apart


@functools.cache
def _cheapest(
    format: Format, codes: Field, lanes: int, group: int, uniform: bool
) -> tuple[list[Source], list[list[int]], _Registers]:
    """How plan_lanes shares the block, the groups each thread meets, and the words its steps want.

    It is kept, for many families ask for the same.
    """
    slots = main_slots(format, codes)
    try:
        ways = [region_sources(format, region, slots, codes, lanes, uniform=uniform) for region in regions(slots)]
    except QgenError:
        if not uniform:
            raise
        # Segments that lie side by side may need to be shared one by one.
        straight = regions(slots, straight=True)
        ways = [region_sources(format, region, slots, codes, lanes, uniform=uniform) for region in straight]
    best: tuple[int, list[Source], list[list[int]], _Registers] | None = None
    for choice in itertools.product(*ways):
        sources = [s for region in choice for s in region]
        met = _groups_met(sources, lanes, group)
        if uniform:
            if not all(_uniform(row, group) for s in sources for row in s.elements):
                continue
            met = [list(range(format.block // group))] * lanes
        if len({len(m) for m in met}) != 1:
            continue
        registers = _Registers()
        _steps(format, codes, sources, registers, {}, Names(format, lanes), met, group, dry=True)
        cost = len(registers.wanted) + 3 * len(met[0])
        if best is None or cost < best[0]:
            best = (cost, sources, met, registers)
    if best is None:
        refuse(
            format,
            f"no way to share the block over {lanes} threads gives each the same groups of {group} elements",
            "a layout that divides evenly",
        )
    return best[1:]


def plan_lanes(
    format: Format, codes: Field, lanes: int, group: int, names: Names, *, uniform: bool = False
) -> LaneProgram:
    """The cheapest legal program for `lanes` threads a block; groups are runs of `group` elements.

    Cost counts loaded words and, three times, the groups a thread meets (each needs its own integer scale).
    With `uniform`, code word i of every thread belongs to the same group, as a tensor-core instruction needs it.
    Raises QgenError (stage "plan") where the layout cannot be shared this way.
    """
    sources, met, registers = _cheapest(format, codes, lanes, group, uniform)
    numbers = registers.numbers()
    steps, code_words = _steps(format, codes, sources, registers, numbers, names, met, group, dry=False)
    numbered, ordered, bounds = _number_activation(steps, code_words, len(met[0]))
    return LaneProgram(
        loads=_loads(numbers, names),
        steps=numbered,
        code_words=ordered,
        group_words=bounds,
        lane_groups=tuple(tuple(m) for m in met),
        word_count=len(numbers),
    )


def _groups_met(sources: list[Source], lanes: int, group: int) -> list[list[int]]:
    """The groups each thread meets, in order."""
    met: list[set[int]] = [set() for _ in range(lanes)]
    for source in sources:
        for row in source.elements:
            for t, elements in enumerate(row):
                met[t] |= {e // group for e in elements if e != EMPTY}
    return [sorted(groups) for groups in met]


def _uniform(row: tuple[tuple[int, ...], ...], group: int) -> bool:
    """Whether the codes that the threads hold at one place are all of one group."""
    return len({e // group for elements in row for e in elements if e != EMPTY}) == 1


def _split(elements: tuple[tuple[int, ...], ...], met: list[list[int]], group: int) -> list[tuple[int, CodeWord]]:
    """One code word as (local group, elements of that group): more than one where a word straddles groups."""
    if len(met[0]) == 1:
        return [(0, CodeWord(elements=elements))]
    found = []
    for local in range(len(met[0])):
        rows = tuple(
            tuple(e if e != EMPTY and e // group == met[t][local] else EMPTY for e in elements[t])
            for t in range(len(met))
        )
        if any(e != EMPTY for row in rows for e in row):
            found.append((local, CodeWord(elements=rows)))
    return found


def _steps(
    format: Format,
    codes: Field,
    sources: list[Source],
    registers: _Registers,
    numbers: dict[tuple[int, ...], int],
    names: Names,
    met: list[list[int]],
    group: int,
    *,
    dry: bool,
) -> tuple[list[Step], list[tuple[int, CodeWord]]]:
    """The decode steps; with `dry` only the wanted words are collected. Use.x counts code words as they come."""
    steps: list[Step] = []
    made: list[tuple[int, CodeWord]] = []
    lanes = len(met)

    def uses(code: int, elements: tuple[tuple[int, ...], ...]) -> list[Use]:
        result = []
        for local, word in _split(elements, met, group):
            result.append(Use(code=code, x=len(made), group=local))
            made.append((local, word))
        return result

    for source in sources:
        if source.whole_byte:
            b = codes.base or 0
            made_uses = tuple(uses(0, source.elements[0]))
            if not dry:
                steps.append(
                    ByteDigits(
                        at=names.at(LaneInt(source.offsets)),
                        base=b,
                        pair_low=b | b**2 << 16,
                        pair_high=b**3 | b**4 << 16,
                        uses=made_uses,
                    )
                )
            continue
        main = registers.want(source.offsets)
        every = tuple(u for i, row in enumerate(source.elements) for u in uses(i, row))
        if codes.base:
            if source.slots != tuple((i,) * lanes for i in range(len(source.slots))):
                refuse(format, f"digits {source.slots} of a word are used", "leading digits, none left out")
            if not dry:
                powers = tuple(codes.base ** (n + 1) for n in range(len(source.slots)))
                steps.append(Digits(word=numbers[main], base=codes.base, powers=powers, uses=every))
        elif codes.table:
            if not dry:
                shifts = tuple(names.text(LaneInt(tuple(16 * half for half in slot))) for slot in source.slots)
                steps.append(Table(word=numbers[main], shifts=shifts, uses=every))
        else:
            atoms = tuple(
                _atoms(format, codes, slot, main, row, registers, numbers, names, dry)
                for slot, row in zip(source.slots, source.elements, strict=True)
            )
            if not dry:
                flip = f"0x{code_flip(codes) * 0x01010101:08x}u" if code_flip(codes) else ""
                steps.append(Bits(codes=atoms, flip=flip, uses=every))
    return steps, made


def _atoms(
    format: Format,
    codes: Field,
    slot: tuple[int, ...],
    main: tuple[int, ...],
    rows: tuple[tuple[int, ...], ...],
    registers: _Registers,
    numbers: dict[tuple[int, ...], int],
    names: Names,
    dry: bool,
) -> tuple[Atom, ...]:
    """The OR-ed pieces of one code word of a bit field."""
    example = next(e for row in rows for e in row if e != EMPTY)
    pieces = layout.pieces(codes, example)
    widest = max(range(len(pieces)), key=lambda i: pieces[i].width)
    atoms = []
    for part, piece in enumerate(pieces):
        if part == widest:
            offsets, shifts, width, left, packed = main, slot, piece.width, piece.shl, 0
        else:
            offsets, shifts, width, left, packed = _extra_atom(format, codes, part, rows, registers)
        if dry:
            continue
        # One shift to where the bits land: to the right by what is left over, or to the left. Threads that would shift
        # in different directions all shift right to bit 0 and then left.
        net = tuple(shift - left for shift in shifts)
        merged = not packed and not min(net) < 0 < max(net)
        if merged:
            way, moved, after = ">>" if min(net) >= 0 else "<<", tuple(abs(n) for n in net), 0
        else:
            way, moved, after = ">>", shifts, left
        atoms.append(
            Atom(
                word=numbers[offsets],
                way=way,
                shift=names.text(LaneInt(moved)),
                mask=f"0x{(((1 << width) - 1) << left - after) * 0x01010101:08x}u",
                left=after,
                spread=width if packed else 0,
                apart=packed,
            )
        )
    return tuple(atoms)


def _number_activation(
    steps: list[Step], made: list[tuple[int, CodeWord]], groups: int
) -> tuple[tuple[Step, ...], tuple[CodeWord, ...], tuple[int, ...]]:
    """Renumber activation words so that those of a group are neighbours; a group starts at bounds[g]."""
    order = sorted(range(len(made)), key=lambda i: (made[i][0], i))
    place = {old: new for new, old in enumerate(order)}
    renumbered = tuple(replace(s, uses=tuple(replace(u, x=place[u.x]) for u in s.uses)) for s in steps)
    counts = [sum(1 for g, _ in made if g == local) for local in range(groups)]
    bounds = tuple(itertools.accumulate(counts, initial=0))
    return renumbered, tuple(made[i][1] for i in order), bounds


def _loads(numbers: dict[tuple[int, ...], int], names: Names) -> tuple[Words, ...]:
    """Neighbouring words become one run, loaded as widely as alignment allows."""
    runs: list[list[tuple[int, ...]]] = []
    for offsets in sorted(numbers):
        if runs and names.follows(runs[-1][-1], offsets):
            runs[-1].append(offsets)
        else:
            runs.append([offsets])
    loads = []
    for run in runs:
        at = LaneInt(run[0])
        width = next(w for w in (16, 8, 4, 1) if w == 1 or (4 * len(run) % w == 0 and names.aligned(at, w)))
        loads.append(Words(first=numbers[run[0]], count=len(run), offsets=run[0], at=names.at(at), width=width))
    return tuple(loads)
