"""Plans: what holds for all of them, the bound on integer sums, formats that no Python knows, every refusal."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from kernel_cases import FORMATS, Case, operands, special_operands
from kernel_checks import Matvec, check_quantize, quantize_vectors
from ksplit_formats import MADE_UP
from made_formats import REFUSED, RUNS, made

from qgen import archs, codec, emit, emulate, layout, plan
from qgen.errors import QgenError
from qgen.plan import MatvecPlan, ksplit, lanes, matvec, refuse, scales, share, terms
from qgen.plan.records import LaneInt
from qgen.spec import Format, load_format

SHIPPED = {p.format: p for p in plan.plan_all(FORMATS)[0] if isinstance(p, MatvecPlan)}
EVERY = [FORMATS[name] for name in SHIPPED] + [made(name) for name in RUNS]
every_format = pytest.mark.parametrize("format", EVERY, ids=[format.name for format in EVERY])


# ---- invariants ------------------------------------------------------------------------------------------------------


@every_format
def test_every_element_has_its_place_in_the_activation(format: Format) -> None:
    planned = plan.plan_matvec(format)
    placed = planned.layout
    elements = [e for words in placed.words for word in words for e in word]
    assert sorted(e for e in elements if e != placed.block) == list(range(format.block))
    assert max(elements) <= placed.block == format.block
    assert placed.lanes * placed.tile_blocks == 32 and len(placed.words) == placed.lanes == planned.lanes
    assert {len(words) for words in placed.words} == {placed.group_words[-1]}
    assert placed.chunks == -(-placed.group_words[-1] // 4)
    assert placed.scales * placed.group == format.block
    assert planned.contract.activation == placed.activation


@every_format
def test_groups_are_runs_of_words_that_share_scale_and_unit(format: Format) -> None:
    planned = plan.plan_matvec(format)
    codes = terms.code_field(format)
    size = terms.group_size(format, codes, planned.contract.unit)
    bounds = planned.layout.group_words
    assert bounds[0] == 0 and list(bounds) == sorted(set(bounds)) and len(bounds) == planned.groups + 1
    met: list[int] = []
    for t, g in itertools.product(range(planned.lanes), range(planned.groups)):
        words = planned.layout.words[t][bounds[g] : bounds[g + 1]]
        groups = {e // size for word in words for e in word if e != format.block}
        assert len(groups) == 1, f"thread {t} adds groups {groups} into one sum"
        (group,) = groups
        met.append(group)
        unit = group * size // planned.contract.unit
        assert unit == planned.unit_of_group[g]
    assert sorted(set(met)) == list(range(format.block // size))
    assert planned.layout.sum_slots == 0 or (
        planned.layout.sum_slots >= planned.groups and planned.lanes * planned.layout.sum_slots <= 32
    )


@every_format
def test_launch_shapes_are_whole_and_fit(format: Format) -> None:
    planned = plan.plan_matvec(format)
    assert planned.instances and planned.read_factor <= 1.15
    for i in planned.instances:
        assert planned.contract.slices == i.team_blocks * i.substeps and i.substeps >= 1
        assert i.team_blocks * planned.lanes * i.teams == 32 and i.warp_rows == i.rows * i.teams
        assert i.step_bytes == i.team_blocks * format.bytes and i.stages >= 2
        # The worst start of a step in its first piece, and the word after the last block.
        assert i.pieces * 16 >= i.step_bytes + 16 - (format.alignment if format.bytes % 16 else 16)
        assert i.slot_bytes == 16 * i.pieces and i.warp_shared == i.stages * i.warp_rows * i.slot_bytes
        assert i.shared_bytes >= planned.warps * i.warp_shared + 4
        assert i.shared_bytes <= matvec.SHARED_LIMIT
    quantiser = plan.plan_quantize(planned)
    assert quantiser.shared_bytes <= 48 * 1024
    assert quantiser.word_count == 4 * planned.layout.chunks * planned.lanes == len(quantiser.order)


def test_the_limit_on_shared_memory_is_that_of_the_smallest_architecture() -> None:
    assert matvec.SHARED_LIMIT == min(arch.shared_per_block_optin for arch in archs.load_archs().values())


@every_format
@pytest.mark.parametrize("blocks", [1, 7, 8, 33])
def test_planes_of_the_workspace_do_not_overlap(format: Format, blocks: int) -> None:
    placed = plan.plan_matvec(format).layout
    padded = placed.tiles(blocks) * placed.tile_blocks
    assert blocks <= padded < blocks + placed.tile_blocks
    assert placed.scale_offset(blocks) == padded * placed.lanes * placed.chunks * 16
    assert placed.sums_offset(blocks) % 16 == 0
    assert placed.sums_offset(blocks) >= placed.scale_offset(blocks) + padded * placed.scales * 4
    assert placed.bytes(blocks) == placed.sums_offset(blocks) + padded * placed.lanes * placed.sum_slots * 4


def test_names_are_different_and_do_not_depend_on_what_else_is_planned() -> None:
    plans, refused = plan.plan_all(FORMATS)
    names = [name for p in plans for name in plan.entries(p)]
    assert len(names) == len(set(names)) and len({(p.family, p.file) for p in plans}) == len(plans)
    assert all(name.isidentifier() and name.isascii() for name in names)
    backwards, _ = plan.plan_all(dict(sorted(FORMATS.items(), reverse=True)))
    assert backwards == plans
    assert plan.plan_all({"TQ1_0": FORMATS["TQ1_0"]})[0] == tuple(p for p in plans if p.format == "TQ1_0")
    assert set(refused) | {p.format for p in plans} == set(FORMATS)
    # What others may have written down.
    assert {i.name for i in SHIPPED["TQ1_0"].instances} >= {
        "mul_mat_tq1_0_q8_g256_t1__matvec_native_r1_b8",
        "mul_mat_tq1_0_q8_g256_t1__matvec_native_r2_b2",
    }
    assert SHIPPED["PTQ1_0"].contract.name == "q8_g128_u128_s32" and SHIPPED["Q4_K"].contract.name == "q8_g256_u256_s16"


@pytest.mark.parametrize("rows", [1, 5, 4096, 14336, 262144])
def test_a_grid_gives_every_warp_the_same_number_of_tiles_or_one_less(rows: int) -> None:
    for planned, multiprocessors, resident in itertools.product(
        (SHIPPED["TQ1_0"], SHIPPED["Q4_0"]), (1, 40, 132), (1, 5)
    ):
        for i in planned.instances:
            shape = plan.launch(planned, i, rows, multiprocessors, resident)
            ctas = -(-rows // (i.warp_rows * planned.warps))
            waves = -(-ctas // shape.grid)
            assert shape.block == 32 * planned.warps and shape.shared == i.shared_bytes
            assert 1 <= shape.grid <= min(ctas, multiprocessors * resident)
            assert shape.grid * (waves - 1) < ctas <= shape.grid * waves
            assert waves == -(-ctas // (multiprocessors * resident)), "more waves than the device needs"


# ---- the bound on integer sums ---------------------------------------------------------------------------------------


@every_format
def test_no_integer_sum_exceeds_its_bound(format: Format) -> None:
    """By brute force: every code times every scale that occurs, against the largest activation codes."""
    planned = plan.plan_matvec(format)
    codes = terms.code_field(format)
    assert planned.largest_sum < 1 << 31
    value, partial = _largest_code(format, planned)
    for term in format.terms:
        scale = 1
        for field in terms.scale_fields(format, term, codes):
            low, high = layout.code_range(format, field)
            scale = int(max(abs(low), abs(high)))
        largest = max(value, partial) if codes.name in term.factors else 1
        assert planned.contract.unit * largest * 127 * scale <= planned.largest_sum


def _largest_code(format: Format, planned: MatvecPlan) -> tuple[int, int]:
    """The largest |code|, and the largest a kernel adds on the way: code_mul * |small integer| + |offset|."""
    codes = terms.code_field(format)
    low, high = layout.code_range(format, codes)
    value = int(max(abs(low), abs(high)))
    if codes.table:
        return value, value
    small = 128 if codes.width == 8 else codes.levels - 1
    return value, abs(planned.code_mul) * small + abs(planned.code_offset)


@every_format
def test_a_kernels_small_integers_mean_the_codes(format: Format) -> None:
    """code_mul * (flipped code as int8) + code_offset is what the codec says, for every code that occurs."""
    planned = plan.plan_matvec(format)
    codes = terms.code_field(format)
    if codes.table:
        return
    blocks = codec.random_blocks(format, 256, seed=0)
    small = codec.raw(format, codes.name, blocks).astype(np.int64) ^ lanes.code_flip(codes)
    small = np.where((small > 127) & (codes.width == 8), small - 256, small)
    assert small.min() >= -128 and small.max() <= 127
    np.testing.assert_array_equal(
        planned.code_mul * small + planned.code_offset, codec.codes(format, codes.name, blocks)
    )


# ---- formats that no Python knows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_made_up_format_needs_no_python(name: str) -> None:
    format = made(name)
    planned = plan.plan_matvec(format)
    program = emulate.compile(emit.emit(planned).text, planned.file)
    for number, instance in enumerate(planned.instances):
        judged = Matvec(format, program, planned, instance)
        for blocks, rows in ((planned.contract.slices + 1, instance.warp_rows + 1), (instance.team_blocks - 1 or 1, 1)):
            offset = format.alignment * (number + rows) % 16
            judged.check(operands(format, blocks), Case(rows, blocks, 3 * format.alignment, offset, multiprocessors=1))
    given = special_operands(format, 3) if any(f.kind == "float" for f in format.fields) else operands(format, 3)
    judged.check(given, Case(len(given.packed), 3, 0, 0, multiprocessors=1), finite=False)
    quantiser = plan.plan_quantize(planned)
    compiled = emulate.compile(emit.emit(quantiser).text, quantiser.file)
    for x in quantize_vectors(quantiser):
        check_quantize(compiled, quantiser, x)


# ---- refusals --------------------------------------------------------------------------------------------------------


def _more_digits(format: Format) -> Format:
    fields = (replace(f, digits=6) if f.name == "q" else f for f in format.fields)
    return replace(format, fields=tuple(fields))


# What no file can say, because the spec room refuses it first or no layout leads there: (call, what is refused).
BY_HAND: dict[str, tuple[Callable[[], object], str]] = {
    "digits": (lambda: plan.plan_matvec(_more_digits(FORMATS["TQ1_0"])), "255 * 3^6 = 185895"),
    "activation": (
        lambda: plan.plan_matvec(replace(FORMATS["Q8_0"], activation="q8_g256")),
        "groups of 256 span blocks",
    ),
    "threads": (lambda: lanes.Names(FORMATS["Q4_K"], 4).text(LaneInt((0, 1, 2, 4))), "offsets (0, 1, 2, 4) by thread"),
    "ladder's activation": (
        lambda: plan.plan_ksplit(replace(FORMATS["Q8_0"], activation="q8_g256")),
        "groups of 256 span blocks",
    ),
    "ladder's scales": (
        lambda: scales.plan_scale_word(
            made("SCALES_12"), made("SCALES_12").field("sc"), lanes.Names(made("SCALES_12"), 4)
        ),
        "3 words of scale sc for 4 threads",
    ),
    "no codes": (
        lambda: lanes._extra_atom(
            FORMATS["Q5_0"], FORMATS["Q5_0"].field("q"), 1, ((0, 1, 2, 3), (-1, -1, -1, -1)), lanes._Registers()
        ),
        "a thread without codes of its own",
    ),
    "packing": (
        lambda: lanes._extra_atom(
            FORMATS["Q5_0"], FORMATS["Q5_0"].field("q"), 1, ((0, 1, 2, 3), (0, 8, 16, 24)), lanes._Registers()
        ),
        "packed differently for different threads",
    ),
}


# Nothing leads there: words that four threads share hold codes of larger groups than that, and the addresses of a
# scale's entries follow one rule.
UNREACHED = ("{groups} integer scales a block", "is packed in two ways")


def _check_refusal(call: Callable[[], object], format: str | None, says: str) -> None:
    with pytest.raises(QgenError) as caught:
        call()
    assert caught.value.stage == "plan" and (format is None or caught.value.subject == format)
    assert says in caught.value.found and caught.value.allowed and "qgen formats" in caught.value.next


@pytest.mark.parametrize("name", REFUSED)
def test_a_format_without_kernels_is_refused_with_the_reason(name: str) -> None:
    _check_refusal(lambda: plan.plan_matvec(made(name)), name, REFUSED[name][1])


@pytest.mark.parametrize("name", BY_HAND)
def test_a_refusal_no_file_leads_to(name: str) -> None:
    call, says = BY_HAND[name]
    _check_refusal(call, None, says)


def _toy(text: str, folder: Path) -> Format:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return load_format(path)


def test_every_refusal_of_the_planners_is_tested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the formats here, or by those of test_plan_ksplit."""
    reached: set[tuple[str, int]] = set()

    def recording(format: Format, found: str, allowed: str) -> NoReturn:
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        reached.add((Path(frame.f_back.f_code.co_filename).name, frame.f_back.f_lineno))
        refuse.refuse(format, found, allowed)

    modules = [ksplit, lanes, matvec, scales, share, terms]
    sites: dict[tuple[str, int], range] = {}
    for module in modules:
        monkeypatch.setattr(module, "refuse", recording)
        path = Path(str(module.__file__))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "refuse":
                if not any(text in ast.unparse(node) for text in UNREACHED):
                    sites[path.name, node.lineno] = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    formats = [made(name) for name in (*RUNS, *REFUSED)] + [_toy(text, tmp_path) for text, _ in MADE_UP.values()]
    for format in formats:
        for planner in (plan.plan_matvec, plan.plan_ksplit):
            with contextlib.suppress(QgenError):
                planner(format)
    for call, _ in BY_HAND.values():
        with pytest.raises(QgenError):
            call()
    missed = [site for site, lines in sites.items() if not any((site[0], line) in reached for line in lines)]
    assert sites and not missed, missed


def test_shipped_formats_without_kernels_say_why() -> None:
    _, refused = plan.plan_all(FORMATS)
    assert {name for name, error in refused.items() if "grid" in error.found} >= {"IQ1_S", "IQ2_XXS", "IQ3_S"}
    assert all(error.stage == "plan" and error.subject == name for name, error in refused.items())
