"""Machine code -> instructions, by NVIDIA's nvdisasm from its wheel: no toolkit and no device needed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NoReturn

from qgen.build import Cubin
from qgen.errors import QgenError

PACKAGE = "nvidia-cuda-nvdisasm"
EXTRA = "count"
BYTES = 16  # of an instruction, sm_70 and after
_TARGET = re.compile(r"(?:^|,)0x([0-9a-f]+)$")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. `target` is the number of the instruction that a branch goes to, None for others.

    predicate: "@P0", "@!UP1" or "" for none; opcode: with its modifiers, "IADD3.X"
    """

    predicate: str
    opcode: str
    operands: str
    target: int | None

    @property
    def name(self) -> str:
        """The opcode without modifiers: "IADD3"."""
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        return " ".join(part for part in (self.predicate, self.opcode, self.operands) if part)


def find() -> Path:
    """The nvdisasm of the installed package. Raises QgenError where it is not installed."""
    try:
        found = distribution(PACKAGE)
    except PackageNotFoundError:
        _refuse("it is not installed")
    for file in found.files or ():
        if file.name in ("nvdisasm", "nvdisasm.exe"):
            return Path(str(found.locate_file(file)))
    _refuse(f"version {found.version} lists no program nvdisasm")


def disassemble(cubin: Cubin) -> Mapping[str, tuple[Instruction, ...]]:
    """The instructions of every function of a compiled text, by its name, in the order of their addresses.

    Raises QgenError where nvdisasm is missing or does not take the file.
    """
    return _disassemble(cubin.path)


@cache
def _disassemble(path: Path) -> Mapping[str, tuple[Instruction, ...]]:
    program = find()
    try:
        done = subprocess.run([str(program), "-json", str(path)], capture_output=True, text=True, timeout=300)
        _, functions = json.loads(done.stdout)
        return {f["function-name"]: tuple(map(_instruction, f["sass-instructions"])) for f in functions}
    except (OSError, subprocess.TimeoutExpired) as error:
        _refuse(f"it does not run: {error}")
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip() or done.stdout.strip())[:300] or "nothing"
        _refuse(f"for {path} it prints {said}")


def _instruction(row: Mapping[str, Any]) -> Instruction:
    operands = row.get("operands", "")
    found = _TARGET.search(operands) if row["opcode"].partition(".")[0] == "BRA" else None
    return Instruction(
        predicate=row.get("predicate", ""),
        opcode=row["opcode"],
        operands=operands,
        target=int(found[1], 16) // BYTES if found else None,
    )


def _refuse(found: str) -> NoReturn:
    raise QgenError(
        stage="count",
        subject=PACKAGE,
        found=found,
        allowed=f"the Python package {PACKAGE}, 13.5 or newer, which writes JSON",
        next=f"pip install 'qgen[{EXTRA}]', or {PACKAGE} alone",
    )
