"""From a plan to the variant the dispatch gives a weight."""

from __future__ import annotations

from qgen.dispatch.request import Request
from qgen.dispatch.table import lookup
from qgen.errors import QgenError
from qgen.plan import Instance, MatvecPlan


def routed_instance(plan: MatvecPlan, rows: int, columns: int, arch: str) -> Instance:
    """The variant for a weight of `rows` x `columns` on `arch`. Raises QgenError with the reason of a refusal."""
    request = Request("mul_mat", plan.format, plan.contract.activation, T=1, N=rows, K=columns, arch=arch)
    decision = lookup(request)
    for instance in plan.instances:
        if instance.name == decision.kernel:
            return instance
    raise QgenError(
        stage="dispatch",
        subject=f"{plan.format} {rows} x {columns} on {arch}",
        found=decision.reason or f"kernel {decision.kernel}, which this plan does not make",
        allowed="a request that the dispatch serves",
        next=f"qgen explain --op mul_mat --format {plan.format} --arch {arch} -T 1 -N {rows} -K {columns}",
    )
