"""What the shipped dispatch chooses over tiled storage, and for formats without tiles."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from qgen import dispatch
from qgen.archs import load_archs
from qgen.dispatch import Request
from qgen.dispatch.judge import Leaf
from qgen.dispatch.kernels import catalog
from qgen.dispatch.proof import prove
from qgen.dispatch.routes import load_routes
from qgen.dispatch.shipped import load_like
from qgen.dispatch.space import Value, load_space
from qgen.plan import FloatKsplitPlan, FloatWgmmaPlan, FusedPlan, KsplitPlan, WgmmaPlan, plan_all
from qgen.spec import Format, load_formats


@cache
def formats() -> dict[str, Format]:
    return load_formats()


@pytest.mark.parametrize("arch, tokens, columns", [
    ("sm_90", 2, 8), ("sm_90", 8, 8), ("sm_90", 9, 16), ("sm_90", 17, 24), ("sm_90", 65528, 32), ("sm_80", 1, 1),
    ("sm_80", 8, 8), ("sm_80", 33, 32), ("sm_86", 1, 1), ("sm_86", 9, 16), ("sm_89", 2, 8),
    ("sm_89", 17, 32), ("sm_100", 1, 1), ("sm_100", 33, 32), ("sm_120", 1, 1), ("sm_120", 16, 16), ("sm_120", 97, 32),
])  # fmt: skip
@pytest.mark.parametrize("format", ["Q4_K", "Q4_0", "TQ1_0", "PTQ1_0"])
def test_hot_choices_over_tiles(arch: str, tokens: int, columns: int, format: str) -> None:
    activation = formats()[format].activation or ""
    for policy in ("fastest", "invariant"):
        decision = dispatch.lookup(
            Request("mul_mat", format, activation, T=tokens, N=4096, K=4096, arch=arch, policy=policy, storage="tiled")
        )
        # Formats of 256 weights a block have no rung for one token but on sm_90.
        least = 8 if activation == "q8_g256" else 1
        rung = f"t{max(columns, least)}__ksplit_mma_tiled"
        assert (decision.kernel or "").startswith(f"mul_mat_{format.lower()}_{activation}_{rung}")
        assert decision.quantiser == f"quantize_activation_{activation}_{format.lower()}_fragments__warp_block"


@pytest.mark.parametrize("format, rows, columns, rung", [
    ("Q6_K", 8192, 14336, "t1"), ("Q6_K", 8191, 14336, "t8"), ("Q4_K", 8192, 14336, "t1"), ("TQ1_0", 4096, 8192, "t8"),
    ("Q4_K", 4096, 8448, "t8"), ("Q8_0", 8192, 8192, "t1"), ("Q8_0", 8191, 8192, "t8"), ("Q4_0", 16, 8224, "t1"),
    ("Q1_0", 4096, 4096, "t1"), ("TQ1_0", 32768, 4096, "t1"), ("TQ1_0", 1024, 4096, "t8"),
    ("MXFP4", 4096, 4096, "t1"),
])  # fmt: skip
def test_one_token_over_tiles_by_size(format: str, rows: int, columns: int, rung: str) -> None:
    activation = formats()[format].activation or ""
    decision = dispatch.lookup(
        Request("mul_mat", format, activation, T=1, N=rows, K=columns, arch="sm_90", storage="tiled")
    )
    assert (decision.kernel or "").startswith(f"mul_mat_{format.lower()}_{activation}_{rung}__ksplit_mma_tiled")


@pytest.mark.parametrize("format, rows, columns, warps", [
    ("Q4_K", 2111, 4096, 8), ("Q4_K", 2112, 4096, 4), ("Q4_K", 4096, 8192, 8), ("Q4_K", 8192, 8192, 4),
    ("TQ2_0", 2111, 4096, 8), ("TQ2_0", 4096, 4096, 4), ("Q2_K", 128256, 8192, 8), ("Q8_0", 640, 640, 4),
    ("Q1_0", 2048, 1024, 4), ("NVFP4", 8192, 4096, 4),
])  # fmt: skip
def test_one_token_over_tiles_in_one_launch(format: str, rows: int, columns: int, warps: int) -> None:
    """On sm_90, under both policies: there is no quantiser."""
    activation = formats()[format].activation or ""
    for policy in ("fastest", "invariant"):
        decision = dispatch.lookup(
            Request("mul_mat", format, activation, T=1, N=rows, K=columns, arch="sm_90", policy=policy, storage="tiled")
        )
        assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_t1__fused_tiled_w{warps}"
        assert decision.quantiser is None and decision.contract


@pytest.mark.parametrize("format, rows, tokens, rung", [
    ("Q4_K", 14336, 16, "t16__wgmma_tiled_g2s2"), ("Q4_K", 14336, 48, "t48__wgmma_tiled_g2s1"),
    ("Q8_0", 14336, 64, "t64__wgmma_tiled_g2s1"), ("Q4_K", 4096, 64, "t32__wgmma_tiled_g1s4"),
    ("TQ1_0", 14336, 96, "t48__wgmma_tiled_g2s1"), ("TQ1_0", 14336, 300, "t64__wgmma_tiled_g2s1"),
])  # fmt: skip
def test_many_tokens_over_tiles_by_warpgroups(format: str, rows: int, tokens: int, rung: str) -> None:
    """On sm_90, under both policies, with a quantiser of their own; elsewhere and over few rows the ladder serves."""
    activation = formats()[format].activation or ""
    for policy in ("fastest", "invariant"):
        asked = Request(
            "mul_mat", format, activation, T=tokens, N=rows, K=4096, arch="sm_90", policy=policy, storage="tiled"
        )
        decision = dispatch.lookup(asked)
        assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_{rung}"
        assert decision.quantiser == f"quantize_activation_{activation}_{format.lower()}_matrices__warp_block"
        others = [replace(asked, arch="sm_100"), replace(asked, N=1024), replace(asked, T=1, N=16384)]
        assert not any("__wgmma_" in (dispatch.lookup(other).kernel or "") for other in others)


@pytest.mark.parametrize("format, tokens", [("Q4_K", 49), ("Q6_K", 9), ("Q4_0", 32)])
def test_two_row_tiles_a_warp_on_sm_90_alone(format: str, tokens: int) -> None:
    activation = formats()[format].activation or ""
    chosen = {
        arch: dispatch.lookup(
            Request("mul_mat", format, activation, T=tokens, N=2048, K=4096, arch=arch, storage="tiled")
        )
        for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
    }
    two = chosen.pop("sm_90").kernel
    (one,) = {decision.kernel for decision in chosen.values()}
    assert one and two and one == two.replace("_tiled_w8", "_tiled_r1w8") != two


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("format, activation, tokens, columns", [
    ("Q5G64_F16S", "bf16", 1, 8), ("Q5G64_F16S", "bf16", 9, 16), ("Q5G64_F16S", "bf16", 17, 32),
    ("W8G32_F16S", "bf16", 65528, 32), ("Q4_K", "bf16", 8, 8), ("Q4_K", "bf16", 97, 16), ("TQ1_0", "f16", 97, 16),
])  # fmt: skip
def test_hot_choices_over_tiles_with_float_activations(
    arch: str, format: str, activation: str, tokens: int, columns: int
) -> None:
    for policy in ("fastest", "invariant"):
        decision = dispatch.lookup(
            Request("mul_mat", format, activation, T=tokens, N=2048, K=4096, arch=arch, policy=policy, storage="tiled")
        )
        assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_t{columns}__ksplit_mma_tiled_w8"
        assert decision.quantiser == f"quantize_activation_{activation}_{format.lower()}_fragments__warp_block"


@pytest.mark.parametrize("format, activation, rows, tokens, rung", [
    ("Q4_K", "f16", 14336, 16, "t16__wgmma_tiled_g2s2"), ("Q4_0", "bf16", 14336, 64, "t64__wgmma_tiled_g2s1"),
    ("Q8_0", "f16", 4096, 64, "t32__wgmma_tiled_g1s4"), ("Q5G64_F16S", "bf16", 14336, 300, "t64__wgmma_tiled_g2s1"),
    ("Q4_K", "bf16", 8192, 64, "t32__wgmma_tiled_g2s2"), ("TQ1_0", "f16", 8192, 24, "t32__wgmma_tiled_g1s4"),
])  # fmt: skip
def test_many_tokens_with_float_activations_by_warpgroups(
    format: str, activation: str, rows: int, tokens: int, rung: str
) -> None:
    """On sm_90, under both policies, with an arranged activation of their own; elsewhere the ladder serves."""
    for policy in ("fastest", "invariant"):
        asked = Request(
            "mul_mat", format, activation, T=tokens, N=rows, K=4096, arch="sm_90", policy=policy, storage="tiled"
        )
        decision = dispatch.lookup(asked)
        assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_{rung}"
        assert (decision.quantiser or "").startswith(f"quantize_activation_{activation}_{format.lower()}_matrices__")
        others = [replace(asked, arch="sm_100"), replace(asked, N=1024), replace(asked, T=8)]
        assert not any("__wgmma_" in (dispatch.lookup(other).kernel or "") for other in others)


@pytest.mark.parametrize(("format", "floats", "words"), [
    ("Q4_K", True, "for f16 and bf16 activations read native storage only"),
    ("Q4_K", False, "has kernels for native storage; none reads another"),
    ("Q5G64_F16S", False, "has kernels for native storage; none reads another"),
])  # fmt: skip
def test_a_format_without_tiles_needs_no_other_routes(tmp_path: Path, format: str, floats: bool, words: str) -> None:
    """A new format whose words do not suit tiles, all of them or those of f16 and bf16: the gates have the reason."""
    plans, refused = plan_all(formats())
    kinds = FloatKsplitPlan if floats else FloatKsplitPlan | KsplitPlan
    # Measured choices name formats, none of which is new.
    plans = tuple(p for p in plans if not isinstance(p, FusedPlan | WgmmaPlan | FloatWgmmaPlan))
    kept = [p for p in plans if not (p.format == format and isinstance(p, kinds) and p.tile)]
    space = load_space()
    things = catalog(kept, refused, formats(), space)
    proof = prove(space, things, load_routes(space, things, tuned=tmp_path), load_archs(), like=load_like(space))
    asked: dict[str, Value] = {"op": "mul_mat", "format": format, "activation": "bf16", "storage": "tiled"}
    sound: dict[str, Value] = {"epilogue": "none", "contiguous": "yes", "arch": "sm_90", "policy": "fastest"}
    leaf = proof.diagram.decide({**asked, **sound, "T": 1, "N": 64, "K": 1024})
    assert proof.ok, "\n".join(str(f) for f in proof.findings)
    assert isinstance(leaf, Leaf) and leaf.refusal is not None and words in leaf.refusal.reason


@pytest.mark.parametrize("blocks, columns", [(1, 8), (8, 8), (9, 1), (128, 1)])
def test_rows_of_few_blocks_over_tiles_take_the_next_rung(blocks: int, columns: int) -> None:
    request = Request("mul_mat", "Q1_0", "q8_g128", T=1, N=4096, K=128 * blocks, arch="sm_90", storage="tiled")
    assert f"_t{columns}__" in (dispatch.lookup(request).kernel or "")
