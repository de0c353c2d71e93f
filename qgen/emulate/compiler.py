"""Kernel text -> shared library, by g++, cached under the hash of everything that goes into it."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from qgen import paths
from qgen.emulate import source
from qgen.emulate.program import Program
from qgen.errors import QgenError

# No contraction: the kernel says itself where it wants a fused multiply-add. Kernels reinterpret shared bytes, wrap
# integers and read `char` as signed, as device compilers let them. A fortified longjmp refuses to change stacks.
_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fsigned-char",
    "-U_FORTIFY_SOURCE",
)
# The checks report to host/faults.cpp, not to the compiler's own runtime library. Frames are held well below the
# size of a fibre's stack.
_KERNEL_FLAGS = (
    "-O1",
    "-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero",
    "-fsanitize-recover=all",
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
    "-Werror=frame-larger-than=65536",
)
_ERROR_LINES = 6


def compile(text: str, name: str, *, arch: int = 900) -> Program:
    """Compiles a kernel's text for the CPU, or finds it in the cache, and loads it.

    text: CUDA C++ of one or more `extern "C" __global__` kernels, which may include the headers of templates/lib
    name: what to call it in messages; letters, digits, `_`, `-` and `.`
    arch: the value of __CUDA_ARCH__ that the text sees (900 = sm_90)

    Raises QgenError if there is no g++, the text does not compile or has no kernel, or the cache cannot be written.
    """
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise QgenError(
            stage="emulate",
            subject=f"kernel {name!r}",
            found="a name that is no file name",
            allowed="letters, digits, '_', '-' and '.'",
            next="choose another name",
        )
    entries = source.entries(text, name, arch)
    host = _read_headers(Path(__file__).parent / "host", ("*.cuh", "*.hpp", "*.cpp"))
    library = _read_headers(paths.data_dir("templates") / "lib", ("*.cuh",))
    program = _program_text(name, entries, arch)
    # One flat folder: a header of templates/lib that includes qgen_ptx.cuh must find the host's, not its neighbour.
    files = source.included(program + text, library | host) | {f"{name}.cu": text, "program.cpp": program}
    subject = f"kernel {name}"

    runtime = _build(
        folder="runtime",
        files=host,
        command=("-c", *(file for file in host if file.endswith(".cpp"))),
        flags=(*_FLAGS, "-O2"),
        subject="the emulator's runtime",
    )
    compiled = _build(
        folder=name,
        files=files,
        command=("-c", "program.cpp"),
        flags=(*_FLAGS, *_KERNEL_FLAGS),
        subject=subject,
        link=runtime,
    )
    return Program(name=name, path=compiled / "program.so")


def _program_text(name: str, entries: Iterable[str], arch: int) -> str:
    """The translation unit around a kernel's text: host headers, the text, the table of its entries."""
    rows = "".join(f"    QGEN_EMULATE({entry}),\n" for entry in entries)
    return (
        f"#define __CUDA_ARCH__ {arch}\n"
        '#include "entry.hpp"\n'
        '#include "qgen_ptx.cuh"\n'
        f'#include "{name}.cu"\n'
        f"const qgen_host::Entry qgen_entries[] = {{\n{rows}}};\n"
        "const int qgen_entry_count = sizeof(qgen_entries) / sizeof(qgen_entries[0]);\n"
    )


def _read_headers(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(folder.glob(pattern))
    }


def _build(
    *,
    folder: str,
    files: Mapping[str, str],
    command: tuple[str, ...],
    flags: tuple[str, ...],
    subject: str,
    link: Path | None = None,
) -> Path:
    """Runs g++ on `files` in a cache folder named by their hash, unless it is there; with `link`, links program.so
    from the result and that folder's objects. Returns the folder."""
    gxx, version = _find_gxx()
    identity = hashlib.sha256()
    contents = [part for item in sorted(files.items()) for part in item]
    for part in (version, *flags, *command, link.name if link else "", *contents):
        identity.update(part.encode() + b"\0")
    cache = paths.cache_dir() / "emulate"
    final = cache / f"{folder}-{identity.hexdigest()[:24]}"
    if final.is_dir():
        return final
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    except OSError as error:
        raise QgenError(
            stage="emulate",
            subject=f"the cache {cache}",
            found=str(error),
            allowed="a folder that can be written",
            next="set QGEN_CACHE to such a folder",
        ) from error
    try:
        for file, content in files.items():
            (scratch / file).write_text(content, encoding="utf-8")
        _run([gxx, *flags, *command], scratch, subject)
        if link:
            objects = [str(path) for path in sorted(link.glob("*.o"))]
            _run([gxx, "-shared", "-o", "program.so", "program.o", *objects, "-lm"], scratch, subject)
        try:
            scratch.rename(final)  # all or nothing; whoever loses a race uses the winner's equal folder
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def _run(command: list[str], folder: Path, subject: str) -> None:
    english = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, cwd=folder, env=english, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    raise QgenError(
        stage="emulate",
        subject=subject,
        found="\n           ".join(lines[:_ERROR_LINES]) or f"g++ ended with status {done.returncode}",
        allowed="CUDA C++ within what qgen/emulate/host provides",
        next="correct the text at that line, or add the missing built-in to qgen/emulate/host",
    )


@functools.cache
def _gxx_version(gxx: str) -> str:
    options = ("-dumpfullversion", "-dumpmachine")
    answers = [subprocess.run([gxx, option], capture_output=True, text=True, check=False).stdout for option in options]
    return " ".join(answer.strip() for answer in answers)


def _find_gxx() -> tuple[str, str]:
    """The compiler's path and its version with its target."""
    gxx = shutil.which("g++")
    if gxx is None:
        raise QgenError(
            stage="emulate",
            subject="the C++ compiler",
            found="no g++ on the PATH",
            allowed="g++ 9 or newer",
            next="install it (Debian, Ubuntu: apt-get install g++)",
        )
    return gxx, _gxx_version(gxx)
