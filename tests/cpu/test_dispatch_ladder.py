"""The shipped dispatch above one token: which rung serves which T, with which quantiser, and where nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qgen import build, dispatch, generate
from qgen.archs import load_archs
from qgen.dispatch import Request
from qgen.dispatch.kernels import MAX_ROWS, catalog
from qgen.dispatch.proof import prove
from qgen.dispatch.routes import load_routes
from qgen.dispatch.space import load_space
from qgen.plan import (
    MAX_TOKENS,
    ArrangePlan,
    FloatWgmmaPlan,
    FragmentQuantizePlan,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    QuantizePlan,
    RepackPlan,
    Rung,
    WgmmaPlan,
    plan_all,
)
from qgen.spec import load_formats

FORMATS = load_formats()
PLANS, REFUSED = plan_all(FORMATS)
LADDERS = {p.format: p for p in PLANS if isinstance(p, KsplitPlan) and not p.tile}
MULTIROWS = {p.format: p for p in PLANS if isinstance(p, MultirowPlan)}
QUANTISERS = {p.layout.name: p.name for p in PLANS if isinstance(p, FragmentQuantizePlan)}
TOKENS = (2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25, 32, 33, 48, 49, 65, 96, 97, MAX_TOKENS)
# On sm_90 (rows, columns) of multirow up to so many tokens: blocks of up to 128 weights, and some with many scales.
SMALL = dict.fromkeys(
    ("IQ4_NL", "MXFP4", "NVFP4", "PQ2_0", "PTQ1_0", "Q1_0", "Q2_0", "Q4_0", "Q5_0"), {2: (4, 2), 3: (4, 4), 4: (4, 4)}
)
FEW = (
    SMALL
    | dict.fromkeys(("Q4_1", "Q5_1"), {2: (2, 2), 3: (4, 4), 4: (4, 4)})
    | dict.fromkeys(("Q8_0", "IQ4_XS", "Q3_K", "Q6_K"), {2: (2, 2)})
)


# On sm_90 from 17 tokens on, who takes another rung than the narrowest that holds them, at most 32 columns.
NO_24 = ("IQ4_NL", "MXFP4", "Q4_0", "Q4_1", "Q8_0")
TWICE_16 = ("PQ2_0", "PTQ1_0", "Q1_0", "Q2_0", "TQ1_0", "TQ2_0")
FOUR_24 = ("PQ2_0", "PTQ1_0", "Q1_0", "TQ1_0", "TQ2_0")
NO_TWICE_24 = (*NO_24, "Q2_0", "Q4_K", "Q5_1", "Q5_K")


def rung_of(plan: KsplitPlan, arch: str, tokens: int) -> Rung:
    """The narrowest that holds the tokens, of those before the first too large for the architecture.

    The rung of 24 columns is sm_90's alone.
    """
    fit = [r for r in plan.rungs if r.shared_bytes <= load_archs()[arch].shared_per_block_optin]
    fit = [r for i, r in enumerate(plan.rungs) if plan.rungs[: i + 1] == tuple(fit[: i + 1])]
    columns = next((r.columns for r in fit if r.columns >= tokens and r.columns != 24), fit[-1].columns)
    if arch == "sm_90" and 17 <= tokens <= 24 and plan.format not in NO_24:
        columns = 24
    if arch == "sm_90" and 25 <= tokens <= 32 and plan.format in TWICE_16:
        columns = 16
    if arch == "sm_90" and 33 <= tokens <= 48 and plan.format not in NO_TWICE_24:
        columns = 24
    if arch == "sm_90" and 65 <= tokens <= 96 and plan.format in FOUR_24:
        columns = 24
    if columns == 24 and arch != "sm_90":
        columns = 16
    return next(r for r in fit if r.columns == columns)


def asked(format: str, **changes: object) -> dispatch.Decision:
    request = Request("mul_mat", format, FORMATS[format].activation or "", T=1, N=4096, K=4096, arch="sm_90")
    return dispatch.lookup(replace(request, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["fastest", "invariant"])
@pytest.mark.parametrize("arch", [a for a in load_archs() if a != "sm_75"])
def test_every_t_has_its_rung_and_its_quantiser(arch: str, policy: str) -> None:
    for format, plan in LADDERS.items():
        one = asked(format, arch=arch, policy=policy)
        for tokens in TOKENS:
            found = asked(format, T=tokens, arch=arch, policy=policy)
            if arch == "sm_90" and tokens in FEW.get(format, {}):
                rows, columns = FEW[format][tokens]
                (few,) = (i for i in MULTIROWS[format].instances if (i.rows, i.columns) == (rows, columns))
                assert (found.kernel, found.file) == (few.name, MULTIROWS[format].file)
                assert found.quantiser == one.quantiser
            else:
                assert (found.kernel, found.file) == (rung_of(plan, arch, tokens).name, plan.file)
                assert found.quantiser == QUANTISERS[plan.layout.name] != one.quantiser
            assert found.contract == one.contract == plan.contract.name, "a column's bits would depend on T"
            served = asked(format, op="quantize_activation", T=tokens, arch=arch, policy=policy)
            assert served.kernel == found.quantiser


@pytest.mark.parametrize("policy", ["fastest", "invariant"])
def test_every_t_has_its_columns_without_tensor_cores(policy: str) -> None:
    """sm_75: dp4a for every T, out of the activation that the mat-vec reads, under its contract."""
    for format, plan in MULTIROWS.items():
        one = asked(format, arch="sm_75", policy=policy)
        for tokens, columns in {2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 8, 97: 8, MAX_TOKENS: 8}.items():
            found = asked(format, T=tokens, arch="sm_75", policy=policy)
            (instance,) = (i for i in plan.instances if (i.columns, i.rows) == (columns, 2))
            assert (found.kernel, found.file) == (instance.name, plan.file)
            assert found.quantiser == one.quantiser and found.contract == one.contract == plan.contract.name
            served = asked(format, op="quantize_activation", T=tokens, arch="sm_75", policy=policy)
            assert served.kernel == found.quantiser


@pytest.mark.parametrize("policy", ["fastest", "invariant"])
@pytest.mark.parametrize("op", ["mul_mat", "quantize_activation"])
def test_refusals_say_why(op: str, policy: str) -> None:
    for arch in ("sm_75", "sm_90"):
        many = asked("Q4_K", op=op, T=MAX_TOKENS + 1, policy=policy, arch=arch)
        assert (many.kernel, many.code) == (None, "tokens") and str(MAX_TOKENS) in many.reason


def test_rows_end_where_a_kernel_can_still_round_them_up() -> None:
    for tokens in (1, 2, 33):
        assert asked("Q4_K", T=tokens, N=MAX_ROWS).served
        assert asked("Q4_K", T=tokens, N=MAX_ROWS + 1).code == "size"


def test_one_contract_a_format_from_one_token_to_the_end() -> None:
    proof = dispatch.prove_shipped(PLANS, REFUSED)
    assert proof.ok, str(proof.findings[0])
    spans = {format: t for (op, format), t in proof.coverage.items() if op == "mul_mat"}
    assert spans == dict.fromkeys({p.format for p in PLANS}, ((1, MAX_TOKENS),)) and len(LADDERS) == 20 < len(spans)


def test_the_bound_on_waste_is_the_least_that_holds() -> None:
    """64 columns for 33 tokens: any bound below 64 / 33 must be refused, or it bounds nothing."""
    space = load_space()
    things = catalog(PLANS, REFUSED, FORMATS, space)
    routes = load_routes(space, things)
    waste = routes.waste["mul_mat"]
    assert 64 / 33 <= waste.bound < 64 / 33 + 0.02 and waste.columns == 8
    tighter = replace(routes, waste={"mul_mat": replace(waste, bound=1.93)})
    found = prove(space, things, tighter, load_archs()).findings
    # Where a rung of 48 columns is compiled too, that it is not used there is said as well.
    assert {f.kind for f in found} == {"waste", "rung"}
    assert {f.witness["T"] for f in found if f.witness} == {33}


def test_only_rungs_that_a_route_names_are_kept() -> None:
    kept = {p.format: p for p in dispatch.keep_routed(PLANS, REFUSED) if isinstance(p, KsplitPlan) and not p.tile}
    wanted = {name: tuple(r for r in p.rungs if r.columns != 24 or name not in NO_24) for name, p in LADDERS.items()}
    assert {name: p.rungs for name, p in kept.items()} == wanted
    plan = LADDERS["Q4_K"]
    spare = replace(plan, rungs=(*plan.rungs, replace(plan.rungs[-1], name="nobody_asks", columns=64)))
    (found,) = (
        p for p in dispatch.keep_routed([spare if p is plan else p for p in PLANS], REFUSED)
        if isinstance(p, KsplitPlan) and p.format == "Q4_K" and not p.tile
    )  # fmt: skip
    assert found == plan


def test_kernels_are_compiled_only_where_they_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate.generate()
    compiled: set[tuple[str, str]] = set()

    def compile_all(items: list[tuple[str, str]], archs: tuple[str, ...], **_: object) -> dict[tuple[str, str], object]:
        compiled.update((name, arch) for name, _ in items for arch in archs)
        return {}

    monkeypatch.setattr(build, "compile_all", compile_all)
    generate.compile_sources(made)
    everywhere = MatvecPlan | QuantizePlan | RepackPlan
    for plan in made.plans:
        archs = {arch for name, arch in compiled if name == plan.file}
        wanted = set(load_archs()) - (set() if isinstance(plan, everywhere) else {"sm_75"})
        if isinstance(plan, MultirowPlan):
            wanted = {"sm_75", "sm_90"} if plan.format in FEW else {"sm_75"}
        converts = isinstance(plan, FragmentQuantizePlan | ArrangePlan) and plan.layout.matrices
        if isinstance(plan, FusedPlan | WgmmaPlan | FloatWgmmaPlan) or converts:
            wanted = {"sm_90"}
        assert archs == wanted, plan.file
