"""The C dispatcher as an engine meets it: strict compilers, refusals, invalid requests, names, the trace."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from dispatch_c import CC, INVALID, REFUSED, SERVED, Decision, Dispatcher, compile_c

from qgen import generate
from qgen.archs import load_archs
from qgen.dispatch import table
from qgen.dispatch.space import Value
from qgen.spec import load_formats

GENERATED = generate.generated_dir()
SOURCE = GENERATED / "qgen_dispatch.c"
REQUEST: dict[str, Value] = {
    "op": "mul_mat",
    "format": "Q4_K",
    "activation": "q8_g256",
    "storage": "native",
    "epilogue": "none",
    "contiguous": "yes",
    "arch": "sm_90",
    "policy": "fastest",
    "T": 1,
    "N": 4096,
    "K": 4096,
}


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Dispatcher:
    library = compile_c(SOURCE, tmp_path_factory.mktemp("c") / "dispatch.so", "-shared", "-fPIC", "-O1")
    return Dispatcher(library, table.shipped().space)


@pytest.mark.parametrize("standard", ["-std=c99", "-std=c11", "-std=c17"])
def test_it_compiles_without_a_warning(standard: str, tmp_path: Path) -> None:
    compile_c(
        SOURCE, tmp_path / "dispatch.o", "-c", standard, "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes"
    )


def test_the_header_is_for_cpp_too(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: the header was not tried as C++")
    source = tmp_path / "engine.cpp"
    source.write_text(
        '#include "qgen_dispatch.h"\nint main() { qgen_request r = {}; return qgen_supports(&r, nullptr); }\n'
    )
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", str(GENERATED)]
    done = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_needs_nothing_but_the_c_library(tmp_path: Path) -> None:
    """No allocation either: what it calls is few and known."""
    compile_c(SOURCE, tmp_path / "dispatch.o", "-c", "-O2")
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm: the symbols were not looked at")
    listing = subprocess.run(
        [nm, "-u", str(tmp_path / "dispatch.o")], capture_output=True, text=True, check=True
    ).stdout
    called = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    assert called <= {
        "atexit",
        "fprintf",
        "fwrite",
        "getenv",
        "stderr",
        "strcmp",
        "__fprintf_chk",
        "_GLOBAL_OFFSET_TABLE_",
    }


@pytest.mark.parametrize(
    ("tokens", "columns"), [(1, 1), (2, 8), (8, 8), (9, 16), (16, 16), (17, 24), (33, 32), (65528, 32)]
)
def test_a_served_request(tokens: int, columns: int, c: Dispatcher) -> None:
    said = c.ask({**REQUEST, "T": tokens})
    kernel = said.kernel.contents
    assert kernel.columns == columns
    row = table.shipped().kernels[kernel.name.decode()]
    assert said.status == SERVED and (said.code, said.reason, said.refusal) == (b"", b"", -1)
    assert said.quantiser.contents.name.decode() == row["quantiser"]
    for name in ("threads", "shared_bytes", "rows", "alignment", "columns"):
        assert getattr(kernel, name) == row[name]
    assert (kernel.file.decode(), kernel.contract.decode()) == (row["file"], row["contract"])


def test_a_refusal_has_a_reason_and_no_null(c: Dispatcher) -> None:
    changes: tuple[tuple[dict[str, Value], bytes], ...] = (
        ({"T": 65529}, b"65528"),
        ({"T": 65529, "arch": "sm_75"}, b"65528"),
    )
    for change, words in changes:
        said = c.ask({**REQUEST, **change})
        assert said.status == REFUSED and said.code == b"tokens" and words in said.reason and said.refusal >= 0
        no_null(said)


def no_null(said: Decision) -> None:
    assert bool(said.kernel) and bool(said.quantiser)
    assert said.kernel.contents.name == said.kernel.contents.file == b"" and said.kernel.contents.number == -1


@pytest.mark.parametrize("axis", [axis.name for axis in table.shipped().space.axes])
def test_an_invalid_request(axis: str, c: Dispatcher) -> None:
    request = c.request(REQUEST)
    space = table.shipped().space.axis(axis)
    for value in (-1, len(space.values)) if space.choice else (space.lo - 1, space.hi + 1, -(1 << 63)):
        setattr(request, axis, value)
        said = type(c.ask(REQUEST))()
        assert c.library.qgen_supports(ctypes_ref(request), ctypes_ref(said)) == INVALID == said.status
        assert said.code == b"invalid" and axis.encode() in said.reason and said.refusal == -1
        assert said.kernel.contents.name == b""
    assert c.library.qgen_supports(None, None) == INVALID
    assert c.library.qgen_dispatch(ctypes_ref(c.request(REQUEST)), None) == SERVED


def ctypes_ref(item: object) -> object:
    import ctypes

    return ctypes.byref(item)  # type: ignore[arg-type]


def test_names_and_numbers(c: Dispatcher) -> None:
    import ctypes

    name_of = c.library.qgen_name_of
    name_of.restype = ctypes.c_char_p
    for number, axis in enumerate(c.choices):
        for value, name in enumerate(axis.values):
            assert c.library.qgen_value_of(number, name.encode()) == value
            assert name_of(number, value) == name.encode()
        assert c.library.qgen_value_of(number, b"no such") == c.library.qgen_value_of(number, None) == -1
        assert name_of(number, -1) == name_of(number, len(axis.values)) == b""
    assert c.library.qgen_value_of(99, b"op") == -1 and name_of(-1, 0) == b""
    formats, archs = table.shipped().space.axis("format").values, table.shipped().space.axis("arch").values
    for format in load_formats().values():
        if format.id is not None:
            assert c.library.qgen_format_of_gguf(format.id) == formats.index(format.name)
    for arch in load_archs().values():
        for major, minor in arch.serves:
            assert c.library.qgen_arch_of_capability(major, minor) == archs.index(arch.name)
    assert c.library.qgen_format_of_gguf(0) == -1 and c.library.qgen_arch_of_capability(3, 5) == -1


# ---- the trace

ENGINE = r"""
#include "qgen_dispatch.h"
#include <pthread.h>
#include <stdio.h>

static qgen_request request(int64_t t) {
    qgen_request r = {0};
    r.op = QGEN_OP_MUL_MAT;
    r.format = QGEN_FORMAT_Q4_K;
    r.activation = QGEN_ACTIVATION_Q8_G256;
    r.arch = QGEN_ARCH_SM_90;
    r.T = t; r.N = 4096; r.K = 4096;
    return r;
}

static void *work(void *unused) {
    for (int i = 0; i < 20000; i++) {
        qgen_decision d;
        const qgen_request served = request(1), refused = request(65529);
        if (qgen_dispatch(&served, &d) == QGEN_SERVED)
            qgen_ran(&d);
        qgen_dispatch(&refused, &d);
        qgen_ran(&d);
        qgen_supports(&served, &d);
    }
    return unused;
}

int main(int argc, char **argv) {
    const qgen_request bad = request(0);
    qgen_decision served, refused;
    (void)argv;
    if (argc > 1) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, work, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
    } else {
        work(NULL);
    }
    qgen_request r = request(1);
    qgen_supports(&r, &served);
    r = request(65529);
    qgen_supports(&r, &refused);
    qgen_dispatch(&bad, NULL);
    printf("%llu %llu %llu %llu\n", (unsigned long long)qgen_decided_count(served.kernel->number),
           (unsigned long long)qgen_ran_count(served.kernel->number),
           (unsigned long long)qgen_refused_count(refused.refusal), (unsigned long long)qgen_invalid_count());
    if (argc < 3)
        qgen_trace_reset();
    printf("%llu %llu\n", (unsigned long long)qgen_decided_count(served.kernel->number),
           (unsigned long long)(qgen_decided_count(-1) + qgen_ran_count(QGEN_KERNELS)
                                + qgen_refused_count(QGEN_REFUSALS)));
    return 0;
}
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "engine.c").write_text(ENGINE + '\n#include "qgen_dispatch.c"\n')
    return compile_c(folder / "engine.c", folder / "engine", "-O1", "-pthread", include=GENERATED)


def run(engine: Path, *arguments: str, trace: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "QGEN_TRACE"}
    environment |= {"QGEN_TRACE": trace} if trace is not None else {}
    return subprocess.run([engine, *arguments], capture_output=True, text=True, env=environment, check=True)


def test_counters_from_one_thread_and_from_four(engine: Path) -> None:
    assert run(engine).stdout.splitlines() == ["20000 20000 20000 1", "0 0"]
    assert run(engine, "threads").stdout.splitlines() == ["80000 80000 80000 1", "0 0"]


@pytest.mark.parametrize("trace", [None, "", "0"])
def test_silence_unless_asked(engine: Path, trace: str | None) -> None:
    assert run(engine, trace=trace).stderr == ""


def test_a_line_for_every_decision_and_launch(engine: Path) -> None:
    lines = run(engine, trace="1").stderr.splitlines()
    kernel = "mul_mat_q4_k_q8_g256_t1__matvec_native_r2_b8"
    assert lines.count(f"qgen: mul_mat Q4_K T=1 N=4096 K=4096 sm_90 -> {kernel}") == 20000
    assert lines.count(f"qgen: ran {kernel}") == 20000
    assert (
        sum(
            line.startswith(
                "qgen: mul_mat Q4_K T=65529 N=4096 K=4096 sm_90 -> refused: kernels of Q4_K take at most 65528"
            )
            for line in lines
        )
        == 20000
    )
    assert lines[-1] == "qgen: invalid request: T is outside 1..16777216"
    assert len(lines) == 60001


def test_a_summary_at_the_end(engine: Path) -> None:
    lines = [line.split() for line in run(engine, "threads", "keep", trace="summary").stderr.splitlines()]
    assert lines[0] == ["qgen:", "decisions", "and", "launches"]
    assert lines[1] == ["qgen:", "80000", "80000", "mul_mat_q4_k_q8_g256_t1__matvec_native_r2_b8"]
    assert lines[2][:4] == ["qgen:", "80000", "refused", "tokens:"] and lines[3] == ["qgen:", "1", "invalid"]
    # With the counters reset there is nothing to list, and threads that meet at the start register one summary.
    assert run(engine, "threads", trace="summary").stderr.splitlines() == ["qgen: decisions and launches"]


def test_there_is_a_compiler() -> None:
    assert CC, "the tests above need one"
