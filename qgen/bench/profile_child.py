"""One launch of one kernel on cold weights, for a profiler: python -m qgen.bench.profile_child ENTRY NxK TOKENS."""

from __future__ import annotations

import sys

from qgen.bench.candidates import every_candidate
from qgen.bench.cases import Case, parse_shape
from qgen.bench.cuda import CudaMachine
from qgen.bench.inputs import Operands, fill, pattern
from qgen.bench.machine import Machine
from qgen.bench.matvec import make, text
from qgen.bench.protocol import Rotation
from qgen.errors import QgenError
from qgen.plan import FusedPlan, KsplitPlan, MatvecPlan, MultirowPlan, WgmmaPlan, entries, plan_all
from qgen.spec import load_formats


def launch(entry: str, shape: str, tokens: int, machine: Machine) -> None:
    """Quantise, multiply once, and judge the result. Raises QgenError when it is wrong."""
    formats = load_formats()
    plans, _ = plan_all(formats)
    families = MatvecPlan | MultirowPlan | KsplitPlan | FusedPlan | WgmmaPlan
    owner = next((p for p in plans if isinstance(p, families) and entry in entries(p)), None)
    if owner is None:
        raise QgenError(
            stage="bench",
            subject=entry,
            found="no such matmul kernel",
            allowed="the name of an instance",
            next="list them: qgen formats --json",
        )
    case = Case(formats[owner.format], parse_shape(shape), tokens, storage=owner.storage)
    chosen = next(c for c in every_candidate(case, plans, arch=machine.facts.arch) if c.instance.name == entry)
    machine.compile({p.file: text(p) for p in (chosen.plan, chosen.quantize) if p})
    buffer = machine.filled(case.stored_bytes)
    blocks = pattern(case.format)
    turn = Rotation(stride=case.stored_bytes, copies=1, launches=1)
    fill(machine, buffer, case, turn, blocks)
    operands = Operands(machine, case, buffer, turn, blocks)
    problem = operands.judge(make(operands, chosen).result()[:, operands.sample])
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
        launch(sys.argv[1], sys.argv[2], int(sys.argv[3]), CudaMachine())
    except QgenError as error:
        sys.exit(f"qgen {error}")
