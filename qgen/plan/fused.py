"""Plans of family `fused`: mul_mat of one token over tiles in one launch, whose CTAs quantise x by themselves.

Every CTA has a multiprocessor to itself, so that x is quantised once on each; its records stay in shared memory, where
teams of warps read them, a row tile a team. The bits are those of the ladder over tiles: the same codes and slices.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.ksplit import KsplitPlan, plan_ksplit
from qgen.plan.matvec import Launch
from qgen.plan.quantize import FragmentQuantizePlan, plan_quantize_fragments
from qgen.plan.records import Contract
from qgen.plan.refuse import refuse
from qgen.plan.rungs import SHARED_LIMIT, SINGLE_SLICES
from qgen.plan.tile import ROWS
from qgen.spec.records import Format

WARPS = 16  # of a CTA
MOST_COLUMNS = 8192  # of x: longer rows are quantised faster by a launch of their own, once for all
RING = 160 * 1024  # bytes of three stages of all teams, above which two do where decoding takes longer than reading
WIDE = 8  # bits a weight from which it does not
# Bytes of shared memory beside which a multiprocessor of sm_90 has no room for a second CTA, with the driver's part.
ALONE = 116 * 1024


@dataclass(frozen=True)
class HeldRecord:
    """Where the parts of one token's activation record of a bundle begin, in bytes. It stays in shared memory.

    codes  int8   [chunk][thread of a quad][16]
    scales f32    [scale]
    starts int32  [unit], where the layout has starts
    sums          int8 [thread of a quad][low, high][4] where packed, else f32 [unit]
    """

    code_bytes: int
    starts_at: int
    sums_at: int
    record_bytes: int


@dataclass(frozen=True)
class FusedInstance:
    """One compiled kernel: how a CTA's warps are dealt to row tiles."""

    name: str
    warps: int  # of a team, which shares a row tile
    teams: int
    rows: int  # of a CTA, all teams
    warp_blocks: int  # of a stage, for each warp; 0 where a stage has a block for every slice
    stage_blocks: int
    stages: int
    slot_bytes: int
    records_at: int  # byte offset of the activation records in shared memory
    shared_bytes: int


@dataclass(frozen=True)
class FusedPlan:
    """Everything the template needs, finished. What is decoded and multiplied, and how, is the ladder's."""

    family: str
    op: str
    format: str
    storage: str
    file: str
    ladder: KsplitPlan
    quantize: FragmentQuantizePlan
    record: HeldRecord
    most_blocks: int  # of a row
    instances: tuple[FusedInstance, ...]

    @property
    def contract(self) -> Contract:
        """The ladder's."""
        return self.ladder.contract

    @property
    def alignment(self) -> int:
        """Bytes the weights must be aligned to."""
        return self.ladder.alignment

    @property
    def requires(self) -> tuple[str, ...]:
        """Instructions (fields of qgen.archs.Instructions) its text cannot do without."""
        return self.ladder.requires


def plan_fused(format: Format, ladder: KsplitPlan | None = None) -> FusedPlan:
    """The kernels of `format` beside its ladder over tiles. Raises QgenError (stage "plan") with the reason if none.

    ladder: that one, where it is at hand
    """
    ladder = ladder or plan_ksplit(format, "tiled")
    if not ladder.one:
        refuse(format, "no rung for one token over tiles", "blocks that fill a bundle, or an eighth of one each")
    if format.block > MOST_COLUMNS:
        refuse(format, f"blocks of {format.block} columns", f"at most {MOST_COLUMNS}: x stays in shared memory")
    record = _record(ladder)
    most_blocks = MOST_COLUMNS // format.block
    records = ladder.layout.bundles(most_blocks) * record.record_bytes
    stem = f"mul_mat_{format.name.lower()}_{ladder.contract.activation}"
    teams = (4,) if ladder.one == "blocks" else (4, 2)
    instances = tuple(_instance(ladder, f"{stem}_t1__fused_tiled", count, records) for count in teams)
    widest = max(instance.shared_bytes for instance in instances)
    if widest > SHARED_LIMIT:
        refuse(format, f"staging its tiles takes {widest} bytes of shared memory", f"at most {SHARED_LIMIT}")
    return FusedPlan(
        family="fused",
        op="mul_mat",
        format=format.name,
        storage="tiled",
        file=f"{stem}__fused_tiled",
        ladder=ladder,
        quantize=plan_quantize_fragments(ladder),
        record=record,
        most_blocks=most_blocks,
        instances=instances,
    )


def _record(ladder: KsplitPlan) -> HeldRecord:
    layout = ladder.layout
    codes = 64 * layout.chunks
    starts = codes + 4 * layout.scales
    sums = -(-(starts + (4 * layout.units if layout.starts else 0)) // 8) * 8
    end = sums + (0 if not layout.sums else 32 if layout.packed_sums else 4 * layout.units)
    pieces = -(-end // 16)
    # Where threads read records side by side, an odd number of pieces keeps them in different banks.
    if ladder.one == "blocks" and pieces % 2 == 0:
        pieces += 1
    return HeldRecord(code_bytes=codes, starts_at=starts, sums_at=sums, record_bytes=16 * pieces)


def _instance(ladder: KsplitPlan, stem: str, teams: int, records: int) -> FusedInstance:
    warps = WARPS // teams
    # Without integer scales a block is soon done: two of them a stage.
    warp_blocks = 0 if ladder.one == "blocks" else 1 if ladder.layout.packed_sums else 2
    stage_blocks = warps * warp_blocks or SINGLE_SLICES
    slot = stage_blocks * ROWS * ladder.block_bytes
    deep = 3 * teams * slot <= RING or 8 * ladder.block_bytes > WIDE * ladder.block
    stages = 3 if deep else 2
    records_at = teams * (stages * slot + warps * ROWS * 4 + 8 * (2 * stages + 2))
    return FusedInstance(
        name=f"{stem}_w{warps}",
        warps=warps,
        teams=teams,
        rows=ROWS * teams,
        warp_blocks=warp_blocks,
        stage_blocks=stage_blocks,
        stages=stages,
        slot_bytes=slot,
        records_at=records_at,
        # Where two fitted, launches that begin early would put two CTAs on one multiprocessor, and none on another.
        shared_bytes=max(records_at + records, ALONE),
    )


def launch_fused(instance: FusedInstance, rows: int, multiprocessors: int) -> Launch:
    """A CTA a multiprocessor, persistent over row tiles, or one a row tile where those are fewer."""
    grid = max(1, min(-(-rows // ROWS), multiprocessors))
    return Launch(grid=grid, block=32 * WARPS, shared=instance.shared_bytes)
