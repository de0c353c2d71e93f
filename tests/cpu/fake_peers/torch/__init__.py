"""A stand-in for the part of PyTorch that the live peers touch, over NumPy: for their own process, by PYTHONPATH.

FAKE_TORCH in the environment: "no device", "old", "no graph" (captures fail), "wrong" (products are), "dies" (on a
matrix of one row: the process ends).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "2.11.0+fake"
version = SimpleNamespace(cuda="13.0")
float16, float32 = np.float16, np.float32
_MODE = os.environ.get("FAKE_TORCH", "")
_capture: list[Callable[[], None]] | None = None


class Tensor:
    def __init__(self, host: Any) -> None:
        self.host = host

    shape = property(lambda self: self.host.shape)

    def to(self, *how: Any) -> Tensor:
        kinds = [kind for kind in how if kind != "cuda"]
        return Tensor(self.host.astype(kinds[0]) if kinds else self.host)

    def t(self) -> Tensor:
        return Tensor(self.host.T)

    def float(self) -> Tensor:
        return Tensor(self.host.astype(np.float32))

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.host

    def numel(self) -> int:
        return int(self.host.size)

    def element_size(self) -> int:
        return int(self.host.itemsize)

    def fill_(self, value: Any) -> None:
        self.host.fill(value)

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.host[index])

    def __setitem__(self, index: Any, value: Tensor) -> None:
        self.host[index] = value.host


def from_numpy(host: Any) -> Tensor:
    return Tensor(host)


def empty(shape: tuple[int, ...], dtype: Any, device: str) -> Tensor:
    assert device == "cuda"
    return Tensor(np.zeros(shape, dtype=dtype))


def mm(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    assert a.host.dtype == b.host.dtype == out.host.dtype == np.float16
    if _MODE == "dies" and b.shape[1] == 1:
        print("a fault that ends the process", file=sys.stderr, flush=True)
        os._exit(3)

    def run() -> None:
        out.host[:] = a.host.astype(np.float32) @ b.host.astype(np.float32) * (1.5 if _MODE == "wrong" else 1)

    run() if _capture is None else _capture.append(run)
    return out


class _Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return 1000 * (end.at - self.at)


class _Graph:
    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        assert self.calls
        for call in self.calls:
            call()


@contextmanager
def _graph(graph: _Graph) -> Iterator[None]:
    global _capture
    if _MODE == "no graph":
        raise RuntimeError("operation not permitted when stream is capturing")
    _capture = graph.calls
    yield
    _capture = None


@contextmanager
def _stream(_: Any) -> Iterator[None]:
    yield


def _make_stream() -> Any:
    return SimpleNamespace(wait_stream=lambda other: None)


cuda = SimpleNamespace(
    is_available=lambda: _MODE != "no device",
    synchronize=lambda: None,
    empty_cache=lambda: None,
    current_stream=_make_stream,
    Stream=_make_stream,
    stream=_stream,
    graph=_graph,
    Event=_Event,
)
if _MODE != "old":
    cuda.CUDAGraph = _Graph
print("libraries may print where they like")
