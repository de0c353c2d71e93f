"""What the template of the family fused receives: the ladder's record, the quantiser's, and the plan around them."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.emit.ksplit import FragmentQuantizeKernel, KsplitKernel, ksplit_kernel, quantize_kernel
from qgen.plan.fused import WARPS, FusedPlan


@dataclass(frozen=True)
class FusedKernel:
    """The `k` of fused.cu.j2."""

    header: tuple[str, ...]
    plan: FusedPlan
    ladder: KsplitKernel
    quantize: FragmentQuantizeKernel
    warps: int


def fused_kernel(plan: FusedPlan, header: tuple[str, ...]) -> FusedKernel:
    """Regroup a plan for printing."""
    return FusedKernel(
        header=header,
        plan=plan,
        ladder=ksplit_kernel(plan.ladder, ()),
        quantize=quantize_kernel(plan.quantize, (), chunk_bytes=64),
        warps=WARPS,
    )


def fused_activation(plan: FusedPlan) -> str:
    """The line of the header that says how x is read."""
    columns = plan.most_blocks * plan.ladder.block
    return f"activation  float32, quantised to {plan.contract.activation} by every CTA; at most {columns} columns"
