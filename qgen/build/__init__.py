"""Kernel text -> machine code and its resources, for any architecture, on any machine: NVRTC and a cache.

Nothing here asks for a device, a toolkit or nvcc. Register, stack and spill figures come from the compiler's report.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from qgen.build import cache, nvrtc
from qgen.build.resources import Resources, parse
from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.progress import progress

__all__ = ["OPTIONS", "Cubin", "Resources", "compile", "compile_all"]

# No contraction of a * b + c: the arithmetic contract says which operations are fused, and the text writes those out.
OPTIONS = ("-std=c++17", "--fmad=false", "--ptxas-options=-v", "--no-cache")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_WARNING = re.compile(r"\bwarning ?[:#]")
_LOG_LINES = 12  # of a failed compilation, shown in the error


@dataclass(frozen=True)
class Cubin:
    """One kernel text compiled for one architecture.

    path:     the cubin in the cache; kernel.cu, its headers and resources.json lie beside it
    code:     the machine code itself
    entries:  the resources of every entry, in name order
    compiler: name and exact version
    warnings: the compiler's warnings, one line each
    """

    name: str
    arch: str
    path: Path
    code: bytes = field(repr=False)
    entries: tuple[Resources, ...]
    compiler: str
    warnings: tuple[str, ...] = ()

    def entry(self, name: str) -> Resources:
        """The resources of one entry. Raises QgenError for a name the text does not define."""
        for resources in self.entries:
            if resources.entry == name:
                return resources
        known = [resources.entry for resources in self.entries]
        raise QgenError(
            stage="build",
            subject=f"{self.name} for {self.arch}",
            found=f"no entry {name!r}",
            allowed=", ".join(known),
            next="ask for one of these",
        )


def compile(text: str, name: str, arch: str, *, allow_spills: bool = False, toolkit: int | None = None) -> Cubin:
    """Compile one kernel text for one architecture ("sm_90"), or take the result from the cache.

    Includes in quotes are resolved in templates/lib. `toolkit` picks the CUDA major version (12 or 13) where both
    compilers are installed: a driver loads machine code of its own major version or older.

    Raises QgenError when the compiler is missing, the text does not compile, it defines no entry, the cache cannot be
    written, or (unless `allow_spills`) an entry keeps values in local memory.
    """
    if not _NAME.fullmatch(name):
        raise QgenError(
            stage="build",
            subject=repr(name),
            found="not usable as a file name",
            allowed="letters, digits, _ . and -",
            next="name the kernel so",
        )
    compiler = nvrtc.load(toolkit)
    headers = _headers(text, name)
    # Instructions of warpgroups are no part of an architecture's plain target.
    target = f"{arch}a" if "qgen_wgmma.cuh" in headers else arch
    request = cache.Request(
        name=name,
        arch=arch,
        compiler=str(compiler),
        options=(f"--gpu-architecture={target}", *OPTIONS),
        text=text,
        headers=headers,
    )
    stored = cache.load(request)
    if stored is None:
        stored = _build(compiler, request)
        cache.publish(request, stored)
    cubin = Cubin(
        name=name,
        arch=arch,
        path=request.directory / "kernel.cubin",
        code=stored.cubin,
        entries=stored.entries,
        compiler=str(compiler),
        warnings=stored.warnings,
    )
    spilled = [str(entry) for entry in cubin.entries if not entry.clean]
    if spilled and not allow_spills:
        raise QgenError(
            stage="build",
            subject=f"{name} for {arch}",
            found="; ".join(spilled),
            allowed="no stack frame and no spills: a shipped kernel keeps every value in registers",
            next=f"plan fewer values a thread or fewer threads a block; the text is {cubin.path.parent / 'kernel.cu'}",
        )
    return cubin


def compile_all(
    items: Iterable[tuple[str, str]],
    archs: Sequence[str],
    *,
    allow_spills: bool = False,
    toolkit: int | None = None,
    workers: int | None = None,
    show_progress: bool = True,
) -> dict[tuple[str, str], Cubin]:
    """Compile every (name, text) of `items` for every one of `archs`, `workers` at a time (default: one per core).

    Returns {(name, arch): Cubin} in the order of items, then archs. Progress goes to stderr.
    Raises the QgenError of the first compilation to fail, after the running ones; those not begun are dropped.
    """
    texts: dict[str, str] = {}
    for name, text in items:
        if texts.setdefault(name, text) != text:
            raise QgenError(
                stage="build",
                subject=name,
                found="two different texts under one name",
                allowed="one text a name",
                next="see qgen/name.py: a name must say everything that makes a kernel differ",
            )
    jobs = [(name, arch) for name in texts for arch in archs]
    done: dict[tuple[str, str], Cubin] = {}
    # Threads, not processes: NVRTC works without the interpreter lock, and a thread need not load it again.
    with ThreadPoolExecutor(workers or _cores()) as pool, progress("compile", len(jobs), show=show_progress) as step:
        futures = {
            pool.submit(compile, texts[name], name, arch, allow_spills=allow_spills, toolkit=toolkit): (name, arch)
            for name, arch in jobs
        }
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                step()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {job: done[job] for job in jobs}


def _build(compiler: nvrtc.Compiler, request: cache.Request) -> cache.Stored:
    output = compiler.compile(
        text=request.text, name=f"{request.name}.cu", headers=request.headers, options=request.options
    )

    def refuse(found: str, allowed: str, next: str) -> QgenError:
        return QgenError(
            stage="build", subject=f"{request.name} for {request.arch}", found=found, allowed=allowed, next=next
        )

    if not output.cubin:
        lines = [line for line in output.log.splitlines() if line.strip()]
        shown = "\n           ".join(lines[:_LOG_LINES])
        more = f"\n           ... and {len(lines) - _LOG_LINES} more lines" if len(lines) > _LOG_LINES else ""
        raise refuse(
            found=f"{compiler} refused it ({' '.join(request.options)}):\n           {shown}{more}",
            allowed="CUDA C++17 for an architecture this compiler knows",
            next="mend the line it names in the template or the plan behind it",
        )
    try:
        entries = parse(output.log)
    except ValueError as error:
        raise refuse(str(error), "the report --ptxas-options=-v prints", f"use another {compiler.package}") from None
    if not entries:
        raise refuse("the text defines no kernel", 'at least one extern "C" __global__ function', "add one")
    warnings = tuple(line for line in output.log.splitlines() if _WARNING.search(line))
    return cache.Stored(cubin=output.cubin, entries=entries, warnings=warnings)


def _headers(text: str, name: str) -> dict[str, str]:
    """Every header of templates/lib that the text includes, directly or through another."""
    library = data_dir("templates") / "lib"
    known = sorted(path.name for path in library.glob("*.cuh"))
    headers: dict[str, str] = {}
    open_texts = [(f"{name}.cu", text)]
    while open_texts:
        includer, body = open_texts.pop()
        for header in _INCLUDE.findall(body):
            if header in headers:
                continue
            if header not in known:
                near = difflib.get_close_matches(header, known, n=1)
                raise QgenError(
                    stage="build",
                    subject=includer,
                    found=f'#include "{header}"' + (f" (did you mean {near[0]!r}?)" if near else ""),
                    allowed=f"the headers of templates/lib: {', '.join(known)}",
                    next="include one of these, or put the new header there",
                )
            headers[header] = (library / header).read_text(encoding="utf-8")
            open_texts.append((header, headers[header]))
    return headers


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
