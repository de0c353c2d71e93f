"""The control flow of one kernel: basic blocks, which of them guard which, and its loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qgen.count.nvdisasm import Instruction
from qgen.errors import QgenError

_ENDS = ("BRA", "EXIT", "RET", "CALL")  # what ends a block
_UNKNOWN = ("BRX", "JMP", "JMX", "BREAK", "KILL")  # branches whose goal the text does not say


@dataclass(frozen=True)
class Block:
    """Instructions that run one after the other. `successors`: where control goes next, the way of a branch first.

    Of two ways out of a BRA.DIV the first is for warps whose threads have parted.
    """

    first: int  # the number of its first instruction
    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]

    @property
    def counts(self) -> Counter[str]:
        """Instructions by the opcode without modifiers."""
        return Counter(i.name for i in self.instructions)

    def has(self, *names: str) -> bool:
        """Whether one of these opcodes is in it; a name with a dot must be the start of the whole opcode."""
        return any(i.name == n or ("." in n and i.opcode.startswith(n)) for i in self.instructions for n in names)


@dataclass(frozen=True)
class Loop:
    """A natural loop: every way into `blocks` from outside goes through `header`."""

    header: int
    blocks: frozenset[int]
    latches: frozenset[int]  # blocks that go back to the header


@dataclass(frozen=True)
class Graph:
    """The blocks that can be reached, by number; in `order` each comes behind all that lead to it but by going back.

    loops: inner ones before those around them
    guarded: by block, all blocks that cannot be reached but through it
    """

    blocks: Mapping[int, Block]
    order: tuple[int, ...]
    loops: tuple[Loop, ...]
    guarded: Mapping[int, frozenset[int]]
    predecessors: Mapping[int, frozenset[int]]

    def innermost(self, block: int) -> Loop | None:
        """The smallest loop around a block."""
        return next((loop for loop in self.loops if block in loop.blocks), None)

    def goes_back(self, source: int, target: int) -> bool:
        """Whether this way leads back to the header of a loop."""
        return any(target == loop.header and source in loop.latches for loop in self.loops)


def cut(instructions: Sequence[Instruction], kernel: str) -> dict[int, Block]:
    """The kernel's basic blocks, numbered from 0. Raises QgenError for a branch that does not say where it goes."""
    starts = {0}
    for number, instruction in enumerate(instructions):
        if instruction.name in _UNKNOWN or (instruction.name == "BRA" and instruction.target is None):
            raise QgenError(
                stage="count",
                subject=kernel,
                found=f"{instruction}, a branch to somewhere",
                allowed="branches that name the instruction they go to",
                next="count a kernel without a jump table",
            )
        if instruction.name in _ENDS:
            starts.add(number + 1)
        if instruction.target is not None:
            starts.add(instruction.target)
    bounds = sorted(start for start in starts if start < len(instructions))
    numbers = {start: number for number, start in enumerate(bounds)}
    blocks = {}
    for number, (begin, end) in enumerate(zip(bounds, [*bounds[1:], len(instructions)], strict=True)):
        last = instructions[end - 1]
        ways = []
        if last.target is not None:
            ways.append(numbers[last.target])
        # A uniform branch names its predicate as an operand.
        always = last.opcode == "BRA" and not last.predicate and "," not in last.operands
        ends = always or last.name == "RET" or (last.name == "EXIT" and not last.predicate)
        if not ends and end in numbers and numbers[end] not in ways:
            ways.append(numbers[end])
        blocks[number] = Block(begin, tuple(instructions[begin:end]), tuple(ways))
    return blocks


def build(blocks: Mapping[int, Block], kernel: str) -> Graph:
    """The graph of what block 0 reaches. Raises QgenError where a loop has two ways in."""
    order = _reverse_postorder(blocks)
    kept = {number: blocks[number] for number in order}
    before: dict[int, set[int]] = {number: set() for number in order}
    for number, block in kept.items():
        for way in block.successors:
            before[way].add(number)
    dominators = _dominators(order, before)
    place = {number: i for i, number in enumerate(order)}
    latches: dict[int, set[int]] = {}
    for number in order:
        for way in kept[number].successors:
            if place[way] <= place[number]:
                if way not in dominators[number]:
                    raise QgenError(
                        stage="count",
                        subject=kernel,
                        found=f"a loop at instruction {kept[way].first} that is entered in two places",
                        allowed="loops with one way in",
                        next="look at it: nvdisasm -c",
                    )
                latches.setdefault(way, set()).add(number)
    loops = [Loop(header, _body(header, ends, before), frozenset(ends)) for header, ends in latches.items()]
    return Graph(
        blocks=kept,
        order=tuple(order),
        loops=tuple(sorted(loops, key=lambda loop: len(loop.blocks))),
        guarded={d: frozenset(n for n in order if d in dominators[n]) for d in order},
        predecessors={number: frozenset(found) for number, found in before.items()},
    )


def _reverse_postorder(blocks: Mapping[int, Block]) -> list[int]:
    done: list[int] = []
    seen = {0}
    open_ways = [(0, iter(blocks[0].successors))]
    while open_ways:
        number, ways = open_ways[-1]
        way = next((w for w in ways if w not in seen), None)
        if way is None:
            done.append(number)
            open_ways.pop()
        else:
            seen.add(way)
            open_ways.append((way, iter(blocks[way].successors)))
    return done[::-1]


def _dominators(order: Sequence[int], before: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """By block, those that every way to it goes through, itself among them."""
    found = {number: set(order) for number in order}
    found[order[0]] = {order[0]}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            now = {number} | set.intersection(*(found[p] for p in before[number]))
            changed |= now != found[number]
            found[number] = now
    return found


def _body(header: int, latches: set[int], before: Mapping[int, set[int]]) -> frozenset[int]:
    body = {header}
    open_blocks = list(latches)
    while open_blocks:
        number = open_blocks.pop()
        if number not in body:
            body.add(number)
            open_blocks += before[number]
    return frozenset(body)
