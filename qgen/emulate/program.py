"""A compiled kernel library: its launches, the buffers they may touch, and what they counted."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qgen.errors import QgenError

SHARED_LIMIT = 227 * 1024
_ORDERS = ("forward", "reverse", "shuffle")
# One launch at a time in a process: while it runs, it owns the process's memory-fault handler.
_launching = threading.Lock()


@dataclass(frozen=True, eq=False)
class Buffer:
    """Global memory for a launch: the bytes of a C-contiguous array of any dtype and shape, used in place.

    name:         what reports and messages call it; unique within a launch
    offset_bytes: the address that the kernel sees is a multiple of 256 plus this
    writable:     whether the kernel may store into it
    constant:     no kernel in front of a dependent launch writes it: it may be read at once

    Raises QgenError if the array is not contiguous, or is read-only or constant and writable is asked for.
    """

    name: str
    array: NDArray[Any]
    offset_bytes: int = 0
    writable: bool = False
    constant: bool = False

    def __post_init__(self) -> None:
        if not self.array.flags.c_contiguous:
            self._refuse("an array that is not C-contiguous", "C-contiguous arrays", "use np.ascontiguousarray")
        if self.writable and not self.array.flags.writeable:
            self._refuse("a read-only array with writable=True", "arrays that can be written", "copy the array")
        if self.writable and self.constant:
            self._refuse("writable=True with constant=True", "one of the two", "leave out the wrong one")
        if self.offset_bytes < 0:
            self._refuse(f"offset_bytes={self.offset_bytes}", "0 or more", "give the misalignment as a positive count")

    def _refuse(self, found: str, allowed: str, next: str) -> NoReturn:
        raise QgenError(stage="emulate", subject=f"buffer {self.name}", found=found, allowed=allowed, next=next)


_Extent: TypeAlias = int | tuple[int, int, int]
Argument: TypeAlias = "Buffer | int | float | np.number[Any] | ctypes._SimpleCData[Any] | None"


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: kind "pointer", "signed", "unsigned" or "float", and its size in bytes."""

    kind: str
    bytes: int

    def __str__(self) -> str:
        return self.kind if self.kind == "pointer" else f"{self.kind} {8 * self.bytes}-bit"


@dataclass(frozen=True)
class Report:
    """What a launch did to each buffer, by buffer name, in bytes unless said otherwise.

    read_bytes, written_bytes:        as asked for by loads, copies and stores, repeats included
    read_requests, write_requests:    number of those, one a thread and access
    bytes_touched, bytes_written:     distinct bytes read, distinct bytes written
    bytes_rewritten:                  stores of another value into a byte already written by this launch
    read_sectors, read_warp_requests: 32-byte sectors and load instructions as a warp issues them (lanes that reach
                                      the same source line for the n-th time share an instruction); empty
                                      unless the launch counted sectors
    switches:                         how often a thread was entered or resumed, over the whole launch
    """

    read_bytes: Mapping[str, int]
    read_requests: Mapping[str, int]
    bytes_touched: Mapping[str, int]
    written_bytes: Mapping[str, int]
    write_requests: Mapping[str, int]
    bytes_written: Mapping[str, int]
    bytes_rewritten: Mapping[str, int]
    read_sectors: Mapping[str, int]
    read_warp_requests: Mapping[str, int]
    switches: int


# ---- the C side's records; host/entry.hpp, host/runtime.hpp and host/launch.cpp say the same ------------------


class _Parameter(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("bytes", ctypes.c_int32)]


class _Entry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("count", ctypes.c_int32),
    ]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("misalignment", ctypes.c_uint64),
        ("writable", ctypes.c_int32),
        ("constant", ctypes.c_int32),
        ("read_bytes", ctypes.c_uint64),
        ("read_requests", ctypes.c_uint64),
        ("read_distinct", ctypes.c_uint64),
        ("write_bytes", ctypes.c_uint64),
        ("write_requests", ctypes.c_uint64),
        ("write_distinct", ctypes.c_uint64),
        ("rewritten", ctypes.c_uint64),
        ("read_sectors", ctypes.c_uint64),
        ("read_warp_requests", ctypes.c_uint64),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [("value", ctypes.c_int64), ("buffer", ctypes.c_int32)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("order", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(_Argument)),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_int32),
        ("count_sectors", ctypes.c_int32),
        ("dependent", ctypes.c_int32),
        ("first_cta", ctypes.c_uint64),
        ("cta_count", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
    ]


class _Failure(ctypes.Structure):
    _fields_ = [("found", ctypes.c_char * 2048), ("allowed", ctypes.c_char * 512), ("next", ctypes.c_char * 512)]


_KINDS = ("pointer", "signed", "unsigned", "float")


class Program:
    """A loaded library of emulated kernels. `parameters` maps each entry's name to its parameters."""

    def __init__(self, *, name: str, path: Path) -> None:
        """Loads the library at `path`; compile() is the way to get one."""
        self.name = name
        self._library = ctypes.CDLL(str(path))
        self._library.qgen_emulate_entries.restype = ctypes.POINTER(_Entry)
        self._library.qgen_emulate_launch.restype = ctypes.POINTER(_Failure)
        count = ctypes.c_int32()
        rows = self._library.qgen_emulate_entries(ctypes.byref(count))
        self.parameters: Mapping[str, tuple[Parameter, ...]] = {
            rows[i].name.decode(): tuple(
                Parameter(kind=_KINDS[rows[i].parameters[j].kind], bytes=rows[i].parameters[j].bytes)
                for j in range(rows[i].count)
            )
            for i in range(count.value)
        }

    def launch(
        self,
        entry: str,
        *,
        grid: _Extent,
        block: _Extent,
        args: Sequence[Argument],
        shared: int = 0,
        order: Literal["forward", "reverse", "shuffle"] = "forward",
        seed: int = 0,
        count_sectors: bool = False,
        dependent: bool = False,
        ctas: range | None = None,
    ) -> Report:
        """Runs kernel `entry` to its end and reports its traffic; writable buffers' arrays hold the results.

        grid, block: CTAs and threads a CTA, a count or (x, y, z)
        args:        a Buffer (or None) for each pointer; a Python, NumPy or ctypes number for each number, which
                     must fit the parameter (a ctypes number must be exactly of its type)
        shared:      bytes of shared memory, at most 232,448 (227 KB)
        order:       which of the threads that can run goes next, and the order of CTAs: the lowest, the highest,
                     or drawn from `seed`
        count_sectors: also count 32-byte sectors as warps ask for them (slower)
        dependent:   as a kernel that begins before those in front of it have ended (programmatic dependent launch):
                     a thread that has not called qgen_wait_for_inputs may touch constant buffers alone
        ctas:        numbers (x counts first) of the CTAs that run, one after the other, of those in the grid; left out,
                     all. Operands of many gigabytes can be looked at so

        Raises QgenError for arguments that do not fit, and for every fault of the kernel: accesses out of bounds,
        misaligned, too early or not through qgen_ptx.cuh, writes to read-only buffers or past the shared memory,
        divergent barriers, deadlock, collectives that disagree. The program can be launched again after an error.
        """
        call = _Call(program=self, entry=entry, order=order, seed=seed)
        launch, buffers = call.prepare(grid, block, args, shared, count_sectors, dependent, ctas)
        with _launching:
            failure = self._library.qgen_emulate_launch(ctypes.byref(launch))
            if failure:
                texts = failure.contents.found, failure.contents.allowed, failure.contents.next
                call.refuse(*(text.decode(errors="replace") for text in texts))
        return _report(launch, buffers, count_sectors)


@dataclass(frozen=True)
class _Call:
    """One launch on its way to C: checks the arguments and names the call in errors."""

    program: Program
    entry: str
    order: str
    seed: int

    def refuse(self, found: str, allowed: str, next: str) -> NoReturn:
        order = f"{self.order}, seed {self.seed}" if self.order == "shuffle" else self.order
        subject = f"kernel {self.program.name}, entry {self.entry} (thread order {order})"
        raise QgenError(stage="emulate", subject=subject, found=found, allowed=allowed, next=next)

    def prepare(
        self,
        grid: _Extent,
        block: _Extent,
        args: Sequence[Argument],
        shared: int,
        count_sectors: bool,
        dependent: bool,
        ctas: range | None,
    ) -> tuple[_Launch, Any]:
        entries = list(self.program.parameters)
        if self.entry not in entries:
            self.refuse("no such entry", f"one of {', '.join(entries)}", "correct the entry's name")
        if self.order not in _ORDERS:
            self.refuse(f"order {self.order!r}", f"one of {', '.join(_ORDERS)}", "correct the order")
        if not 0 <= shared <= SHARED_LIMIT:
            self.refuse(f"{shared} bytes of shared memory", f"0 to {SHARED_LIMIT} (227 KB)", "plan a smaller tile")
        grid = self._extent("grid", grid, (2**31 - 1, 65535, 65535))
        block = self._extent("block", block, (1024, 1024, 64))
        if block[0] * block[1] * block[2] > 1024:
            self.refuse(f"block {block}", "at most 1024 threads", "use smaller blocks")
        all_ctas = range(grid[0] * grid[1] * grid[2])
        ctas = all_ctas if ctas is None else ctas
        if not ctas or ctas.step != 1 or ctas[0] not in all_ctas or ctas[-1] not in all_ctas:
            self.refuse(f"CTAs {ctas}", f"some of {all_ctas}, one after the other", "correct the numbers")
        arguments, buffers = self._arguments(args)
        launch = _Launch(
            entry=entries.index(self.entry),
            grid=grid,
            block=block,
            shared_bytes=shared,
            order=_ORDERS.index(self.order),
            seed=self.seed % 2**64,
            arguments=arguments,
            buffers=buffers,
            buffer_count=len(buffers),
            count_sectors=count_sectors,
            dependent=dependent,
            first_cta=ctas.start,
            cta_count=len(ctas),
        )
        return launch, buffers

    def _extent(self, what: str, given: _Extent, limits: tuple[int, int, int]) -> tuple[int, int, int]:
        extent = given if isinstance(given, tuple) else (operator.index(given), 1, 1)
        if len(extent) != 3 or not all(1 <= n <= limit for n, limit in zip(extent, limits, strict=True)):
            self.refuse(f"{what} {given}", f"a count or (x, y, z) from 1 to {limits}", f"correct the {what}")
        return extent

    def _arguments(self, args: Sequence[Argument]) -> tuple[Any, Any]:
        parameters = self.program.parameters[self.entry]
        if len(args) != len(parameters):
            wanted = ", ".join(map(str, parameters))
            self.refuse(f"{len(args)} arguments", f"{len(parameters)}: {wanted}", "give one argument a parameter")
        distinct: dict[int, Buffer] = {id(a): a for a in args if isinstance(a, Buffer)}
        names = [buffer.name for buffer in distinct.values()]
        if len(set(names)) != len(names):
            self.refuse(f"two buffers of one name among {names}", "one name a buffer", "rename one of them")
        places = {key: place for place, key in enumerate(distinct)}
        arguments = (_Argument * max(1, len(args)))()
        for i, (arg, parameter) in enumerate(zip(args, parameters, strict=True)):
            if isinstance(arg, Buffer) and parameter.kind == "pointer":
                arguments[i] = _Argument(value=0, buffer=places[id(arg)])
            else:
                arguments[i] = _Argument(value=self._number(i, arg, parameter), buffer=-1)
        buffers = (_Buffer * len(distinct))()
        for place, buffer in enumerate(distinct.values()):
            buffers[place] = _Buffer(
                name=buffer.name.encode(),
                data=buffer.array.ctypes.data,
                bytes=buffer.array.nbytes,
                misalignment=buffer.offset_bytes,
                writable=buffer.writable,
                constant=buffer.constant,
            )
        return arguments, buffers

    def _number(self, index: int, arg: Argument, parameter: Parameter) -> int:
        """The argument's bytes as the low bytes of an integer."""
        value: object = arg
        if isinstance(arg, ctypes._SimpleCData):
            code = str(getattr(arg, "_type_", ""))
            kind = "float" if code in "fd" else "signed" if code.islower() else "unsigned"
            value = arg.value if (kind, ctypes.sizeof(arg)) == (parameter.kind, parameter.bytes) else None
        if parameter.kind == "pointer":
            if arg is None:
                return 0
        elif parameter.kind == "float":
            if isinstance(value, int | float | np.integer | np.floating):
                with np.errstate(over="ignore"):  # too large for a float32 becomes infinity
                    number = np.float32(value) if parameter.bytes == 4 else np.float64(value)
                return int.from_bytes(number.tobytes(), "little")
        elif isinstance(value, int | np.integer):
            integer = int(value)
            low = -(2 ** (8 * parameter.bytes - 1)) if parameter.kind == "signed" else 0
            if low <= integer < low + 2 ** (8 * parameter.bytes):
                return integer - 2**64 if integer >= 2**63 else integer
        self.refuse(f"argument {index} is {arg!r}", f"a value for a {parameter} parameter", "correct the argument")


def _report(launch: _Launch, buffers: Any, count_sectors: bool) -> Report:
    def column(field: str) -> dict[str, int]:
        return {buffer.name.decode(): getattr(buffer, field) for buffer in buffers}

    return Report(
        read_bytes=column("read_bytes"),
        read_requests=column("read_requests"),
        bytes_touched=column("read_distinct"),
        written_bytes=column("write_bytes"),
        write_requests=column("write_requests"),
        bytes_written=column("write_distinct"),
        bytes_rewritten=column("rewritten"),
        read_sectors=column("read_sectors") if count_sectors else {},
        read_warp_requests=column("read_warp_requests") if count_sectors else {},
        switches=launch.switches,
    )
