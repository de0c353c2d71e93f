"""Which formats and classes have a folded float contract, and what only its arithmetic has: exact products of codes and
scales, sums of x in two pieces, a bound that covers both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from float_cases import operands, workspace
from ksplit_formats import D, M, bytes_of, nibbles, packed, toml
from test_plan_float import check_made_up, number, toy

from qgen import contract_float
from qgen.cli import main
from qgen.emit import emit
from qgen.errors import QgenError
from qgen.plan import CLASSES, FloatKsplitPlan, float_contract, plan_all, plan_ksplit_float
from qgen.plan.float_contract import EXACT, whole_numbers
from qgen.plan.terms import code_field, scale_fields
from qgen.spec import Format, load_formats

FORMATS = load_formats()
PLANS = [p for p in plan_all(FORMATS)[0] if isinstance(p, FloatKsplitPlan) and p.fold and not p.tile]
each_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.format}-{p.contract.activation}")


def test_the_formats_that_fold() -> None:
    found = {(p.format, p.contract.activation) for p in PLANS}
    assert found == {(name, "f16") for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K")} | {("Q2_K", "bf16"), ("Q3_K", "bf16")}
    for name, format in FORMATS.items():
        for activation in CLASSES:
            try:
                own = float_contract(format, activation)
            except QgenError:
                continue
            assert own.folded == ((name, activation) in found) == own.name.endswith("_folded")


def test_the_contract_names_what_is_left_of_its_terms() -> None:
    own = float_contract(FORMATS["Q4_K"], "f16")
    assert own.name == "f16_g32_s8_folded" and own.terms == ("+d*S", "-dmin*M")
    assert float_contract(FORMATS["Q3_K"], "bf16").terms == ("+d*S",)


def _bits1(at: int) -> str:
    return f"[fields.q]\nat = {at}\nwidth = 1\nshape = [256]\nstride = [1]\n"


_MINIMUM = "d*sc*q - m*mn"
_EIGHT = (D, M, packed("sc", 4, 8, 4), packed("mn", 8, 8, 4), nibbles(12))
# What a format is like, and in which classes it folds.
MADE: dict[str, tuple[str, tuple[str, ...]]] = {
    "scales and minimums": (toml(_MINIMUM, *_EIGHT), ("bf16", "f16")),
    "minimums first": (toml("-m*mn + d*sc*q", *_EIGHT), ("bf16", "f16")),
    "codes converted in two steps": (
        toml("d*sc*q", D, packed("sc", 2, 8, 8), _bits1(10) + "mul = 8\nadd = -4\n"),
        ("f16",),
    ),
    "products past 2048": (toml("d*sc*q", D, packed("sc", 2, 8, 8), nibbles(10)), ()),
    "unsigned bytes": (toml("d*sc*q", D, bytes_of("sc", 2, 8), _bits1(10)), ("bf16", "f16")),
    "signed bytes": (toml("d*sc*q", D, bytes_of("sc", 2, 8, "signed = true\n"), _bits1(10)), ("bf16", "f16")),
    "a codebook": (toml("d*sc*q", D, packed("sc", 2, 8, 4), nibbles(6, 'table = "e2m1_doubled"\n')), ("bf16", "f16")),
    "groups of 64": (
        toml(_MINIMUM, *_EIGHT[:4], nibbles(12, block=512), block=512).replace("per = 32", "per = 64"),
        ("bf16", "f16"),
    ),
    "one scale a block": (toml("d*sc*q", D, bytes_of("sc", 2, 1), nibbles(3)), ()),
    "a float scale a group": (
        toml(
            "d*sc*q", D.replace("at", "per = 32\nshape = [8]\nstride = [16]\nat"), packed("sc", 16, 8, 4), nibbles(20)
        ),
        (),
    ),
    "no scale": (toml("d*q", D, nibbles(2)), ()),
    "sums without a scale": (toml("d*sc*q - m", D, M, packed("sc", 4, 8, 4), nibbles(8)), ()),
    "two terms of sums": (toml(_MINIMUM + " - m", *_EIGHT), ()),
    "two terms of codes": (toml("d*sc*q + m*q", D, M, packed("sc", 4, 8, 4), nibbles(8)), ()),
    "minimums of other groups": (toml(_MINIMUM, *_EIGHT[:3], packed("mn", 8, 16, 4), nibbles(16)), ()),
    "minimums past 127": (toml(_MINIMUM, *_EIGHT[:3], bytes_of("mn", 8, 8), nibbles(16)), ()),
    "minimums below 0": (toml(_MINIMUM, *_EIGHT[:3], _EIGHT[3] + "add = -1\n", _EIGHT[4]), ()),
    "four groups": (toml(_MINIMUM, D, M, packed("sc", 4, 4, 4), packed("mn", 6, 4, 4), nibbles(8)), ()),
    "four groups of codes alone": (toml("d*sc*q", D, packed("sc", 2, 4, 4), nibbles(4)), ("bf16", "f16")),
}


@pytest.mark.parametrize("name", MADE)
def test_what_in_a_format_decides(name: str, tmp_path: Path) -> None:
    text, classes = MADE[name]
    format = toy(text, tmp_path)
    assert tuple(a for a in CLASSES if float_contract(format, a).folded) == classes


# Bytes of scales counted from 0, from 128 and as two's complement; terms in another order; two registers a sum.
@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("minimums first", "bf16"),
        ("codes converted in two steps", "f16"),
        ("unsigned bytes", "bf16"),
        ("signed bytes", "bf16"),
        ("a codebook", "f16"),
        ("groups of 64", "bf16"),
    ],
)
def test_a_made_up_format_folds_to_the_bit(name: str, activation: str, tmp_path: Path) -> None:
    check_made_up(toy(MADE[name][0], tmp_path), activation)


@each_plan
def test_every_product_is_made_exactly(plan: FloatKsplitPlan) -> None:
    """All codes times all scales as `operand` takes them: where one fused step does it, its summand is of the class."""
    format, name = FORMATS[plan.format], plan.contract.activation
    assert plan.fold is not None
    codes = code_field(format)
    (term,) = (term for term in format.terms if codes.name in term.factors)
    scales = np.array(whole_numbers(format, scale_fields(format, term, codes)[0]))
    numbers = np.array(whole_numbers(format, codes))
    products = np.outer(numbers, scales)
    assert held(products, name) and np.abs(products).max() <= EXACT[name]
    assert bool(plan.fold.summand) == (plan.format != "Q3_K"), "(1024 + 4) * 31 has too many digits"
    if plan.fold.summand:
        summand = number(plan.fold.summand, name)
        widened = np.arange(codes.levels) + {"f16": 1024, "bf16": 128}[name]
        assert held(summand * scales, name)
        assert np.array_equal(np.outer(widened, scales) + summand * scales, products)


def held(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], name: str) -> bool:
    """Whether the class holds all numbers exactly."""
    return bool((contract_float.rounded(values.astype(np.float32), name) == values).all())


def test_what_a_kernel_cannot_do_without() -> None:
    assert plan_ksplit_float(FORMATS["Q4_K"], "f16").requires == ("mma_m16n8k16_f16", "mma_m16n8k16_bf16")
    assert plan_ksplit_float(FORMATS["Q2_K"], "bf16", "tiled").requires == ("mma_m16n8k16_bf16", "cp_async")
    assert plan_ksplit_float(FORMATS["Q3_K"], "f16").requires == ("mma_m16n8k16_f16",)


# ---- sums of x ---------------------------------------------------------------------------------------------------


def test_pieces_of_a_sum() -> None:
    """Both are of bf16, together within 2^-17 of it; of what is infinite the low piece is NaN."""
    rng = np.random.default_rng(5)
    sums = (rng.standard_normal(4096) * 10.0 ** rng.uniform(-20, 20, 4096)).astype(np.float32)
    high, low = contract_float.pieces(sums)
    for piece in (high, low):
        assert np.array_equal(contract_float.rounded(piece, "bf16"), piece)
    together = high.astype(np.float64) + low
    assert (np.abs(together - sums) <= 2.0**-17 * np.abs(sums)).all() and (together != sums).any()
    high, low = contract_float.pieces(np.array([0, np.inf, np.nan], dtype=np.float32))
    assert high[0] == low[0] == 0 and np.isinf(high[1]) and np.isnan([high[2], low[1], low[2]]).all()


@pytest.mark.parametrize(("format", "activation"), [("Q4_K", "f16"), ("Q2_K", "bf16")])
def test_where_pieces_lie(format: str, activation: str) -> None:
    layout = plan_ksplit_float(FORMATS[format], activation).layout
    assert layout.pieced and layout.sum_bytes == 32 * layout.groups
    x = np.random.default_rng(6).standard_normal((9, 2 * layout.block), dtype=np.float32)
    plane = workspace(layout, x)[layout.sums_offset(2, 9) :].view(np.uint16)
    for token, block, group in ((0, 0, 0), (3, 1, 5), (8, 1, layout.groups - 1), (7, 0, 2)):
        own = contract_float.group_sums(contract_float.rounded(x[token], activation), layout.block // layout.groups)
        at = (token // 8 * 2 + block) * layout.sum_bytes + group // 8 * 256 + token % 8 * 32 + group % 8 // 2 * 8
        found = [plane[(at + piece) // 2 + group % 2] for piece in (0, 4)]
        wanted = contract_float.pieces(own[block * layout.groups + group : block * layout.groups + group + 1])
        assert found == [int(piece.view(np.uint32)[0]) >> 16 for piece in wanted]


# ---- the bound ---------------------------------------------------------------------------------------------------


def off(format: Format, activation: str) -> tuple[contract_float.F64, contract_float.F64]:
    """How far the contract is from the exact result, and how far it may be: float64[rows], for an x of large sums."""
    given = operands(format, activation, 3)
    x = np.abs(given.x[0]) + np.float32(1 / 3)
    exact, bound = contract_float.reference(format, given.packed, x, activation)
    return np.abs(contract_float.mul_mat(format, given.packed, x, activation) - exact), bound


@each_plan
def test_the_bound_covers_the_contract(plan: FloatKsplitPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that leaves the low pieces out."""
    format, activation = FORMATS[plan.format], plan.contract.activation
    found, bound = off(format, activation)
    assert (found <= bound).all() and (found > 0).any()
    if plan.layout.pieced:
        whole = contract_float.pieces
        monkeypatch.setattr(contract_float, "pieces", lambda sums: (whole(sums)[0], np.zeros_like(sums)))
        found, bound = off(format, activation)
        assert (found > bound).any()


# ---- what is said about it ---------------------------------------------------------------------------------------


def test_header_and_show_tell_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_ksplit_float(FORMATS["Q4_K"], "f16")
    head = emit(plan).text.split("#include")[0]
    assert plan.contract.name in head and "fma(float factors, S or M, slice), terms +d*S, -dmin*M" in head
    assert "high = bf16(X), low = bf16(X - high)" in head
    assert "bf16(X" not in emit(plan_ksplit_float(FORMATS["Q3_K"], "f16")).text
    main(["show", plan.rungs[0].name])
    said = capsys.readouterr().out
    assert plan.contract.name in said and "8 sum(s) in two bf16 pieces" in said
