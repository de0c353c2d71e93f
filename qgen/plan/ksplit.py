"""Plans of the family `ksplit_mma`: op mul_mat, small T, int8 tensor cores, native storage.

A CTA owns 16 output rows and up to 8 * `column_tiles` tokens; its warps split K. Each warp decodes the blocks it owns
in registers, straight into the A fragments of mma.m16n8k32 (two code words a thread and row) or m16n8k16 (one), and
keeps one float sum a slice of the contract. Slices are added in the contract's order, so that T = 1 and T = 96 give
the bits of the mat-vec.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.lanes import Names, plan_lanes
from qgen.plan.matvec import PIECE, Launch, contract, four, largest, table_words
from qgen.plan.records import Contract, LaneConstant, Step, TermPlan, Words
from qgen.plan.refuse import refuse
from qgen.plan.scales import ScaleWord, plan_scale_word
from qgen.plan.terms import code_field, code_offset, group_size, integer_activation, plan_terms, scale_fields
from qgen.spec import Field, Format

LANES = 4  # threads that share a row of a fragment
ROWS = 16  # rows of a fragment
STAGE_LIMIT = 40 * 1024  # bytes of a stage: two of them and two CTAs fit every architecture since sm_80
SHARED_LIMIT = 99 * 1024  # what sm_86, sm_89 and sm_120 give a CTA


@dataclass(frozen=True)
class FragmentLayout:
    """Quantised activations in the order tensor-core fragments want them, eight tokens a column tile.

    Planes, in order, each [column tile][block] and then: codes int8 [chunk][8 tokens][4 threads][4 * piece_words];
    scale f32 [scales][8]; sums, either int32 [units][8] or, for formats with integer sub-block scales, [8][4] pairs of
    words: the low and high parts of four group sums, sum = low + 128 * high.
    `words[t][j]` lists the four elements of activation word j of thread t; `block` stands for an empty slot.
    """

    name: str
    activation: str
    group: int
    block: int
    piece_words: int  # activation words a thread loads at once: 4, or 2 where a block has no more
    chunks: int
    scales: int
    units: int
    sum_group: int  # elements of one stored sum
    packed_sums: bool
    sums: bool
    words: tuple[tuple[tuple[int, int, int, int], ...], ...]

    @property
    def code_bytes(self) -> int:
        """Bytes of codes of one block and column tile."""
        return self.chunks * 32 * 4 * self.piece_words

    @property
    def sum_bytes(self) -> int:
        """Bytes of sums of one block and column tile."""
        return 0 if not self.sums else 256 if self.packed_sums else 32 * self.units

    def scale_offset(self, blocks: int, tokens: int) -> int:
        """Byte offset of the scale plane."""
        return -(-tokens // 8) * blocks * self.code_bytes

    def sums_offset(self, blocks: int, tokens: int) -> int:
        """Byte offset of the sums plane."""
        return self.scale_offset(blocks, tokens) + -(-tokens // 8) * blocks * self.scales * 32

    def bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of the quantised activation of `tokens` tokens."""
        return self.sums_offset(blocks, tokens) + -(-tokens // 8) * blocks * self.sum_bytes


@dataclass(frozen=True)
class Rung:
    """One compiled instance: its column capacity and launch shape."""

    name: str
    columns: int
    column_tiles: int
    warps: int
    stage_blocks: int  # blocks of a stage, all warps
    warp_blocks: int  # of which each warp takes this many
    substeps: int  # slices a warp owns
    stages: int
    pieces: int
    slot_bytes: int
    shared_bytes: int
    min_ctas: int


@dataclass(frozen=True)
class Pair:
    """One tensor-core instruction: code words and activation words first, second (or -1: the k16 form)."""

    first: int
    second: int


@dataclass(frozen=True)
class KsplitPlan:
    """Everything the template needs, finished."""

    family: str
    op: str
    format: str
    storage: str
    file: str
    contract: Contract
    layout: FragmentLayout
    block: int
    block_bytes: int
    alignment: int
    loads: tuple[Words, ...]
    steps: tuple[Step, ...]
    word_count: int
    code_words: int
    lane_constants: tuple[LaneConstant, ...]
    pairs: tuple[tuple[Pair, ...], ...]  # by group
    terms: tuple[TermPlan, ...]
    scale_words: tuple[ScaleWord | None, ...]  # by term
    table: tuple[str, ...]
    units: int
    groups: int
    code_mul: int
    code_offset: int
    largest_sum: int
    rungs: tuple[Rung, ...]
    read_factor: float

    @property
    def requires(self) -> tuple[str, ...]:
        """Instructions (fields of qgen.archs.Instructions) its text cannot do without."""
        wide = any(pair.second >= 0 for group in self.pairs for pair in group)
        narrow = any(pair.second < 0 for group in self.pairs for pair in group)
        narrow = narrow or (self.layout.sums and self.layout.packed_sums)
        return (*(("mma_m16n8k32_s8",) if wide else ()), *(("mma_m16n8k16_s8",) if narrow else ()))

    def workspace_bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of quantised activation for `tokens` tokens of `blocks` weight blocks."""
        return self.layout.bytes(blocks, tokens)


LADDER = (8, 16, 32)  # column capacities worth having on the H200; more tokens tile over the grid's y


def plan_ksplit(format: Format) -> KsplitPlan:
    """The ksplit_mma plan of `format` with all its rungs. Raises QgenError (stage "plan") with the reason if none."""
    codes = code_field(format)
    agreed = contract(format)
    if format.split or format.row_bytes or format.tensor_bytes:
        refuse(format, "planes, row or tensor bytes", "blocks in one plane, without row or tensor metadata")
    activation, activation_group = integer_activation(format)
    if activation_group > format.block:
        refuse(
            format, f"activation groups of {activation_group} span blocks of {format.block}", "blocks at least as long"
        )
    group = group_size(format, codes, agreed.unit)
    names = Names(format, LANES)
    program = plan_lanes(format, codes, LANES, group, names, uniform=True)
    groups, units = format.block // group, format.block // agreed.unit
    scaled = [scale_fields(format, term, codes) for term in format.terms]
    packed = any(scaled)
    if packed and units != 1:
        refuse(format, f"integer scales in {units} units a block", "integer scales inside one float step")
    if packed and groups > 16:
        refuse(format, f"{groups} integer scales a block", "at most 16")
    if packed:
        _check_scales(format, codes, groups, scaled)
    terms = plan_terms(format, codes, program, agreed.unit, group, names)
    words = tuple(plan_scale_word(format, fields[0], names) if fields else None for fields in scaled)
    bounds = program.group_words
    pairs = tuple(
        tuple(Pair(first=j, second=j + 1 if j + 1 < bounds[g + 1] else -1) for j in range(bounds[g], bounds[g + 1], 2))
        for g in range(groups)
    )
    offset = code_offset(codes)
    piece = 2 if len(program.code_words) <= 2 else 4
    layout = FragmentLayout(
        name=f"{activation.name}_{format.name.lower()}_fragments",
        activation=activation.name,
        group=activation_group,
        block=format.block,
        piece_words=piece,
        chunks=-(-len(program.code_words) // piece),
        scales=format.block // activation_group,
        units=units,
        sum_group=group if packed else agreed.unit,
        packed_sums=packed,
        sums=offset != 0 or any(codes.name not in t.factors for t in format.terms),
        words=tuple(
            tuple(four(tuple(e if e >= 0 else format.block for e in w.elements[t])) for w in program.code_words)
            for t in range(LANES)
        ),
    )
    stem = f"mul_mat_{format.name.lower()}_{agreed.activation}"
    # 16 integer scales a block and row take 8 registers a thread: 16 columns would spill with two CTAs an SM.
    paired = 8 if packed and groups > 8 else 16
    run = max((load.count for load in program.loads), default=1)
    rungs = tuple(_rung(format, agreed, stem, columns, run, paired) for columns in LADDER)
    widest = max(rung.shared_bytes for rung in rungs)
    if widest > SHARED_LIMIT:
        refuse(
            format,
            f"staging its {format.bytes}-byte blocks takes {widest} bytes of shared memory",
            f"at most {SHARED_LIMIT}",
        )
    return KsplitPlan(
        family="ksplit_mma",
        op="mul_mat",
        format=format.name,
        storage="native",
        file=f"{stem}__ksplit_mma_native",
        contract=agreed,
        layout=layout,
        block=format.block,
        block_bytes=format.bytes,
        alignment=format.alignment,
        loads=program.loads,
        steps=program.steps,
        word_count=program.word_count,
        code_words=len(program.code_words),
        lane_constants=tuple(names.constants.values()),
        pairs=pairs,
        terms=terms,
        scale_words=words,
        table=table_words(tuple(int(v) for v in format.codebook(codes.table).numbers)) if codes.table else (),
        units=units,
        groups=groups,
        code_mul=int(codes.mul) if not codes.table else 1,
        code_offset=offset,
        largest_sum=largest(format),
        rungs=rungs,
        read_factor=1.0,
    )


def _check_scales(format: Format, codes: Field, groups: int, scaled: list[list[Field]]) -> None:
    """What the packed sums and scale words rely on. Raises QgenError where the format is otherwise."""
    for term, fields in zip(format.terms, scaled, strict=True):
        label = "*".join(term.factors)
        for field in fields:
            if field.entries != groups:
                refuse(
                    format,
                    f"{field.entries} entries of scale {field.name} for {groups} groups",
                    "a scale for every group",
                )
        if codes.name not in term.factors and not fields:
            refuse(
                format,
                f"term {label} has no integer scale, but others have",
                "integer scales in all terms of bare sums",
            )
        if codes.name in term.factors and not fields and code_offset(codes):
            refuse(
                format,
                f"term {label} has offset codes and no integer scale, but others have",
                "codes without an offset",
            )
        if codes.name in term.factors and fields and codes.mul != 1:
            refuse(format, f"codes times {codes.mul:g} under integer scales", "codes times 1 there")


def _rung(format: Format, agreed: Contract, stem: str, columns: int, run: int, paired: int) -> Rung:
    """run: words of the longest load; paired: columns up to which two CTAs share a multiprocessor's registers."""
    tiles = columns // 8
    # One float sum a slice, row, column and thread: more warps own fewer slices each, so wide rungs use more warps.
    warps = 8 if 4 * tiles * (agreed.slices // 8) <= 128 else 16
    substeps = agreed.slices // warps
    # All slices in one stage, so that the work around a stage is spread over many blocks; large blocks one at a time.
    warp_blocks = substeps if ROWS * agreed.slices * format.bytes <= STAGE_LIMIT else 1
    stage_blocks = warps * warp_blocks
    step_bytes = stage_blocks * format.bytes
    ragged = 0 if step_bytes % PIECE == 0 and format.alignment == PIECE else PIECE - format.alignment
    pieces = -(-(step_bytes + ragged) // PIECE)
    # Rows lie so that the eight rows of a fragment fall into different banks.
    slot = pieces * PIECE
    want = min(64, 16 * run)
    slot += (want - slot) % 128
    reduction = warps * tiles * 8 * 20 * 4
    stages = 4
    while stages > 2 and (stages - 1) * ROWS * slot > STAGE_LIMIT:
        stages -= 1
    return Rung(
        name=f"{stem}_t{columns}__ksplit_mma_native_w{warps}",
        columns=columns,
        column_tiles=tiles,
        warps=warps,
        stage_blocks=stage_blocks,
        warp_blocks=warp_blocks,
        substeps=substeps,
        stages=stages,
        pieces=pieces,
        slot_bytes=slot,
        shared_bytes=stages * ROWS * slot + reduction + PIECE,
        min_ctas=2 if warps == 8 and columns <= paired else 1,
    )


def launch_ksplit(
    plan: KsplitPlan, rung: Rung, rows: int, tokens: int, multiprocessors: int, ctas_per_multiprocessor: int
) -> tuple[Launch, int]:
    """Launch numbers and the grid's y: column tiles of the rung's capacity; x is persistent over row tiles."""
    tiles = -(-rows // ROWS)
    columns = -(-tokens // rung.columns)
    resident = max(1, multiprocessors * ctas_per_multiprocessor // columns)
    waves = -(-tiles // resident)
    return Launch(grid=max(1, -(-tiles // waves)), block=32 * rung.warps, shared=rung.shared_bytes), columns
