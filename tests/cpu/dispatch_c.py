"""The generated C dispatcher, compiled and called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qgen.dispatch.space import Space, Value

CC = shutil.which("cc") or shutil.which("gcc")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


def compile_c(source: Path, out: Path, *flags: str, include: Path | None = None) -> Path:
    """A shared library or, with no -shared among the flags, a program. Fails on any warning."""
    if CC is None:
        pytest.fail("the tests of the C dispatcher need a C compiler (cc or gcc): apt-get install gcc")
    where = ("-I", str(include)) if include else ()
    done = subprocess.run([CC, *STRICT, *flags, *where, str(source), "-o", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


FACTS = ("threads", "shared_bytes", "rows", "alignment", "columns", "quantiser", "number")


class Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
        ("contract", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in FACTS),
    ]


class Decision(ctypes.Structure):
    _fields_ = [
        ("status", ctypes.c_int),
        ("kernel", ctypes.POINTER(Kernel)),
        ("quantiser", ctypes.POINTER(Kernel)),
        ("code", ctypes.c_char_p),
        ("reason", ctypes.c_char_p),
        ("refusal", ctypes.c_int32),
    ]


SERVED, REFUSED, INVALID = 0, 1, 2


class Dispatcher:
    """The library of a request space: choices as enum numbers in the order of the axes, then T, N, K."""

    def __init__(self, path: Path, space: Space) -> None:
        self.library = ctypes.CDLL(str(path))
        self.space = space
        self.choices = [axis for axis in space.axes if axis.choice]
        self.integers = [axis for axis in reversed(space.axes) if not axis.choice]
        fields: list[tuple[str, Any]] = [(axis.name, ctypes.c_int) for axis in self.choices]
        fields += [(axis.name, ctypes.c_int64) for axis in self.integers]
        self.request_type: Any = type("Request", (ctypes.Structure,), {"_fields_": fields})

    def request(self, values: dict[str, Value]) -> Any:
        made = self.request_type()
        for axis in self.choices:
            setattr(made, axis.name, axis.values.index(str(values[axis.name])))
        for axis in self.integers:
            setattr(made, axis.name, values[axis.name])
        return made

    def ask(self, values: dict[str, Value], *, count: bool = False) -> Decision:
        decision = Decision()
        function = self.library.qgen_dispatch if count else self.library.qgen_supports
        status = function(ctypes.byref(self.request(values)), ctypes.byref(decision))
        assert status == decision.status
        return decision
