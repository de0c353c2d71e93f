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


def test_a_step_over_tiles(cupy: Any) -> None:
    """Products of one launch among those with a quantiser in front, where the device has both."""
    options = model.Options(model="gemma-3-270m", formats=("Q8_0",), storage="tiled", sweep="1,5", passes=2)
    found = model.bench_model(options, CudaMachine(), **QUIET)
    assert found.ok, model_text.table(found)
    one, five = found.steps
    fused = sum(kind.count for kind in one.kinds if "__fused_" in kind.kernel)
    assert one.quantisations <= one.products - fused and five.quantisations >= 18 * 4 + 1
    assert not any("__fused_" in kind.kernel for kind in five.kinds)


def test_kernels_of_one_launch_beside_the_ladder(cupy: Any) -> None:
    """More row tiles than multiprocessors, and fewer; blocks long and short."""
    machine = CudaMachine()
    shapes = ("640x2048", "4099x4096")
    options = session.Options(formats=("Q4_K", "Q4_0"), shapes=shapes, storage="tiled", every=True, passes=2)
    found = session.bench(options, machine, **QUIET)
    assert found.ok, [(row.kernel, row.problem) for row in found.rows if row.problem]
    fused = [row for row in found.rows if row.family == "fused"]
    assert len(fused) == (6 if machine.arch.name in ("sm_80", "sm_90", "sm_100") else 0), "166 KB of shared memory"
    assert all(row.us and row.alone is None and row.quantise is None for row in fused)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch_stands_beside(cupy: Any) -> None:
    options = session.Options(formats=("Q4_K",), shapes=("4096x4096",), passes=2, peers=("torch",))
    found = session.bench(options, CudaMachine(), **QUIET)
    assert found.ok and [row.live("torch") is not None for row in found.routed()] == [True], found.skipped
