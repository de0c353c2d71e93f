"""One launch of one kernel on cold weights, for a profiler to look at: python -m qgen.bench.profile_child ENTRY NxK."""

from __future__ import annotations

import sys

from qgen.bench.cases import Case, candidates, parse_shape
from qgen.bench.cuda import CudaMachine
from qgen.bench.machine import Machine
from qgen.bench.matvec import Operands, difference, make, pattern
from qgen.bench.protocol import Rotation
from qgen.errors import QgenError
from qgen.plan import MatvecPlan, plan_all
from qgen.spec import load_formats


def launch(entry: str, shape: str, machine: Machine) -> None:
    """Quantise, multiply once, and judge the result. Raises QgenError when it is wrong."""
    formats = load_formats()
    plans, _ = plan_all(formats)
    owner = next((p for p in plans if isinstance(p, MatvecPlan) and entry in [i.name for i in p.instances]), None)
    if owner is None:
        raise QgenError(
            stage="bench",
            subject=entry,
            found="no such matmul kernel",
            allowed="the name of an instance",
            next="list them: qgen formats --json",
        )
    case = Case(formats[owner.format], parse_shape(shape))
    buffer = machine.filled(case.weight_bytes)
    blocks = pattern(case.format)
    machine.repeat(buffer, blocks["block"])
    operands = Operands(machine, case, buffer, Rotation(stride=case.weight_bytes, copies=1, launches=1), blocks)
    chosen = next(c for c in candidates(case, plans, every=True, arch=machine.facts.arch) if c.instance.name == entry)
    y = make(operands, chosen).result()
    problem = difference(y[:, operands.sample], operands.wanted(), operands.sample)
    if problem:
        raise QgenError(
            stage="bench",
            subject=entry,
            found=problem,
            allowed="the contract's bits",
            next="its counters mean nothing until it is right",
        )


if __name__ == "__main__":
    try:
        launch(sys.argv[1], sys.argv[2], CudaMachine())
    except QgenError as error:
        sys.exit(f"qgen {error}")
