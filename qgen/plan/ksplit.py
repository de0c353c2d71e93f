"""Plans of the family `ksplit_mma`: op mul_mat, small T, int8 tensor cores, native and tiled storage.

A CTA owns 16 or more output rows and up to 8 * `column_tiles` tokens; eight warps split K. Each warp decodes the blocks
it owns in registers, straight into the A fragments of mma.m16n8k32 (two code words a thread and row) or m16n8k16 (one),
and keeps one float sum a slice of the contract. Slices are added in the contract's order, so that T = 1 and T = 96
give the bits of the mat-vec.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from qgen.archs import Arch
from qgen.plan.in_place import InPlace, Pair, leave_in_place
from qgen.plan.lanes import Names, plan_lanes
from qgen.plan.matvec import PIECE, Launch, contract, four, largest, summed_halves, table_words
from qgen.plan.records import Contract, LaneConstant, Step, TermPlan, Words
from qgen.plan.refuse import refuse
from qgen.plan.rungs import (
    LADDER,
    MIDDLE,
    SHARED_LIMIT,
    SINGLE_SLICES,
    SPLIT,
    Rung,
    launch_over_tiles,
    native_rung,
    single_rung,
    tiled_rungs,
    token_rung,
)
from qgen.plan.scales import ScaleWord, plan_scale_word
from qgen.plan.terms import code_field, code_offset, group_size, integer_activation, plan_terms, scale_fields
from qgen.plan.tile import LANES, ROWS, TileLayout, TileNames, in_tile, plan_tile
from qgen.spec import Field, Format

BUNDLE = 128  # elements a warp takes at once, of neighbouring turns where blocks are shorter


@dataclass(frozen=True)
class FragmentLayout:
    """Quantised activations in the order tensor-core fragments want them: a record a column tile and bundle of blocks.

    A column tile is eight tokens. A bundle is what a warp takes at once: `bundle` blocks, `apart` apart. Bundle u holds
    blocks (u // apart) * apart * bundle + u % apart + apart * j, and the records lie as [column tile][bundle].
    A record holds, in order, of thread t of a quad and token 2t or 2t + 1 of the tile:
    codes  int8  [chunk][8 tokens][4 threads][16]        a token's four words a thread and chunk
    scales f32   [4 threads][scales of the bundle][2 tokens]
    starts int32 [units of the bundle][4 threads][4]     (if used) code offset * sum of the unit's codes, tokens twice
    sums   f32   [4 threads][units of the bundle][2]     (if used) sum of the unit's codes; or, for formats with integer
                 [8 tokens][4 threads][2 words]          sub-block scales, low and high parts of four group sums,
                                                         sum = low + 128 * high
    `words[t][j]` lists the four elements of activation word j of thread t, counted over the bundle; `block` stands for
    an empty slot. Blocks that only fill up have codes and sums 0 and scale -0. Of tokens that only fill up their tile
    nothing is written: what a kernel makes of them it does not store.
    Where they are `matrices`, records lie as [bundle][column tile], their codes as [word][8 tokens][4 threads][4], and
    packed sums as [low, high][8 tokens][4 threads][4].
    """

    name: str
    activation: str
    group: int
    block: int  # elements of a bundle
    bundle: int
    chunks: int
    scales: int
    units: int
    sum_group: int  # elements of one stored sum
    packed_sums: bool
    starts: int  # the code offset that the starts are multiplied by; 0 where there are none
    sums: bool
    words: tuple[tuple[tuple[int, int, int, int], ...], ...]
    apart: int = SPLIT  # blocks of a bundle lie so many apart
    matrices: bool = False  # words and packed sums lie as instructions of warpgroups want them, see qgen_wgmma.cuh

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of a record; the scales follow."""
        return self.chunks * 512

    @property
    def starts_at(self) -> int:
        """Byte offset of the starts in a record."""
        return self.code_bytes + 32 * self.scales

    @property
    def sums_at(self) -> int:
        """Byte offset of the sums in a record."""
        return self.starts_at + (64 * self.units if self.starts else 0)

    @property
    def record_bytes(self) -> int:
        """Bytes of a record; where they are matrices whole lines of 128, so that no two rows of one share a bank."""
        end = self.sums_at + (0 if not self.sums else 256 if self.packed_sums else 32 * self.units)
        return -(-end // 128) * 128 if self.matrices else end

    def bundles(self, blocks: int) -> int:
        """Bundles of a row of `blocks` weight blocks."""
        return blocks if self.bundle == 1 else -(-blocks // (self.apart * self.bundle)) * self.apart

    def bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of the quantised activation of `tokens` tokens."""
        return -(-tokens // 8) * self.bundles(blocks) * self.record_bytes


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
    tile: TileLayout | None  # of tiled storage
    one: str  # what an instruction's columns are in the rung for one token: "blocks" of K, or that "token"; "" for none
    in_place: InPlace | None  # for columns of blocks, where most words need no shift then
    early: bool  # registers allow to load activations ahead, where columns are few
    split: int  # warps that share rows, the blocks of K dealt to them in turn
    block: int
    block_bytes: int
    alignment: int
    loads: tuple[Words, ...]
    steps: tuple[Step, ...]
    word_count: int
    code_words: int
    lane_constants: tuple[LaneConstant, ...]
    origins: tuple[LaneConstant, ...]  # of a thread's addresses, counted from the block's start
    pairs: tuple[tuple[Pair, ...], ...]  # by group
    terms: tuple[TermPlan, ...]
    scale_words: tuple[ScaleWord | None, ...]  # by term
    table: tuple[str, ...]
    halves: tuple[str, ...]  # the same as summed_halves; () where there are none
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
        mma = (*(("mma_m16n8k32_s8",) if wide else ()), *(("mma_m16n8k16_s8",) if narrow else ()))
        return (*mma, "cp_async") if self.tile else mma

    def fitting(self, shared_bytes: int) -> tuple[Rung, ...]:
        """The rungs for an architecture that gives a CTA so much shared memory: those before the first too large."""
        return tuple(takewhile(lambda rung: rung.shared_bytes <= shared_bytes, self.rungs))

    def workspace_bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of quantised activation for `tokens` tokens of `blocks` weight blocks."""
        return self.layout.bytes(blocks, tokens)


def plan_ksplit(format: Format, storage: str = "native") -> KsplitPlan:
    """The ksplit_mma plan of `format` with all its rungs. Raises QgenError (stage "plan") with the reason if none.

    storage: "native" or "tiled"
    """
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
    tile = plan_tile(format) if storage == "tiled" else None
    if tile:
        names = TileNames(format, LANES, tile)
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
    numbers = tuple(int(v) for v in format.codebook(codes.table).numbers) if codes.table else ()
    terms = plan_terms(format, codes, program, agreed.unit, group, Names(format, LANES) if tile else names)
    if isinstance(names, TileNames):
        terms = tuple(in_tile(term, names) for term in terms)
    words = tuple(plan_scale_word(format, fields[0], names) if fields else None for fields in scaled)
    bounds = program.group_words
    pairs = tuple(
        tuple(Pair(first=j, second=j + 1 if j + 1 < bounds[g + 1] else -1) for j in range(bounds[g], bounds[g + 1], 2))
        for g in range(groups)
    )
    offset = code_offset(codes)
    bundle = max(1, BUNDLE // format.block)
    layout = FragmentLayout(
        name=f"{activation.name}_{format.name.lower()}_fragments",
        activation=activation.name,
        group=activation_group,
        block=bundle * format.block,
        bundle=bundle,
        chunks=-(-bundle * len(program.code_words) // 4),
        scales=bundle * format.block // activation_group,
        units=bundle * units,
        sum_group=group if packed else agreed.unit,
        packed_sums=packed,
        starts=0 if packed else offset,
        sums=any(codes.name not in t.factors for t in format.terms) or (packed and offset != 0),
        words=tuple(
            tuple(
                four(tuple(e + j * format.block if e >= 0 else bundle * format.block for e in w.elements[t]))
                for j in range(bundle)
                for w in program.code_words
            )
            for t in range(LANES)
        ),
    )
    stem = f"mul_mat_{format.name.lower()}_{agreed.activation}"
    # 16 integer scales a block and row take 8 registers a thread: 16 columns would spill with two CTAs an SM.
    paired = 8 if packed and groups > 8 else 16
    # Two row tiles a warp would spill at 32 columns where there are scales and sums, or many float steps, besides.
    crowded = (
        groups > 8 and bool(len(terms) > 1 or tile) if packed else layout.units * layout.chunks > 8 or layout.units > 4
    )
    doubled = 16 if crowded else 32
    # 24 columns, and over tiles 32, leave registers for two CTAs an SM where little is kept besides their sums: not
    # where codebooks come without integer scales, or codes of several float steps are multiplied.
    simple = packed if codes.table else codes.mul == 1 or layout.units == 1
    light = simple and layout.units <= 2 and not layout.sums and groups <= 8
    lightest = light and layout.units == 1 and not packed
    run = max((load.count for load in program.loads), default=1)

    def rungs_of(columns: int) -> tuple[Rung, ...]:
        row_tiles = 2 if paired < columns <= doubled and columns != MIDDLE else 1
        two = columns <= paired or (lightest if columns == MIDDLE else light and bool(tile))
        if two:
            row_tiles = 1
        if tile:
            return tiled_rungs(format, agreed, stem, columns, two, row_tiles, bundle)
        planned = native_rung(format, agreed, stem, columns, run, two, row_tiles, bundle)
        if row_tiles > 1 and planned.shared_bytes > SHARED_LIMIT:
            planned = native_rung(format, agreed, stem, columns, run, two, 1, bundle)
        return (planned,)

    rungs = tuple(rung for columns in LADDER for rung in rungs_of(columns))
    one = ""
    if tile and not packed and agreed.slices == SINGLE_SLICES:
        one, rungs = "blocks", (single_rung(format, stem), *rungs)
    elif tile and bundle == 1:
        one, rungs = "token", (token_rung(format, agreed, stem), *rungs)
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
        storage=storage,
        file=f"{stem}__ksplit_mma_{storage}",
        contract=agreed,
        layout=layout,
        tile=tile,
        one=one,
        in_place=leave_in_place(program.steps, pairs) if one == "blocks" else None,
        early=not packed or groups <= 8,
        split=SPLIT,
        block=format.block,
        block_bytes=format.bytes,
        alignment=PIECE if tile else format.alignment,
        loads=program.loads,
        steps=program.steps,
        word_count=program.word_count,
        code_words=len(program.code_words),
        lane_constants=tuple(names.constants.values()),
        origins=tuple(names.origins.values()),
        pairs=pairs,
        terms=terms,
        scale_words=words,
        table=table_words(numbers),
        halves=table_words((summed_halves(numbers) if numbers else None) or ()),
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
    named = {
        tuple(f.name for f in fields)
        for term, fields in zip(format.terms, scaled, strict=True)
        if codes.name in term.factors
    }
    if len(named) > 1:
        found = " and ".join(sorted("*".join(names) or "none" for names in named))
        refuse(format, f"terms with codes under integer scales {found}", "one integer scale of the codes")
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


def launch_ksplit(
    plan: KsplitPlan, rung: Rung, rows: int, tokens: int, multiprocessors: int, ctas_per_multiprocessor: int, arch: Arch
) -> tuple[Launch, int]:
    """Launch numbers and the grid's y: column tiles of the rung's capacity; x is persistent over row tiles."""
    if plan.tile:
        return launch_over_tiles(rung, rows, tokens, multiprocessors, ctas_per_multiprocessor, arch)
    tiles = -(-rows // ROWS)
    columns = -(-tokens // rung.columns)
    # CTAs of neighbouring numbers lie on different multiprocessors: those with one tile more are spread over them.
    resident = max(1, multiprocessors * ctas_per_multiprocessor // columns)
    return Launch(grid=max(1, min(tiles, resident)), block=32 * rung.warps, shared=rung.shared_bytes), columns
