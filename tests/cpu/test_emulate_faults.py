"""The emulator: what it refuses, what it finds wrong with kernels, what it says, how it compiles."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulate_programs import KERNELS, ORDERS, kernel_text, program

from qgen import paths
from qgen.emulate import Argument, Buffer, compile
from qgen.errors import QgenError


def fault(name: str, entry: str, match: str, **launch: Any) -> QgenError:
    with pytest.raises(QgenError) as caught:
        program(name).launch(entry, **({"grid": 1, "block": 32} | launch))
    assert re.search(match, caught.value.found), caught.value.found
    assert entry in caught.value.subject
    return caught.value


# ---- faults of kernels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "size", "offset", "misalignment", "match"),
    [
        ("load_any", 64, 64, 0, r"out of bounds: a 4-byte read at offset 64 of buffer 'x' \(64 bytes\)"),
        ("load_any", 62, 60, 0, r"out of bounds: a 4-byte read at offset 60 of buffer 'x' \(62 bytes\)"),
        ("load_any", 64, -4, 0, r"out of bounds: a 4-byte read at offset -4 of buffer 'x'"),
        ("load_any", 64, 2**40, 0, r"out of bounds: a 4-byte read at offset 1099511627776 of buffer 'x'"),
        ("load_any", 64, 6, 0, r"misaligned: a 4-byte read at offset 6 of buffer 'x' .*modulo 4 is 2"),
        ("load_any", 64, 4, 1, r"misaligned: a 4-byte read at offset 4 of buffer 'x' .*modulo 4 is 1"),
        ("load_vector", 64, 56, 8, r"out of bounds: a 16-byte read at offset 56 of buffer 'x'"),
        ("load_vector", 64, 8, 0, r"misaligned: a 16-byte read at offset 8 of buffer 'x' .*modulo 16 is 8"),
    ],
)
def test_bad_reads_name_buffer_offset_thread_and_line(
    entry: str, size: int, offset: int, misalignment: int, match: str
) -> None:
    y = np.zeros(1, np.uint32)
    args: list[Argument] = [Buffer("x", np.zeros(size, np.uint8), misalignment), offset, Buffer("y", y, writable=True)]
    error = fault("faults", entry, match, block=1, args=args)
    assert "thread (0,0,0) of block (0,0,0)" in error.found
    assert f"faults.cu:{line_of(entry)}" in error.found


def line_of(entry: str, name: str = "faults") -> int:
    lines = kernel_text(name).splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"// <- {entry}"))


def test_bad_writes() -> None:
    y = np.zeros(2, np.uint32)
    fault("faults", "store_any", "4-byte write at offset 0 of the read-only buffer 'y'", args=[Buffer("y", y), 0])
    fault("faults", "store_any", "out of bounds: a 4-byte write at offset 8", args=[Buffer("y", y, writable=True), 8])
    fault("faults", "store_any", "null pointer", args=[None, 8])
    assert not y.any()


@pytest.mark.parametrize(
    ("offset", "to", "match"),
    [
        (48, 0, "out of bounds: a 16-byte read at offset 48 of buffer 'x'"),
        (8, 0, "misaligned: a 16-byte copy from offset 8 of buffer 'x'"),
        (0, 8, "copy to byte 8 of shared memory"),
        (0, 64, r"copy to byte 64 of shared memory \(64 bytes\)"),
    ],
)
def test_bad_copies(offset: int, to: int, match: str) -> None:
    x = Buffer("x", np.zeros(56, np.uint8))
    error = fault("faults", "copy_any", match, block=1, shared=64, args=[x, offset, to])
    assert f"faults.cu:{line_of('copy_any')}" in error.found
    program("faults").launch("copy_any", grid=1, block=1, shared=64, args=[x, 32, 48])


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize(
    ("entry", "args", "match"),
    [
        ("never_initialised", [], "barrier at byte 8 of shared memory was never initialised"),
        ("nobody_initialised", [], "barrier at byte 16 of shared memory was never initialised"),
        ("initialised_at", [4, 1], r"a barrier of 8 bytes at byte 4 of shared memory \(64 bytes\)"),
        ("initialised_at", [64, 1], "a barrier of 8 bytes at byte 64 of shared memory"),
        ("initialised_at", [-8, 1], "a barrier of 8 bytes at byte -8 of shared memory"),
        ("initialised_at", [8, 0], "a barrier for 0 arrivals"),
        ("many_arrive", [31], "arrival 32 at a barrier for 31, 0 of 16 bytes asked for"),
        ("many_arrive", [5], "arrival 6 at a barrier for 5, 0 of 16 bytes asked for"),
    ],
)
def test_misuse_of_barriers(entry: str, args: list[Argument], match: str, order: Any, seed: int) -> None:
    error = fault("barriers", entry, match, shared=64, args=args, order=order, seed=seed)
    assert f"barriers.cu:{line_of(entry, 'barriers')}" in error.found


@pytest.mark.parametrize(
    ("offset", "to", "bytes", "match"),
    [
        (0, 16, 24, "a bulk copy of 24 bytes"),
        (0, 16, 0, "a bulk copy of 0 bytes"),
        (0, 16, -16, "a bulk copy of -16 bytes"),
        (0, 24, 32, "a bulk copy of 32 bytes at byte 24 of shared memory"),
        (0, 48, 32, r"a bulk copy of 32 bytes at byte 48 of shared memory \(64 bytes\)"),
        (8, 16, 32, "misaligned: a .*offset 8 of buffer 'x' .*modulo 16 is 8"),
        (64, 16, 32, r"out of bounds: .*offset 64 of buffer 'x' \(80 bytes\)"),
        (80, 16, 16, r"out of bounds: .*offset 80 of buffer 'x' \(80 bytes\)"),
        (-16, 16, 32, "out of bounds: .*offset -16 of buffer 'x'"),
    ],
)
def test_bad_bulk_copies(offset: int, to: int, bytes: int, match: str) -> None:
    x = Buffer("x", np.zeros(80, np.uint8))
    error = fault("barriers", "copy_bulk", match, shared=64, args=[x, offset, to, bytes, bytes])
    assert f"barriers.cu:{line_of('copy_bulk', 'barriers')}" in error.found
    program("barriers").launch("copy_bulk", grid=1, block=32, shared=64, args=[x, 48, 32, 32, 32])


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("expected", [16, 48])
def test_a_wrong_count_of_bytes_is_a_deadlock_that_names_the_wait(expected: int, order: Any, seed: int) -> None:
    args: list[Argument] = [Buffer("x", np.zeros(80, np.uint8)), 0, 16, 32, expected]
    error = fault(
        "barriers", "copy_bulk", "deadlock: .*qgen_barrier_wait", shared=64, args=args, order=order, seed=seed
    )
    assert f"barriers.cu:{line_of('copy_waits', 'barriers')}" in error.found


def test_plain_accesses_to_global_memory_are_refused() -> None:
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    args: list[Argument] = [Buffer("x", x), Buffer("y", y, writable=True)]
    error = fault("faults", "plain_read", "plain access .* offset 0 of buffer 'x'", args=args)
    assert "qgen_ptx.cuh" in error.allowed
    fault("faults", "plain_write", r"offset 4 of buffer 'y' .*thread \(7,0,0\)", args=[Buffer("y", y, writable=True)])


def test_misuse_of_shared_and_local_memory() -> None:
    y = Buffer("y", np.zeros(1, np.uint32), writable=True)
    place = f"faults.cu:{line_of('shared_misaligned')}"
    fault("faults", "shared_misaligned", f"uint4.*byte 8 of shared.*{place}", shared=64, args=[y])
    for at in (64, 64 + 4095):
        past = rf"written at byte {at}, past its 64 bytes; block \(1,0,0\)"
        fault("faults", "shared_overrun", past, shared=64, grid=3, args=[at])
    program("faults").launch("shared_overrun", grid=3, block=32, shared=64, args=[63])
    fault("faults", "array_overrun", f"index 4 .*faults.cu:{line_of('array_overrun')}", args=[y, 4])
    fault("faults", "wide_shift", f"shift by 32 .*faults.cu:{line_of('wide_shift')}", args=[y, 32])
    fault("faults", "division", f"division by zero.*faults.cu:{line_of('division')}", args=[y, 0])


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize(
    ("entry", "buffers", "match"),
    [
        ("early_read", "xy", "a 4-byte read at offset 12 of buffer 'x'"),
        ("early_copy", "x", "a 4-byte read at offset 12 of buffer 'x'"),
        ("early_write", "y", "a 4-byte write at offset 12 of buffer 'y'"),
    ],
)
def test_a_dependent_launch_waits_before_it_touches(
    entry: str, buffers: str, match: str, order: Any, seed: int
) -> None:
    """In every thread; constant buffers excepted, and launches that are not dependent."""

    def launch(*, lazy: int, constant: bool = False, dependent: bool = True) -> dict[str, Any]:
        given = {
            "x": Buffer("x", np.zeros(32, np.uint32), constant=constant),
            "y": Buffer("y", np.zeros(32, np.uint32), writable=True),
        }
        args: list[Argument] = [*(given[name] for name in buffers), lazy]
        return {"args": args, "shared": 128, "order": order, "seed": seed, "dependent": dependent}

    error = fault("faults", entry, f"too early: {match} .*has not waited; thread \\(3,0,0\\)", **launch(lazy=3))
    assert f"faults.cu:{line_of(entry)}" in error.found and "constant" in error.allowed
    run = functools.partial(program("faults").launch, entry, grid=2, block=32)
    run(**launch(lazy=32))
    run(**launch(lazy=3, dependent=False))
    if "x" in buffers:
        run(**launch(lazy=3, constant=True))


def test_every_cta_waits_for_itself() -> None:
    y = Buffer("y", np.zeros(32, np.uint32), writable=True)
    fault("faults", "early_cta", r"too early: .* of block \(1,0,0\)", grid=2, dependent=True, args=[y])
    program("faults").launch("early_cta", grid=1, block=32, dependent=True, args=[y])


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_disagreement_about_barriers_and_collectives(order: Any, seed: int) -> None:
    y = Buffer("y", np.zeros(64, np.uint32), writable=True)
    run = functools.partial(fault, "faults", order=order, seed=seed)
    halves = f"threads 0-15 at __syncwarp.*faults.cu:{line_of('deadlock')}; threads 16-31 at __syncthreads"
    error = run("deadlock", halves, args=[])
    assert error.subject.endswith("seed 1)") == (order == "shuffle" and seed == 1)
    halves = f"threads 0-15 at .*0x0001ffff.*{line_of('half_masks')}; threads 16-31 at .*0xffff8000"
    run("half_masks", halves, args=[])
    run("divergent_barrier", "divergent barrier", block=64, args=[])
    run("different_collectives", "lane .* comes to .* while lane .* waits at .* both with mask 0xffffffff", args=[y])
    run("exited_before", "lane 3", args=[])
    run("not_in_mask", r"lane 0 calls __syncwarp\(0xfffffffe\), which does not name it", args=[])
    run("source_not_in_mask", "reads lane .*, which is not in the mask", args=[y])
    run("bad_width", "width 24", args=[y])
    run("exited_before", "lane 16, which has exited or does not exist", block=16, args=[])


def test_the_library_is_usable_after_every_error() -> None:
    for order, seed in ORDERS * 3:
        fault("faults", "deadlock", "deadlock", block=96, grid=3, order=order, seed=seed, args=[])
        y = np.zeros(96, np.uint32)
        args: list[Argument] = [Buffer("y", y, writable=True), 0]
        program("faults").launch("neighbour", grid=1, block=96, shared=384, args=args, order=order, seed=seed)
        np.testing.assert_array_equal(y, np.roll(np.arange(96), -1))


# ---- refusals before anything runs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"entry": "absent"}, "no such entry"),
        ({"grid": 0}, "grid 0"),
        ({"block": 1025}, "block 1025"),
        ({"block": (32, 32, 2)}, "block"),
        ({"shared": 227 * 1024 + 1}, "232449 bytes of shared memory"),
        ({"order": "backwards"}, "order 'backwards'"),
        ({"args": [0]}, "1 arguments"),
        ({"args": [0, 0]}, "argument 0 is 0"),
        ({"args": [None, 2**31]}, "argument 1 is 2147483648"),
        ({"args": [None, 1.0]}, "argument 1 is 1.0"),
        ({"args": [None, ctypes.c_int64(1)]}, "argument 1"),
        ({"args": [None, ctypes.c_uint32(1)]}, "argument 1"),
        ({"args": [None, None]}, "argument 1"),
        ({"args": [None, Buffer("b", np.zeros(4))]}, "argument 1"),
    ],
)
def test_launches_that_do_not_fit_are_refused(change: dict[str, Any], match: str) -> None:
    launch: dict[str, Any] = {"entry": "neighbour", "grid": 1, "block": 32, "args": [None, 0]} | change
    with pytest.raises(QgenError) as caught:
        program("faults").launch(launch.pop("entry"), **launch)
    assert match in caught.value.found


def test_the_largest_shared_memory_is_accepted() -> None:
    y = np.zeros(1024, np.uint32)
    args: list[Argument] = [Buffer("y", y, writable=True), 0]
    program("faults").launch("neighbour", grid=1, block=1024, shared=227 * 1024, args=args, order="shuffle")
    np.testing.assert_array_equal(y, np.roll(np.arange(1024), -1))


def test_buffers_that_cannot_be_used_are_refused() -> None:
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(QgenError, match="contiguous"):
        Buffer("b", np.zeros((4, 4))[:, ::2])
    with pytest.raises(QgenError, match="read-only"):
        Buffer("b", frozen, writable=True)
    with pytest.raises(QgenError, match="constant"):
        Buffer("b", np.zeros(4), writable=True, constant=True)
    y = np.zeros(4, np.float32)
    fault("faults", "plain_read", "two buffers of one name", args=[Buffer("y", y), Buffer("y", y, writable=True)])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("void f() {}", "no kernel"),
        ('// extern "C" __global__ void f() {}', "no kernel"),
        ('extern "C" __global__ void f() { __shared__ float x[4]; }', "static shared memory: .*__shared__ float x"),
        ('#include "qgen_ptx.cuh"\nextern "C" __global__ void f() { undeclared(); }', r"bad.cu:2.*undeclared"),
        ('#include "absent.cuh"\nextern "C" __global__ void f() {}', "absent.cuh"),
        ('extern "C" __global__ void f() { volatile char x[100000]; x[0] = 0; }', "frame"),
    ],
)
def test_texts_that_cannot_be_compiled_are_refused(text: str, match: str) -> None:
    with pytest.raises(QgenError) as caught:
        compile(text, "bad")
    assert re.search(match, caught.value.found), caught.value.found
    assert "bad" in caught.value.subject


def test_names_that_are_no_file_names_are_refused() -> None:
    with pytest.raises(QgenError, match="file name"):
        compile(kernel_text("grid"), "../grid")


def test_no_compiler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QgenError, match="g\\+\\+ on the PATH"):
        compile(kernel_text("grid"), "grid")


def test_an_unusable_cache_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(QgenError, match="QGEN_CACHE"):
        compile(kernel_text("grid"), "grid")


# ---- compilation ------------------------------------------------------------------------------------------------

TINY = '#include "qgen_ptx.cuh"\nextern "C" __global__ void tiny(uint32_t* y) { qgen_store_u32(y, __CUDA_ARCH__); }\n'


def test_the_cache_is_keyed_by_all_that_matters_and_reused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path))
    y = np.zeros(1, np.uint32)

    def run(text: str, arch: int) -> int:
        compile(text, "tiny", arch=arch).launch("tiny", grid=1, block=1, args=[Buffer("y", y, writable=True)])
        return int(y[0])

    def folders() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "emulate").iterdir()}

    assert run(TINY, 900) == 900
    first = folders()
    assert len(first) == 2  # the runtime and the kernel; no scratch folder is left
    assert run(TINY, 900) == 900
    assert folders() == first
    assert (run(TINY, 750), run(TINY.replace("__CUDA_ARCH__", "7"), 750)) == (750, 7)
    assert len(folders()) == 4


def test_reductions_need_sm_80_as_on_the_device() -> None:
    with pytest.raises(QgenError, match="__reduce_add_sync"):
        compile(kernel_text("warp"), "warp", arch=750)


def test_a_failed_compilation_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path))
    with pytest.raises(QgenError):
        compile(TINY.replace("y,", "z,"), "tiny")
    assert [path.name.split("-")[0] for path in (tmp_path / "emulate").iterdir()] == ["runtime"]


@pytest.mark.parametrize(
    ("header", "example"),
    [
        ("qgen_ptx.cuh", "qgen_copy_wait"),
        ("qgen_stores.cuh", "qgen_store_u8"),
        ("qgen_mma.cuh", "qgen_mma_k16"),
        ("qgen_mma_float.cuh", "qgen_mma_bf16"),
    ],
)
def test_host_header_has_every_function_of_the_device_header(header: str, example: str) -> None:
    """With as many parameters, the host's own place in the source aside."""

    def functions(path: Path) -> set[tuple[str, int]]:
        definition = r"^(?:__device__ __forceinline__|inline) \w+\*? (qgen_\w+)\(([^{;]*)\) *\{"
        found = set()
        for name, parameters in re.findall(definition, path.read_text(), re.MULTILINE):
            own = [p for p in parameters.split(",") if p.strip() and "Site site" not in p]
            found.add((name, len(own)))
        return found

    device = functions(paths.data_dir("templates") / "lib" / header)
    host = functions(Path(paths.__file__).parent / "emulate" / "host" / header)
    assert example in {name for name, _ in device}
    assert device - {("qgen_mma_rows8", 4)} == host  # that one is private to the device's way on Turing


def test_the_hosts_headers_shadow_the_devices() -> None:
    """Every header that the host has for kernels, and those alone of the library's, are swapped."""
    library = {path.name for path in (paths.data_dir("templates") / "lib").glob("*.cuh")}
    host = {path.name for path in (Path(paths.__file__).parent / "emulate" / "host").glob("*.cuh")}
    names = {f"qgen_{kind}.cuh" for kind in ("ptx", "stores", "mma", "mma_float", "wgmma", "wgmma_float")}
    assert host == names and host < library
    for name in library - host:
        text = (paths.data_dir("templates") / "lib" / name).read_text()
        assert "asm" not in text, f"{name} is compiled by the host as it is"


def test_faults_outside_a_launch_still_end_the_process() -> None:
    code = """
import ctypes, numpy, qgen.emulate, qgen.errors, sys
program = qgen.emulate.compile(open(sys.argv[1]).read(), "faults")
for _ in range(3):
    try:
        program.launch("plain_write", grid=1, block=8, args=[qgen.emulate.Buffer("y", numpy.zeros(4), writable=True)])
    except qgen.errors.QgenError:
        print("caught", flush=True)
ctypes.string_at(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, KERNELS / "faults.cu"],
        env=os.environ | {"PYTHONPATH": str(Path(paths.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "caught\n" * 3
    assert done.returncode == -signal.SIGSEGV
