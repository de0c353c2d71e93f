"""How often an average warp runs each basic block of a kernel: its control flow, weighed by what the plan says.

Known times go to the blocks that show what they are for by an instruction: dots, requests for weights, loads of x, sums
of partial results, the loops around them. Of a way that only such a block needs, the block's times decide how often it
is taken. Other conditions count as met. A loop that is not one of those known is refused, and so are dots in other
number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from qgen.count.graph import Block, Graph, Loop, build
from qgen.count.nest import Nest
from qgen.errors import QgenError

_CLOSE = 1e-6


def weigh_blocks(blocks: Mapping[int, Block], kernel: str, nest: Nest) -> tuple[Graph, dict[int, float]]:
    """The graph of a kernel's blocks without what a warp never does, and by block how often an average warp runs it.

    Raises QgenError where loops or dots are not those of the plan.
    """
    graph = build({number: _warm(number, block, blocks) for number, block in blocks.items()}, kernel)
    weigher = _Weigher(graph, kernel, nest)
    times = weigher.times()
    weigher.check(times)
    return graph, times


def _spins(number: int, block: Block) -> bool:
    """Whether the block asks a barrier again and again."""
    return number in block.successors and block.has("SYNCS.PHASECHK")


def _warm(number: int, block: Block, blocks: Mapping[int, Block]) -> Block:
    """The block without ways for warps whose threads have parted, into waiting for what a first look did not find,
    and into functions: for what 32 bits do not hold, and quotients at the ends of what floats hold."""
    if block.instructions[-1].opcode.startswith("BRA.DIV"):
        return replace(block, successors=block.successors[1:])
    ways = tuple(
        way
        for way in block.successors
        if not (way != number and _spins(way, blocks[way])) and not blocks[way].has("CALL")
    )
    return replace(block, successors=ways) if ways else block


class _Weigher:
    """One kernel on its way to times by block."""

    def __init__(self, graph: Graph, kernel: str, nest: Nest) -> None:
        self.graph, self.kernel, self.nest = graph, kernel, nest
        around = [loop for loop in graph.loops if self._any(loop, nest.dot)]
        if len(around) != (3 if nest.tail else 2):
            tail = ", and over blocks inside that" if nest.tail else ""
            self._refuse(f"{len(around)} loops around its dots", f"those over row tiles, and over K inside it{tail}")
        self.tail = around[0] if nest.tail else None
        self.inner, self.outer = around[-2:]
        self.headers = {self.outer.header: nest.row_tiles, self.inner.header: nest.stages}
        if self.tail and nest.tail:
            self.headers[self.tail.header] = nest.tail[0]
        self.quantiser = self._quantiser(around)
        if self.quantiser and nest.bundles is not None:
            self.headers[self.quantiser.header] = nest.bundles
        self.marks = self._marks()

    # ---- what is known of single blocks ------------------------------------------------------------------------

    def _any(self, loop: Loop, *names: str) -> bool:
        return any(self.graph.blocks[number].has(*names) for number in loop.blocks)

    def _quantiser(self, around: list[Loop]) -> Loop | None:
        """The loop over bundles of x, the only one that loads from global memory; none where x comes quantised."""
        if self.nest.bundles is None:
            return None
        found = [loop for loop in self.graph.loops if loop not in around and self._any(loop, "LDG")]
        if len(found) != 1:
            self._refuse(f"{len(found)} loops that load x", "one, over bundles of x")
        return found[0]

    def _ragged(self, block: Block) -> bool:
        """Whether it copies the ends of a row that begin or end inside sixteen bytes."""
        return block.has("LDGSTS") and block.has("STS")

    def _marks(self) -> dict[int, float]:
        """Blocks whose times the plan knows: how often control comes to them; for loops, from outside."""
        nest, blocks = self.nest, self.graph.blocks
        marks: dict[int, float] = {}
        dots = iter(nest.dots)
        requests = {False: list(nest.before), True: list(nest.inside)}
        for number in sorted(blocks):
            block = blocks[number]
            inside = number in self.inner.blocks
            if self.tail and nest.tail and number in self.tail.blocks:
                if block.has(nest.dot):
                    marks[number] = nest.tail[1]
            elif block.has(nest.dot):
                times = {next(dots, -1.0) for i in block.instructions if i.name == nest.dot}
                if len(times) > 1 or -1.0 in times:
                    self._refuse(f"dots at instruction {block.first} that belong to several places", "those of one")
                marks[number] = times.pop()
            elif self._ragged(block) or (nest.bulk and block.has("LDGSTS", "DEPBAR", "LDGDEPBAR")):
                marks[number] = 0.0
            elif block.has("UBLKCP"):
                places = requests[inside]
                if not places:
                    self._refuse(
                        "more places that request weights", f"{len(nest.before)}, and {len(nest.inside)} inside"
                    )
                marks[number] = places.pop(0)
            elif block.has("STG") and nest.sums:
                marks[number] = nest.sums[0 if inside else 1]
            elif block.has("SYNCS.EXCH"):
                marks[number] = nest.barriers[0]
            elif self.quantiser and block.has("LDG"):
                marks[number] = nest.columns[number in self.quantiser.blocks]
        if next(dots, None) is not None:
            self._refuse("fewer dots in its loop over K", f"{len(nest.dots)}, which the plan has")
        if not nest.bulk:
            marks |= self._copies(marks)
        return marks

    def _copies(self, marks: Mapping[int, float]) -> dict[int, float]:
        """Times of blocks with cp.async, which stand as often as the plan requests weights."""
        blocks = self.graph.blocks
        places = [n for n in sorted(blocks) if blocks[n].has("LDGSTS") and n not in marks]
        found: dict[int, float] = {}
        for inside, times in ((False, self.nest.before), (True, self.nest.inside)):
            own = [n for n in places if (n in self.inner.blocks) == inside for _ in range(blocks[n].counts["LDGSTS"])]
            size, rest = divmod(len(own), len(times))
            if rest or not own:
                self._refuse(f"{len(own)} copies of weights", f"a multiple of {len(times)}, as often as planned")
            for i, n in enumerate(own):
                found.setdefault(n, times[i // size])
        return found

    def _turns(self, loop: Loop) -> float:
        """Turns of a loop each time it is entered."""
        nest, blocks = self.nest, self.graph.blocks
        if self._any(loop, "STG") and nest.sums:
            return nest.sum_turns
        if self._any(loop, "UBLKCP"):
            return nest.copies if len(loop.blocks) == 1 else nest.ahead
        if self._any(loop, "SYNCS.EXCH"):
            return nest.barriers[1]
        if self._any(loop, "SYNCS.PHASECHK"):
            return 1.0  # what waits is not work
        if any(self._ragged(blocks[number]) for number in loop.blocks) or (nest.bulk and self._any(loop, "LDGSTS")):
            return 0.0
        self._refuse(f"a loop at instruction {blocks[loop.header].first}", "loops that the plan knows")

    # ---- from block to block -----------------------------------------------------------------------------------

    def times(self) -> dict[int, float]:
        """By block, how often an average warp runs it."""
        graph = self.graph
        flow = dict.fromkeys(graph.order, 0.0)
        flow[graph.order[0]] = 1.0
        entered: dict[int, float] = {}
        for number in graph.order:
            for loop in graph.loops:
                if loop.header == number:
                    self._one_exit(loop)
                    entered[number] = flow[number]
                    known = self.headers.get(number)
                    flow[number] = flow[number] * self._turns(loop) if known is None else known
            self._spread(number, flow, entered)
        return flow

    def _spread(self, number: int, flow: dict[int, float], entered: Mapping[int, float]) -> None:
        """Hands the times of a block on to those that come next."""
        graph = self.graph
        ways = [w for w in graph.blocks[number].successors if not graph.goes_back(number, w)]
        loop = graph.innermost(number)
        out = [w for w in ways if loop and w not in loop.blocks]
        for way in out:  # as often as the loop was entered
            assert loop
            flow[way] += entered[loop.header]
        back = len(ways) < len(graph.blocks[number].successors)
        stay = [w for w in ways if w not in out]
        rest = flow[number] - (entered[loop.header] if out and loop and not back else 0.0)
        if len(stay) == 1:
            flow[stay[0]] += rest * self._staying(number, stay[0], rest)
        elif stay:
            for way, share in zip(stay, self._shares(number, stay[0], stay[1], rest), strict=True):
                flow[way] += rest * share

    def _one_exit(self, loop: Loop) -> None:
        blocks = self.graph.blocks
        exits = [n for n in loop.blocks for w in blocks[n].successors if w not in loop.blocks]
        if len(exits) > 1:
            self._refuse(f"a loop at instruction {blocks[loop.header].first} with {len(exits)} ways out", "one")

    def _shares(self, number: int, first: int, second: int, times: float) -> tuple[float, float]:
        """How a block's times divide between two ways that both stay in its loop."""
        own, known = zip(*(self._needed(number, way, times) for way in (first, second)), strict=True)
        if own[0] and own[1]:
            # Both lead to blocks of their own; what is known of one of them decides.
            if self.tail and None not in known and 0.0 not in known:
                # Of the loop over blocks it is known how often it turns, not how often it begins.
                loops = [self.tail.header in self.graph.guarded[way] for way in (first, second)]
                known = tuple(None if loop else share for loop, share in zip(loops, known, strict=True))
            if known[0] is not None and known[1] is not None and 0.0 in known:
                return (0.0, 1.0) if known[0] == 0.0 else (1.0, 0.0)
            if (known[0] is None) == (known[1] is None):
                self._refuse(
                    f"two ways behind instruction {self.graph.blocks[number].first} that exclude each other",
                    "a way that is taken or not",
                )
        elif not (own[0] or own[1]):
            self._refuse(f"a choice at instruction {self.graph.blocks[number].first}", "one that leads to its own")
        if known[0] is not None or (own[0] and known[1] is None):
            share = 1.0 if known[0] is None else known[0]
            return share, 1.0 - share
        share = 1.0 if known[1] is None else known[1]
        return 1.0 - share, share

    def _needed(self, number: int, way: int, times: float) -> tuple[bool, float | None]:
        """Whether a way leads to blocks that no other way leads to, and the share of the times that those need, if any
        of them are known."""
        if len(self.graph.predecessors[way] - self._latches(way)) > 1:
            return False, None
        return True, self._share_of(self.graph.guarded[way], times)

    def _share_of(self, region: frozenset[int], times: float) -> float | None:
        """The share of some times that the blocks of a region need, if any of them are known."""
        known = [needed for some in (self.marks, self.headers) for n, needed in some.items() if n in region]
        return min(1.0, max(known) / times) if known and times else None

    def _staying(self, number: int, way: int, times: float) -> float:
        """The share of a block's times that goes on to its only way: less than all behind an EXIT that some take.

        Where EXITs follow one another, the last one before what is known decides.
        """
        blocks, guarded = self.graph.blocks, self.graph.guarded
        if blocks[number].instructions[-1].name != "EXIT":
            return 1.0
        exits = [n for n in guarded[way] if blocks[n].instructions[-1].name == "EXIT"]
        later = frozenset[int]().union(*(guarded[w] for n in exits for w in blocks[n].successors))
        share = self._share_of(guarded[way] - later, times)
        return 1.0 if share is None else share

    def _latches(self, header: int) -> frozenset[int]:
        return frozenset[int]().union(*(loop.latches for loop in self.graph.loops if loop.header == header))

    # ---- is it what the plan says ------------------------------------------------------------------------------

    def check(self, times: Mapping[int, float]) -> None:
        """Dots and requests must come out as planned, whatever the ways between them."""
        blocks, nest = self.graph.blocks, self.nest
        found = sum(times[n] * blocks[n].counts[nest.dot] for n in times)
        planned = sum(nest.dots)
        if self.tail and nest.tail:
            planned += nest.tail[1] * sum(blocks[n].counts[nest.dot] for n in self.tail.blocks)
        self._agree("dots of a warp", found, planned)
        if nest.bulk:
            copies = sum(times[n] * blocks[n].counts["UBLKCP"] for n in times)
            self._agree("bulk copies of a warp", copies, nest.copies * sum((*nest.before, *nest.inside)))

    def _agree(self, what: str, found: float, planned: float) -> None:
        if abs(found - planned) > _CLOSE * max(1.0, planned):
            self._refuse(f"{found:.6g} {what}, by its ways", f"{planned:.6g}, by its plan")

    def _refuse(self, found: str, allowed: str) -> NoReturn:
        raise QgenError(
            stage="count",
            subject=self.kernel,
            found=found,
            allowed=allowed,
            next="its instructions cannot be counted from its plan: mend qgen/count, or measure with qgen profile",
        )
