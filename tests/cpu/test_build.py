"""Compiling without a GPU: resources, the cache, parallel builds, and what each failure says."""

from __future__ import annotations

import json
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from qgen import build
from qgen.archs import load_archs
from qgen.build import cache, nvrtc, resources
from qgen.errors import QgenError

ARCHS = tuple(load_archs())

SMALL = """
#include "qgen_ptx.cuh"
extern "C" __global__ void twice(const float* x, float* y) {
    __shared__ float s[100];
    s[threadIdx.x] = qgen_load_f32(x + threadIdx.x);
    __syncthreads();
    qgen_store_f32(y + threadIdx.x, 2.0f * s[threadIdx.x ^ 1]);
}
extern "C" __global__ void once(const float* x, float* y) { qgen_store_f32(y, qgen_load_f32(x)); }
"""

WARPGROUP = """
#include "qgen_wgmma.cuh"
extern "C" __global__ void multiplies(int* y) {
    int d[8] = {};
    qgen_wgmma_begin();
    qgen_wgmma_k32<2, true>(d, 1, 2, 3, 4, qgen_matrices<256>(0), 0);
    qgen_wgmma_commit();
    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d);
    y[threadIdx.x] = d[0];
}
"""

# An array indexed at run time lives in local memory on every architecture.
STACK = """
extern "C" __global__ void wanders(const int* x, int* y) {
    int a[64];
    for (int i = 0; i < 64; ++i) a[i] = x[i];
    int at = 0;
    for (int i = 0; i < x[64]; ++i) at = a[(at + i) & 63];
    y[0] = at;
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the texts that reached the compiler."""
    names: list[str] = []
    original = nvrtc.Compiler.compile

    def counted(self: nvrtc.Compiler, **arguments: object) -> nvrtc.Output:
        names.append(str(arguments["name"]))
        return original(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(nvrtc.Compiler, "compile", counted)
    return names


# ---- the report ----------------------------------------------------------------------------------------------


def report(entry: str, *, frame: str = "0 0 0", used: str = "8 registers, used 0 barriers") -> str:
    stack, stores, loads = frame.split()
    return (
        f"ptxas info    : Compiling entry function '{entry}' for 'sm_90'\n"
        f"ptxas info    : Function properties for {entry}\n"
        f"ptxas         .     {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
        f"ptxas info    : Used {used}\n"
        "ptxas info    : Compile time = 1.311 ms\n"
    )


def test_report_of_several_entries() -> None:
    log = (
        "ptxas info    : 0 bytes gmem\n"
        + report("b", frame="24 32 36", used="64 registers, used 0 barriers, 24 bytes cumulative stack size")
        + report("a", used="31 registers, used 1 barriers, 400 bytes smem, 364 bytes cmem[0]")
    )
    a, b = resources.parse(log)
    assert a == resources.Resources("a", 31, 0, 0, 0, 400)
    assert b == resources.Resources("b", 64, 24, 32, 36, 0)
    assert a.clean and not b.clean


def test_a_called_function_counts_for_every_entry() -> None:
    called = "ptxas info    : Function properties for f\n" + report("x", frame="16 8 4").splitlines()[2] + "\n"
    (only,) = resources.parse(report("k") + called)
    assert (only.stack_bytes, only.spill_stores, only.spill_loads) == (16, 8, 4)


def test_a_report_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="'k'"):
        resources.parse("\n".join(report("k").splitlines()[:3]))


@pytest.mark.parametrize("arch", ARCHS)
def test_small_kernel_compiles_everywhere(arch: str) -> None:
    cubin = build.compile(SMALL, "small", arch)
    assert cubin.code[:4] == b"\x7fELF" and cubin.path.read_bytes() == cubin.code
    assert [entry.entry for entry in cubin.entries] == ["once", "twice"]
    assert cubin.entry("twice").static_shared == 400
    assert 0 < cubin.entry("twice").registers <= 64
    assert cubin.compiler == "nvrtc 13.0.88"


def test_unknown_entry_names_the_known_ones() -> None:
    with pytest.raises(QgenError, match="once, twice"):
        build.compile(SMALL, "small", "sm_90").entry("thrice")


# ---- spills --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_local_memory_is_refused_in_a_shipped_kernel(arch: str) -> None:
    with pytest.raises(QgenError) as caught:
        build.compile(STACK, "stack", arch)
    assert caught.value.stage == "build" and caught.value.subject == f"stack for {arch}"
    assert "wanders" in caught.value.found and "256 bytes of stack" in caught.value.found
    with pytest.raises(QgenError):  # from the cache it is refused all the same
        build.compile(STACK, "stack", arch)
    assert build.compile(STACK, "stack", arch, allow_spills=True).entry("wanders").stack_bytes == 256


def test_spilled_registers_are_refused() -> None:
    values = ", ".join(f"v{i} = x[{i} * n + threadIdx.x]" for i in range(100))
    churn = "".join(f"v{i} = v{i} * v{(i + 1) % 100} + x[j];" for i in range(100))
    total = " + ".join(f"v{i}" for i in range(100))
    text = (  # 1024 threads leave 64 registers each for 100 live values
        'extern "C" __global__ void __launch_bounds__(1024) crowd(const float* x, float* y, int n) {'
        f"float {values}; for (int j = 0; j < n; ++j) {{ {churn} }} y[threadIdx.x] = {total}; }}"
    )
    with pytest.raises(QgenError, match="bytes of spill stores"):
        build.compile(text, "crowd", "sm_90")


# ---- the cache -----------------------------------------------------------------------------------------------


def test_second_time_comes_from_the_cache(compilations: list[str]) -> None:
    first = build.compile(SMALL, "small", "sm_90")
    assert build.compile(SMALL, "small", "sm_90") == first
    assert compilations == ["small.cu"]


def test_source_and_headers_lie_beside_the_cubin() -> None:
    folder = build.compile(SMALL, "small", "sm_90").path.parent
    assert (folder / "kernel.cu").read_text() == SMALL
    assert "qgen_load_u32" in (folder / "qgen_ptx.cuh").read_text()
    record = json.loads((folder / "resources.json").read_text())
    assert record["arch"] == "sm_90" and record["compiler"] == "nvrtc 13.0.88"
    assert "--gpu-architecture=sm_90" in record["options"]


def test_everything_that_decides_the_code_is_in_the_key() -> None:
    base: dict[str, object] = {
        "name": "k", "arch": "sm_90", "compiler": "c 1", "options": ("-a", "-b"), "text": "t", "headers": {"h": "x"},
    }  # fmt: skip
    variants: list[dict[str, object]] = [
        {}, {"name": "l"}, {"arch": "sm_80"}, {"compiler": "c 2"}, {"options": ("-a",)}, {"options": ("-a-b",)},
        {"text": "u"}, {"headers": {"h": "y"}}, {"headers": {"i": "x"}}, {"headers": {}},
    ]  # fmt: skip
    keys = [cache.Request(**(base | variant)).key for variant in variants]  # type: ignore[arg-type]
    assert len(set(keys)) == len(keys)


def test_a_header_of_a_header_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "outer.cuh").write_text('#include "inner.cuh"\n')
    (library / "inner.cuh").write_text("#define VALUE 1.0f\n")
    monkeypatch.setattr(build, "data_dir", lambda name: tmp_path)
    text = '#include "outer.cuh"\nextern "C" __global__ void k(float* y) { y[0] = VALUE; }\n'
    first = build.compile(text, "k", "sm_90")
    (library / "inner.cuh").write_text("#define VALUE 2.0f\n")
    second = build.compile(text, "k", "sm_90")
    assert first.path != second.path and first.code != second.code


@pytest.mark.parametrize("victim", ["kernel.cubin", "kernel.cu", "resources.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped"])
def test_a_damaged_entry_is_built_again(victim: str, damage: str, compilations: list[str]) -> None:
    first = build.compile(SMALL, "small", "sm_90")
    path = first.path.parent / victim
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
        path.write_bytes({"empty": b"", "cut": data[:middle], "flipped": flipped}[damage])
    assert build.compile(SMALL, "small", "sm_90") == first
    assert compilations == ["small.cu"] * 2
    assert path.read_bytes() == data
    assert [entry.name for entry in first.path.parent.parent.iterdir()] == [first.path.parent.name]


@pytest.mark.parametrize("record", ["[]", "{}", '{"cubin_sha256": 1}', "null"])
def test_a_record_of_another_shape_is_built_again(record: str) -> None:
    first = build.compile(SMALL, "small", "sm_90")
    (first.path.parent / "resources.json").write_text(record)
    assert build.compile(SMALL, "small", "sm_90") == first


def test_an_interrupted_publication_leaves_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build.compile(SMALL, "small", "sm_90")
    assert list((own_cache / "kernels").iterdir()) == []
    assert build.compile(SMALL, "small", "sm_90").path.exists()


def test_builders_racing_for_one_kernel_agree(own_cache: Path) -> None:
    barrier = threading.Barrier(4)
    results: list[build.Cubin] = []

    def work() -> None:
        barrier.wait()
        results.append(build.compile(SMALL, "small", "sm_90"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len(set(results)) == 1
    assert len(list((own_cache / "kernels").iterdir())) == 1


def test_an_unusable_cache_is_named(own_cache: Path) -> None:
    own_cache.write_text("a file where a folder should be")
    with pytest.raises(QgenError, match="QGEN_CACHE"):
        build.compile(SMALL, "small", "sm_90")


# ---- failures ------------------------------------------------------------------------------------------------


def test_a_broken_kernel_shows_the_compilers_words() -> None:
    lines = ["", 'extern "C" __global__ void k(int* y) {'] + [f"y[{i}] = nowhere_{i};" for i in range(40)] + ["}"]
    with pytest.raises(QgenError) as caught:
        build.compile("\n".join(lines), "broken", "sm_89")
    error = caught.value
    assert error.subject == "broken for sm_89"
    assert 'broken.cu(3): error: identifier "nowhere_0" is undefined' in error.found
    assert "nowhere_39" not in error.found and "more lines" in error.found
    assert "--gpu-architecture=sm_89" in error.found


@pytest.mark.parametrize(
    ("text", "name", "arch", "words"),
    [
        (SMALL, "small", "sm_999", "invalid value for --gpu-architecture"),
        (SMALL, "../small", "sm_90", "file name"),
        (SMALL, "", "sm_90", "file name"),
        ("__device__ int f() { return 1; }", "empty", "sm_90", "defines no kernel"),
        ("", "empty", "sm_90", "defines no kernel"),
        ('#include "qgen_ptz.cuh"\n', "typo", "sm_90", "did you mean 'qgen_ptx.cuh'"),
        ('#include "../lib/qgen_ptx.cuh"\n', "escape", "sm_90", "headers of templates/lib"),
    ],
)
def test_bad_input_is_one_clear_error(text: str, name: str, arch: str, words: str, own_cache: Path) -> None:
    with pytest.raises(QgenError, match="(?s)" + words) as caught:
        build.compile(text, name, arch)
    assert caught.value.stage == "build"
    assert not (own_cache / "kernels").exists()


@pytest.mark.parametrize(("toolkit", "package"), [(None, "nvidia-cuda-nvrtc"), (12, "nvidia-cuda-nvrtc-cu12")])
def test_a_missing_compiler_names_its_package(
    toolkit: int | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(nvrtc, "distribution", absent)
    nvrtc.load.cache_clear()
    try:
        with pytest.raises(QgenError) as caught:
            build.compile(SMALL, "small", "sm_90", toolkit=toolkit)
    finally:
        nvrtc.load.cache_clear()
    assert caught.value.next == f"pip install {package}"


def test_a_compiler_without_its_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hollow:
        version = "13.0.88"

        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr(nvrtc, "distribution", lambda name: Hollow())
    nvrtc.load.cache_clear()
    try:
        with pytest.raises(QgenError, match="--force-reinstall nvidia-cuda-nvrtc==13.0.88"):
            nvrtc.load()
    finally:
        nvrtc.load.cache_clear()


def test_a_warning_is_kept() -> None:
    text = 'extern "C" __global__ void k(int* y) { int unused; y[0] = 1; }'
    for _ in range(2):  # compiled, then from the cache
        (warning,) = build.compile(text, "warns", "sm_90").warnings
        assert "warns.cu(1)" in warning and "unused" in warning


# ---- many at once --------------------------------------------------------------------------------------------


def kernels(count: int) -> list[tuple[str, str]]:
    return [(f"k{i}", f'extern "C" __global__ void k{i}(int* y) {{ y[{i}] = {i}; }}') for i in range(count)]


def test_parallel_equals_serial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = build.compile_all(kernels(4), ["sm_90", "sm_75"], workers=4)
    assert list(parallel) == [(f"k{i}", arch) for i in range(4) for arch in ("sm_90", "sm_75")]
    monkeypatch.setenv("QGEN_CACHE", str(tmp_path / "other"))
    for (name, arch), cubin in parallel.items():
        again = build.compile(dict(kernels(4))[name], name, arch)
        assert (again.code, again.entries) == (cubin.code, cubin.entries)


def test_one_failure_stops_the_rest(compilations: list[str]) -> None:
    items = [("bad", 'extern "C" __global__ void k() { oops; }'), *kernels(30)]
    with pytest.raises(QgenError, match="bad for sm_90"):
        build.compile_all(items, ["sm_90"], workers=1)
    assert len(compilations) < 10


def test_one_name_for_two_texts_is_refused() -> None:
    with pytest.raises(QgenError, match="two different texts"):
        build.compile_all([("k", "a"), ("k", "b")], ["sm_90"])


@pytest.mark.parametrize(
    ("choice", "every", "pattern"),
    [("", 0.0, "compile: 3 of 3\n"), ("", 60.0, ""), ("0", 0.0, ""), ("1", 60.0, "3/3")],
)
def test_progress(
    choice: str, every: float, pattern: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QGEN_PROGRESS", choice)
    monkeypatch.setattr("qgen.progress._LINE_EVERY", every)
    build.compile_all(kernels(3), ["sm_90"])
    out, err = capsys.readouterr()
    assert out == "" and (pattern in err if pattern else err == "")


@pytest.mark.parametrize(("text", "target"), [(WARPGROUP, "sm_90a"), (SMALL, "sm_90")])
def test_instructions_of_warpgroups_are_compiled_for_the_architecture_alone(
    own_cache: Path, text: str, target: str
) -> None:
    """Its plain target has none of them; every other text keeps that, and so runs on what comes after."""
    assert build.compile(text, "warpgroup", "sm_90").arch == "sm_90"
    (record,) = own_cache.rglob("*.json")
    options = json.loads(record.read_text())["options"]
    assert [option for option in options if "architecture" in option] == [f"--gpu-architecture={target}"]
