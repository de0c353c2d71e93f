"""PyTorch as a peer: the decoded weights in f16, multiplied by cuBLAS as torch.mm calls it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from qgen.bench.live.cell import Cell, Unavailable, error

HOW = "x to f16, then the matmul, in a CUDA graph; device events around a replay, after an untimed one; y stays f16"


def torch_module() -> Any:
    """PyTorch with a device. Raises Unavailable without one, or for a version without CUDA graphs."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as cause:
        raise Unavailable(f"PyTorch cannot be imported: {cause}") from cause
    if not torch.cuda.is_available():
        raise Unavailable(f"PyTorch {torch.__version__} sees no CUDA device")
    if not hasattr(torch.cuda, "CUDAGraph"):
        raise Unavailable(f"PyTorch {torch.__version__} is too old: it has no torch.cuda.CUDAGraph")
    return torch


class Graph:
    """`launches` calls of issue(i) as one CUDA graph; where they cannot be captured, one after another.

    label: "" or how the calls are made otherwise
    """

    def __init__(self, torch: Any, issue: Callable[[int], Any], launches: int) -> None:
        self.torch, self.issue, self.launches = torch, issue, launches
        self.label = ""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries allocate on their first call, which a capture must not see
            for _ in range(3):
                issue(0)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph):
                self._all()
        except RuntimeError:
            torch.cuda.synchronize()
            self._graph, self.label = None, " (no CUDA graph: calls one by one)"

    def _all(self) -> None:
        for i in range(self.launches):
            self.issue(i)

    def lap(self) -> float:
        """Microseconds a call."""
        run = self._graph.replay if self._graph is not None else self._all
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()  # another process had the device in between
        begin.record()
        run()
        end.record()
        end.synchronize()
        return 1000.0 * float(begin.elapsed_time(end)) / self.launches


class _Ready:
    def __init__(self, graph: Graph, row: str, found: float) -> None:
        self.row, self.error, self.lap = row + graph.label, found, graph.lap


class Torch:
    """See `qgen.bench.live.cell.Peer`."""

    tolerance = 1e-5  # weights and x are rounded to 11 bits, and so is y
    how = HOW

    def __init__(self, argument: str) -> None:
        """Raises Unavailable without PyTorch and a device."""
        if argument:
            raise Unavailable(f"torch takes no argument, {argument!r} was given")
        self.torch = torch_module()
        self.version = f"PyTorch {self.torch.__version__} (CUDA {self.torch.version.cuda})"
        self._loaded: tuple[Cell, Any, int] | None = None

    def ready(self, cell: Cell) -> _Ready:
        """Raises Unavailable for weights that f16 cannot hold."""
        torch = self.torch
        weights, launches = self._weights(cell)
        x = torch.from_numpy(cell.x).to("cuda")
        y = torch.empty((cell.tokens, cell.shape.rows), dtype=torch.float16, device="cuda")

        def issue(i: int) -> None:
            torch.mm(x.to(torch.float16), weights[i % len(weights)].t(), out=y)

        graph = Graph(torch, issue, launches)
        y.fill_(float("nan"))
        graph.lap()
        found = y.float().cpu().numpy()[:, cell.sample]
        return _Ready(graph, "f16", error(found, cell.decoded[cell.sample], cell.x))

    def _weights(self, cell: Cell) -> tuple[Any, int]:
        if self._loaded is None or self._loaded[0] != cell.weights:
            self.drop()
            with np.errstate(over="ignore"):
                host = cell.decoded.astype(np.float16)
            if not np.isfinite(host).all():
                raise Unavailable("some weights are beyond f16")
            count, launches = cell.turns(host.nbytes)
            copies = self.torch.empty((count, *host.shape), dtype=self.torch.float16, device="cuda")
            copies[:] = self.torch.from_numpy(host).to("cuda")
            self._loaded = cell.weights, copies, launches
        return self._loaded[1], self._loaded[2]

    def drop(self) -> None:
        """Free the weights."""
        self._loaded = None
        self.torch.cuda.empty_cache()
