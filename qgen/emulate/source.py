"""What must be known of a kernel's text before it can be compiled: its entries and the headers it includes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qgen.errors import QgenError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_HEAD = re.compile(r'extern\s+"C"([^;{}]*)[;{]')
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")
_ENTRY = re.compile(r"\bvoid\s+(\w+)\s*\(")
_ARCH_ONLY = re.compile(r"^#if !defined\(__CUDA_ARCH__\)((?: \|\| __CUDA_ARCH__ == \d+)+)$(.*?)^#endif$", re.M | re.S)
_SHARED = re.compile(r"[^;{}]*\b__shared__\b[^;]*")


def entries(text: str, name: str, arch: int) -> tuple[str, ...]:
    """The names of the kernels (`extern "C" __global__ void NAME(...)`) in `text`, in order.

    Those between `#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == N || ..` and `#endif` count only if `arch` is among
    the numbers.

    Raises QgenError if there is none, or if the text declares static shared memory, which would silently become
    private to each emulated thread.
    """
    code = _ARCH_ONLY.sub(lambda m: m[2] if str(arch) in re.findall(r"\d+", m[1]) else "", _COMMENT.sub(" ", text))
    static = [
        shared.group().strip() for shared in _SHARED.finditer(code) if not re.search(r"\bextern\b", shared.group())
    ]
    if static:
        raise QgenError(
            stage="emulate",
            subject=f"kernel {name}",
            found=f"static shared memory: {static[0]}",
            allowed="extern __shared__ __align__(16) uint8_t qgen_shared[]; as the only shared memory",
            next="carve the array out of qgen_shared",
        )
    found: dict[str, None] = {}  # a kernel may be declared and then defined
    for match in _HEAD.finditer(code):
        entry = _ENTRY.search(_LAUNCH_BOUNDS.sub(" ", match[1]))
        if "__global__" in match[1] and entry:
            found[entry[1]] = None
    if not found:
        raise QgenError(
            stage="emulate",
            subject=f"kernel {name}",
            found="no kernel in the text",
            allowed='at least one extern "C" __global__ void NAME(...)',
            next="check the text that was to be compiled",
        )
    return tuple(found)


def included(text: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Those of `headers` (name -> text) that `text` includes in quotes, directly or through each other.

    An include that is not among `headers` is left for the compiler to judge.
    """
    closure: dict[str, str] = {}
    waiting = [text]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            if name in headers and name not in closure:
                closure[name] = headers[name]
                waiting.append(headers[name])
    return closure
