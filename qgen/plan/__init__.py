"""Planning: a format becomes the complete list of kernels qgen can make for it. No text, no files, no device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from qgen.errors import QgenError
from qgen.plan.arrange import ArrangePlan, launch_arrange, plan_arrange
from qgen.plan.float_contract import CLASSES, FloatContract, float_contract
from qgen.plan.float_rungs import FloatRung
from qgen.plan.fused import WARPS as FUSED_WARPS
from qgen.plan.fused import FusedInstance, FusedPlan, launch_fused, plan_fused
from qgen.plan.ksplit import FragmentLayout, KsplitPlan, launch_ksplit, plan_ksplit
from qgen.plan.ksplit_float import (
    FloatFragments,
    FloatKsplitPlan,
    launch_ksplit_float,
    plan_ksplit_float,
)
from qgen.plan.matvec import Instance, Launch, MatvecPlan, contract, launch, plan_matvec
from qgen.plan.multirow import MultirowInstance, MultirowPlan, launch_multirow, plan_multirow
from qgen.plan.quantize import (
    MAX_TOKENS,
    FragmentQuantizePlan,
    QuantizePlan,
    launch_quantize,
    launch_quantize_fragments,
    plan_quantize,
    plan_quantize_fragments,
)
from qgen.plan.records import ActivationLayout, Contract
from qgen.plan.repack import Place, RepackPlan, launch_repack, plan_repack
from qgen.plan.rungs import LADDER, Rung
from qgen.plan.tile import ROWS as TILE_ROWS
from qgen.plan.tile import TileLayout, plan_tile
from qgen.plan.wgmma import WgmmaPlan, WgmmaRung, launch_wgmma, plan_wgmma
from qgen.plan.wgmma_float import FloatWgmmaPlan, plan_wgmma_float
from qgen.spec.records import Format

__all__ = [
    "CLASSES",
    "FUSED_WARPS",
    "LADDER",
    "MAX_TOKENS",
    "TILE_ROWS",
    "ActivationLayout",
    "ArrangePlan",
    "Contract",
    "FloatContract",
    "FloatFragments",
    "FloatKsplitPlan",
    "FloatRung",
    "FloatWgmmaPlan",
    "FragmentLayout",
    "FragmentQuantizePlan",
    "FusedInstance",
    "FusedPlan",
    "Instance",
    "KsplitPlan",
    "Launch",
    "MatvecPlan",
    "MultirowInstance",
    "MultirowPlan",
    "Place",
    "Plan",
    "QuantizePlan",
    "RepackPlan",
    "Rung",
    "TileLayout",
    "Variant",
    "WgmmaPlan",
    "WgmmaRung",
    "contract",
    "entries",
    "float_contract",
    "launch",
    "launch_arrange",
    "launch_fused",
    "launch_ksplit",
    "launch_ksplit_float",
    "launch_multirow",
    "launch_quantize",
    "launch_quantize_fragments",
    "launch_repack",
    "launch_wgmma",
    "plan_all",
    "plan_arrange",
    "plan_fused",
    "plan_ksplit",
    "plan_ksplit_float",
    "plan_matvec",
    "plan_multirow",
    "plan_quantize",
    "plan_quantize_fragments",
    "plan_repack",
    "plan_tile",
    "plan_wgmma",
    "plan_wgmma_float",
]

Plan = (
    MatvecPlan | QuantizePlan | MultirowPlan | KsplitPlan | FragmentQuantizePlan | FloatKsplitPlan | ArrangePlan
    | RepackPlan | FusedPlan | WgmmaPlan | FloatWgmmaPlan
)  # fmt: skip


# What of a plan is one kernel that multiplies.
Variant = Instance | MultirowInstance | Rung | FloatRung | FusedInstance | WgmmaRung


def entries(plan: Plan) -> tuple[str, ...]:
    """The names of the kernels of a plan."""
    if isinstance(plan, MatvecPlan | MultirowPlan | FusedPlan):
        return tuple(instance.name for instance in plan.instances)
    if isinstance(plan, KsplitPlan | FloatKsplitPlan | WgmmaPlan | FloatWgmmaPlan):
        return tuple(rung.name for rung in plan.rungs)
    if isinstance(plan, RepackPlan):
        return plan.to_tiled, plan.to_native
    return (plan.name,)


def plan_all(formats: dict[str, Format]) -> tuple[tuple[Plan, ...], dict[str, QgenError]]:
    """Every plan of `formats`, and for the formats without kernels the refusal that says why.

    A format has kernels for T = 1 and for a few tokens with the int8 activation its file names, where its layout allows
    it a ladder for more, over both storages, and over tiles kernels of T = 1 that quantise x by themselves and kernels
    of many tokens for warpgroups, a ladder from T = 1 up for each class of float activations, over tiles too, with
    kernels for warpgroups, where they suit it, and repackers where it has tiles.
    """
    plans: list[Plan] = []
    refused: dict[str, QgenError] = {}
    for name, format in sorted(formats.items()):
        made = [*_integer_plans(format, refused), *_float_plans(format, refused)]
        if made:
            refused.pop(name, None)
        plans += made
        with contextlib.suppress(QgenError):
            plans.append(plan_repack(format))
    return tuple(plans), refused


def _integer_plans(format: Format, refused: dict[str, QgenError]) -> Iterator[Plan]:
    try:
        matvec = plan_matvec(format)
    except QgenError as refusal:
        refused[format.name] = refusal
        return
    yield from (plan_quantize(matvec), matvec, plan_multirow(format))
    with contextlib.suppress(QgenError):
        ladder = plan_ksplit(format)
        yield from (plan_quantize_fragments(ladder), ladder)
        tiled = plan_ksplit(format, "tiled")
        yield tiled
        with contextlib.suppress(QgenError):
            yield plan_fused(format, tiled)
        matrices = plan_wgmma(format, tiled)
        yield from (matrices.quantize, matrices)


def _float_plans(format: Format, refused: dict[str, QgenError]) -> Iterator[Plan]:
    for activation in CLASSES:
        try:
            ladder = plan_ksplit_float(format, activation)
        except QgenError as refusal:
            refused.setdefault(format.name, refusal)
            continue
        yield from (plan_arrange(ladder), ladder)
        with contextlib.suppress(QgenError):
            tiled = plan_ksplit_float(format, activation, "tiled")
            yield tiled
            matrices = plan_wgmma_float(format, activation, tiled)
            yield from (matrices.quantize, matrices)
