"""Every kernel of the family fused, run in the emulator from the text that is generated; what its plans must keep."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from fused_checks import QUANTISING, ROWS, Case, Fused, compiled, operands
from judging import same
from ksplit_cases import missing_codes
from ksplit_cases import operands as ladder_operands
from made_formats import made

from qgen.emulated import EmulatedFused, EmulatedLadder
from qgen.errors import QgenError
from qgen.plan import FusedInstance, FusedPlan, KsplitPlan, Plan, entries, launch_fused, plan_all, plan_fused
from qgen.plan.rungs import SHARED_LIMIT
from qgen.spec import load_formats

FORMATS = load_formats()


def plans() -> dict[str, FusedPlan]:
    """Of every format that has such kernels."""
    made = {}
    for name, format in FORMATS.items():
        try:
            made[name] = plan_fused(format)
        except QgenError:
            continue
    return made


@cache
def others() -> list[Plan]:
    """Plans of all other families."""
    return [plan for plan in plan_all(FORMATS)[0] if not isinstance(plan, FusedPlan)]


PLANS = plans()
KERNELS = [(plan, instance) for plan in PLANS.values() for instance in plan.instances]

each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
each_kernel = pytest.mark.parametrize(
    ("plan", "instance"), KERNELS, ids=[f"{plan.format}-{instance.warps}" for plan, instance in KERNELS]
)


def judge(plan: FusedPlan, instance: FusedInstance, arch: int = 900) -> Fused:
    return Fused(FORMATS[plan.format], compiled(plan, arch), plan, instance)


# ---- kernels ----------------------------------------------------------------------------------------------------


@each_kernel
def test_fused(plan: FusedPlan, instance: FusedInstance) -> None:
    """Tails of rows, stages and rounds in three thread orders: the contract's bits, every byte read once."""
    judge(plan, instance).check_shapes()


@pytest.mark.parametrize("name", ["BLOCK160", "BASE5"])
def test_fused_of_made_formats(name: str) -> None:
    """Words with places that no column has, and slots without a word."""
    format = made(name)
    plan = plan_fused(format)
    assert plan.quantize.words.partial or plan.quantize.words.sparse
    for instance in plan.instances:
        judged = Fused(format, compiled(plan), plan, instance)
        judged.check_shapes()
        judged.check_special()


@each_kernel
def test_fused_of_special_numbers(plan: FusedPlan, instance: FusedInstance) -> None:
    judge(plan, instance).check_special()


@each_kernel
def test_rows_past_4_gib(plan: FusedPlan, instance: FusedInstance) -> None:
    judge(plan, instance).check_far_rows()


@each_kernel
def test_rows_that_are_too_long_are_a_fault(plan: FusedPlan, instance: FusedInstance) -> None:
    judge(plan, instance).check_too_long()


# Bundles of several blocks, integer scales, digits: by cp.async, and with whatever else the text asks architectures.
@pytest.mark.parametrize("arch", [800, 1000])
@pytest.mark.parametrize("format", ["Q4_0", "Q6_K", "TQ1_0"])
def test_fused_on_other_architectures(format: str, arch: int) -> None:
    for instance in PLANS[format].instances:
        judge(PLANS[format], instance, arch).check_shapes()


@each_plan
def test_a_result_is_that_of_the_ladder_over_tiles(plan: FusedPlan) -> None:
    """One token's rung over the same rows and x."""
    fused, ladder = EmulatedFused(FORMATS[plan.format]), EmulatedLadder(FORMATS[plan.format], "tiled")
    (rung,) = (rung for rung in ladder.plan.rungs if rung.columns == 1)
    given = ladder_operands(FORMATS[plan.format], 11)
    rows = given.packed.reshape(len(given.packed), -1)
    wanted = ladder(rows, given.x, rung=rung)
    for instance in (None, *plan.instances):
        for x, token in zip(given.x, wanted, strict=True):
            assert same(fused(rows, x, instance=instance), token).all()


@each_plan
def test_the_call_refuses_rows_that_are_too_long(plan: FusedPlan) -> None:
    given = operands(FORMATS[plan.format], 1, plan.most_blocks + 1)
    for instance in plan.instances:
        with pytest.raises(QgenError, match="at most"):
            EmulatedFused(FORMATS[plan.format])(given.packed.reshape(1, -1), given.x, instance=instance)


def test_the_ladder_says_that_the_dispatch_picks_no_rung() -> None:
    given = operands(FORMATS["Q4_K"], 4, 2)
    with pytest.raises(QgenError, match="call the class of its family: EmulatedFused"):
        EmulatedLadder(FORMATS["Q4_K"], "tiled")(given.packed.reshape(4, -1), given.x[None])


# ---- the cases --------------------------------------------------------------------------------------------------


@each_kernel
def test_the_cases_go_round_everything_and_leave_tails(plan: FusedPlan, instance: FusedInstance) -> None:
    judged = judge(plan, instance)
    shapes = judged.cases()
    bundle, layout = plan.ladder.layout.bundle, plan.ladder.layout
    grids = {case: launch_fused(instance, case.rows, case.multiprocessors).grid for case in shapes}
    assert set(grids.values()) >= {1, 2, 3, 10}
    tiles = {case: -(-case.rows // 16) for case in shapes}
    rounds = {case: tiles[case] / grids[case] / instance.teams for case in shapes}
    assert max(rounds.values()) > 2 and min(rounds.values()) < 1, "several rounds of tiles, and teams without one"
    assert any(grids[c] > 1 and tiles[c] // grids[c] % instance.teams for c in shapes), "and in one CTA of several"
    stages = max(-(-c.blocks // instance.stage_blocks) * -(-tiles[c] // grids[c] // instance.teams) for c in shapes)
    assert stages >= 2 * instance.stages
    assert stages > instance.warps, "the ring goes round, and every warp has its turn"
    made = {layout.bundles(case.blocks) for case in shapes}
    assert made & set(range(1, QUANTISING)) and any(n > QUANTISING for n in made), "rounds of quantising"
    assert layout.bundles(plan.most_blocks) in made
    assert bundle == 1 or {case.blocks % (8 * bundle) for case in shapes} >= {0, 1, 8, 9, 8 * bundle - 1}
    assert {case.rows % 16 for case in shapes} >= {0, 1, 2, 15, ROWS % 16}


@each_plan
def test_every_code_occurs(plan: FusedPlan) -> None:
    """Every value of every integer field, place by place, in what the cases run."""
    most = max(judge(plan, plan.instances[0]).cases(), key=lambda case: case.rows * case.blocks)
    assert not missing_codes(FORMATS[plan.format], operands(FORMATS[plan.format], most.rows, most.blocks).packed)


# ---- plans ------------------------------------------------------------------------------------------------------


def test_who_has_such_kernels() -> None:
    """Every format whose ladder over tiles has a rung for one token."""
    ladders = {plan.format: plan for plan in others() if isinstance(plan, KsplitPlan) and plan.tile}
    assert set(PLANS) == {name for name, ladder in ladders.items() if ladder.one} and len(PLANS) >= 18
    for name, plan in PLANS.items():
        assert plan.ladder == ladders[name] and plan.contract == ladders[name].contract
        assert plan.alignment == ladders[name].alignment and plan.requires == ladders[name].requires


def test_names_are_unique() -> None:
    made = [*others(), *PLANS.values()]
    names = [name for plan in made for name in entries(plan)]
    files = [plan.file for plan in made]
    assert len(set(names)) == len(names) and len(set(files)) == len(files)
    for plan, instance in KERNELS:
        assert instance.name in compiled(plan).parameters


@each_plan
def test_parts_of_a_record_do_not_overlap(plan: FusedPlan) -> None:
    """Each part behind the one before it, as wide as its docstring says, and aligned for the loads that read it."""
    record, layout = plan.record, plan.ladder.layout
    ends = [("codes", 0, 64 * layout.chunks, 16), ("scales", record.code_bytes, 4 * layout.scales, 4)]
    if layout.starts:
        ends.append(("starts", record.starts_at, 4 * layout.units, 4))
    if layout.sums:
        size = 32 if layout.packed_sums else 4 * layout.units
        ends.append(("sums", record.sums_at, size, 8 if layout.packed_sums else 4))
    at = 0
    for name, begin, size, alignment in ends:
        assert begin >= at and begin % alignment == 0, name
        at = begin + size
    assert record.record_bytes >= at and record.record_bytes % 16 == 0
    assert record.record_bytes - at < 32, "no more than one piece to keep records in different banks"
    assert plan.ladder.one == "token" or record.record_bytes // 16 % 2
    # Words of a thread are whole pieces of 16 bytes, or 8 bytes that two of them share.
    assert layout.bundle == 1 or plan.ladder.code_words == 2 or plan.ladder.code_words % 4 == 0


@each_kernel
def test_shared_memory_adds_up(plan: FusedPlan, instance: FusedInstance) -> None:
    """Rings, sums and barriers of all teams, then the records of the longest row; in whole pieces, and it fits."""
    tile = plan.ladder.tile
    assert tile is not None
    teams, warps, stages = instance.teams, instance.warps, instance.stages
    assert teams * warps == QUANTISING and instance.rows == 16 * teams
    assert instance.slot_bytes == instance.stage_blocks * tile.tile_bytes and instance.slot_bytes % 16 == 0
    # A ring needs a stage in use and one on its way.
    assert stages >= 2
    rings, sums, barriers = teams * stages * instance.slot_bytes, teams * warps * 16 * 4, teams * (2 * stages + 2) * 8
    assert rings % 16 == 0 and sums % 8 == 0
    assert instance.records_at == rings + sums + barriers and instance.records_at % 16 == 0
    records = plan.ladder.layout.bundles(plan.most_blocks) * plan.record.record_bytes
    assert instance.records_at + records <= instance.shared_bytes <= SHARED_LIMIT
    # What is more keeps a second CTA off: the device keeps 1 KB of each.
    assert 2 * (instance.shared_bytes + 1024) > SHARED_LIMIT + 1024
    assert plan.most_blocks * plan.ladder.block <= 8192


@each_kernel
def test_blocks_of_a_warp_stay_in_its_slices(plan: FusedPlan, instance: FusedInstance) -> None:
    """Stage after stage a warp's blocks are the slices that it keeps; a stage of short blocks has one of each."""
    slices = plan.contract.slices
    if plan.ladder.one == "blocks":
        assert instance.stage_blocks == slices == 8 * instance.warps and not instance.warp_blocks
    else:
        assert instance.stage_blocks == instance.warps * instance.warp_blocks and slices % instance.warps == 0
        assert slices // instance.warps % instance.warp_blocks == 0


@each_kernel
def test_a_launch_has_a_cta_for_each_multiprocessor_or_row_tile(plan: FusedPlan, instance: FusedInstance) -> None:
    for rows, multiprocessors, grid in (
        (1, 132, 1), (16, 132, 1), (17, 132, 2), (2112, 132, 132), (2113, 132, 132), (1 << 20, 132, 132), (4096, 1, 1)
    ):  # fmt: skip
        launch = launch_fused(instance, rows, multiprocessors)
        assert (launch.grid, launch.block, launch.shared) == (grid, 512, instance.shared_bytes)


@each_plan
def test_more_ctas_than_row_tiles_change_nothing(plan: FusedPlan) -> None:
    """Those without a row tile quantise and leave."""
    for instance in plan.instances:
        given = operands(FORMATS[plan.format], 17, 3)
        y, report, _ = judge(plan, instance).run(given, Case(17, 3), grid=5)
        assert same(y, given.wanted).all()
        assert report.read_bytes["x"] == 5 * given.x.nbytes and report.read_bytes["weight"] == given.tiles.size


def test_formats_without_a_rung_for_one_token_are_refused() -> None:
    for name, format in FORMATS.items():
        if name not in PLANS:
            with pytest.raises(QgenError) as refused:
                plan_fused(format)
            assert refused.value.stage == "plan"


def test_blocks_longer_than_x_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qgen.plan.fused.MOST_COLUMNS", 255)
    with pytest.raises(QgenError, match="blocks of 256 columns"):
        plan_fused(FORMATS["Q4_K"])


def test_results_are_the_same_from_both_instances() -> None:
    """However the warps are dealt to row tiles; K of the longest row."""
    for plan in (plan for plan in PLANS.values() if len(plan.instances) > 1):
        given = operands(FORMATS[plan.format], 33, plan.most_blocks - 1)
        first, second = (judge(plan, i).run(given, Case(33, given.blocks))[0] for i in plan.instances)
        assert np.array_equal(first.view(np.uint32), second.view(np.uint32))
