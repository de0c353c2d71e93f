"""Every kernel of the family wgmma, run in the emulator from the text that is generated; what its plans must keep."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from judging import F32, U8, same
from ksplit_cases import DISTINCT, Case, missing_codes, numbers, operands
from ksplit_cases import record_type as ladder_record_type
from ksplit_checks import compiled as compiled_ladder
from ksplit_checks import quantise
from ksplit_formats import D, M, bytes_of, nibbles, packed, toml
from made_formats import made
from numpy.typing import NDArray
from wgmma_checks import Wgmma, check_quantise, compiled, first_block, many_rows, present, record_type

from qgen.archs import load_archs
from qgen.emulated_wgmma import EmulatedWgmma
from qgen.errors import QgenError
from qgen.plan import (
    KsplitPlan,
    Plan,
    WgmmaPlan,
    WgmmaRung,
    entries,
    launch_wgmma,
    plan_all,
    plan_ksplit,
    plan_quantize_fragments,
    plan_wgmma,
)
from qgen.plan.fused import ALONE
from qgen.plan.in_place import Pair
from qgen.plan.ksplit import FragmentLayout
from qgen.plan.rungs import SHARED_LIMIT
from qgen.spec import Format, load_format, load_formats

FORMATS = load_formats()


def plans() -> dict[str, WgmmaPlan]:
    """Of every format that has such kernels."""
    found = {}
    for name, format in FORMATS.items():
        try:
            found[name] = plan_wgmma(format)
        except QgenError:
            continue
    return found


@cache
def others() -> list[Plan]:
    """Plans of all other families."""
    return [plan for plan in plan_all(FORMATS)[0] if not isinstance(plan, WgmmaPlan)]


PLANS = plans()
KERNELS = [(plan, rung) for plan in PLANS.values() for rung in plan.rungs]
# Every third rung of a format, others of the next one; and one of those.
SOME = [(plan, rung) for n, plan in enumerate(PLANS.values()) for rung in plan.rungs[n % 3 :: 3]]
ONE = [SOME[2 * n + n // 3 % 2] for n in range(len(PLANS))]


def names(kernels: list[tuple[WgmmaPlan, WgmmaRung]]) -> list[str]:
    return [f"{plan.format}-{rung.columns}-g{rung.row_groups}s{rung.split}" for plan, rung in kernels]


each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
each_kernel = pytest.mark.parametrize(("plan", "rung"), KERNELS, ids=names(KERNELS))
some_of_them = pytest.mark.parametrize(("plan", "rung"), SOME, ids=names(SOME))
one_of_a_format = pytest.mark.parametrize(("plan", "rung"), ONE, ids=names(ONE))


def judge(plan: WgmmaPlan, rung: WgmmaRung) -> Wgmma:
    return Wgmma(FORMATS[plan.format], compiled(plan, rung), plan, rung)


# ---- kernels ----------------------------------------------------------------------------------------------------


@some_of_them
def test_wgmma(plan: WgmmaPlan, rung: WgmmaRung) -> None:
    """Tails of rows, blocks, tokens, stages and slices in three thread orders: the contract's bits. Half of the shapes,
    the others with the format's other rung."""
    judge(plan, rung).check_shapes(plan.rungs.index(rung) // 3, 2)


@one_of_a_format
def test_wgmma_of_special_numbers(plan: WgmmaPlan, rung: WgmmaRung) -> None:
    """Those that are none; rows of them in front of usual ones; the largest integers; rows gigabytes apart."""
    judged = judge(plan, rung)
    judged.check_special()
    judged.check_leftovers()
    judged.check_extremes()
    judged.check_far_rows()


@one_of_a_format
def test_quantiser_and_kernel_one_after_the_other(plan: WgmmaPlan, rung: WgmmaRung) -> None:
    """As a call takes them, which takes the narrowest rung where none is named."""
    emulated, tokens = EmulatedWgmma(FORMATS[plan.format]), 2 * DISTINCT + 1
    for blocks in (3, plan.contract.slices + 1):
        given = operands(FORMATS[plan.format], blocks)
        rows, named = given.packed.reshape(len(given.packed), -1), None if rung is plan.rungs[0] else rung
        y = emulated(rows, given.x[numbers(tokens)], rung=named, order="shuffle", seed=blocks)
        assert same(y, given.wanted[numbers(tokens)]).all()


@pytest.mark.parametrize("name", ["BYTES256", "BASE5", "BLOCK160", "BITS1_SMALL", "TWOS4_AFFINE", "SHIFTED"])
def test_wgmma_of_made_formats(name: str) -> None:
    """Bytes as codes, words with places that no column has, slots without a word, codes times 2 and -3, a minimum."""
    check_made_up(made(name), len(name))


def check_made_up(format: Format, number: int = 0) -> WgmmaPlan:
    """One rung of it, and of the quantiser what it writes."""
    plan = plan_wgmma(format)
    rung = plan.rungs[number % len(plan.rungs)]
    judged = Wgmma(format, compiled(plan, rung), plan, rung)
    judged.check_leftovers()
    judged.check_extremes()
    case = Case(33, plan.contract.slices + 1, rung.columns + 1)
    judged.check(many_rows(format, case.rows, case.blocks), case)
    check_quantise(compiled(plan.quantize), plan.quantize, operands(format, 5).x)
    return plan


def load(name: str, text: str, folder: Path) -> Format:
    path = folder / f"{name.lower()}.toml"
    path.write_text(text.replace("TOY", name))
    return load_format(path)


_TWO_BITS = "[fields.q]\nat = {at}\nwidth = 2\nshape = [32, 4, 2]\nstride = [8, 2, 256]\n"

# name -> (file, whether codes times scales are bytes)
FOLDING = {
    "LONE": (toml("(d*sc)*q", D, packed("sc", 2, 16, 4), _TWO_BITS.format(at=10)), True),
    "EIGHT": (toml("(d*sc)*q - (m*mn)", D, M, packed("sc", 4, 8, 4), bytes_of("mn", 8, 8), nibbles(16)), True),
    "SIGNED_SUMS": (
        toml("(d*sc)*q - (m*mn)", D, M, packed("sc", 4, 16, 4), bytes_of("mn", 12, 16, "signed = true\n"),
             _TWO_BITS.format(at=28)), True,
    ),
    "TRIPLED": (toml("(d*sc)*q", D, packed("sc", 2, 8, 2, "mul = 3\n"), nibbles(4)), True),  # 15 * 9
    "TOO_LARGE": (toml("(d*sc)*q", D, bytes_of("sc", 2, 8), nibbles(10)), False),  # 15 * 255
    "OFFSET": (toml("(d*sc)*q", D, packed("sc", 2, 8, 4), nibbles(6, "add = -8\n")), False),
    "SIGNED": (toml("(d*sc)*q", D, bytes_of("sc", 2, 8, "signed = true\n"), nibbles(10)), False),
    "LOOKED_UP": (toml("(d*sc)*q", D, packed("sc", 2, 8, 4), nibbles(6, 'table = "iq4_nl"\n')), False),
    "FIRST_SUMS": (toml("(m*mn) + (d*sc)*q", D, M, packed("sc", 4, 8, 4), bytes_of("mn", 8, 8), nibbles(16)), True),
    "SUMS_BEFORE_CODES": (toml("-(m*mn) + d*q", D, M, bytes_of("mn", 4, 8), nibbles(12)), False),
    "BARE_CODES": (toml("d*q - (m*mn)", D, M, bytes_of("mn", 4, 8), nibbles(12)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDING)
def test_codes_times_scales_that_are_bytes(name: str, tmp_path: Path) -> None:
    text, folded = FOLDING[name]
    plan = check_made_up(load(name, text, tmp_path), len(name))
    assert plan.folded == folded and plan.layout.packed_sums
    assert plan.layout.starts == 0, "offsets of scaled codes are in the sums"


# ---- the cases --------------------------------------------------------------------------------------------------


@each_kernel
def test_the_cases_go_round_everything_and_leave_tails(plan: WgmmaPlan, rung: WgmmaRung) -> None:
    cases = Wgmma(FORMATS[plan.format], compiled(*SOME[0]), plan, rung).cases()
    slices, layout = plan.contract.slices, plan.layout
    grids = {case: launch_wgmma(rung, case.rows, case.tokens, case.multiprocessors) for case in cases}
    assert {y for _, y in grids.values()} == {1, 2, 3} and {launch.grid for launch, _ in grids.values()} == {1, 3}
    groups = {case: -(-case.rows // rung.rows) / grids[case][0].grid for case in cases}
    assert max(groups.values()) >= 3, "a CTA has groups of rows one after the other"
    assert {case.rows % 64 for case in cases} >= {1, 15, 17, 63} and {case.rows % 128 for case in cases} >= {1, 63, 127}
    bundles = {case: layout.bundles(case.blocks) for case in cases}
    assert any(n / rung.split > rung.stages for n in bundles.values()), "rings of stages go round"
    assert any(groups[case] > 1 and n * groups[case] / rung.split > rung.stages for case, n in bundles.items())
    assert {1, 2, slices - 1, slices + 1} <= {case.blocks for case in cases} or layout.bundle > 1
    assert any(case.blocks < slices for case in cases) and max(bundles.values()) > slices, "bundles of a slice"
    if layout.bundle > 1:
        inside = {blocks_of(layout, case.blocks, u) for case in cases for u in range(bundles[case])}
        assert inside >= {0, 1, layout.bundle - 1, layout.bundle}, "bundles that end short, and empty ones"
        assert all(present(layout, case.blocks) <= bundles[case] for case in cases)
    columns = rung.columns
    assert {case.tokens for case in cases} >= {1, 7, 9, columns - 1, columns, columns + 1, 2 * columns + 3}


def blocks_of(layout: FragmentLayout, blocks: int, bundle: int) -> int:
    """Blocks of a bundle that there are."""
    return sum(first_block(layout, bundle) + j * layout.apart < blocks for j in range(layout.bundle))


def test_every_rung_and_every_format_has_its_turn() -> None:
    """Every kind of rung, and two of every format, which share the shapes; one of each for what is special."""
    kinds = {(rung.columns, rung.row_groups, rung.split) for _, rung in KERNELS}
    for kernels, each in ((SOME, 2), (ONE, 1)):
        assert {(rung.columns, rung.row_groups, rung.split) for _, rung in kernels} >= kinds - {(32, 2, 1), (32, 1, 2)}
        assert [plan.format for plan, _ in kernels] == [name for name in PLANS for _ in range(each)]
    assert all({plan.rungs.index(rung) // 3 for own, rung in SOME if own is plan} == {0, 1} for plan in PLANS.values())


@each_plan
def test_every_code_occurs(plan: WgmmaPlan) -> None:
    """Every value of every integer field, place by place, in what the cases run."""
    cases = Wgmma(FORMATS[plan.format], compiled(*SOME[0]), plan, plan.rungs[0]).cases()
    most = max(cases, key=lambda case: min(case.rows, 37) * case.blocks)
    assert not missing_codes(FORMATS[plan.format], many_rows(FORMATS[plan.format], most.rows, most.blocks).packed)


# ---- the quantiser ----------------------------------------------------------------------------------------------


@each_plan
def test_quantiser(plan: WgmmaPlan) -> None:
    """Usual and special numbers lie where the layout record says, and what is nobody's stays as it is."""
    convert = plan.quantize
    whole = plan.layout.apart * plan.layout.bundle  # blocks of a round of bundles
    for tokens, blocks in ((1, 1), (8, convert.warps), (9, convert.warps + 1), (19, 3), (2, whole + 1)):
        check_quantise(compiled(convert), convert, mixed(tokens, blocks * convert.weight_block, plan.layout.group))


def mixed(tokens: int, columns: int, group: int) -> F32:
    """Groups that are vast and tiny, of one sign, of ones, and with numbers that are none."""
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, columns), dtype=np.float32)
    groups = x.reshape(-1, group)
    with np.errstate(all="ignore"):
        groups[::3] *= (10.0 ** rng.uniform(-44, 37, (len(groups[::3]), 1))).astype(np.float32)
    groups[1::3] = np.abs(groups[1::3])  # the largest sums
    groups[1::6] = 1
    for at, special in enumerate((0.0, np.nan, -np.inf, 1e-45)):
        groups[2 + 7 * at :: 29, 3] = special
    return x


@each_plan
def test_records_hold_what_the_ladders_hold(plan: WgmmaPlan) -> None:
    """Block by block and token by token the same codes, scales, starts and sums, in another place."""
    ladder = plan_quantize_fragments(plan_ksplit(FORMATS[plan.format], "tiled"))
    for tokens, blocks in ((11, 5), (3, 9 * plan.layout.bundle)):
        x = mixed(tokens, blocks * plan.block, plan.layout.group)
        own, _ = quantise(compiled(plan.quantize), plan.quantize, x)
        theirs, _ = quantise(compiled_ladder(ladder), ladder, x)
        wanted = by_block(ladder.layout, theirs, blocks, tokens)
        found = by_block(plan.layout, own, blocks, tokens)
        assert found.keys() == wanted.keys() >= {"codes", "scales"}
        for field, values in wanted.items():
            assert np.array_equal(found[field].view(np.uint8), values.view(np.uint8)), field


def by_block(layout: FragmentLayout, memory: U8, blocks: int, tokens: int) -> dict[str, NDArray[np.generic]]:
    """Each field of a workspace as [block, token, ...], wherever the layout has it."""
    tiles, bundles = -(-tokens // 8), layout.bundles(blocks)
    if layout.matrices:
        made = memory.view(record_type(layout)).reshape(bundles, tiles).T
    else:
        made = memory.view(ladder_record_type(layout)).reshape(tiles, bundles)
    each = {field: [] for field in made.dtype.names or ()}  # type: dict[str, list[NDArray[np.generic]]]
    words, bundle = max(len(own) for own in layout.words) // layout.bundle, layout.bundle
    for block in range(blocks):
        # In rounds of `apart` bundles a bundle's blocks lie `apart` apart.
        at, j = block // (layout.apart * bundle) * layout.apart + block % layout.apart, block // layout.apart % bundle
        for field, rows in each.items():
            rows.append(np.stack([_of(layout, made[n // 8, at], field, n % 8, j, words) for n in range(tokens)]))
    return {field: np.ascontiguousarray(np.stack(rows)) for field, rows in each.items()}


def _of(layout: FragmentLayout, record: np.void, field: str, place: int, j: int, words: int) -> NDArray[np.generic]:
    """What a record has of one token and of block j of its bundle."""
    t, i, own = place // 2, place % 2, record[field]
    if field == "codes":
        # [word][thread][byte]; the ladder has four words of a thread together.
        own = own[:, place] if layout.matrices else own[:, place].reshape(-1, 4, 4, 4).swapaxes(1, 2).reshape(-1, 4, 4)
        part = own[j * words : (j + 1) * words]
    elif field == "sums" and layout.packed_sums:
        part = own[:, place] if layout.matrices else own[place].swapaxes(0, 1).reshape(2, 16)
    else:
        own = own[:, t, :, i] if field == "starts" else own[t, :, i]
        part = own.reshape(layout.bundle, -1)[j]
    return np.asarray(part)


# ---- plans ------------------------------------------------------------------------------------------------------


def test_who_has_such_kernels() -> None:
    """Every format with a ladder over tiles; the same contract, the same weights, the same alignment."""
    ladders = {plan.format: plan for plan in others() if isinstance(plan, KsplitPlan) and plan.tile}
    assert set(PLANS) == set(ladders) and len(PLANS) >= 20
    for name, plan in PLANS.items():
        ladder = ladders[name]
        own = replace(plan.ladder, layout=ladder.layout, split=ladder.split)
        assert own == ladder and plan.contract == ladder.contract and plan.alignment == ladder.alignment
        assert plan.requires == (*ladder.requires, "tma", "wgmma")
        moved = {"name": ladder.layout.name, "matrices": False, "apart": ladder.layout.apart}
        assert replace(plan.layout, **moved) == ladder.layout  # type: ignore[arg-type]
        assert plan.layout.matrices and plan.layout.apart == plan.contract.slices
    able = [arch.name for arch in load_archs().values() if arch.instructions.wgmma]
    assert able == ["sm_90"]


def test_names_are_unique() -> None:
    every = [*others(), *PLANS.values()]
    found = [name for plan in every for name in entries(plan)]
    files = [plan.file for plan in every]
    assert len(set(found)) == len(found) and len(set(files)) == len(files)


def test_formats_without_such_kernels_are_refused() -> None:
    for name, format in FORMATS.items():
        if name not in PLANS:
            with pytest.raises(QgenError) as refused:
                plan_wgmma(format)
            assert refused.value.stage == "plan" and refused.value.allowed


def test_what_instructions_cannot_take_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = toml("(d*sc)*q", D, bytes_of("sc", 2, 4, per=16), nibbles(6, block=64), block=64, activation="q8_g64")
    with pytest.raises(QgenError, match="integer scales in blocks of 64") as refused:
        plan_wgmma(load("SHORT", short, tmp_path))
    assert refused.value.stage == "plan" and "longer blocks" in refused.value.allowed
    ladder = plan_ksplit(FORMATS["Q4_K"], "tiled")
    apart = ((Pair(first=0, second=2), Pair(first=1, second=3)), *ladder.pairs[1:])
    for changed, found in (
        (replace(ladder, pairs=apart), "words 0 and 2 in one instruction"),
        (replace(ladder, block_bytes=16 * ladder.block_bytes), "no launch shape fits shared memory"),
    ):
        monkeypatch.setattr("qgen.plan.wgmma.plan_ksplit", lambda *_, changed=changed: changed)
        with pytest.raises(QgenError, match=found) as refused:
            plan_wgmma(FORMATS["Q4_K"])
        assert refused.value.stage == "plan"


def test_whose_codes_times_scales_are_bytes() -> None:
    assert {name for name, plan in PLANS.items() if plan.folded} == {"Q2_K"}


@each_plan
def test_records_are_whole_lines(plan: WgmmaPlan) -> None:
    """Of 128 bytes, so that the rows of a matrix lie in banks of their own; its parts lie where the plan has them."""
    layout, record = plan.layout, record_type(plan.layout)
    assert layout.record_bytes % 128 == 0 and record.itemsize == layout.record_bytes
    offsets = {name: record.fields[name][1] for name in record.names or ()} if record.fields else {}
    assert offsets["scales"] == layout.code_bytes
    assert offsets.get("starts", layout.starts_at) == layout.starts_at
    assert offsets.get("sums", layout.sums_at) == layout.sums_at
    assert layout.starts_at % 16 == layout.sums_at % 16 == 0
    ends = [offset + kind.itemsize for kind, offset, *_ in (record.fields or {}).values()]
    assert ends == sorted(ends) and layout.record_bytes - ends[-1] < 128
    for blocks in (1, 3, 8, 9, 32, 67, 129):
        first = [first_block(layout, u) for u in range(layout.bundles(blocks))]
        placed = [block + j * layout.apart for block in first for j in range(layout.bundle)]
        assert len(set(placed)) == len(placed) and set(placed) >= set(range(blocks))
        # A bundle's blocks are of one slice.
        assert all(block % plan.contract.slices == u % plan.contract.slices for u, block in enumerate(first))
        assert plan.workspace_bytes(blocks, 9) == 2 * len(first) * layout.record_bytes


@each_kernel
def test_shared_memory_adds_up(plan: WgmmaPlan, rung: WgmmaRung) -> None:
    """Stages of all parts, sums that wait for their partners, and barriers; it fits, and a CTA is alone."""
    tile = plan.ladder.tile
    assert tile is not None
    stage = rung.column_tiles * plan.layout.record_bytes + rung.rows // 16 * plan.layout.bundle * tile.tile_bytes
    own = plan.contract.slices // rung.split
    levels = {2: 1, 4: 2, 8: 3, 16: 4, 32: 5}[own] - rung.kept
    used = rung.stages * rung.split * stage + levels * 32 * rung.warps * 4 * rung.columns // 2
    barriers = 8 * (1 + 2 * rung.stages * rung.split)
    assert stage % 16 == 0 and rung.stages >= 2 and rung.depth in (1, 2) and rung.kept == (rung.warps == 8)
    assert rung.shared_bytes == max(used + barriers, ALONE) <= SHARED_LIMIT
    # The device keeps 1 KB of each.
    assert 2 * (rung.shared_bytes + 1024) > SHARED_LIMIT + 1024
    assert rung.columns == 8 * rung.column_tiles and rung.rows == 64 * rung.row_groups and rung.width == 1
    assert rung.warps == 4 * rung.row_groups * rung.split and rung.threads == 32 * (rung.warps + 4)
    assert rung.warps in (8, 16) and 4 % rung.split == 0 and rung.activation == plan.layout.activation
    # setmaxnreg: what the warps that fetch give back is enough for those that multiply.
    assert 32 * (rung.warps * (104 if rung.warps > 8 else 232) + 4 * 40) <= 65536


@each_kernel
def test_a_launch_covers_all_rows_and_no_more_ctas_than_multiprocessors(plan: WgmmaPlan, rung: WgmmaRung) -> None:
    for rows in (1, rung.rows - 1, rung.rows, rung.rows + 1, 4096, 14336, 1 << 20):
        for tokens in (1, rung.columns, rung.columns + 1, 130, 1024):
            for multiprocessors in (1, 2, 78, 132):
                launch, y = launch_wgmma(rung, rows, tokens, multiprocessors)
                where = f"{rows} rows, {tokens} tokens, {multiprocessors} multiprocessors"
                assert (launch.block, launch.shared) == (rung.threads, rung.shared_bytes)
                assert y == -(-tokens // rung.columns), where
                groups = -(-rows // rung.rows)
                assert 1 <= launch.grid <= groups, f"a CTA without rows: {where}"
                assert launch.grid * y <= max(multiprocessors, y), where
                assert launch.grid == groups or (launch.grid + 1) * y > multiprocessors, f"idle ones: {where}"
                tiles = -(-tokens // 8)
                shared = -(-tiles // y)  # column tiles of a CTA, as the text has it
                assert shared <= rung.column_tiles and (y - 1) * shared * 8 < tokens <= y * shared * 8, where
