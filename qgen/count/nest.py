"""How often a warp runs what the plan of a kernel says it does: loops, dots, requests, sums. Averages over a launch.

A plan knows no machine code. What it says here is held against the loops and dots found there, see qgen.count.weigh.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from qgen import plan
from qgen.archs import Arch
from qgen.emit.ksplit import ksplit_kernel
from qgen.errors import QgenError
from qgen.plan.matvec import PIECE

CountedPlan = plan.MatvecPlan | plan.MultirowPlan | plan.KsplitPlan | plan.FusedPlan
CountedInstance = plan.Instance | plan.MultirowInstance | plan.Rung | plan.FusedInstance


@dataclass(frozen=True)
class Nest:
    """What an average warp of a launch does, in times unless said otherwise.

    warps:      of the launch, a number
    row_tiles:  turns of the loop over row tiles
    stages:     turns of the loop over K inside it, all of them
    dots:       executions of the dot instructions in it, in the order they are written
    dot:        their opcode, IDP or IMMA
    tail:       turns of a loop over blocks inside it, all of them, and executions of the dots there; none without one
    bulk:       weights come by bulk copies, asked for by one warp at a time; else by cp.async of every warp
    before:     requests for weights ahead of the row tiles, by place in the text; bulk: the last place is in a loop
    ahead:      turns of that loop
    inside:     requests in the loop over K, by place in the text
    copies:     bulk copies of a request, one turn of a loop each
    sums:       row tiles of which the warp adds up partial sums in the loop over K, and behind all loops; none where
                a warp has whole sums
    sum_turns:  turns of the loop in which it does
    barriers:   times that it sets up barriers, and how many
    bundles:    turns of a loop ahead of the row tiles: bundles of x that it quantises; none where x comes quantised
    columns:    bundles whose columns of x it asks for, ahead of that loop and in it
    """

    warps: int
    row_tiles: float
    stages: float
    dots: tuple[float, ...]
    bulk: bool
    before: tuple[float, ...]
    inside: tuple[float, ...]
    ahead: float = 0.0
    copies: float = 0.0
    sums: tuple[float, float] | None = None
    sum_turns: float = 1.0
    tail: tuple[float, float] | None = None
    barriers: tuple[float, int] = (0.0, 0)
    dot: str = "IDP"
    bundles: float | None = None
    columns: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Problem:
    """A launch: N rows, K in blocks, T tokens, on a device of `arch` that holds `resident` CTAs a multiprocessor."""

    arch: Arch
    rows: int
    blocks: int
    tokens: int
    multiprocessors: int
    resident: int


def plan_nest(planned: CountedPlan, instance: CountedInstance, problem: Problem) -> Nest:
    """Raises QgenError where rows do not begin and end on 16 bytes: what the ragged ends cost depends on addresses.

    So it does for a fused kernel where it does not take the case.
    """
    if isinstance(planned, plan.MatvecPlan) and isinstance(instance, plan.Instance):
        _aligned(planned, instance.team_blocks, problem, instance.name)
        return _matvec(planned, instance, problem)
    if isinstance(planned, plan.MultirowPlan) and isinstance(instance, plan.MultirowInstance):
        _aligned(planned, instance.team_blocks, problem, instance.name)
        return _multirow(planned, instance, problem)
    if isinstance(planned, plan.FusedPlan) and isinstance(instance, plan.FusedInstance):
        return _fused(planned, instance, problem)
    assert isinstance(planned, plan.KsplitPlan) and isinstance(instance, plan.Rung)
    if planned.tile is None:
        _aligned(planned, instance.stage_blocks, problem, instance.name)
    return _ksplit(planned, instance, problem)


def _aligned(
    planned: plan.MatvecPlan | plan.MultirowPlan | plan.KsplitPlan, step_blocks: int, problem: Problem, name: str
) -> None:
    for what, blocks in (("a row", problem.blocks), ("a stage", min(step_blocks, problem.blocks))):
        if blocks * planned.block_bytes % PIECE:
            raise QgenError(
                stage="count",
                subject=f"{name} at {problem.rows}x{problem.blocks * planned.block}",
                found=f"{what} has {blocks} x {planned.block_bytes} = {blocks * planned.block_bytes} bytes",
                allowed=f"a multiple of {PIECE}: what copying ragged ends costs is not in the plan",
                next="choose another K",
            )


def _products(planned: plan.MatvecPlan | plan.KsplitPlan) -> int:
    """Dots of a code word, where it may be a sum of two look-ups."""
    return 2 if planned.halves else 1


# ---- mat-vec and multirow: every warp has row tiles of its own ---------------------------------------------------


def _matvec(planned: plan.MatvecPlan, instance: plan.Instance, problem: Problem) -> Nest:
    launch = plan.launch(planned, instance, problem.rows, problem.multiprocessors, problem.resident)
    uses = _products(planned) * sum(len(step.uses) for step in planned.steps)
    return _own_rows(
        instance,
        problem,
        warps=launch.grid * planned.warps,
        others=1,
        dots=(1.0,) * (instance.rows * uses),
    )


def _multirow(planned: plan.MultirowPlan, instance: plan.MultirowInstance, problem: Problem) -> Nest:
    launch, columns = plan.launch_multirow(
        instance, problem.rows, problem.tokens, problem.multiprocessors, problem.resident
    )
    rows_held = instance.rows <= instance.columns
    held = min(instance.rows, instance.columns)
    # Sums are dealt to threads in such numbers; only between two deals does a team look whether tokens are left.
    dealt = min(instance.rows * instance.columns, planned.lanes)
    left = [min(problem.tokens - y * instance.columns, instance.columns) for y in range(columns)]

    def share(sum_number: int) -> float:
        deal = max(held, dealt)
        column = sum_number // deal * deal // held
        return fmean(column < there for there in left) if rows_held else 1.0

    dots = [
        share(number)
        for part in planned.parts
        for number in range(instance.rows * instance.columns)
        for _ in range(sum(len(step.uses) for step in part.steps))
    ]
    return _own_rows(instance, problem, warps=launch.grid * instance.warps, others=columns, dots=tuple(dots))


def _own_rows(
    instance: plan.Instance | plan.MultirowInstance,
    problem: Problem,
    *,
    warps: int,
    others: int,
    dots: tuple[float, ...],
) -> Nest:
    """others: how many such grids the launch has; dots: of a step of K, as shares of the steps."""
    tiles = -(-problem.rows // instance.warp_rows)
    steps = -(-problem.blocks // instance.team_blocks)
    taken = [steps * (tiles // warps + (w < tiles % warps)) for w in range(warps)]
    a_warp = tiles / warps
    # The steps are written out `substeps` at a time; of the last the rest is jumped over.
    times = [(steps - sub + instance.substeps - 1) // instance.substeps for sub in range(instance.substeps)]
    inside = fmean(max(0, steps_of - instance.stages) for steps_of in taken)
    return Nest(
        warps=warps * others,
        row_tiles=a_warp,
        stages=a_warp * times[0],
        dots=tuple(a_warp * count * share for count in times for share in dots),
        bulk=False,
        before=tuple(fmean(steps_of > i for steps_of in taken) for i in range(instance.stages)),
        inside=tuple(inside * count / steps for count in times),
    )


# ---- ksplit_mma: warps share row tiles and split K ---------------------------------------------------------------


def _shares(tiles: int, ctas: int, tiled: bool) -> list[int]:
    """Row tiles by CTA, as qgen_share and ksplit.cu.j2 deal them."""
    if tiled:
        return [tiles // ctas + (cta < tiles % ctas) for cta in range(ctas)]
    return [(cta + 1) * tiles // ctas - cta * tiles // ctas for cta in range(ctas)]


def _ksplit(planned: plan.KsplitPlan, rung: plan.Rung, problem: Problem) -> Nest:
    launch, grid_y = plan.launch_ksplit(
        planned, rung, problem.rows, problem.tokens, problem.multiprocessors, problem.resident, problem.arch
    )
    shares = _shares(-(-problem.rows // plan.TILE_ROWS), launch.grid, planned.tile is not None)
    turns = [-(-share // rung.row_tiles) for share in shares]
    stages = -(-problem.blocks // rung.stage_blocks)
    single, token = rung.columns == 1 and planned.one == "blocks", rung.columns == 1 and planned.one == "token"
    requests = [count * stages for count in turns]
    ahead = max(rung.stages - 2, 1)
    units = 1 if rung.columns == 1 else rung.row_tiles * rung.column_tiles
    adding = min(1.0, units / rung.warps)
    whole = fmean(share // rung.row_tiles for share in shares)
    return Nest(
        warps=launch.grid * grid_y * rung.warps,
        row_tiles=fmean(turns),
        stages=fmean(turns) * stages,
        dot="IMMA",
        dots=_single_dots(planned, fmean(turns) * stages)
        if single
        else _token_dots(planned, rung.warps, rung.warp_bundles, problem, fmean(turns))
        if token
        else _bundle_dots(planned, rung, problem, grid_y, stages, (fmean(turns), whole)),
        bulk=True,
        before=(fmean(min(ahead, count) for count in requests) / rung.warps,),
        inside=(fmean(max(0, count - ahead) for count in requests) / rung.warps,),
        ahead=ahead,
        copies=rung.row_tiles if planned.tile else rung.rows,
        sums=(fmean(count - 1 for count in turns) * adding, adding),
        sum_turns=max(1.0, units / rung.warps),
        barriers=(1 / rung.warps, rung.stages),
        tail=_token_tail(rung.warps, rung.warp_bundles, problem, fmean(turns)) if token else None,
    )


def _single_dots(planned: plan.KsplitPlan, stages: float) -> tuple[float, ...]:
    """One token: a warp takes a block for each column of an instruction, there or not."""
    return (stages,) * (8 * _products(planned) * sum(map(len, planned.pairs)))


def _token_dots(planned: plan.KsplitPlan, warps: int, each: int, problem: Problem, turns: float) -> tuple[float, ...]:
    """One token in all columns: whole stages of `each` blocks a warp, or a block if it is there."""
    times = turns * (problem.blocks // (warps * each) if each > 1 else problem.blocks / warps)
    return (times,) * (each * _dots_of_units(planned, 1))


def _token_tail(warps: int, each: int, problem: Problem, turns: float) -> tuple[float, float] | None:
    """The stage that is not whole, where warps take several blocks: turns of its loop, and blocks that a warp finds."""
    if each <= 1:
        return None
    left = problem.blocks % (warps * each)
    return turns * each * (left > 0), turns * left / warps


def _dots_of_units(planned: plan.KsplitPlan, column_tiles: int) -> int:
    """Dot instructions of a bundle, a row tile and a column tile. Few columns take both halves of an entry."""
    units = ksplit_kernel(planned, ()).units
    halves = _products(planned) if column_tiles == 1 else 1
    return sum(halves * len(g.pairs) for u in units for g in u.groups) + sum(2 * len(u.sum_products) for u in units)


def _bundle_dots(
    planned: plan.KsplitPlan,
    rung: plan.Rung,
    problem: Problem,
    grid_y: int,
    stages: int,
    turns: tuple[float, float],
) -> tuple[float, ...]:
    """turns: row tiles a CTA takes first, and second where a warp has two."""
    a_unit = _dots_of_units(planned, rung.column_tiles)
    tiles = -(-problem.tokens // 8)
    share = rung.columns if rung.column_tiles <= 2 else -(-tiles // grid_y) * 8
    left = [min(problem.tokens - y * share, share) for y in range(grid_y)]
    dots: list[float] = []
    for i in range(rung.warp_bundles):
        first = i * rung.warps * planned.layout.bundle
        there = [s * rung.stage_blocks + first + w < problem.blocks for s in range(stages) for w in range(rung.warps)]
        for n in range(rung.column_tiles):
            tokens = fmean(8 * n < some for some in left)
            for m in range(rung.row_tiles):
                dots += [turns[m] * sum(there) / rung.warps * tokens] * a_unit
    return tuple(dots)


# ---- fused: all warps of a CTA quantise x, then teams of them have row tiles of their own ------------------------


def _fused(planned: plan.FusedPlan, instance: plan.FusedInstance, problem: Problem) -> Nest:
    if problem.tokens != 1 or problem.blocks > planned.most_blocks:
        ladder = planned.ladder
        raise QgenError(
            stage="count",
            subject=instance.name,
            found=f"K = {problem.blocks * ladder.block}, T = {problem.tokens}",
            allowed=f"at most {planned.most_blocks * ladder.block} columns, and one token",
            next="count a rung of the ladder over tiles",
        )
    launch = plan.launch_fused(instance, problem.rows, problem.multiprocessors)
    shares = _shares(-(-problem.rows // plan.TILE_ROWS), launch.grid, tiled=True)
    turns = [-(-max(0, share - team) // instance.teams) for share in shares for team in range(instance.teams)]
    stages = -(-problem.blocks // instance.stage_blocks)
    requests = [count * stages for count in turns]
    # One ahead of x, the others behind it.
    ahead = max(instance.stages - 1, 1)
    before = [fmean(min(1, count) for count in requests)]
    if ahead > 1:
        before.append(fmean(min(ahead, count) for count in requests) - before[0])
    a_team, each = fmean(turns), instance.warp_blocks
    bundles, columns = _bundles(planned, instance.warps * instance.teams, problem.blocks)
    return Nest(
        warps=launch.grid * instance.warps * instance.teams,
        row_tiles=a_team,
        stages=a_team * stages,
        dot="IMMA",
        dots=_token_dots(planned.ladder, instance.warps, each, problem, a_team)
        if each
        else _single_dots(planned.ladder, a_team * stages),
        bulk=True,
        before=tuple(some / instance.warps for some in before),
        inside=(fmean(max(0, count - ahead) for count in requests) / instance.warps,),
        ahead=ahead - 1,
        copies=1,
        sums=(
            fmean(max(0, count - 1) for count in turns) / instance.warps,
            fmean(min(1, count) for count in turns) / instance.warps,
        ),
        barriers=(1 / instance.warps, instance.stages),
        tail=_token_tail(instance.warps, each, problem, a_team),
        bundles=bundles,
        columns=columns,
    )


def _bundles(planned: plan.FusedPlan, warps: int, blocks: int) -> tuple[float, tuple[float, float]]:
    """Bundles of x that a warp of a CTA quantises, and of how many it asks for columns: first, and while it quantises.

    Bundles of blocks that only fill up have no columns to ask for.
    """
    layout, split = planned.ladder.layout, planned.ladder.split
    bundles = layout.bundles(blocks)
    there = [b // split * (split * layout.bundle) + b % split < blocks for b in range(bundles)]
    return bundles / warps, (sum(there[:warps]) / warps, sum(there[warps:]) / warps)
