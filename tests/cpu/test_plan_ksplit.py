"""What every plan of ksplit_mma must keep, and made-up formats: they run to the bit or are refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ksplit_cases import Case, operands
from ksplit_checks import SM_90, Ksplit, check_quantise, compiled
from ksplit_formats import MADE_UP
from made_formats import made

from qgen import contract
from qgen.archs import load_archs
from qgen.errors import QgenError
from qgen.plan import (
    ArrangePlan,
    FragmentQuantizePlan,
    KsplitPlan,
    MatvecPlan,
    QuantizePlan,
    entries,
    launch_ksplit,
    launch_quantize_fragments,
    plan_all,
    plan_ksplit,
    plan_matvec,
    plan_quantize_fragments,
)
from qgen.plan.matvec import summed_halves
from qgen.plan.quantize import NONE, deal_words
from qgen.plan.rungs import SHARED_LIMIT
from qgen.plan.tile import ROWS
from qgen.spec import Format, load_format, load_formats

ARCHS = load_archs()
FORMATS = load_formats()
PLANS, REFUSED = plan_all(FORMATS)
LADDERS = {plan.format: plan for plan in PLANS if isinstance(plan, KsplitPlan) and not plan.tile}
each_ladder = pytest.mark.parametrize("plan", LADDERS.values(), ids=LADDERS)

# Codes of a thread that stand for no weight: digits of bytes that four threads cannot share.
EMPTY_SLOTS = {"PTQ1_0": 48}


def test_what_has_a_matvec_has_a_ladder() -> None:
    """And the same contract, so that T = 1 and T = 96 may be served by either."""
    singles = {plan.format: plan for plan in PLANS if isinstance(plan, MatvecPlan)}
    assert singles.keys() == LADDERS.keys() and LADDERS
    for name, plan in LADDERS.items():
        assert plan.contract == singles[name].contract
        assert (plan.layout.activation, plan.layout.group) == (
            singles[name].layout.activation,
            singles[name].layout.group,
        )
        assert plan.largest_sum < 1 << 31


def test_names_are_injective() -> None:
    files = [plan.file for plan in PLANS]
    names = [name for plan in PLANS for name in entries(plan)]
    convert = FragmentQuantizePlan | QuantizePlan | ArrangePlan
    layouts = [plan.layout.name for plan in PLANS if isinstance(plan, convert)]
    for found in (files, names, layouts):
        assert len(set(found)) == len(found)


@each_ladder
def test_every_weight_of_a_bundle_has_one_slot(plan: KsplitPlan) -> None:
    """Block j of a bundle has the places of block 0, `code_words` words further on."""
    layout = plan.layout
    assert layout.block == layout.bundle * plan.block and layout.bundle == max(1, 128 // plan.block)
    assert len(layout.words) == 4 and {len(own) for own in layout.words} == {layout.bundle * plan.code_words}
    slots = [element for own in layout.words for word in own for element in word]
    elements = [element for element in slots if element != layout.block]
    assert sorted(elements) == list(range(layout.block))
    assert len(slots) - len(elements) == layout.bundle * EMPTY_SLOTS.get(plan.format, 0)
    for own in layout.words:
        for number, word in enumerate(own):
            j, first = number // plan.code_words, own[number % plan.code_words]
            assert word == tuple(e if e == layout.block else e + j * plan.block for e in first)
    assert 4 * (layout.chunks - 1) < layout.bundle * plan.code_words <= 4 * layout.chunks


@each_ladder
def test_records_hold_what_the_kernel_reads(plan: KsplitPlan) -> None:
    """Every part starts where threads can load it by 16 bytes."""
    layout = plan.layout
    assert layout.code_bytes == 4 * 8 * 16 * layout.chunks
    assert layout.starts_at == layout.code_bytes + 32 * layout.scales
    assert layout.sums_at == layout.starts_at + (64 * layout.units if layout.starts else 0)
    sums = (256 if layout.packed_sums else 32 * layout.units) if layout.sums else 0
    assert layout.record_bytes == layout.sums_at + sums
    assert layout.record_bytes % 16 == layout.starts_at % 16 == layout.sums_at % 16 == 0
    assert not (layout.starts and layout.packed_sums)
    for blocks, tokens in ((1, 1), (8, 8), (9, 9), (67, 33)):
        rounds = -(-blocks // (8 * layout.bundle))
        assert layout.bundles(blocks) == (blocks if layout.bundle == 1 else 8 * rounds)
        assert layout.bytes(blocks, tokens) == -(-tokens // 8) * layout.bundles(blocks) * layout.record_bytes
        assert plan.workspace_bytes(blocks, tokens) == layout.bytes(blocks, tokens)


@each_ladder
def test_every_code_word_is_made_once_and_multiplied_once_in_its_group(plan: KsplitPlan) -> None:
    made = [use.x for step in plan.steps for use in step.uses]
    assert sorted(made) == list(range(plan.code_words))
    size = plan.block // plan.groups
    multiplied = []
    for group, pairs in enumerate(plan.pairs):
        for pair in pairs:
            words = [word for word in (pair.first, pair.second) if word >= 0]
            assert words and pair.first >= 0
            multiplied += words
            met = {element for own in plan.layout.words for word in words for element in own[word]}
            met -= {plan.layout.block}
            assert met and all(element // size == group for element in met)
    assert sorted(multiplied) == list(range(plan.code_words))


@each_ladder
def test_sums_and_scales_are_of_whole_groups(plan: KsplitPlan) -> None:
    layout = plan.layout
    assert layout.scales * layout.group == layout.block == layout.units * plan.contract.unit
    assert plan.block == plan.units * plan.contract.unit and layout.units == layout.bundle * plan.units
    assert plan.groups % plan.units == 0 and plan.contract.unit % (plan.block // plan.groups) == 0
    scaled = [word for word in plan.scale_words if word is not None]
    assert layout.packed_sums == bool(scaled)
    assert layout.sum_group == (plan.block // plan.groups if scaled else plan.contract.unit)
    assert layout.starts == (0 if scaled else plan.code_offset)
    for word in scaled:
        assert 4 * word.words == plan.groups <= 16, "an integer scale a group, four to a word"
    if scaled:
        assert layout.bundle == 1, "packed sums are of one block"
        assert 127 * layout.sum_group <= 127 * 128 + 63, "low and high parts fit int8"
    # A sum that starts there stays exact, and so does a unit's sum as a float.
    assert abs(layout.starts) * 127 * plan.contract.unit < 1 << 31 and 127 * layout.sum_group < 1 << 24


@each_ladder
def test_rungs_fit_the_machines(plan: KsplitPlan) -> None:
    assert [rung.columns for rung in plan.rungs] == sorted({rung.columns for rung in plan.rungs})
    for rung in plan.rungs:
        assert rung.columns == 8 * rung.column_tiles and rung.warps == plan.split == 8
        assert rung.rows == ROWS * rung.row_tiles and rung.row_tiles in (1, 2)
        warp_blocks = rung.warp_bundles * plan.layout.bundle
        assert rung.warps * warp_blocks == rung.stage_blocks
        assert rung.warps * rung.substeps == plan.contract.slices and rung.substeps % warp_blocks == 0
        # Wherever a stage starts, its bytes lie in so many pieces.
        stage = rung.stage_blocks * plan.block_bytes
        worst = max((start + stage + 15) // 16 for start in range(0, 16, plan.alignment))
        assert rung.pieces >= worst and rung.slot_bytes >= 16 * rung.pieces and rung.slot_bytes % 16 == 0
        assert stage % 16 == 0, "stages of whole pieces, or no row is copied in bulk"
        ring, partial = rung.stages * rung.rows * rung.slot_bytes, rung.warps * rung.columns * (rung.rows + 4) * 4
        # A word at any address looks 4 bytes further; the last row's slot is followed by as much.
        assert rung.barriers_at == ring + partial and rung.barriers_at % 8 == 0 and rung.stages >= 3
        assert rung.shared_bytes == rung.barriers_at + 8 * (2 * rung.stages + 2)
        assert rung.shared_bytes <= SHARED_LIMIT == 227 * 1024
        assert rung.min_ctas * (rung.shared_bytes + 1024) <= 228 * 1024
        # Two row tiles of 16 rows and 8 columns at most a warp's unit to add up: a result is added once by each.
        assert rung.row_tiles * rung.column_tiles <= rung.warps


@each_ladder
def test_launches_cover_all_rows_and_tokens(plan: KsplitPlan) -> None:
    for rung in plan.rungs:
        for rows in (1, 16, 17, 4096, 14336):
            for tokens in (1, rung.columns, rung.columns + 1, 97):
                for resident in (1, 132, 264):
                    shape, grid_y = launch_ksplit(plan, rung, rows, tokens, resident, 1, SM_90)
                    assert (shape.block, shape.shared) == (32 * rung.warps, rung.shared_bytes)
                    assert (grid_y - 1) * rung.columns < tokens <= grid_y * rung.columns
                    tiles = -(-rows // 16)
                    assert 1 <= shape.grid <= tiles and shape.grid * grid_y <= max(resident, grid_y)

    convert = plan_quantize_fragments(plan)
    for blocks, tokens in ((1, 1), (5, 8), (17, 9)):
        shape, grid_y = launch_quantize_fragments(convert, blocks, tokens)
        assert shape.grid * convert.warps >= plan.layout.bundles(blocks) > (shape.grid - 1) * convert.warps
        assert grid_y == tokens


def test_launches_over_tiles_spread() -> None:
    """Of fewer CTAs than there are places for, no multiprocessor takes more than its share; of more, as they fit."""
    plan = plan_ksplit(FORMATS["Q4_0"], "tiled")
    single = plan.rungs[0]
    for rows, fit in ((16, 4), (4096, 4), (4096, 2), (14336, 4), (128256, 4)):
        shape, _ = launch_ksplit(plan, single, rows, 1, 132, fit, SM_90)
        share = -(-shape.grid // 132)
        in_all = 228 * 1024 // (shape.shared + 1024)  # 1 KB of each CTA is the driver's
        assert in_all == share if share < fit else shape.shared == single.shared_bytes, (rows, fit)
        assert shape.shared <= SHARED_LIMIT


def test_launches_over_tiles_ask_for_what_the_architecture_has() -> None:
    """Every format's rungs, as many CTAs resident as fit; an architecture whose launches do not overlap gives no more
    than the rung takes."""
    plans = [plan for plan in plan_all(FORMATS)[0] if isinstance(plan, KsplitPlan) and plan.tile]
    assert {arch.name for arch in ARCHS.values() if not arch.instructions.pdl} >= {"sm_80", "sm_86", "sm_89"}
    spread = set()
    for arch in ARCHS.values():
        for plan in plans:
            for rung in plan.rungs:
                fit = arch.shared_per_sm // (rung.shared_bytes + arch.shared_reserved)
                for rows, tokens in ((1, 1), (4096, 1), (4096, 9)) if fit else ():
                    shape, grid_y = launch_ksplit(plan, rung, rows, tokens, 132, fit, arch)
                    share = -(-shape.grid * grid_y // 132)
                    assert rung.shared_bytes <= shape.shared <= arch.shared_per_block_optin
                    assert min(share, fit) * (shape.shared + arch.shared_reserved) <= arch.shared_per_sm
                    if shape.shared > rung.shared_bytes:
                        assert arch.instructions.pdl
                        spread.add(arch.name)
    assert spread == {"sm_90", "sm_100", "sm_120"}


@each_ladder
def test_the_quantiser_writes_its_layout(plan: KsplitPlan) -> None:
    convert = plan_quantize_fragments(plan)
    layout = convert.layout
    assert layout == plan.layout
    words = convert.words
    places = [word.place for word in words.slots if word.place != NONE]
    assert len(words.slots) == 32 * words.own and sorted(places) == list(range(16 * layout.chunks))
    read = sorted(c for word in words.slots for c in word.columns if c != NONE)
    apart = plan.split * plan.block
    assert read == [j * apart + c for j in range(layout.bundle) for c in range(plan.block)]
    for slots, columns in ((words.scale_slots, layout.group), (words.sum_slots, layout.sum_group)):
        assert slots & (slots - 1) == 0
        for number in range(layout.block // columns):
            own = {c for w in words.slots[number * slots : (number + 1) * slots] for c in w.columns} - {NONE}
            assert own == {read[c] for c in range(number * columns, (number + 1) * columns)}
    assert convert.weight_block * layout.bundle == layout.block and convert.split == plan.split
    assert convert.sum_groups * layout.sum_group == layout.block and convert.sum_groups <= 32
    assert isinstance(convert, FragmentQuantizePlan) and convert in PLANS


def test_scales_of_sums_that_are_no_power_of_two_have_slots_to_spare() -> None:
    """Five sums of 32 columns under one scale, as where an activation has groups of 160."""
    plan = plan_ksplit(made("BLOCK160"))
    assert plan.layout.sum_group == 32 and plan.layout.block == 160
    words = deal_words(replace(plan, layout=replace(plan.layout, group=160)))
    assert (words.sums, words.scale_slots) == (5, 8 * words.sum_slots) and words.scale_slots <= 32 * words.own
    for number in range(5):
        own = {c for w in words.slots[number * words.sum_slots : (number + 1) * words.sum_slots] for c in w.columns}
        assert own - {NONE} == set(range(32 * number, 32 * number + 32))
    assert {c for w in words.slots[5 * words.sum_slots :] for c in w.columns} <= {NONE}


def test_words_of_two_sums_are_refused() -> None:
    plan = plan_ksplit(FORMATS["Q4_0"])
    words = tuple((((0, 1, 32, 33), *own[1:])) for own in plan.layout.words)
    with pytest.raises(QgenError, match="has columns of 2 sums"):
        deal_words(replace(plan, layout=replace(plan.layout, words=words)))


def test_every_rung_over_tiles_of_one_row_tile_a_warp_fits_wherever_it_can_run() -> None:
    """And where there is one of two, for sm_90, there is one of one."""
    plans = [plan for plan in plan_all(FORMATS)[0] if isinstance(plan, KsplitPlan) and plan.tile]
    able = [a for a in ARCHS.values() if all(getattr(a.instructions, need) for p in plans for need in p.requires)]
    assert {a.name for a in able} == set(ARCHS) - {"sm_75"}
    least = min(a.shared_per_block_optin for a in able)
    doubled = 0
    for plan in plans:
        for rung in plan.rungs:
            twins = [r for r in plan.rungs if r.columns == rung.columns]
            assert [r.row_tiles for r in twins] in ([1], [1, 2]), plan.format
            assert twins[0].shared_bytes <= least and twins[-1].shared_bytes <= SHARED_LIMIT
            doubled += rung.row_tiles == 2
    assert doubled >= 12


# ---- formats that nobody ships -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_format_runs_to_the_bit_or_is_refused(name: str, tmp_path: Path) -> None:
    text, refusal = MADE_UP[name]
    path = tmp_path / "toy.toml"
    path.write_text(text)
    format = load_format(path)
    if refusal:
        with pytest.raises(QgenError) as error:
            plan_ksplit(format)
        assert error.value.stage == "plan" and refusal in error.value.found and error.value.allowed
        return
    plan = plan_ksplit(format)
    assert plan.contract == plan_matvec(format).contract
    check_made_up(format, plan)


def check_made_up(format: Format, plan: KsplitPlan) -> None:
    """Quantiser and rungs against the contract, and the contract against the decoder."""
    convert = plan_quantize_fragments(plan)
    x = np.random.default_rng(2).standard_normal((9, 2 * format.block), dtype=np.float32)
    x[3] = np.abs(x[3])
    check_quantise(compiled(convert), convert, x)
    starts = 16 // plan.alignment
    for rung in plan.rungs:
        judged = Ksplit(format, compiled(plan), plan, rung)
        blocks = plan.contract.slices + 1
        given = operands(format, blocks)
        exact, bound = contract.reference(format, given.packed, given.x[0])
        assert (np.abs(given.wanted[0] - exact) <= bound).all()
        offset = plan.alignment * (3 % starts)
        judged.check(given, Case(rows=19, blocks=blocks, tokens=rung.columns - 1, pad=plan.alignment, offset=offset))
        judged.check(operands(format, 2), Case(rows=3, blocks=2, tokens=rung.columns + 1, y_pad=1, multiprocessors=9))


@pytest.mark.parametrize("below", range(-128, 128))
def test_halves_of_a_codebook_add_up(below: int) -> None:
    """Entries i and i + 8 decide together: all pairs of int8 values, by what prmt does with bit 3 of a selector."""
    for above in range(-128, 128):
        values = (below,) * 8 + (above,) * 8
        halves = summed_halves(values)
        if halves is None:
            # Where both give way to a sign, or the other's sign would leave int8, one of them is at int8's end.
            assert 127 in (below, above)
            continue
        low, high = halves[:8], halves[8:]
        signs = [-1 if v < 0 else 0 for v in halves]
        assert all(-128 <= v <= 127 for v in halves)
        assert [low[n] + signs[8 + n] for n in range(8)] == list(values[:8])
        assert [signs[n] + high[n] for n in range(8)] == list(values[8:])


def test_codebooks_in_use_have_halves() -> None:
    found = {name: plan for name, plan in LADDERS.items() if plan.table}
    assert {"IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"} <= set(found) and all(plan.halves for plan in found.values())


@pytest.mark.parametrize(
    ("rows", "grid"),
    [
        (14336, 448),  # 896 row tiles, 660 places: two each
        (12288, 384),
        (16384, 512),
        (9216, 576),  # a place each
        (10576, 331),  # a tile more than places
        (12800, 660),  # 400 CTAs of two are four on some multiprocessors: eight tiles, 32 percent over the mean
        (4096, 256),
        (128256, 660),  # the remainder is little beside 12 tiles each
    ],
)
def test_ctas_for_one_token_take_equal_shares(rows: int, grid: int) -> None:
    plan = plan_ksplit(FORMATS["TQ1_0"], "tiled")
    rung = plan.rungs[0]
    assert rung.columns == 1 and rung.min_ctas == 5
    launch, y = launch_ksplit(plan, rung, rows, 1, 132, 5, load_archs()["sm_90"])
    assert (launch.grid, y) == (grid, 1)
    share = -(-grid // 132)
    held = load_archs()["sm_90"].shared_per_sm // (launch.shared + 1024)
    assert held >= share and (share == 5 or held == share), "no multiprocessor takes more than its share"
    # Where no launch begins early, CTAs lie as they are numbered, and those with a tile more are spread already.
    launch, _ = launch_ksplit(plan, rung, rows, 1, 132, 5, load_archs()["sm_80"])
    assert launch.grid == min(660, -(-rows // ROWS))
