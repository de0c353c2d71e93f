"""Every kernel of the family wgmma with f16 or bf16 activations, run in the emulator; what its plans must keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from float_cases import make, missing_codes, numbers, operands
from float_checks import arrange
from judging import F32, same
from ksplit_cases import DISTINCT, Case
from ksplit_formats import D, M, bytes_of, nibbles, toml
from made_formats import made
from test_float_folding import MADE as FOLDING
from test_plan_float import toy
from wgmma_float_checks import FloatWgmma, check_arranged, compiled, first_block, many_rows, present

from qgen.emit.wgmma_float import float_wgmma_kernel
from qgen.errors import QgenError
from qgen.plan import (
    CLASSES,
    FloatFragments,
    FloatKsplitPlan,
    FloatWgmmaPlan,
    WgmmaRung,
    entries,
    launch_wgmma,
    plan_all,
    plan_ksplit_float,
    plan_wgmma_float,
)
from qgen.plan.fused import ALONE
from qgen.plan.rungs import SHARED_LIMIT
from qgen.spec import Format, load_formats

FORMATS = load_formats()
Kernel = tuple[FloatWgmmaPlan, WgmmaRung]


def plans() -> list[FloatWgmmaPlan]:
    """Of every format and class that has such kernels."""
    found = []
    for format in FORMATS.values():
        for activation in CLASSES:
            try:
                found.append(plan_wgmma_float(format, activation))
            except QgenError:
                continue
    return found


PLANS = plans()
KERNELS: list[Kernel] = [(plan, rung) for plan in PLANS for rung in plan.rungs]


def kind(rung: WgmmaRung) -> tuple[int, ...]:
    """What of a rung is in its text."""
    return rung.columns, rung.row_groups, rung.split, rung.depth, rung.width, rung.kept


def one_of_each() -> list[Kernel]:
    """A rung of every plan, of those kinds that had their turn least often the rarest; and one of kinds left over."""
    rare, seen = Counter(kind(rung) for _, rung in KERNELS), Counter[tuple[int, ...]]()
    chosen = []
    for plan in PLANS:
        rung = min(plan.rungs, key=lambda rung: (seen[kind(rung)], rare[kind(rung)]))
        seen[kind(rung)] += 1
        chosen.append((plan, rung))
    left = {kind(rung): (plan, rung) for plan, rung in KERNELS if kind(rung) not in seen}
    return [*chosen, *left.values()]


SOME = one_of_each()


def name_of(plan: FloatWgmmaPlan | FloatKsplitPlan) -> str:
    return f"{plan.format}-{plan.contract.activation}"


def names(kernels: list[Kernel]) -> list[str]:
    return [f"{name_of(plan)}-{rung.columns}-g{rung.row_groups}s{rung.split}" for plan, rung in kernels]


each_plan = pytest.mark.parametrize("plan", PLANS, ids=name_of)
each_kernel = pytest.mark.parametrize(("plan", "rung"), KERNELS, ids=names(KERNELS))
some_of_them = pytest.mark.parametrize(("plan", "rung"), SOME, ids=names(SOME))


def which(plan: FloatWgmmaPlan) -> tuple[int, None, int]:
    """The shapes that are run of a plan, as a slice: of what is not folded half of them, the others in the other
    class."""
    return (0, None, 1) if plan.contract.folded else (CLASSES.index(plan.contract.activation), None, 2)


def judge(plan: FloatWgmmaPlan, rung: WgmmaRung) -> FloatWgmma:
    return FloatWgmma(FORMATS[plan.format], compiled(plan, rung), plan, rung)


# ---- kernels ----------------------------------------------------------------------------------------------------


@some_of_them
def test_wgmma(plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """Tails of rows, blocks, tokens, stages and slices in three thread orders: the contract's bits."""
    start, _, step = which(plan)
    judge(plan, rung).check_shapes(start, step)


@some_of_them
def test_wgmma_of_special_numbers(plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """Those that are none; rows of them in front of usual ones."""
    judged = judge(plan, rung)
    judged.check_special()
    judged.check_leftovers()


@some_of_them
def test_arranged_and_multiplied(plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """One kernel after the other, over bytes of 0xFF."""
    judged, convert = judge(plan, rung), plan.quantize
    for blocks, tokens in ((3, 2 * DISTINCT + 1), (plan.contract.slices + 1, rung.columns + 1)):
        given = operands(FORMATS[plan.format], plan.contract.activation, blocks)
        x = given.x[numbers(tokens)]
        made, _ = arrange(compiled(convert), convert, x, narrow=False, fill=0xFF)
        y, _, _ = judged.run(given, Case(37, blocks, tokens), order="shuffle", seed=blocks, activation=made)
        assert same(y, given.wanted[numbers(tokens)]).all()


def check_made_up(format: Format, activation: str, number: int = 0) -> FloatWgmmaPlan:
    """One rung of it, and of what arranges x what it writes."""
    plan = plan_wgmma_float(format, activation)
    rung = plan.rungs[number % len(plan.rungs)]
    judged = FloatWgmma(format, compiled(plan, rung), plan, rung)
    if any(field.kind == "float" for field in format.fields):
        judged.check_leftovers()
    case = Case(33, plan.contract.slices + 1, rung.columns + 1)
    judged.check(judged.operands(case), case)
    check_arranged(compiled(plan.quantize), plan.quantize, operands(format, activation, 5).x)
    return plan


@pytest.mark.parametrize(
    "name", ["BYTES256", "BITS5_APART", "BITS1_SMALL", "TWOS4_AFFINE", "SHIFTED", "NEGATED", "BARE"]
)
def test_wgmma_of_made_formats(name: str) -> None:
    """Bytes as codes, extra bits, codes times -3, one minimum for all blocks, terms without a scale."""
    check_made_up(made(name), CLASSES[len(name) % 2], len(name))


def short(value: str, *fields: str) -> str:
    """A format of blocks of 64."""
    return toml(value, D, *fields, block=64, activation="q8_g32")


NIBBLES = "[fields.sc]\nper = 16\nat = 2\nwidth = 4\nshape = [4]\nstride = [4]\n"
SCALED = short("d*sc*q", bytes_of("sc", 2, 4, per=16), nibbles(6, block=64))
FOLDED = short("d*sc*q", NIBBLES, nibbles(4, block=64))
MINIMUMS = short("d*sc*q - m*mn", M, bytes_of("sc", 4, 4, per=16), bytes_of("mn", 8, 4, per=16), nibbles(12, block=64))
TWO = short("m + d*q", M, nibbles(4, "add = -8\n", block=64))
COARSE = toml("d*sc*q - m*mn", D, M, bytes_of("sc", 4, 8), bytes_of("mn", 12, 4), nibbles(16))


@pytest.mark.parametrize(
    ("text", "activation", "rung", "bundle", "pieced", "alone"),
    [
        (SCALED, "f16", 4, 1, False, True),
        (FOLDED, "bf16", 5, 1, False, True),
        (FOLDED, "f16", 0, 1, False, False),
        (MINIMUMS, "bf16", 4, 1, False, False),
        (TWO, "bf16", 1, 2, False, False),
        (COARSE, "f16", 2, 1, False, False),
        (FOLDING["minimums first"][0], "bf16", 5, 1, True, False),
        (FOLDING["codes converted in two steps"][0], "f16", 0, 1, False, False),
        (FOLDING["groups of 64"][0], "f16", 3, 1, True, False),
        (FOLDING["signed bytes"][0], "bf16", 2, 1, False, False),
        (FOLDING["a codebook"][0], "f16", 4, 1, False, False),
    ],
)
def test_bundles_of_made_up_formats(
    text: str, activation: str, rung: int, bundle: int, pieced: bool, alone: bool, tmp_path: Path
) -> None:
    """Of one chunk of instructions, of several blocks; minimums in pieces and as they are."""
    plan = check_made_up(toy(text, tmp_path), activation, rung)
    own = plan.rungs[rung % len(plan.rungs)]
    (variant,) = float_wgmma_kernel(replace(plan, rungs=(own,)), ()).variants
    assert (plan.layout.bundle, plan.layout.pieced, variant.alone) == (bundle, pieced, alone)


def test_sums_that_vanish_keep_their_sign() -> None:
    """Products below the least number, in every slice: blocks that a bundle lacks add nothing to their -0."""
    format = FORMATS["Q4_0"]
    (plan,) = (p for p in PLANS if name_of(p) == "Q4_0-bf16")
    blocks = plan.contract.slices
    weights = np.full((37, blocks, format.bytes), 0x77, dtype=np.uint8)  # codes of -1
    weights[..., :2] = 1, 0  # scales of 2^-24
    x = np.full((DISTINCT, blocks * format.block), 2.0**-133, dtype=np.float32)
    given = make(format, "bf16", {"block": weights}, x)
    assert (given.wanted == 0).all() and np.signbit(given.wanted).all()
    judge(plan, plan.rungs[0]).check(given, Case(3, blocks, 1), orders=False)


# ---- the cases --------------------------------------------------------------------------------------------------


@each_kernel
def test_the_cases_go_round_everything_and_leave_tails(plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    cases = FloatWgmma(FORMATS[plan.format], compiled(*SOME[0]), plan, rung).cases()
    slices, layout, columns = plan.contract.slices, plan.layout, rung.columns
    grids = {case: launch_wgmma(rung, case.rows, case.tokens, case.multiprocessors) for case in cases}
    assert {y for _, y in grids.values()} == {1, 2, 3} and {launch.grid for launch, _ in grids.values()} == {1, 3}
    groups = {case: -(-case.rows // rung.rows) / grids[case][0].grid for case in cases}
    assert max(groups.values()) >= 3, "a CTA has groups of rows one after the other"
    assert {case.rows % 64 for case in cases} >= {1, 5, 17, 63} and {case.rows % 128 for case in cases} >= {1, 63, 127}
    bundles = {case: present(layout, case.blocks) for case in cases}
    assert any(n / rung.split > rung.stages for n in bundles.values()), "rings of stages go round"
    assert any(groups[case] > 1 and n * groups[case] / rung.split > rung.stages for case, n in bundles.items())
    assert any(case.blocks < slices for case in cases) and max(bundles.values()) > slices, "bundles of a slice"
    if layout.bundle > 1:
        inside = {blocks_of(layout, case.blocks, u) for case in cases for u in range(layout.bundles(case.blocks))}
        assert inside >= {0, 1, layout.bundle - 1, layout.bundle}, "bundles that end short, and empty ones"
    assert {case.tokens for case in cases} >= {1, 8, 9, columns - 1, columns + 1, 2 * columns + 3}


def blocks_of(layout: FloatFragments, blocks: int, bundle: int) -> int:
    """Blocks of a bundle that there are."""
    return sum(first_block(layout, bundle) + j * layout.apart < blocks for j in range(layout.bundle))


def test_every_kind_of_rung_and_every_plan_has_its_turn() -> None:
    assert {kind(rung) for _, rung in SOME} == {kind(rung) for _, rung in KERNELS}
    assert {plan for plan, _ in SOME} == set(PLANS) and len(SOME) <= len(PLANS) + 2
    folded = {name_of(plan) for plan in PLANS if plan.contract.folded}
    assert folded >= {"Q4_K-f16", "Q2_K-bf16", "Q3_K-f16"}


@each_plan
def test_every_code_occurs(plan: FloatWgmmaPlan) -> None:
    """Every value of every integer field, in what the cases run."""
    format, activation = FORMATS[plan.format], plan.contract.activation
    cases = FloatWgmma(format, compiled(*SOME[0]), plan, plan.rungs[0]).cases()[slice(*which(plan))]
    most = max(cases, key=lambda case: min(case.rows, 37) * case.blocks)
    assert not missing_codes(many_rows(format, activation, most.rows, most.blocks))


# ---- what arranges x --------------------------------------------------------------------------------------------


def layouts() -> list[FloatWgmmaPlan]:
    """One plan for each layout that differs in more than its name."""
    return list({replace(plan.layout, name=""): plan for plan in PLANS}.values())


@pytest.mark.parametrize("plan", layouts(), ids=name_of)
def test_arrange(plan: FloatWgmmaPlan) -> None:
    """Usual and special numbers lie where the layout record says, and what is nobody's stays as it is."""
    convert, whole = plan.quantize, plan.layout.apart * plan.layout.bundle  # blocks of a round of bundles
    for tokens, blocks in ((1, 1), (8, convert.warps), (9, convert.warps + 1), (19, 3), (2, whole + 1)):
        check_arranged(compiled(convert), convert, mixed(tokens, blocks * plan.block))


def mixed(tokens: int, columns: int) -> F32:
    """Runs of 16 that are vast and tiny, of one sign, and with numbers that are none."""
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, columns), dtype=np.float32)
    runs = x.reshape(-1, 16)
    with np.errstate(all="ignore"):
        runs[::3] *= (10.0 ** rng.uniform(-44, 37, (len(runs[::3]), 1))).astype(np.float32)
    runs[1::3] = np.abs(runs[1::3])
    for at, special in enumerate((0.0, np.nan, -np.inf, 1e-45)):
        runs[2 + 7 * at :: 29, 3] = special
    return x


# ---- plans ------------------------------------------------------------------------------------------------------


def test_who_has_such_kernels() -> None:
    """Every format and class with a ladder over tiles; the same contract, the same weights, the same alignment."""
    every, _ = plan_all(FORMATS)
    ladders = {name_of(p): p for p in every if isinstance(p, FloatKsplitPlan) and p.tile}
    assert {name_of(plan) for plan in PLANS} == set(ladders) and len(PLANS) == 48
    assert [plan for plan in every if isinstance(plan, FloatWgmmaPlan)] == sorted(PLANS, key=every.index)
    for plan in PLANS:
        ladder = ladders[name_of(plan)]
        assert replace(plan.ladder, layout=ladder.layout) == ladder and plan.alignment == ladder.alignment
        assert plan.contract == ladder.contract and plan.requires == (*ladder.requires, "tma", "wgmma")
        moved = replace(plan.layout, name=ladder.layout.name, matrices=False, bundle=1, apart=1)
        assert moved == ladder.layout and plan.layout.matrices and plan.layout.apart == plan.contract.slices
        assert plan.quantize.layout == plan.layout
        bundle = 1 if any(plan.ladder.scale_words) else max(1, 128 // plan.block)
        assert plan.layout.bundle == bundle and not (plan.layout.pieced and bundle > 1)


def test_names_are_unique() -> None:
    every, _ = plan_all(FORMATS)
    found, files = [name for plan in every for name in entries(plan)], [plan.file for plan in every]
    assert len(set(found)) == len(found) and len(set(files)) == len(files)
    assert {rung.name for _, rung in KERNELS} <= set(found)


def test_formats_without_such_kernels_are_refused() -> None:
    there = {name_of(plan) for plan in PLANS}
    for name, format in FORMATS.items():
        for activation in CLASSES:
            if f"{name}-{activation}" not in there:
                with pytest.raises(QgenError) as refused:
                    plan_wgmma_float(format, activation)
                assert refused.value.stage == "plan" and refused.value.allowed


def test_tiles_that_no_stage_has_room_for_are_refused() -> None:
    ladder = plan_ksplit_float(FORMATS["Q8_0"], "f16", "tiled")
    assert ladder.tile is not None
    vast = replace(ladder, tile=replace(ladder.tile, block_bytes=16 * ladder.block_bytes))
    with pytest.raises(QgenError, match="no launch shape fits shared memory") as refused:
        plan_wgmma_float(FORMATS["Q8_0"], "f16", vast)
    assert refused.value.stage == "plan"


@each_plan
def test_records_are_whole_lines(plan: FloatWgmmaPlan) -> None:
    """Of 128 bytes, so that the rows of a matrix lie in banks of their own."""
    layout = plan.layout
    end = layout.sums_at + layout.bundle * layout.sum_bytes
    assert layout.record_bytes % 128 == 0 and 0 <= layout.record_bytes - end < 128
    assert layout.sums_at == 256 * layout.bundle * plan.ladder.code_words, "an instruction's two matrices a code word"
    assert bool(layout.sum_bytes) == layout.sums and layout.sum_bytes in (0, 32 * layout.groups)
    for blocks in (1, 3, 8, 9, 32, 67, 129):
        first = [first_block(layout, u) for u in range(layout.bundles(blocks))]
        placed = [block + j * layout.apart for block in first for j in range(layout.bundle)]
        assert len(set(placed)) == len(placed) and set(placed) >= set(range(blocks))
        assert all(block % plan.contract.slices == u % plan.contract.slices for u, block in enumerate(first))
        assert plan.workspace_bytes(blocks, 9) == 2 * len(first) * layout.record_bytes


@each_kernel
def test_shared_memory_and_registers_add_up(plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    """Stages of all parts, sums that wait for their partners, and barriers; sums of a thread by its registers."""
    tile, layout = plan.ladder.tile, plan.layout
    assert tile is not None
    stage = rung.column_tiles * layout.record_bytes + rung.rows // 16 * layout.bundle * tile.tile_bytes
    levels = {2: 1, 4: 2, 8: 3}[plan.contract.slices // rung.split] - rung.kept
    levels = max(levels, rung.split > 1)  # parts are added in one place
    used = rung.stages * rung.split * stage + levels * 32 * rung.warps * 4 * rung.columns // 2
    barriers = 8 * (1 + 2 * rung.stages * rung.split)
    assert stage % 16 == 0 and rung.stages >= 2 and rung.depth in (1, 2)
    assert rung.shared_bytes == max(used + barriers, ALONE) <= SHARED_LIMIT
    assert not rung.kept or (rung.warps == 8 and plan.contract.folded)
    assert rung.activation == plan.contract.activation
    assert rung.columns == 8 * rung.column_tiles and rung.rows == 64 * rung.row_groups
    assert rung.warps == 4 * rung.row_groups * rung.split and rung.threads == 32 * (rung.warps + 4)
    assert rung.warps in (8, 16) and 4 % rung.split == 0
    runs = layout.bundle * (1 if plan.contract.folded else layout.groups)
    assert runs % rung.width == 0
    assert rung.width == 1 or rung.width * rung.columns // 2 <= {8: 128, 16: 16}[rung.warps]


@each_kernel
def test_a_launch_covers_all_rows(plan: FloatWgmmaPlan, rung: WgmmaRung) -> None:
    for rows in (1, rung.rows, rung.rows + 1, 4096):
        for tokens in (1, rung.columns, rung.columns + 1, 130):
            launch, y = launch_wgmma(rung, rows, tokens, 132)
            assert (launch.block, launch.shared) == (rung.threads, rung.shared_bytes)
            assert y == -(-tokens // rung.columns) and 1 <= launch.grid <= -(-rows // rung.rows)
            tiles = -(-tokens // 8)
            shared = -(-tiles // y)  # column tiles of a CTA, as the text has it
            assert shared <= rung.column_tiles and (y - 1) * shared * 8 < tokens <= y * shared * 8
