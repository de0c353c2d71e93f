"""Planning: a format becomes the complete list of kernels qgen can make for it. No text, no files, no device."""

from __future__ import annotations

from qgen.errors import QgenError
from qgen.plan.matvec import Instance, Launch, MatvecPlan, contract, launch, plan_matvec
from qgen.plan.quantize import QuantizePlan, launch_quantize, plan_quantize
from qgen.plan.records import ActivationLayout, Contract
from qgen.spec.records import Format

__all__ = [
    "ActivationLayout",
    "Contract",
    "Instance",
    "Launch",
    "MatvecPlan",
    "Plan",
    "QuantizePlan",
    "contract",
    "launch",
    "launch_quantize",
    "plan_all",
    "plan_matvec",
    "plan_quantize",
]

Plan = MatvecPlan | QuantizePlan


def plan_all(formats: dict[str, Format]) -> tuple[tuple[Plan, ...], dict[str, QgenError]]:
    """Every plan of `formats`, and for the formats without kernels the refusal that says why."""
    plans: list[Plan] = []
    refused: dict[str, QgenError] = {}
    for name, format in sorted(formats.items()):
        try:
            matvec = plan_matvec(format)
        except QgenError as refusal:
            refused[name] = refusal
            continue
        plans += [plan_quantize(matvec), matvec]
    return tuple(plans), refused
