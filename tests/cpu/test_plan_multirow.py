"""What every plan of multirow must keep, and made-up formats of every kind that a mat-vec is planned for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ksplit_cases import Case, operands
from made_formats import RUNS, made
from multirow_checks import Multirow, compiled

from qgen.archs import load_archs
from qgen.plan import MatvecPlan, MultirowPlan, launch_multirow, plan_all, plan_multirow
from qgen.plan.matvec import SHARED_LIMIT
from qgen.plan.records import Bits, ByteDigits
from qgen.spec import load_formats

PLANS, _ = plan_all(load_formats())
SINGLES = {plan.format: plan for plan in PLANS if isinstance(plan, MatvecPlan)}
SEVERAL = {plan.format: plan for plan in PLANS if isinstance(plan, MultirowPlan)}
EVERY = SEVERAL | {name: plan_multirow(made(name)) for name in RUNS}
each_plan = pytest.mark.parametrize("plan", EVERY.values(), ids=EVERY)


def test_what_has_a_matvec_takes_several_tokens() -> None:
    """Under the same contract, out of the same activation."""
    assert SEVERAL.keys() == SINGLES.keys() and len(SEVERAL) == 20
    for name, plan in SEVERAL.items():
        single = SINGLES[name]
        assert (plan.contract, plan.layout, plan.largest_sum) == (single.contract, single.layout, single.largest_sum)


@each_plan
def test_parts_cover_a_block_once(plan: MultirowPlan) -> None:
    """Units, groups, pieces and scales in order; every code word made once, and met by its own activation word."""
    layout = plan.layout
    assert [u for part in plan.parts for u in part.units] == list(range(plan.units))
    assert [g for part in plan.parts for g in part.groups] == list(range(plan.groups))
    chunk = scale = 0
    for part in plan.parts:
        assert (part.first_chunk, part.first_scale) == (chunk, scale)
        chunk, scale = chunk + part.chunks, scale + part.scales
        first = layout.group_words[part.groups[0]]
        assert first == 4 * part.first_chunk, "no 16-byte piece belongs to two parts"
        assert part.group_words == tuple(layout.group_words[g] - first for g in (*part.groups, part.groups[-1] + 1))
        made_words = sorted(use.x for step in part.steps for use in step.uses)
        assert made_words == list(range(part.group_words[-1])) and part.words >= len(made_words)
    assert (chunk, scale) == (layout.chunks, layout.scales)


@each_plan
def test_parts_load_the_words_they_read(plan: MultirowPlan) -> None:
    for part in plan.parts:
        loaded = {word for load in part.loads for word in range(load.first, load.first + load.count)}
        wanted: set[int] = set()
        for step in part.steps:
            if isinstance(step, Bits):
                wanted |= {atom.word for use in step.uses for atom in step.codes[use.code]}
            elif not isinstance(step, ByteDigits):
                wanted.add(step.word)
        assert loaded == wanted if len(plan.parts) > 1 else loaded >= wanted
        for load in part.loads:
            assert load.width in (1, 4, 8, 16) and (load.width == 1 or 4 * load.count % load.width == 0)
            if load.at.startswith("b + "):
                assert load.width == 1 or (int(load.at[4:]) % load.width == 0 and plan.alignment % load.width == 0)


@each_plan
def test_variants_fit_every_machine(plan: MultirowPlan) -> None:
    assert (1, 1) in {(i.rows, i.columns) for i in plan.instances}
    assert len({i.name for i in plan.instances}) == len(plan.instances)
    for i in plan.instances:
        # A step that starts at any byte the format allows ends in the last piece of its slot.
        worst = max(-(-(start + i.team_blocks * plan.block_bytes) // 16) for start in range(0, 16, plan.alignment))
        assert worst <= i.pieces and i.slot_bytes == 16 * i.pieces
        # A word at any address looks four bytes further.
        assert i.shared_bytes >= i.warps * i.stages * i.warp_rows * i.slot_bytes + 4 and i.stages >= 2
        assert i.shared_bytes <= SHARED_LIMIT
        assert i.team_blocks * i.substeps == plan.contract.slices and 32 % (i.team_blocks * plan.lanes) == 0
        for arch in load_archs().values():
            assert i.shared_bytes <= arch.shared_per_block_optin
            assert i.min_ctas * 32 * i.warps <= 32 * arch.max_warps_per_sm, "the compiler counts on more than there are"


def test_shipped_formats_have_every_combination_that_registers_hold() -> None:
    for name, plan in SEVERAL.items():
        every = {(i.rows, i.columns) for i in plan.instances}
        wanted = {(rows, columns) for rows in (1, 2, 4, 8) for columns in (1, 2, 4, 8)}
        # Four scales or more a thread and block leave no room to hold eight rows, nor do 128 weights of a float step.
        crowded = name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q1_0", "PQ2_0", "PTQ1_0")
        assert every == wanted - ({(8, 8)} if crowded else set()) - ({(1, 2)} if plan.lanes > 1 else set()), name


@pytest.mark.parametrize("rows", [1, 7, 8, 4096, 14336])
@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 97])
def test_launches_cover_all_rows_and_tokens(rows: int, tokens: int) -> None:
    for i in SEVERAL["Q4_K"].instances:
        for resident in (1, 132, 396):
            shape, grid_y = launch_multirow(i, rows, tokens, resident, 1)
            tiles = -(-rows // i.warp_rows)
            assert (shape.block, shape.shared) == (32 * i.warps, i.shared_bytes)
            assert (grid_y - 1) * i.columns < tokens <= grid_y * i.columns
            assert 1 <= shape.grid <= -(-tiles // i.warps) and shape.grid * grid_y <= max(resident, grid_y)


# One of each way to differ from the shipped ones: blocks of other sizes and many threads, groups that share words or
# pieces, several terms and scales, none at all.
KINDS = (
    "BITS3", "BLOCK96", "BLOCK160", "BLOCK512", "BYTES256", "BASE3_GAPS", "BASE3_UNEVEN", "BASE4", "TABLE_SCALED",
    "SCALES_OF_8", "SCALES_TO_510", "SCALES_APART", "SCALES_12", "ZERO_POINTS", "TWO_SCALES", "NEGATED", "SHIFTED",
    "BARE", "F32",
)  # fmt: skip


@pytest.mark.parametrize(("number", "name"), list(enumerate(KINDS)), ids=KINDS)
def test_a_made_up_format_runs_to_the_bit(number: int, name: str) -> None:
    format, plan = made(name), EVERY[name]
    rows, columns = ((2, 4), (4, 2), (1, 4))[number % 3]
    (instance,) = (i for i in plan.instances if (i.rows, i.columns) == (rows, columns))
    judged = Multirow(format, compiled(replace(plan, instances=(instance,))), plan, instance)
    blocks = plan.contract.slices + 1
    offset = plan.alignment * (3 % (16 // plan.alignment))
    judged.check(operands(format, blocks), Case(19, blocks, columns + 1, pad=plan.alignment, offset=offset, y_pad=1))
