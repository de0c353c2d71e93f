"""Planning: a format becomes the complete list of kernels qgen can make for it. No text, no files, no device."""

from __future__ import annotations

import contextlib

from qgen.errors import QgenError
from qgen.plan.ksplit import FragmentLayout, KsplitPlan, Rung, launch_ksplit, plan_ksplit
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
from qgen.spec.records import Format

__all__ = [
    "MAX_TOKENS",
    "ActivationLayout",
    "Contract",
    "FragmentLayout",
    "FragmentQuantizePlan",
    "Instance",
    "KsplitPlan",
    "Launch",
    "MatvecPlan",
    "MultirowInstance",
    "MultirowPlan",
    "Plan",
    "QuantizePlan",
    "Rung",
    "contract",
    "entries",
    "launch",
    "launch_ksplit",
    "launch_multirow",
    "launch_quantize",
    "launch_quantize_fragments",
    "plan_all",
    "plan_ksplit",
    "plan_matvec",
    "plan_multirow",
    "plan_quantize",
    "plan_quantize_fragments",
]

Plan = MatvecPlan | QuantizePlan | MultirowPlan | KsplitPlan | FragmentQuantizePlan


def entries(plan: Plan) -> tuple[str, ...]:
    """The names of the kernels of a plan."""
    if isinstance(plan, MatvecPlan | MultirowPlan):
        return tuple(instance.name for instance in plan.instances)
    if isinstance(plan, KsplitPlan):
        return tuple(rung.name for rung in plan.rungs)
    return (plan.name,)


def plan_all(formats: dict[str, Format]) -> tuple[tuple[Plan, ...], dict[str, QgenError]]:
    """Every plan of `formats`, and for the formats without kernels the refusal that says why.

    A format has kernels for T = 1 and for a few tokens, and where its layout allows it a ladder for more.
    """
    plans: list[Plan] = []
    refused: dict[str, QgenError] = {}
    for name, format in sorted(formats.items()):
        try:
            matvec = plan_matvec(format)
        except QgenError as refusal:
            refused[name] = refusal
            continue
        plans += [plan_quantize(matvec), matvec, plan_multirow(format)]
        with contextlib.suppress(QgenError):
            ladder = plan_ksplit(format)
            plans += [plan_quantize_fragments(ladder), ladder]
    return tuple(plans), refused
