"""What a compiled entry costs: registers, stack, spills and shared memory, read from ptxas's own report."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel entry, as ptxas reports them.

    entry:         the entry's symbol
    registers:     32-bit registers per thread
    stack_bytes:   local memory per thread, called functions included
    spill_stores:  bytes per thread written to local memory because registers ran out
    spill_loads:   bytes per thread read back
    static_shared: bytes of statically declared shared memory per block (dynamic shared memory is the launch's)
    """

    entry: str
    registers: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int
    static_shared: int

    @property
    def clean(self) -> bool:
        """True when the kernel keeps every value in registers: no stack, no spill."""
        return not (self.stack_bytes or self.spill_stores or self.spill_loads)

    def __str__(self) -> str:
        return (
            f"{self.entry}: {self.registers} registers, {self.static_shared} bytes of static shared memory, "
            f"{self.stack_bytes} bytes of stack, {self.spill_stores} bytes of spill stores, "
            f"{self.spill_loads} bytes of spill loads"
        )


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse(log: str) -> tuple[Resources, ...]:
    """The entries of a compile log made with --ptxas-options=-v, in the order of their names.

    The log does not say which entry calls a function that was not inlined, so such a function's stack and spills
    are charged to every entry.

    Raises ValueError when an entry is announced without its report.
    """
    registers: dict[str, int] = {}
    shared: dict[str, int] = {}
    cumulative: dict[str, int] = {}
    frames: dict[str, tuple[int, int, int]] = {}
    entries: list[str] = []
    function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entries.append(match[1])
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            frames[function] = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _USED.search(line)) and entries:
            registers[entries[-1]] = int(match[1])
            shared[entries[-1]] = _number(_SHARED, line)
            cumulative[entries[-1]] = _number(_CUMULATIVE, line)
    called = [frame for name, frame in frames.items() if name not in entries]
    rows = []
    for entry in sorted(entries):
        if entry not in registers or entry not in frames:
            raise ValueError(f"the compile log does not report the registers and the stack of entry {entry!r}")
        stack, stores, loads = frames[entry]
        rows.append(
            Resources(
                entry=entry,
                registers=registers[entry],
                stack_bytes=max([stack, cumulative[entry], *(frame[0] for frame in called)]),
                spill_stores=stores + sum(frame[1] for frame in called),
                spill_loads=loads + sum(frame[2] for frame in called),
                static_shared=shared[entry],
            )
        )
    return tuple(rows)


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 0
