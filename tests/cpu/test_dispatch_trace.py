"""Which kernel ran, in Python: counters, lines, the summary."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from qgen.dispatch import Request, lookup, trace

ROOT = Path(__file__).resolve().parents[2]
SERVED = Request("mul_mat", "Q4_K", "q8_g256", T=1, N=4096, K=4096, arch="sm_90")
REFUSED = Request("mul_mat", "Q4_K", "q8_g256", T=65529, N=4096, K=4096, arch="sm_90")
KERNEL = "mul_mat_q4_k_q8_g256_t1__matvec_native_r2_b8"


@pytest.fixture(autouse=True)
def clean() -> None:
    trace.reset()


def test_decisions_launches_and_refusals_are_counted() -> None:
    decision = lookup(SERVED)
    lookup(SERVED)
    refusal = lookup(REFUSED)
    assert decision.kernel == KERNEL
    trace.ran(KERNEL)
    counts = trace.counts()
    assert counts.decided == {KERNEL: 2} and counts.ran == {KERNEL: 1}
    assert counts.refused == {(refusal.code, refusal.reason): 1}
    trace.reset()
    assert trace.counts() == trace.Counts({}, {}, {})
    assert counts.decided == {KERNEL: 2}  # a copy


def test_counts_from_many_threads_add_up() -> None:
    def work() -> None:
        for _ in range(2000):
            trace.ran(KERNEL)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trace.counts().ran == {KERNEL: 16000}


SCRIPT = f"""
from qgen.dispatch import Request, lookup, trace
for t in (1, 1, 65529):
    lookup(Request("mul_mat", "Q4_K", "q8_g256", T=t, N=4096, K=4096, arch="sm_90"))
trace.ran("{KERNEL}")
"""


def run(value: str | None) -> list[str]:
    environment = {key: v for key, v in os.environ.items() if key != trace.VARIABLE}
    environment |= {trace.VARIABLE: value} if value is not None else {}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0 and not done.stdout, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("value", [None, "", "0"])
def test_silence_unless_asked(value: str | None) -> None:
    assert run(value) == []


def test_a_line_for_every_decision_and_launch() -> None:
    lines = run("1")
    assert lines[:2] == [f"qgen: mul_mat Q4_K T=1 N=4096 K=4096 sm_90 -> {KERNEL}"] * 2
    assert lines[2].startswith(
        "qgen: mul_mat Q4_K T=65529 N=4096 K=4096 sm_90 -> refused: kernels of Q4_K take at most 65528"
    )
    assert lines[3:] == [f"qgen: ran {KERNEL}"]


def test_a_summary_at_the_end() -> None:
    lines = run("summary")
    assert lines[0] == "qgen: decisions and launches"
    assert lines[1].split() == ["qgen:", "2", "1", KERNEL]
    assert lines[2].split()[:4] == ["qgen:", "1", "refused", "tokens:"]
    assert len(lines) == 3
