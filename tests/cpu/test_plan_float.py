"""What every plan with f16 or bf16 activations must keep, and what is refused, with the reason."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from float_cases import Case, operands
from float_checks import Float, check_arrange, compiled
from float_tiled_checks import FloatTiled
from ksplit_checks import SM_90
from ksplit_formats import MADE_UP, D, bytes_of, nibbles, toml
from made_formats import RUNS, made

from qgen import contract_float
from qgen.archs import load_archs
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import (
    CLASSES,
    FloatKsplitPlan,
    FloatRung,
    float_contract,
    launch_arrange,
    launch_ksplit_float,
    plan_all,
    plan_arrange,
    plan_ksplit,
    plan_ksplit_float,
)
from qgen.plan.float_rungs import SHARED_LIMIT
from qgen.plan.lanes import code_flip
from qgen.plan.terms import code_field
from qgen.spec import Format, load_format, load_formats

FORMATS = load_formats()
PLANS = [p for p in plan_all(FORMATS)[0] if isinstance(p, FloatKsplitPlan)]
each_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.file)


def test_every_format_with_plain_codes_has_both_classes() -> None:
    found = {(p.format, p.contract.activation) for p in PLANS}
    assert found == {(name, a) for name in {p.format for p in PLANS} for a in CLASSES} and len(found) == 48
    assert {(p.format, p.contract.activation) for p in PLANS if p.tile} == found and len(PLANS) == 96
    assert {name for name in FORMATS if FORMATS[name].split} <= {p.format for p in PLANS}


@each_plan
def test_every_weight_has_one_place_in_one_step_of_its_group(plan: FloatKsplitPlan) -> None:
    words = plan.layout.words
    assert {len(own) for own in words} == {plan.code_words} and plan.layout.pieces == -(-plan.code_words // 2)
    elements = [e for own in words for word in own for e in word if e != plan.block]
    assert sorted(elements) == list(range(plan.block))
    group = plan.contract.group
    for g, (first, end) in enumerate(itertools.pairwise(plan.group_words)):
        assert {e // group for own in words for word in own[first:end] for e in word} - {plan.block // group} == {g}
    assert plan.group_words[0] == 0 and plan.group_words[-1] == plan.code_words
    assert sorted(use.x for step in plan.steps for use in step.uses) == list(range(plan.code_words))
    steps = contract_float.steps(plan.layout, group)
    assert sorted(e for own in steps for step in own for e in step) == list(range(plan.block))
    assert all(len(step) <= 16 for own in steps for step in own)


@each_plan
def test_codes_are_converted_exactly(plan: FloatKsplitPlan) -> None:
    check_conversion(FORMATS[plan.format], plan)


def check_conversion(format: Format, plan: FloatKsplitPlan) -> None:
    """Every stored integer through the steps of the plan: each result is one of the class, and the last its meaning."""
    codes, name = code_field(format), plan.contract.activation
    if codes.table:
        data = b"".join(int(word[:-1], 16).to_bytes(4, "little") for word in plan.table)
        stored = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
        meaning = np.array(format.codebook(codes.table).numbers, dtype=np.float64)
    else:
        raw = np.arange(codes.levels if not codes.base else codes.base)
        stored = raw ^ code_flip(codes)
        signed = raw - (raw >= codes.levels // 2) * codes.levels if codes.signed else raw
        meaning = np.asarray(codes.mul * signed + codes.add, dtype=np.float64)
    stored ^= int(plan.convert.flip[2:4], 16) if plan.convert.flip else 0
    value = stored.astype(np.float64)
    if plan.convert.signed:
        value[stored > 127] -= 256
        assert name == "bf16"
    else:
        value += {"f16": 1024, "bf16": 128}[name]
        assert stored.max() < {"f16": 1024, "bf16": 128}[name], "there is room for it"
    for factor, summand in plan.convert.steps:
        assert len({factor[2:6], factor[6:10]}) == len({summand[2:6], summand[6:10]}) == 1
        assert (contract_float.rounded(value.astype(np.float32), name) == value).all()
        value = np.asarray(value * number(factor, name) + number(summand, name), dtype=np.float64)
    assert (contract_float.rounded(value.astype(np.float32), name) == value).all()
    assert np.array_equal(value, meaning)


def number(pair: str, name: str) -> float:
    bits = np.uint32(int(pair[:-1], 16) & 0xFFFF)
    if name == "f16":
        return float(bits.astype(np.uint16).view(np.float16))
    return float((bits << np.uint32(16)).view(np.float32))


@each_plan
def test_rungs_fit_the_machines_and_launches_cover_everything(plan: FloatKsplitPlan) -> None:
    assert plan.rungs and plan.workspace_bytes(3, 9) == plan.layout.bytes(3, 9)
    for rung in plan.rungs:
        assert rung.columns == 8 * rung.column_tiles and rung.rows == 16 * rung.row_tiles
        assert rung.warps == plan.contract.slices and rung.stage_blocks == rung.warps * rung.warp_blocks
        check_stage(plan, rung)
        partial = rung.warps * rung.columns * (rung.rows + 4) * 4
        # A word at any address looks 4 bytes further; the last row's slot is followed by as much. Tiles: two barriers a
        # stage, and two for the sums.
        behind = 16 * rung.stages + 16 if plan.tile else 4
        assert rung.shared_bytes >= rung.stages * rung.stage_bytes + partial + behind and rung.stages >= 2
        assert rung.shared_bytes <= SHARED_LIMIT and rung.min_ctas * (rung.shared_bytes + 1024) <= 228 * 1024
        for rows, tokens, resident in itertools.product((1, 16, 17, 14336), (1, rung.columns + 1, 97), (1, 264)):
            shape, grid_y = launch_ksplit_float(plan, rung, rows, tokens, resident, 1, SM_90)
            assert (grid_y - 1) * rung.columns < tokens <= grid_y * rung.columns
            assert 1 <= shape.grid <= -(-rows // rung.rows) and shape.grid * grid_y <= max(resident, grid_y)
            assert rung.shared_bytes == shape.shared
    convert = plan_arrange(plan)
    for blocks, tokens in ((1, 1), (5, 8), (17, 9)):
        shape, grid_y = launch_arrange(convert, blocks, tokens)
        assert shape.grid * convert.warps >= blocks and grid_y == -(-tokens // 8) * 8


def check_stage(plan: FloatKsplitPlan, rung: FloatRung) -> None:
    """A stage has room for its bytes, wherever rows begin; tiles lie in one piece."""
    if plan.tile:
        (staged,) = rung.planes
        assert rung.stage_bytes == staged.slot_bytes == 16 * staged.pieces == rung.stage_blocks * plan.tile.tile_bytes
        assert rung.row_tiles == 1 and staged.at == 0
        return
    for plane, staged in zip(plan.planes, rung.planes, strict=True):
        stage = rung.stage_blocks * plane.bytes
        worst = max((start + stage + 15) // 16 for start in range(0, 16, plane.alignment))
        assert staged.pieces >= worst and staged.slot_bytes >= 16 * staged.pieces and staged.slot_bytes % 16 == 0
    ends = [p.at + rung.rows * p.slot_bytes for p in rung.planes]
    assert [p.at for p in rung.planes] == [0, *ends[:-1]] and ends[-1] == rung.stage_bytes


def test_a_launch_of_few_tiles_spreads() -> None:
    """Over tiles, where fewer CTAs are launched than fit, none shares a multiprocessor with more than its part."""
    plan = plan_ksplit_float(FORMATS["Q5G64_F16S"], "bf16", "tiled")
    rung = plan.rungs[0]
    few, _ = launch_ksplit_float(plan, rung, 132 * 16, 1, 132, 2, SM_90)
    many, _ = launch_ksplit_float(plan, rung, 264 * 16, 1, 132, 2, SM_90)
    assert (few.grid, many.grid) == (132, 264) and 2 * few.shared > 227 * 1024 >= few.shared > many.shared


def test_launches_over_tiles_ask_for_what_the_architecture_has() -> None:
    """Every format's rungs, as many CTAs resident as fit; and no more than the rung takes where none can pile up."""
    spread = set()
    for arch, plan in itertools.product(load_archs().values(), (plan for plan in PLANS if plan.tile)):
        for rung in plan.rungs:
            fit = arch.shared_per_sm // (rung.shared_bytes + arch.shared_reserved)
            for rows, tokens in ((1, 1), (4096, 1), (4096, 9)) if fit else ():
                shape, grid_y = launch_ksplit_float(plan, rung, rows, tokens, 132, fit, arch)
                share = -(-shape.grid * grid_y // 132)
                assert rung.shared_bytes <= shape.shared <= arch.shared_per_block_optin
                assert min(share, fit) * (shape.shared + arch.shared_reserved) <= arch.shared_per_sm
                if shape.shared > rung.shared_bytes:
                    assert arch.instructions.pdl
                    spread.add(arch.name)
    assert spread == {"sm_90", "sm_100", "sm_120"}


@each_plan
def test_storage_is_no_part_of_the_arithmetic(plan: FloatKsplitPlan) -> None:
    """Both storages have the contract, the order of x and the kernel that arranges it; tiles are those of int8."""
    other = plan_ksplit_float(FORMATS[plan.format], plan.contract.activation)
    assert (other.contract, other.layout, other.convert) == (plan.contract, plan.layout, plan.convert)
    assert plan_arrange(other).name == plan_arrange(plan).name and emit(plan_arrange(other)) == emit(plan_arrange(plan))
    if plan.tile and not FORMATS[plan.format].split:
        assert plan.tile == plan_ksplit(FORMATS[plan.format], "tiled").tile


def test_the_contract_says_what_decides_the_bits() -> None:
    own = float_contract(FORMATS["Q4_K"], "bf16")
    assert own.name == "bf16_g32_s8" and own.terms == ("+d*sc*S", "-dmin*mn*X")
    assert float_contract(FORMATS["NVFP4"], "f16").group == 16
    assert float_contract(FORMATS["TQ1_0"], "f16").group == 256
    with pytest.raises(QgenError, match="bf16, f16"):
        float_contract(FORMATS["Q4_K"], "q8_g256")


# ---- formats that nobody ships -----------------------------------------------------------------------------------

_HEAD = 'planes = ["scale", "base"]\nplane_align = 32\nk_pad = 64\nblock ='
PLANES = toml(
    "d*q",
    D.replace("at", 'plane = "scale"\nat'),
    '[fields.q]\nadd = -8\nplane = "base"\nat = 0\nwidth = 4\nshape = [64]\nstride = [4]\n',
    block=64,
    activation="bf16",
).replace("block =", _HEAD)
PLANE_SCALE = '[fields.sc]\nper = 16\nplane = "scale"\nat = 2\nwidth = 8\nshape = [4]\nstride = [8]\n'
ROW_PADDING = 'padding = [{ plane = "row", at = 0, width = 16 }]\nblock ='
ROW = '[fields.r]\ntype = "f32"\nscope = "row"\nat = 0\n'
E4M3 = '[fields.d]\ntype = "e4m3"\nat = 0\n'
DIGITS = """[fields.q]
base = 128
digits = 1
add = -300
encoding = "fraction"
segments = [{ at = 2, shape = [256], stride = [1] }]
"""
TOYS = {
    "nibbles": toml("d*q", D, nibbles(2)),
    "unsigned bytes": toml("d*q", D, bytes_of("q", 2, 256)),
    "two bare terms": toml("d*q + m*1 - d", D, '[fields.m]\ntype = "bf16"\nat = 2\n', nibbles(4)),
    "planes, the scales first": PLANES,
    "integer scales in planes": PLANES.replace("d*q", "d*sc*q") + PLANE_SCALE,
}


def toy(text: str, folder: Path) -> Format:
    path = folder / "toy.toml"
    path.write_text(text)
    return load_format(path)


@pytest.mark.parametrize(("name", "activation"), list(zip(TOYS, itertools.cycle(CLASSES), strict=False)))
def test_a_made_up_format_runs_to_the_bit(name: str, activation: str, tmp_path: Path) -> None:
    check_made_up(toy(TOYS[name], tmp_path), activation)


@pytest.mark.parametrize("name", ["BITS5_APART", "BITS6_APART", "BYTE_OFFSET"])
def test_a_second_one_of_a_known_kind_runs_to_the_bit(name: str) -> None:
    check_made_up(made(name), "f16")


def check_made_up(format: Format, activation: str) -> None:
    plan = plan_ksplit_float(format, activation)
    check_conversion(format, plan)
    convert, rung = plan_arrange(plan), plan.rungs[0]
    x = np.random.default_rng(2).standard_normal((9, 2 * format.block), dtype=np.float32)
    check_arrange(compiled(convert), convert, x)
    given = operands(format, activation, rung.stage_blocks + 1)
    exact, bound = contract_float.reference(format, given.packed, given.x[0], activation)
    assert (np.abs(given.wanted[0] - exact) <= bound).all()
    case = Case(rows=19, blocks=given.blocks, tokens=9, pad=1, offset=1)
    Float(format, compiled(plan), plan, rung).check(given, case, orders=False)
    tiled = plan_ksplit_float(format, activation, "tiled")
    FloatTiled(format, compiled(tiled), tiled, tiled.rungs[0]).check(
        given, replace(case, pad=0, offset=0), orders=False
    )


REFUSED = {
    "scale of eight": (toml("d*sc*q", D, bytes_of("sc", 2, 32, per=8), nibbles(34)), "bf16", "8 weights share a scale"),
    "codes past 256": (toml("d*q", D, bytes_of("q", 2, 256, "mul = 2\n")), "bf16", "codes that mean up to 510"),
    "codes past 2048": (toml("d*q", D, bytes_of("q", 2, 256, "mul = 9\n")), "f16", "codes that mean up to 2295"),
    "digits far off": (toml("d*q", D, DIGITS), "bf16", "codes that mean up to 300"),
    "a row's scale": (toml("r*q", ROW, nibbles(0)), "f16", "outside the blocks"),
    "row bytes": (
        toml("d*q", D, nibbles(2)).replace("block =", ROW_PADDING, 1),
        "f16",
        "2 row and 0 tensor bytes",
    ),
    "scale of another type": (toml("d*q", E4M3, nibbles(1)), "f16", "is of type e4m3"),
    "blocks too large": (toml("d*q", D, bytes_of("q", 2, 4096, per=1), block=4096), "f16", "blocks of 4098 bytes"),
    "a stage too large": (toml("d*q", D, bytes_of("q", 2, 512, per=1), block=512), "f16", "bytes of shared memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_can_do_is_refused(name: str, tmp_path: Path) -> None:
    text, activation, words = REFUSED[name]
    with pytest.raises(QgenError) as caught:
        plan_ksplit_float(toy(text, tmp_path), activation)
    assert caught.value.stage == "plan" and words in caught.value.found and caught.value.allowed


def test_what_int8_can_do_floats_can_do_or_refuse(tmp_path: Path) -> None:
    """All made-up formats of the other tests: planned and converted exactly, or refused by the planner."""
    planned = 0
    for format in (*map(made, RUNS), *(toy(text, tmp_path) for text, _ in MADE_UP.values())):
        for activation in CLASSES:
            try:
                plan = plan_ksplit_float(format, activation)
            except QgenError as refusal:
                assert refusal.stage == "plan" and refusal.allowed
                continue
            planned += 1
            check_conversion(format, plan)
    assert planned > 40
