"""Plans of the family `multirow`: op mul_mat, small T, native storage, int8 activations, dp4a; no tensor cores.

A team of threads walks the blocks of `rows` output rows for `columns` tokens at once: a block is decoded once for all
tokens, and a token's share of the activation is loaded once for all rows. Launches tile over the tokens. Staging, the
way a block is shared, and the contract are those of the mat-vec; so are the bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qgen.plan.lanes import block_byte
from qgen.plan.matvec import PIECE, SHARED_LIMIT, Launch, MatvecPlan, plan_matvec, ring
from qgen.plan.records import ActivationLayout, Bits, ByteDigits, Contract, Digits, LaneConstant, Step, TermPlan, Words
from qgen.spec.records import Format

ROWS = (1, 2, 4, 8)  # output rows a team
COLUMNS = (1, 2, 4, 8)  # tokens a team
# CTAs of four warps that an SM must hold, by sums a team up to: 96, 128, 168 and beyond them 255 registers a thread, no
# spills on any architecture. Threads that have whole blocks to themselves keep fewer values.
REGISTER_CTAS = {4: 5, 8: 4, 32: 3}
LONE_REGISTER_CTAS = {8: 5, 32: 4}
FEWEST_CTAS = 2
MANY_WORDS = 8  # packed words of a thread and block; more, at any byte, are shifted into place and take registers
LONE_WORDS = 8  # activation words of a thread and part of a block that it has to itself; of more, fewer CTAs ..
MOST_LONE_WORDS = 16  # .. of more than these, the fewest
HELD_LIMIT = 159  # registers for what a thread keeps of its rows; more spill, if not everywhere


@dataclass(frozen=True)
class MultirowInstance:
    """One compiled variant: rows and tokens of a team, and the launch shape."""

    name: str
    rows: int
    columns: int
    team_blocks: int
    warp_rows: int
    substeps: int
    stages: int
    pieces: int
    slot_bytes: int
    warps: int
    shared_bytes: int
    min_ctas: int


@dataclass(frozen=True)
class BlockPart:
    """A stretch of a block that is decoded and multiplied before the next: whole units, activation scales and pieces.

    Words of a code and of the activation are counted from the first of the part.
    """

    units: tuple[int, ...]
    groups: tuple[int, ...]
    group_words: tuple[int, ...]  # first activation word of each group, and the end
    first_chunk: int
    chunks: int
    first_scale: int
    scales: int
    loads: tuple[Words, ...]
    steps: tuple[Step, ...]

    @property
    def words(self) -> int:
        """Activation words of a thread, padding of the last piece included."""
        return 4 * self.chunks


@dataclass(frozen=True)
class MultirowPlan:
    """Everything the template needs, finished."""

    family: str
    op: str
    format: str
    storage: str
    file: str
    contract: Contract
    layout: ActivationLayout
    block: int
    block_bytes: int
    alignment: int
    lanes: int
    word_count: int
    lane_constants: tuple[LaneConstant, ...]
    origins: tuple[LaneConstant, ...]  # of a thread's addresses, counted from the block's start
    parts: tuple[BlockPart, ...]
    terms: tuple[TermPlan, ...]
    table: tuple[str, ...]
    units: int
    groups: int
    unit_of_group: tuple[int, ...]
    code_mul: int
    code_offset: int
    sums: bool
    largest_sum: int
    instances: tuple[MultirowInstance, ...]
    read_factor: float

    def workspace_bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of quantised activation for `tokens` tokens of `blocks` weight blocks: token behind token."""
        return tokens * self.layout.bytes(blocks)


def plan_multirow(format: Format) -> MultirowPlan:
    """The multirow plan of `format` with all its instances. Raises QgenError (stage "plan") where it has no mat-vec."""
    single = plan_matvec(format)
    stem = f"mul_mat_{format.name.lower()}_{single.contract.activation}"
    parts = _parts(single)
    legal = (_instance(format, single, parts, stem, rows, columns) for columns in COLUMNS for rows in ROWS)
    return MultirowPlan(
        family="multirow",
        op=single.op,
        format=single.format,
        storage=single.storage,
        file=f"{stem}__multirow_native",
        contract=single.contract,
        layout=single.layout,
        block=single.block,
        block_bytes=single.block_bytes,
        alignment=single.alignment,
        lanes=single.lanes,
        word_count=single.word_count,
        lane_constants=single.lane_constants,
        origins=single.origins,
        parts=parts,
        terms=single.terms,
        table=single.table,
        units=single.units,
        groups=single.groups,
        unit_of_group=single.unit_of_group,
        code_mul=single.code_mul,
        code_offset=single.code_offset,
        sums=single.sums,
        largest_sum=single.largest_sum,
        instances=tuple(i for i in legal if i is not None),  # at least one row and token: the mat-vec has them
        read_factor=1.0,
    )


# ---- parts of a block -------------------------------------------------------------------------------------------


def _parts(plan: MatvecPlan) -> tuple[BlockPart, ...]:
    """The shortest stretches of units that share neither an activation scale nor a 16-byte piece with another."""
    words, unit_size = plan.layout.group_words, plan.contract.unit
    first_group = [plan.unit_of_group.index(u) for u in range(plan.units)] + [plan.groups]
    cuts = [
        u for u in range(1, plan.units) if u * unit_size % plan.layout.group == 0 and words[first_group[u]] % 4 == 0
    ]
    bounds = [0, *cuts, plan.units]
    return tuple(
        _part(plan, range(begin, end), range(first_group[begin], first_group[end]))
        for begin, end in zip(bounds, bounds[1:], strict=False)
    )


def _part(plan: MatvecPlan, units: range, groups: range) -> BlockPart:
    words, per_scale = plan.layout.group_words, plan.layout.group // plan.contract.unit
    first, end = words[groups.start], words[groups.stop]
    steps = []
    for step in plan.steps:
        uses = tuple(replace(use, x=use.x - first) for use in step.uses if use.group in groups)
        if isinstance(step, Digits) and uses:
            step = replace(step, powers=step.powers[: max(use.code for use in uses) + 1])
        if uses:
            steps.append(replace(step, uses=uses))
    whole = len(units) == plan.units
    return BlockPart(
        units=tuple(units),
        groups=tuple(groups),
        group_words=tuple(words[g] - first for g in range(groups.start, groups.stop + 1)),
        first_chunk=first // 4,
        chunks=-(-(end - first) // 4),
        first_scale=units.start // per_scale,
        scales=max(1, len(units) // per_scale),
        loads=plan.loads if whole else _loads(plan, {w for step in steps for w in _words_of(step)}),
        steps=tuple(steps),
    )


def _words_of(step: Step) -> set[int]:
    """The packed words that a step reads."""
    if isinstance(step, Bits):
        return {atom.word for use in step.uses for atom in step.codes[use.code]}
    return set() if isinstance(step, ByteDigits) else {step.word}


def _loads(plan: MatvecPlan, wanted: set[int]) -> tuple[Words, ...]:
    """The planned loads cut down to the words wanted. Blocks in several parts are one thread's: offsets are numbers."""
    cut: list[Words] = []
    for load in plan.loads:
        begin = load.offsets[0] - 4 * load.first
        for word in sorted(wanted & set(range(load.first, load.first + load.count))):
            if cut and cut[-1].first + cut[-1].count == word and cut[-1].offsets[0] - 4 * cut[-1].first == begin:
                cut[-1] = replace(cut[-1], count=cut[-1].count + 1)
            else:
                at = begin + 4 * word
                cut.append(Words(first=word, count=1, offsets=(at,), at=block_byte(at), width=load.width))
    return tuple(replace(load, width=next(w for w in (16, 8, 4, 1) if w == 1 or _fits(load, w))) for load in cut)


def _fits(load: Words, width: int) -> bool:
    return width <= load.width and load.offsets[0] % width == 0 and 4 * load.count % width == 0


# ---- instances --------------------------------------------------------------------------------------------------


def _instance(
    format: Format, plan: MatvecPlan, parts: tuple[BlockPart, ...], stem: str, rows: int, columns: int
) -> MultirowInstance | None:
    """None where the ring of a warp's rows is larger than shared memory, or what is kept of them than the registers."""
    team_blocks = min(32 // plan.lanes, plan.contract.slices)
    warp_rows = rows * (32 // (team_blocks * plan.lanes))
    slots = ring(format, team_blocks, warp_rows)
    warps = next((w for w in (4, 2, 1) if w * slots.warp_shared + PIECE <= SHARED_LIMIT), 0)
    scales = plan.groups * sum(bool(term.scales[0]) for term in plan.terms)
    words = max(part.words for part in parts)
    held = min(rows, columns) * (words + scales)
    # For sm_100 and sm_120 the compiler puts the two tokens of a single shared row into local memory.
    if not warps or held > HELD_LIMIT or (plan.lanes > 1 and (rows, columns) == (1, 2)):
        return None
    limits = REGISTER_CTAS if plan.lanes > 1 else LONE_REGISTER_CTAS
    # With one row or one token, as many of the others as threads share a block wait for their sums to be dealt.
    crowd = rows * columns * (plan.lanes if 1 in (rows, columns) else 1)
    ctas = next((ctas for sums, ctas in limits.items() if crowd <= sums), FEWEST_CTAS)
    if (plan.word_count > MANY_WORDS and plan.alignment < 4) or (
        plan.lanes == 1 and (len(plan.terms) > 1 or words > LONE_WORDS)
    ):
        ctas = max(FEWEST_CTAS, ctas - 1)
    if plan.lanes == 1 and words > MOST_LONE_WORDS:
        ctas = FEWEST_CTAS
    return MultirowInstance(
        name=f"{stem}_t{columns}__multirow_native_r{rows}",
        rows=rows,
        columns=columns,
        team_blocks=team_blocks,
        warp_rows=warp_rows,
        substeps=plan.contract.slices // team_blocks,
        stages=slots.stages,
        pieces=slots.pieces,
        slot_bytes=slots.slot_bytes,
        warps=warps,
        shared_bytes=warps * slots.warp_shared + PIECE,  # the last word of a block may look 4 bytes ahead
        min_ctas=ctas * 4 // warps,
    )


def launch_multirow(
    instance: MultirowInstance, rows: int, tokens: int, multiprocessors: int, ctas_per_multiprocessor: int
) -> tuple[Launch, int]:
    """Launch numbers and the grid's y: tiles of tokens; x is persistent over tiles of rows, in equal waves."""
    tiles = -(-rows // instance.warp_rows)
    ctas = -(-tiles // instance.warps)
    columns = -(-tokens // instance.columns)
    resident = max(1, multiprocessors * ctas_per_multiprocessor // columns)
    waves = -(-ctas // resident)
    return Launch(grid=max(1, -(-ctas // waves)), block=32 * instance.warps, shared=instance.shared_bytes), columns
