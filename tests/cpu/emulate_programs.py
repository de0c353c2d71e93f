"""The hand-written kernels that the emulator is tested on, and the thread orders they run in."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from qgen.emulate import Program, compile

KERNELS = Path(__file__).parent / "emulate_kernels"
ORDERS: list[tuple[Any, int]] = [("forward", 0), ("reverse", 0), ("shuffle", 1), ("shuffle", 2)]


@functools.cache
def kernel_text(name: str) -> str:
    return (KERNELS / f"{name}.cu").read_text()


@functools.cache
def program(name: str) -> Program:
    return compile(kernel_text(name), name)
