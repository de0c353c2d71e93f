"""Codes that tensor cores take where they lie in their bytes, with one shift for many words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from qgen.plan.records import Atom, Bits, Step


@dataclass(frozen=True)
class Pair:
    """One tensor-core instruction: code words and activation words first, second (or -1: the k16 form)."""

    first: int
    second: int


@dataclass(frozen=True)
class InPlace:
    """Codes left where they lie in their bytes: those of an instruction times a power of two, sums kept by power."""

    steps: tuple[Step, ...]
    shifts: tuple[int, ...]  # the powers, ascending
    pairs: tuple[int, ...]  # by code word: which of the shifts the instruction has that it is the first of


def leave_in_place(steps: tuple[Step, ...], pairs: tuple[tuple[Pair, ...], ...]) -> InPlace | None:
    """Of codes that are one masked shift of a word each, instruction by instruction; None where nothing is saved."""
    found: dict[int, Atom] = {}
    for step in steps:
        if not isinstance(step, Bits) or step.flip:
            return None
        for use in step.uses:
            atoms = step.codes[use.code]
            atom = atoms[0]
            if len(atoms) > 1 or atom.spread or atom.left or atom.way != ">>" or not atom.shift.isdigit():
                return None
            found[use.x] = atom
    moved, powers = {}, {}
    for pair in (pair for group in pairs for pair in group):
        words = [w for w in (pair.first, pair.second) if w >= 0]
        # All bits of a moved mask lie in the low seven of every byte: the instruction takes signed ones.
        power = min(int(found[w].shift) for w in words)
        while power and any(_mask(found[w]) << power & ~0x7F7F7F7F for w in words):
            power -= 1
        powers[pair.first] = power
        for w in words:
            atom = found[w]
            moved[w] = replace(atom, shift=str(int(atom.shift) - power), mask=f"0x{_mask(atom) << power:08x}u")
    shifts = tuple(sorted(set(powers.values())))

    def shifted(atoms: Iterable[Atom]) -> int:
        return len({(a.word, a.shift) for a in atoms if a.shift != "0"})

    if shifted(moved.values()) >= shifted(found.values()):
        return None
    return InPlace(
        steps=tuple(_moved(step, moved) for step in steps if isinstance(step, Bits)),
        shifts=shifts,
        pairs=tuple(shifts.index(powers[w]) if w in powers else -1 for w in range(len(found))),
    )


def _mask(atom: Atom) -> int:
    return int(atom.mask.rstrip("u"), 0)


def _moved(step: Bits, moved: Mapping[int, Atom]) -> Bits:
    codes = list(step.codes)
    for use in step.uses:
        codes[use.code] = (moved[use.x],)
    return replace(step, codes=tuple(codes))
