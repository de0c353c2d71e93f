"""Plans of the family `ksplit_mma` with f16 or bf16 activations: op mul_mat, from T = 1 up, native and tiled storage.

A CTA owns 16 output rows, or 32, and up to 8 * `column_tiles` tokens; its warps split K. Each warp decodes the blocks
it owns in registers: a code word, four codes of a thread and row, becomes the two registers of A of one m16n8k16, and x
lies in memory in the order that this gives to K. The arithmetic is qgen.plan.float_contract's.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgen.archs import Arch
from qgen.plan.float_contract import FloatContract, float_contract, group_of, whole_numbers
from qgen.plan.float_convert import Convert, Fold, convert_codes, plan_fold
from qgen.plan.float_rungs import LADDER, SHARED_LIMIT, TILED_LADDER, FloatRung, native_float_rung, tiled_float_rung
from qgen.plan.lanes import Names, plan_lanes
from qgen.plan.matvec import PIECE, Launch, four, table_words
from qgen.plan.planes import Origin, PlaneNames, StagedPlane, as_blocks
from qgen.plan.records import LaneConstant, Step, TermPlan, Words
from qgen.plan.refuse import refuse
from qgen.plan.rungs import launch_over_tiles
from qgen.plan.scales import ScaleWord, plan_scale_word
from qgen.plan.terms import code_field, plan_terms, scale_fields
from qgen.plan.tile import LANES, TileLayout, TileNames, in_tile, plan_tile
from qgen.spec import Format

PIECE_WORDS = 2  # code words whose activations a thread loads at once: 16 bytes


@dataclass(frozen=True)
class FloatFragments:
    """Activations of a class in the order tensor-core fragments want them, eight tokens a column tile.

    Planes, in order, each [column tile][block] and then: values, two bytes each, [piece][8 tokens][4 threads][8],
    which are the elements of code words 2 piece and 2 piece + 1; then, where a term needs them, sums. They are f32
    [groups][8 tokens], or where `pieced` bf16 [groups / 8][8 tokens][4 threads][4]: of run i, thread t has the high
    pieces of the sums of groups 8i + 2t and 8i + 2t + 1, then their low pieces.
    `words[t][j]` lists the four elements of code word j of thread t, which is step j of the contract; `block` stands
    for an empty place, whose value is 0.
    Where they are `matrices`, they lie as records [bundle][column tile] of whole lines of 128 bytes instead: the values
    of the bundle's blocks, [block][word][first two, last two of the word's four][8 tokens][4 threads][2], then their
    sums, block by block: f32 as above, pieced [groups / 8][high pieces, low pieces][8 tokens][4 threads][2]. Bundle u
    holds blocks (u // apart) * apart * bundle + u % apart + apart * j; those that only fill up have values and sums 0.
    """

    name: str
    activation: str
    block: int
    pieces: int
    groups: int
    sums: bool
    pieced: bool
    words: tuple[tuple[tuple[int, int, int, int], ...], ...]
    matrices: bool = False  # as instructions of warpgroups want them, see qgen_wgmma_float.cuh
    bundle: int = 1  # blocks of a record of matrices,
    apart: int = 1  # which lie so many apart

    @property
    def value_bytes(self) -> int:
        """Bytes of values of one block and column tile."""
        if self.matrices:
            return len(self.words[0]) * 8 * LANES * 4 * 2
        return self.pieces * 8 * LANES * 4 * PIECE_WORDS * 2

    @property
    def sum_bytes(self) -> int:
        """Bytes of sums of one block and column tile."""
        return 32 * self.groups if self.sums else 0

    @property
    def sums_at(self) -> int:
        """Byte offset of the sums in a record of matrices."""
        return self.bundle * self.value_bytes

    @property
    def record_bytes(self) -> int:
        """Bytes of a record of matrices: so that no two rows of one share a bank."""
        return -(-self.bundle * (self.value_bytes + self.sum_bytes) // 128) * 128

    def bundles(self, blocks: int) -> int:
        """Records of matrices of a row of `blocks` weight blocks and one column tile."""
        return blocks if self.bundle == 1 else -(-blocks // (self.apart * self.bundle)) * self.apart

    def sums_offset(self, blocks: int, tokens: int) -> int:
        """Byte offset of the sums plane."""
        return -(-tokens // 8) * blocks * self.value_bytes

    def bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of the arranged activation of `tokens` tokens."""
        if self.matrices:
            return -(-tokens // 8) * self.bundles(blocks) * self.record_bytes
        return -(-tokens // 8) * blocks * (self.value_bytes + self.sum_bytes)


@dataclass(frozen=True)
class FloatKsplitPlan:
    """Everything the template needs, finished."""

    family: str
    op: str
    format: str
    storage: str
    file: str
    contract: FloatContract
    layout: FloatFragments
    tile: TileLayout | None  # of tiled storage
    block: int
    block_bytes: int
    planes: tuple[StagedPlane, ...]  # tiles are one
    alignment: int
    loads: tuple[Words, ...]
    steps: tuple[Step, ...]
    word_count: int
    code_words: int
    lane_constants: tuple[LaneConstant, ...]
    origins: tuple[Origin, ...] | tuple[LaneConstant, ...]  # of a thread's addresses, in planes or in a tile
    group_words: tuple[int, ...]  # first code word of each group, and the end
    convert: Convert
    fold: Fold | None  # of a folded contract
    terms: tuple[TermPlan, ...]
    scale_words: tuple[ScaleWord | None, ...]  # by term
    scale_spans: tuple[int, ...]  # by term: groups that share an integer scale
    table: tuple[str, ...]
    rungs: tuple[FloatRung, ...]
    read_factor: float

    @property
    def requires(self) -> tuple[str, ...]:
        """Instructions (fields of qgen.archs.Instructions) its text cannot do without."""
        classes = dict.fromkeys((self.contract.activation, *(("bf16",) if self.layout.pieced else ())))
        mma = tuple(f"mma_m16n8k16_{name}" for name in classes)
        return (*mma, "cp_async") if self.tile else mma

    def workspace_bytes(self, blocks: int, tokens: int) -> int:
        """Bytes of arranged activation for `tokens` tokens of `blocks` weight blocks."""
        return self.layout.bytes(blocks, tokens)


def plan_ksplit_float(format: Format, activation: str, storage: str = "native") -> FloatKsplitPlan:
    """The ksplit_mma plan of `format` for activation class "f16" or "bf16", with every instance that fits.

    storage: "native" or "tiled"; the contract and the order of x are the same
    Raises QgenError (stage "plan") with the reason if there is none.
    """
    agreed = float_contract(format, activation)
    flat, planes = as_blocks(format)
    codes = code_field(flat)
    group = group_of(flat, codes)
    tile = plan_tile(format) if storage == "tiled" else None
    names = TileNames(flat, LANES, tile) if tile else PlaneNames(flat, LANES, planes)
    program = plan_lanes(flat, codes, LANES, group, names, uniform=True)
    scaled = [scale_fields(flat, term, codes) for term in flat.terms]
    terms = plan_terms(flat, codes, program, group, group, Names(flat, LANES) if tile else names)
    words = tuple(plan_scale_word(flat, fields[0], names) if fields else None for fields in scaled)
    table = tuple(int(v) for v in flat.codebook(codes.table).numbers) if codes.table else ()
    convert, stored = convert_codes(format, codes, activation, table)
    sums = any(codes.name not in t.factors for t in flat.terms)
    fold = None
    if agreed.folded:
        (scale,) = (f for t, fields in zip(flat.terms, scaled, strict=True) if codes.name in t.factors for f in fields)
        fold = plan_fold(activation, whole_numbers(flat, scale), convert)
    layout = FloatFragments(
        name=f"{activation}_{format.name.lower()}_fragments",
        activation=activation,
        block=format.block,
        pieces=-(-len(program.code_words) // PIECE_WORDS),
        groups=format.block // group,
        sums=sums,
        pieced=sums and agreed.folded,
        words=tuple(
            tuple(four(tuple(e if e >= 0 else format.block for e in w.elements[t])) for w in program.code_words)
            for t in range(LANES)
        ),
    )
    stem = f"mul_mat_{format.name.lower()}_{activation}"
    run = max((load.count for load in program.loads), default=1)
    # Integer scales take registers: 16 columns would spill with two CTAs a multiprocessor, 32 where there are many.
    # Folded ones take fewer: two CTAs have too few only in native storage, whose rows have a place each.
    many = any(scaled) and not fold
    paired = 8 if many or (fold and not tile) else 16
    widest = 16 if many and layout.groups > 8 else 32
    origins: tuple[Origin, ...] | tuple[LaneConstant, ...]
    if isinstance(names, TileNames):
        terms = tuple(in_tile(term, names) for term in terms)
        loads, origins = program.loads, tuple(names.origins.values())
        planes = (StagedPlane("weight", format.bytes, PIECE, 0),)
        legal = [tiled_float_rung(names.tile, format.block, agreed, stem, n, paired) for n in TILED_LADDER]
    else:
        loads, origins = tuple(map(names.widened, program.loads)), tuple(names.by_plane.values())
        legal = [native_float_rung(planes, format.block, agreed, stem, n, m, run, paired) for n, m in LADDER]
    rungs = tuple(rung for rung in legal if rung.shared_bytes <= SHARED_LIMIT and rung.columns <= widest)
    if not {(8, 1), (16, 1)} <= {(rung.columns, rung.row_tiles) for rung in rungs}:
        refuse(
            format,
            f"staging its {format.bytes}-byte blocks takes more than {SHARED_LIMIT} bytes of shared memory",
            "smaller blocks",
        )
    return FloatKsplitPlan(
        family="ksplit_mma",
        op="mul_mat",
        format=format.name,
        storage=storage,
        file=f"{stem}__ksplit_mma_{storage}",
        contract=agreed,
        layout=layout,
        tile=tile,
        block=format.block,
        block_bytes=format.bytes,
        planes=planes,
        alignment=max(plane.alignment for plane in planes),
        loads=loads,
        steps=program.steps,
        word_count=program.word_count,
        code_words=len(program.code_words),
        lane_constants=tuple(names.constants.values()),
        origins=origins,
        group_words=program.group_words,
        convert=convert,
        fold=fold,
        terms=terms,
        scale_words=words,
        scale_spans=tuple(fields[0].per // group if fields else 1 for fields in scaled),
        table=table_words(stored),
        rungs=rungs,
        read_factor=1.0,
    )


# ---- launch shapes -----------------------------------------------------------------------------------------------


def launch_ksplit_float(
    plan: FloatKsplitPlan,
    rung: FloatRung,
    rows: int,
    tokens: int,
    multiprocessors: int,
    ctas_per_multiprocessor: int,
    arch: Arch,
) -> tuple[Launch, int]:
    """Launch numbers and the grid's y: column tiles of the rung's capacity; x is persistent over row tiles."""
    if plan.tile:
        return launch_over_tiles(rung, rows, tokens, multiprocessors, ctas_per_multiprocessor, arch)
    tiles = -(-rows // rung.rows)
    columns = -(-tokens // rung.columns)
    resident = max(1, multiprocessors * ctas_per_multiprocessor // columns)
    waves = -(-tiles // resident)
    return Launch(grid=max(1, -(-tiles // waves)), block=32 * rung.warps, shared=rung.shared_bytes), columns
