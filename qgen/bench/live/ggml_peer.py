"""ggml as a peer: MUL_MAT of a quantised matrix and f32 activations, through its public C API by ctypes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from qgen.bench.live import ggml_api
from qgen.bench.live.cell import Cell, Unavailable, error
from qgen.spec import Format

RUNS = 4  # of the graph in a pass: the host's part of all but the first is behind the device's
_WARM_UP = 3  # computations of a graph before it is timed; the CUDA backend captures one that comes again


class _Weights:
    """Copies of the matrix on the backend, and one launch a copy and more."""

    def __init__(self, peer: Ggml, cell: Cell) -> None:
        g, packed = peer.library, cell.packed
        copies, self.launches = cell.turns(packed.nbytes)
        self.cell = cell.weights
        self.context = g.ggml_init(ggml_api.InitParams((copies + 1) * g.ggml_tensor_overhead(), None, True))
        assert cell.format.id is not None
        shape = cell.format.id, cell.shape.columns, cell.shape.rows
        self.copies = [g.ggml_new_tensor_2d(self.context, *shape) for _ in range(copies)]
        self.buffer = g.ggml_backend_alloc_ctx_tensors(self.context, peer.backend)
        if not self.buffer:
            g.ggml_free(self.context)
            raise Unavailable(f"{copies} copies of {packed.nbytes / 1e6:.0f} MB do not fit")
        for tensor in self.copies:
            g.ggml_backend_tensor_set(tensor, packed.ctypes.data, 0, packed.nbytes)


class _Ready:
    """A graph of MUL_MATs. Whoever makes one frees it, also where `compute` has raised."""

    def __init__(self, peer: Ggml, weights: _Weights) -> None:
        g, self.peer, self.weights = peer.library, peer, weights
        count = weights.launches
        room = (count + 2) * g.ggml_tensor_overhead() + g.ggml_graph_overhead_custom(count + 2, False)
        self.context = g.ggml_init(ggml_api.InitParams(room, None, True))
        self.buffers: list[Any] = []

    def compute(self, cell: Cell) -> None:
        """Build it, run it, judge it. Raises Unavailable where the backend has no such product."""
        g, weights, count = self.peer.library, self.weights, self.weights.launches
        x = g.ggml_new_tensor_2d(self.context, ggml_api.F32, cell.shape.columns, cell.tokens)
        self._place([x])
        host = np.ascontiguousarray(cell.x)
        g.ggml_backend_tensor_set(x, host.ctypes.data, 0, host.nbytes)
        # All results in one place: memory of their own would be written out of the cache, as no engine's is.
        results = [g.ggml_mul_mat(self.context, weights.copies[i % len(weights.copies)], x) for i in range(count)]
        self._place(results)
        if not g.ggml_backend_supports_op(self.peer.backend, results[0]):
            raise Unavailable(f"its backend has no MUL_MAT of {cell.format.name}")
        self.graph = g.ggml_new_graph_custom(self.context, count + 2, False)
        for result in results:
            g.ggml_build_forward_expand(self.graph, result)
        y = np.full((cell.tokens, cell.shape.rows), np.nan, dtype=np.float32)
        g.ggml_backend_tensor_set(results[0], y.ctypes.data, 0, y.nbytes)
        for _ in range(_WARM_UP):
            self._compute(g.ggml_backend_graph_compute)
        g.ggml_backend_tensor_get(results[-1], y.ctypes.data, 0, y.nbytes)
        self.row = cell.format.name
        self.error = error(y[:, cell.sample], cell.decoded[cell.sample], cell.x)

    def _place(self, tensors: list[Any]) -> None:
        """Memory for the first, shared by all."""
        g = self.peer.library
        self.buffers.append(g.ggml_backend_alloc_buffer(self.peer.backend, g.ggml_nbytes(tensors[0])))
        if not self.buffers[-1]:
            raise Unavailable(f"{g.ggml_nbytes(tensors[0]) / 1e6:.0f} MB for x or y do not fit")
        base = g.ggml_backend_buffer_get_base(self.buffers[-1])
        for tensor in tensors:
            g.ggml_backend_tensor_alloc(self.buffers[-1], tensor, base)

    def _compute(self, how: Any) -> None:
        status = how(self.peer.backend, self.graph)
        if status:
            raise Unavailable(f"ggml_backend_graph_compute returns status {status}")

    def lap(self) -> float:
        """Microseconds a MUL_MAT."""
        g = self.peer.library
        if self.context is None:
            raise Unavailable("its memory was freed for another matrix")
        self._compute(g.ggml_backend_graph_compute)  # another process had the device in between
        begin = time.perf_counter()
        for _ in range(RUNS):
            self._compute(g.ggml_backend_graph_compute_async)
        g.ggml_backend_synchronize(self.peer.backend)
        return 1e6 * (time.perf_counter() - begin) / (RUNS * self.weights.launches)

    def free(self) -> None:
        """Memory and graph."""
        for buffer in self.buffers:
            self.peer.library.ggml_backend_buffer_free(buffer)
        self.peer.library.ggml_free(self.context)
        self.context = None


class Ggml:
    """See `qgen.bench.live.cell.Peer`."""

    tolerance = 5e-4  # x is quantised to int8, 32 at a time; the bound of ggml's own test of MUL_MAT

    def __init__(self, argument: str, kind: int = ggml_api.GPU) -> None:
        """argument: path of a shared library. kind: of backend. Raises Unavailable without library or device."""
        if not argument:
            raise Unavailable("no library given: --peer ggml=/path/to/libggml-cuda.so (or libggml.so)")
        if not Path(argument).is_file():
            raise Unavailable(f"no file {argument}")
        g = self.library = ggml_api.load(argument)
        self.backend = None
        if kind == ggml_api.GPU and g.ggml_backend_cuda_init:
            self.backend = g.ggml_backend_cuda_init(0)
        elif g.ggml_backend_init_by_type:
            if g.ggml_backend_load_all_from_path:
                g.ggml_backend_load_all_from_path(str(Path(argument).resolve().parent).encode())
            self.backend = g.ggml_backend_init_by_type(kind, None)
        if not self.backend:
            raise Unavailable(f"{argument} has no backend for a GPU here")
        version = g.ggml_version().decode() if g.ggml_version else "of unknown version"
        self.version = f"ggml {version}, backend {g.ggml_backend_name(self.backend).decode()}"
        self.how = (
            "ggml_backend_graph_compute of a graph of MUL_MATs, which quantises x for each; host clock over "
            f"{RUNS} runs in a row; whether it is a CUDA graph is the backend's choice"
        )
        self._weights: _Weights | None = None
        self._cells: list[_Ready] = []

    def ready(self, cell: Cell) -> _Ready:
        """Raises Unavailable for a type or shape that the library does not have."""
        self._check_type(cell.format)
        if self._weights is None or self._weights.cell != cell.weights:
            self.drop()
            self._weights = _Weights(self, cell)
        made = _Ready(self, self._weights)
        self._cells.append(made)
        made.compute(cell)
        return made

    def _check_type(self, format: Format) -> None:
        if format.id is None:
            raise Unavailable(f"{format.name} is no type of ggml")
        g = self.library
        name = (g.ggml_type_name(format.id) or b"nothing").decode()
        found = name.lower(), g.ggml_blck_size(format.id), g.ggml_type_size(format.id)
        if found != (format.name.lower(), format.block, format.bytes):
            raise Unavailable(f"its type {format.id} is {name}, {found[1]} weights in {found[2]} bytes")

    def drop(self) -> None:
        """Free the weights and the cells."""
        for cell in self._cells:
            cell.free()
        self._cells = []
        if self._weights:
            self.library.ggml_backend_buffer_free(self._weights.buffer)
            self.library.ggml_free(self._weights.context)
        self._weights = None
