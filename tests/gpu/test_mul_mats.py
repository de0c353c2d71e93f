"""qgen.mul_mats on a device: the bits of separate calls, plainly and in a graph that replays with other activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qgen
from qgen import codec
from qgen.run import device as room
from qgen.spec import load_formats
from qgen.weights import Weight

FORMATS = load_formats()
K = 1024
ROWS = (4112, 520, 520)  # like q, k and v: a grid that fills a device, and two that do not


def weights_of(cupy: Any, names: tuple[str, ...], storage: str) -> list[Weight]:
    found = []
    for seed, (name, rows) in enumerate(zip(names, ROWS, strict=True)):
        format = FORMATS[name]
        packed = codec.random_blocks(format, rows * K // format.block, seed=seed)
        assert isinstance(packed, np.ndarray)
        weight = Weight.of(format, cupy.asarray(packed), rows=rows, columns=K, name=f"w{seed}")
        found.append(qgen.to_device(weight, storage=storage))
    return found


def alike(cupy: Any, found: list[Any], wanted: list[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(np.array_equal(cupy.asnumpy(a).view(np.uint32), cupy.asnumpy(b).view(np.uint32)) for a, b in pairs)


@pytest.mark.parametrize("storage", ["native", "tiled"])
@pytest.mark.parametrize("names", [("Q4_K",) * 3, ("TQ1_0",) * 3, ("Q4_K", "Q4_K", "Q8_0"), ("Q8_0", "Q4_K", "Q8_0")])
def test_the_bits_of_separate_calls(cupy: Any, names: tuple[str, ...], storage: str) -> None:
    """Every x is another one, written on the same stream just before: a launch that does not wait takes the old one."""
    if storage == "tiled" and not room.arch_of_device(room.current_device()).instructions.mma_m16n8k32_s8:
        pytest.skip("no tiles on this device")
    weights = weights_of(cupy, names, storage)
    for tokens in (1, 8, 17):
        given = cupy.asarray(np.random.default_rng(tokens).standard_normal((6, tokens, K), dtype=np.float32))
        wanted = [[qgen.mul_mat(weight, x) for weight in weights] for x in given]
        scratch = max((qgen.workspace(weight, tokens=tokens) for weight in weights), key=lambda made: made.nbytes)
        outs = [cupy.empty((tokens, rows), dtype=cupy.float32) for rows in ROWS]
        late = cupy.empty((tokens, K), dtype=cupy.float32)
        for x, right in zip(given, wanted, strict=True):
            assert alike(cupy, qgen.mul_mats(weights, x), right)
            late[...] = x
            qgen.mul_mats(weights, late, outs, workspace=scratch)
            assert alike(cupy, outs, right)


def test_a_graph_replays_with_new_activations(cupy: Any) -> None:
    """Once with a workspace that is kept, once with one that lives with the results."""
    weights = weights_of(cupy, ("Q4_K", "Q4_K", "Q8_0"), "native")
    x = cupy.zeros((9, K), dtype=cupy.float32)
    outs = [cupy.empty((9, rows), dtype=cupy.float32) for rows in ROWS]
    scratch = max((qgen.workspace(weight, tokens=9) for weight in weights), key=lambda made: made.nbytes)
    qgen.mul_mats(weights, x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        made = qgen.mul_mats(weights, x)
        qgen.mul_mats(weights, x, outs, workspace=scratch)
        graph = stream.end_capture()
    for seed in (2, 3, 4):
        x.set(np.random.default_rng(seed).standard_normal((9, K), dtype=np.float32))
        wanted = [qgen.mul_mat(weight, x) for weight in weights]
        # Memory that the capture did not keep would be handed out here and overwritten.
        fillers = [cupy.full(size, 0xFF, dtype=cupy.uint8) for size in (scratch.size, *(4 * 9 * n for n in ROWS), 512)]
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert alike(cupy, made, wanted) and alike(cupy, outs, wanted)
        assert all((cupy.asnumpy(filler) == 0xFF).all() for filler in fillers)
