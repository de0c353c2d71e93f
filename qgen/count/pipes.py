"""Which pipe of a multiprocessor executes an instruction: sm_90, by opcode."""

from __future__ import annotations

from collections.abc import Mapping

from qgen.count.nvdisasm import Instruction
from qgen.errors import QgenError

ARCH = "sm_90"

# After the pipelines in Nsight Compute's guide, and NVIDIA's word on GH100: float arithmetic goes to both halves of the
# FMA pipe, integer multiplications and dot products to the heavy half, what else there is of integers to ALU. Where no
# one says where an opcode goes, it is under "other".
_OPCODES: Mapping[str, str] = {
    "alu": """
        BMSK BREV CS2R F2FP FLO FMNMX FSEL FSET FSETP I2FP I2IP IABS IADD IADD3 IMNMX ISETP LEA LOP3 MOV P2R PLOP3 POPC
        PRMT R2P SEL SGXT SHF VABSDIFF VIADD VIADDMNMX VIMNMX VIMNMX3
    """,
    "fma": "FADD FFMA FMUL FSWZADD HADD2 HFMA2 HMUL2 IDP IMAD",
    "xu": "F2F F2I FRND I2F MUFU",
    "lsu": "ATOM ATOMG ATOMS CCTL LD LDG LDGDEPBAR LDGSTS LDL LDS LDSM MATCH MEMBAR RED SHFL ST STG STL STS STSM",
    "tensor": "BMMA HMMA IMMA",
    "uniform": "R2UR S2UR VOTEU",  # and all that begin with U
    "control": """
        ACQBULK BAR BPT BRA BSSY BSYNC CALL DEPBAR ELECT ENDCOLLECTIVE ERRBAR EXIT FENCE NANOSLEEP NOP PREEXIT RET SYNCS
        WARPSYNC YIELD
    """,
    "other": "B2R FCHK LDC REDUX S2R VOTE",
}
PIPES = tuple(_OPCODES)
_PIPE = {opcode: pipe for pipe, opcodes in _OPCODES.items() for opcode in opcodes.split()}

_HEAVY = ("HADD2", "IDP", "IMAD")


def pipe_of(instruction: Instruction) -> str:
    """The pipe of an instruction, one of PIPES. Raises QgenError for an opcode that is not in the table."""
    name = instruction.name
    found = _PIPE.get(name)
    if found is None and name.startswith("U"):
        found = "uniform"
    if found is None:
        raise QgenError(
            stage="count",
            subject=f"opcode {instruction.opcode}",
            found="no pipe is written down for it",
            allowed="the opcodes of qgen/count/pipes.py",
            next="add it there, to the pipe that the profiler counts it in",
        )
    return found


def heavy(instruction: Instruction) -> bool:
    """Whether it must go to the heavy half of the FMA pipe."""
    return instruction.name in _HEAVY
