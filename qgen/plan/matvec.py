"""Plans of the family `matvec`: op mul_mat, T = 1, native storage, int8 activations.

A warp works on `rows` output rows a team and one token. Its teams of `lanes` threads take `team_blocks` blocks of a
row at a time; the packed bytes of all its rows are copied to shared memory once, in 16-byte pieces, `stages` steps
ahead. Blocks go to slices of the contract (block mod slices), so that every launch shape gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.lanes import LaneProgram, Names, plan_lanes
from qgen.plan.records import ActivationLayout, Contract, LaneConstant, Step, TermPlan, Words
from qgen.plan.refuse import refuse
from qgen.plan.terms import (
    code_field,
    code_offset,
    float_fields,
    group_size,
    integer_activation,
    largest_sum,
    needs_sums,
    plan_terms,
)
from qgen.spec.records import Field, Format

WARPS = 4  # warps a CTA: small CTAs balance waves, and no barrier joins them
REGISTER_CTAS = {
    1: 5,
    2: 4,
    4: 3,
}  # CTAs an SM must hold, by rows a team: 96, 128 and 168 registers a thread, no spills
BYTES_AHEAD = 4096  # bytes a warp tries to have under way: 28 KB an SM over 8 to 16 warps with room to spare
PIECE = 16  # bytes of one asynchronous copy
SHARED_LIMIT = 65536  # bytes of shared memory a CTA may have on every architecture of specs/archs


@dataclass(frozen=True)
class Instance:
    """One compiled variant: the launch shape."""

    name: str
    rows: int
    team_blocks: int
    teams: int
    warp_rows: int
    substeps: int
    stages: int
    step_bytes: int
    pieces: int
    slot_bytes: int
    warp_shared: int
    shared_bytes: int
    min_ctas: int


@dataclass(frozen=True)
class MatvecPlan:
    """Everything the template needs, finished; also what tests, dispatch and benches iterate over."""

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
    loads: tuple[Words, ...]
    steps: tuple[Step, ...]
    word_count: int
    lane_constants: tuple[LaneConstant, ...]
    origins: tuple[LaneConstant, ...]  # of a thread's addresses, counted from the block's start
    terms: tuple[TermPlan, ...]
    table: tuple[str, ...]
    halves: tuple[str, ...]  # the same as summed_halves; () where there are none
    units: int
    groups: int
    unit_of_group: tuple[int, ...]
    code_mul: int
    code_offset: int
    sums: bool
    largest_sum: int
    warps: int
    instances: tuple[Instance, ...]
    read_factor: float

    def workspace_bytes(self, blocks: int) -> int:
        """Bytes of quantised activation for one token of `blocks` weight blocks."""
        return self.layout.bytes(blocks)


@dataclass(frozen=True)
class Launch:
    """Launch numbers of one call."""

    grid: int
    block: int
    shared: int


def launch(
    plan: MatvecPlan, instance: Instance, rows: int, multiprocessors: int, ctas_per_multiprocessor: int
) -> Launch:
    """A persistent grid with equal waves: every warp walks the same number of row tiles, or one less."""
    tiles = -(-rows // instance.warp_rows)
    ctas = -(-tiles // plan.warps)
    resident = max(1, multiprocessors * ctas_per_multiprocessor)
    waves = -(-ctas // resident)
    return Launch(grid=max(1, -(-ctas // waves)), block=32 * plan.warps, shared=instance.shared_bytes)


def contract(format: Format) -> Contract:
    """The contract of a format's integer dot, for every family (see Contract)."""
    codes = code_field(format)
    activation, group = integer_activation(format)
    per = [f.per for term in format.terms for f in float_fields(format, term)]
    unit = min([group, format.block, *per])
    terms = (
        ("-" if t.constant < 0 else "+")
        + "*".join(n for n in t.factors if n != codes.name)
        + ("*sum(q*a)" if codes.name in t.factors else "*sum(a)")
        for t in format.terms
    )
    return Contract(activation=activation.name, unit=unit, slices=16 if format.block >= 256 else 32, terms=tuple(terms))


def largest(format: Format) -> int:
    """A bound on the integer sum of a unit, which must stay below 2^31. Refuses the format otherwise."""
    codes = code_field(format)
    table = tuple(int(v) for v in format.codebook(codes.table).numbers) if codes.table else ()
    bound = largest_sum(format, codes, contract(format).unit, table)
    if bound >= 1 << 31:
        refuse(format, f"an integer sum of a unit can reach {bound}", f"less than 2^31 = {1 << 31}")
    return bound


def _lanes(format: Format, unit: int) -> int:
    # A block of up to 128 elements is one thread's work; larger ones are shared in pieces of 64 elements, which
    # keeps the activation words of a thread in 16 registers. Units of a shared block must be whole blocks.
    return 1 if format.block <= 128 or unit != format.block else format.block // 64


def _activation_layout(
    format: Format, program: LaneProgram, lanes: int, group: int, with_sums: bool
) -> ActivationLayout:
    activation, activation_group = integer_activation(format)
    words = tuple(
        tuple(four(tuple(e if e >= 0 else format.block for e in word.elements[t])) for word in program.code_words)
        for t in range(lanes)
    )
    groups = len(program.group_words) - 1
    return ActivationLayout(
        name=f"{activation.name}_{format.name.lower()}",
        activation=activation.name,
        group=activation_group,
        block=format.block,
        lanes=lanes,
        tile_blocks=32 // lanes,
        chunks=-(-len(program.code_words) // 4),
        scales=max(1, format.block // activation_group),
        groups=groups,
        sum_slots=(1 << (groups - 1).bit_length()) if with_sums else 0,
        group_words=program.group_words,
        words=words,
    )


def four(elements: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The same four numbers, with their count in the type."""
    a, b, c, d = elements
    return a, b, c, d


def plan_matvec(format: Format) -> MatvecPlan:
    """The matvec plan of `format` with all its instances. Raises QgenError (stage "plan") with the reason if none."""
    codes: Field = code_field(format)
    agreed = contract(format)
    if format.split or format.row_bytes or format.tensor_bytes:
        refuse(
            format,
            f"planes {', '.join(p.name for p in format.planes)}, {format.row_bytes} row and "
            f"{format.tensor_bytes} tensor bytes",
            "blocks in one plane, without row or tensor metadata",
        )
    _, activation_group = integer_activation(format)
    if activation_group > format.block:
        refuse(
            format,
            f"activation groups of {activation_group} span blocks of {format.block}",
            "an activation group no longer than a block",
        )
    lanes = _lanes(format, agreed.unit)
    group = group_size(format, codes, agreed.unit)
    names = Names(format, lanes)
    program = plan_lanes(format, codes, lanes, group, names)
    terms = plan_terms(format, codes, program, agreed.unit, group, names)
    table = tuple(int(v) for v in format.codebook(codes.table).numbers) if codes.table else ()
    with_sums = needs_sums(format, codes)
    layout = _activation_layout(format, program, lanes, group, with_sums)
    if lanes * layout.sum_slots > 32:
        refuse(format, f"{lanes} x {layout.sum_slots} activation sums a block", "at most 32: a thread each")
    stem = f"mul_mat_{format.name.lower()}_{agreed.activation}_t1"
    # A whole warp a row for long rows; a quarter warp for rows of few blocks, as many rows each as registers allow, and
    # shared memory where blocks are large.
    whole, few = min(32 // lanes, agreed.slices), (4, 2, 1) if lanes == 1 else (2, 1)
    full = [_instance(format, agreed, lanes, stem, rows, whole) for rows in (1, 2, 4)]
    quarter = [_instance(format, agreed, lanes, stem, rows, 8 // lanes) for rows in few]
    full, quarter = ([i for i in made if i.shared_bytes <= SHARED_LIMIT] for made in (full, quarter))
    instances = (*full, *quarter[:1])
    if not full or not quarter:
        refuse(format, f"staging its {format.bytes}-byte blocks takes more than {SHARED_LIMIT} bytes", "smaller blocks")
    return MatvecPlan(
        family="matvec",
        op="mul_mat",
        format=format.name,
        storage="native",
        file=f"{stem}__matvec_native",
        contract=agreed,
        layout=layout,
        block=format.block,
        block_bytes=format.bytes,
        alignment=format.alignment,
        lanes=lanes,
        loads=program.loads,
        steps=program.steps,
        word_count=program.word_count,
        lane_constants=tuple(names.constants.values()),
        origins=tuple(names.origins.values()),
        terms=terms,
        table=table_words(table),
        halves=table_words((summed_halves(table) if table else None) or ()),
        units=format.block // agreed.unit,
        groups=len(program.group_words) - 1,
        unit_of_group=tuple(g * group // agreed.unit if lanes == 1 else 0 for g in range(len(program.group_words) - 1)),
        code_mul=int(codes.mul) if not codes.table else 1,
        code_offset=code_offset(codes),
        sums=with_sums,
        largest_sum=largest(format),
        warps=WARPS,
        instances=instances,
        read_factor=1.0,
    )


def table_words(values: tuple[int, ...]) -> tuple[str, ...]:
    """A 16-entry int8 codebook as four little-endian register constants."""
    data = [v & 0xFF for v in values]
    return tuple(f"0x{sum(data[4 * i + k] << (8 * k) for k in range(4)):08x}u" for i in range(len(data) // 4))


def summed_halves(values: tuple[int, ...]) -> tuple[int, ...] | None:
    """A 16-entry int8 codebook as halves L and H, so that entry n is a sum of two look-ups without a choice.

    A look-up of n in L gives L[n] where n < 8, and the sign of L[n - 8] as 0 or -1 elsewhere; in H it gives H[n - 8]
    where n >= 8, and the sign of H[n] elsewhere: PTX prmt with the selector n, and n ^ 8 for H. Entries i and i + 8 are
    found together: each gives way to the other's sign. None where an entry has no such form within int8.
    """
    low, high = [], []
    for below, above in zip(values[:8], values[8:], strict=True):
        signs = ((s, t) for s in (0, -1) for t in (0, -1))  # of L[i] and H[i]
        ways = [(below - t, above - s) for s, t in signs if (below - t < 0, above - s < 0) == (s < 0, t < 0)]
        ways = [way for way in ways if all(-128 <= v <= 127 for v in way)]
        if not ways:
            return None
        low.append(ways[0][0])
        high.append(ways[0][1])
    return (*low, *high)


@dataclass(frozen=True)
class Ring:
    """Where a warp stages packed bytes: `stages` slots a row, each with one step of `pieces` 16-byte pieces."""

    stages: int
    step_bytes: int
    pieces: int
    slot_bytes: int
    warp_shared: int


def ring(format: Format, team_blocks: int, warp_rows: int) -> Ring:
    """The ring of a warp that walks `warp_rows` rows, `team_blocks` blocks of each at a time."""
    step_bytes = team_blocks * format.bytes
    # A step may start anywhere inside a 16-byte piece, so it can touch one piece more than its size says.
    ragged = 0 if step_bytes % PIECE == 0 and format.alignment == PIECE else PIECE - format.alignment
    pieces = -(-(step_bytes + ragged) // PIECE)
    slot = pieces * PIECE
    stages = max(2, min(4, -(-BYTES_AHEAD // (slot * warp_rows))))
    return Ring(stages, step_bytes, pieces, slot_bytes=slot, warp_shared=stages * warp_rows * slot)


def _instance(format: Format, agreed: Contract, lanes: int, stem: str, rows: int, team_blocks: int) -> Instance:
    teams = 32 // (team_blocks * lanes)
    warp_rows = rows * teams
    slots = ring(format, team_blocks, warp_rows)
    return Instance(
        name=f"{stem}__matvec_native_r{rows}_b{team_blocks}",
        rows=rows,
        team_blocks=team_blocks,
        teams=teams,
        warp_rows=warp_rows,
        substeps=agreed.slices // team_blocks,
        stages=slots.stages,
        step_bytes=slots.step_bytes,
        pieces=slots.pieces,
        slot_bytes=slots.slot_bytes,
        warp_shared=slots.warp_shared,
        shared_bytes=WARPS * slots.warp_shared + PIECE,  # the last word of a block may look 4 bytes ahead
        min_ctas=REGISTER_CTAS[rows if teams == 1 else 4],
    )
