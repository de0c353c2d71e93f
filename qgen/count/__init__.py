"""Instructions that a launch executes, counted in its machine code: no device, but the loops must be the plan's.

Every basic block is weighed by how often an average warp runs it (qgen.count.nest, qgen.count.weigh), and its
instructions go to the pipes that execute them (qgen.count.pipes). A predicate does not save an instruction its slot,
and a barrier is asked once: what warps do while they wait is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qgen.archs import load_archs
from qgen.build import Cubin
from qgen.count import graph, nvdisasm, pipes
from qgen.count.nest import CountedInstance, CountedPlan, Problem, plan_nest
from qgen.count.pipes import PIPES
from qgen.count.resident import resident_ctas
from qgen.count.weigh import weigh_blocks
from qgen.errors import QgenError
from qgen.plan import FusedInstance, FusedPlan, MatvecPlan

__all__ = ["PIPES", "Count", "CountedInstance", "CountedPlan", "count", "warps_of"]


@dataclass(frozen=True)
class Count:
    """What one launch executes.

    weights:  N x K
    resident: CTAs a multiprocessor holds
    warps:    of the launch
    pipes:    warp instructions by pipe, all warps together
    heavy:    of those of the FMA pipe, the ones that only its heavy half can take
    """

    kernel: str
    weights: int
    resident: int
    warps: int
    pipes: Mapping[str, float]
    heavy: float

    @property
    def instructions(self) -> float:
        """Warp instructions of all pipes."""
        return sum(self.pipes.values())

    def a_weight(self, warp_instructions: float) -> float:
        """Thread instructions a weight: warp instructions x 32 over N x K."""
        return 32 * warp_instructions / self.weights


def warps_of(planned: CountedPlan, instance: CountedInstance) -> int:
    """Warps of a CTA."""
    if isinstance(instance, FusedInstance):
        return instance.warps * instance.teams
    return planned.warps if isinstance(planned, MatvecPlan) else instance.warps  # type: ignore[union-attr]


def count(
    planned: CountedPlan,
    instance: CountedInstance,
    cubin: Cubin,
    *,
    rows: int,
    columns: int,
    tokens: int,
    multiprocessors: int,
) -> Count:
    """Count the launch of one kernel for N = rows, K = columns, T = tokens.

    cubin: a text that has the kernel, compiled for sm_90. Raises QgenError where nvdisasm is missing, where the loops
    are not those of the plan, where rows do not begin and end on 16 bytes, where a fused kernel does not take the case,
    and for other architectures.
    """
    if cubin.arch != pipes.ARCH:
        raise QgenError(
            stage="count",
            subject=instance.name,
            found=f"machine code for {cubin.arch}",
            allowed=f"{pipes.ARCH}: which pipe takes which opcode is written down for no other",
            next=f"compile it for {pipes.ARCH}",
        )
    arch = load_archs()[cubin.arch]
    resident = resident_ctas(
        arch,
        cubin.entry(instance.name),
        warps=warps_of(planned, instance),
        shared_bytes=instance.shared_bytes,
    )
    block = planned.ladder.block if isinstance(planned, FusedPlan) else planned.block
    problem = Problem(arch, rows, columns // block, tokens, multiprocessors, resident)
    planned_nest = plan_nest(planned, instance, problem)
    instructions = nvdisasm.disassemble(cubin)[instance.name]
    found, times = weigh_blocks(graph.cut(instructions, instance.name), instance.name, planned_nest)
    totals = dict.fromkeys(PIPES, 0.0)
    heavy = 0.0
    for number, often in times.items():
        for instruction in found.blocks[number].instructions:
            totals[pipes.pipe_of(instruction)] += often * planned_nest.warps
            heavy += often * planned_nest.warps * pipes.heavy(instruction)
    return Count(
        kernel=instance.name,
        weights=rows * columns,
        resident=resident,
        warps=planned_nest.warps,
        pipes=totals,
        heavy=heavy,
    )
