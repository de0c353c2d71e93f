"""What the checks of all kernel families share: what a failure is, when floats agree, memory to lay operands out in."""

from __future__ import annotations

import mmap
import re
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qgen.paths import data_dir

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Order = Literal["forward", "reverse", "shuffle"]
Edit = tuple[str, str]

GUARD = 16  # floats on both sides of y
POISON = np.array([0xFFBADBAD], dtype=np.uint32).view(np.float32)[0]  # a NaN that no arithmetic makes


class Wrong(AssertionError):
    """A check that a kernel failed: its name and what was found."""

    def __init__(self, check: str, found: str) -> None:
        super().__init__(f"{check}: {found}")
        self.check = check


def same(a: F32, b: F32) -> NDArray[np.bool_]:
    """Where two float arrays agree bit for bit; a NaN agrees with any NaN, for payloads are no one's promise."""
    agree: NDArray[np.bool_] = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return agree


def poisoned(y: F32) -> NDArray[np.bool_]:
    """Where POISON still stands."""
    untouched: NDArray[np.bool_] = y.view(np.uint32) == POISON.view(np.uint32)
    return untouched


# ---- memory -----------------------------------------------------------------------------------------------------


def lay_out(packed: U8, pad: int) -> U8:
    """Rows of packed uint8[rows, blocks, bytes] in memory, `pad` bytes of 0xA5 between them; it ends with the last."""
    lines = packed.reshape(len(packed), -1)
    memory = np.full((len(packed), lines.shape[1] + pad), 0xA5, dtype=np.uint8)
    memory[:, : lines.shape[1]] = lines
    return memory.reshape(-1)[: memory.size - pad]


def far_apart(packed: U8, stride: int) -> U8:
    """Rows of packed `stride` bytes apart: address space of which only the rows take memory. Made anew by each call."""
    memory = _vast()
    row_bytes = packed[0].size
    for row, line in enumerate(packed):
        memory[row * stride : row * stride + row_bytes] = line.reshape(-1)
    return memory[: (len(packed) - 1) * stride + row_bytes]


@cache
def _vast() -> U8:
    """uint8[4 GiB and some], one for all."""
    return holes((1 << 32) + (1 << 22))


def holes(nbytes: int) -> U8:
    """uint8[nbytes] of zeros: address space that takes memory only where it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=np.uint8)


# ---- damage -----------------------------------------------------------------------------------------------------


def only(text: str, entry: str) -> str:
    """The file with no other kernel than `entry`: it compiles faster."""
    head, end = text.rsplit("}  // namespace\n", 1)
    kernels = re.findall(r'extern "C" __global__.*?\n}\n', end, re.DOTALL)
    (kept,) = (kernel for kernel in kernels if re.search(rf"\b{entry}\(", kernel))
    return f"{head}}}  // namespace\n\n{kept}"


def with_headers(text: str, *names: str) -> str:
    """The text with the library's headers of these names written into it, one after the other, each once."""
    for name in names:
        header = (data_dir("templates") / "lib" / name).read_text(encoding="utf-8")
        include = f'#include "{name}"\n'
        assert include in text, f"{name} is not included"
        text = text.replace(include, header.replace("#pragma once\n", ""), 1).replace(include, "")
    return text


def damaged(text: str, edits: tuple[Edit, ...]) -> str:
    """The text after every edit; each must find its place."""
    for old, new in edits:
        assert old in text, f"{old!r} is no longer in the text: bring the mutant up to date"
        text = text.replace(old, new, 1)
    return text
