"""NVIDIA's runtime compiler, loaded from its wheel through ctypes: no toolkit, no nvcc, no device needed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from qgen.errors import QgenError

# Newest first: (package, its library folder with the CUDA major version left open).
_PACKAGES = (("nvidia-cuda-nvrtc", "nvidia/cu{major}/lib"), ("nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib"))


@dataclass(frozen=True)
class Output:
    """What one compilation gave. `cubin` is empty when it failed; `log` is the compiler's whole text."""

    cubin: bytes
    log: str


@dataclass(frozen=True)
class Compiler:
    """One loaded NVRTC. `version` is that of its package (13.0.88), which names the compiler build exactly."""

    package: str
    version: str
    library: ctypes.CDLL = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"nvrtc {self.version}"

    def compile(self, *, text: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> Output:
        """Compile `text` (called `name` in the log) to machine code; `headers` maps include names to their text.

        The interpreter lock is released while NVRTC works, so threads compile side by side.
        A program that does not compile is an Output without a cubin; QgenError means that NVRTC itself broke.
        """
        lib = self.library
        program = ctypes.c_void_p()
        count = len(headers)
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            text.encode(),
            name.encode(),
            count,
            (ctypes.c_char_p * count)(*(body.encode() for body in headers.values())),
            (ctypes.c_char_p * count)(*(path.encode() for path in headers)),
        )
        try:
            arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            failed = lib.nvrtcCompileProgram(program, len(options), arguments)
            log = self._fetch("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
            if failed:
                return Output(cubin=b"", log=log or self._reason(failed))
            return Output(cubin=self._fetch("nvrtcGetCUBIN", program), log=log)
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self.library, function)(*arguments)
        if result:
            raise QgenError(
                stage="build",
                subject=f"{self.package} {self.version}",
                found=f"{function} failed: {self._reason(result)}",
                allowed="a working NVRTC",
                next=f"reinstall the compiler: pip install --force-reinstall {self.package}=={self.version}",
            )

    def _reason(self, result: int) -> str:
        text = self.library.nvrtcGetErrorString(result)
        return text.decode() if isinstance(text, bytes) else f"error {result}"


@cache
def load(toolkit: int | None = None) -> Compiler:
    """The compiler of CUDA major version `toolkit` (12 or 13), or the newest that is installed.

    Raises QgenError when its package is not installed or its libraries cannot be loaded.
    """
    installed: list[str] = []
    for package, folder in _PACKAGES:
        try:
            found = distribution(package)
        except PackageNotFoundError:
            continue
        major = found.version.split(".")[0]
        installed.append(f"{package} {found.version}")
        if toolkit is None or int(major) == toolkit:
            return _open(package, found, folder.format(major=major))
    wanted = "NVRTC" if toolkit is None else f"NVRTC of CUDA {toolkit}"
    raise QgenError(
        stage="build",
        subject=wanted,
        found=f"installed here: {', '.join(installed) or 'none'}",
        allowed="the Python package nvidia-cuda-nvrtc (CUDA 13) or nvidia-cuda-nvrtc-cu12 (CUDA 12)",
        next="pip install " + ("nvidia-cuda-nvrtc-cu12" if toolkit == 12 else "nvidia-cuda-nvrtc"),
    )


def _open(package: str, found: Distribution, folder: str) -> Compiler:
    directory = Path(str(found.locate_file(folder)))
    try:
        # NVRTC looks its builtins up by bare name, which only succeeds when they are already in the process.
        for stem in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
            paths = sorted(directory.glob(stem))
            if not paths:
                raise OSError(f"no {stem} in {directory}")
            library = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        raise QgenError(
            stage="build",
            subject=f"{package} {found.version}",
            found=f"its library does not load: {error}",
            allowed="NVRTC's two libraries, for this operating system and processor",
            next=f"reinstall the compiler: pip install --force-reinstall {package}=={found.version}",
        ) from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    library.nvrtcCreateProgram.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.POINTER(ctypes.c_char_p),
    ]
    return Compiler(package=package, version=found.version, library=library)
