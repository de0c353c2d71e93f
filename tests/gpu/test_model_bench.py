"""The bench of a model on a device: the graph of a whole step gives what its calls give alone, and peers take part."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from qgen.bench import model, model_text, session
from qgen.bench.cuda import CudaMachine

QUIET: dict[str, Any] = {"show_progress": False}


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5G64_F16S"])
def test_a_step_of_a_small_model(cupy: Any, name: str) -> None:
    options = model.Options(model="gemma-3-270m", formats=(name,), sweep="1,5", passes=2)
    found = model.bench_model(options, CudaMachine(), **QUIET)
    assert found.ok, model_text.table(found)
    assert [(step.tokens, step.products) for step in found.steps] == [(1, 127), (5, 127)]
    # q, k, v and gate, up share; k and v may have kernels that read x in another order than q's.
    assert all(18 * 4 + 1 <= step.quantisations <= 18 * 5 + 1 for step in found.steps)
    assert all(step.us and step.read_floor and step.stream for step in found.steps)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch_stands_beside(cupy: Any) -> None:
    options = session.Options(formats=("Q4_K",), shapes=("4096x4096",), passes=2, peers=("torch",))
    found = session.bench(options, CudaMachine(), **QUIET)
    assert found.ok and [row.live("torch") is not None for row in found.routed()] == [True], found.skipped
