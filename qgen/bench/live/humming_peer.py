"""Humming (PyPI: humming-kernels) as a peer: its own integer types and repacked layout, f16 activations.

A matrix of a qgen format is quantised anew by Humming to integers of as many bits as the format's codes about have,
with a scale for every 128 weights; the result is judged against those integers decoded.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

from qgen.bench.live.cell import Cell, Unavailable, error
from qgen.bench.live.torch_peer import HOW, Graph, torch_module
from qgen.spec import Format

GROUP = 128


def bits(format: Format) -> int:
    """The integers that stand beside a format: floor of its bits a weight; 2 for the ternary and other 1.5-bit ones."""
    return 1 if format.bits_per_weight < 1.5 else max(2, int(format.bits_per_weight))


class _Ready:
    def __init__(self, graph: Graph, row: str, found: float) -> None:
        self.row, self.error, self.lap = row + graph.label, found, graph.lap


class Humming:
    """See `qgen.bench.live.cell.Peer`."""

    tolerance = 1e-5  # x is rounded to 11 bits, and so is y
    how = f"weights quantised by itself, group {GROUP}; {HOW}"

    def __init__(self, argument: str) -> None:
        """Raises Unavailable without humming-kernels, PyTorch and a device."""
        if argument:
            raise Unavailable(f"humming takes no argument, {argument!r} was given")
        self.torch = torch_module()
        try:
            self.layer = importlib.import_module("humming.layer").HummingLayer
            version = importlib.import_module("humming").__version__
        except (ImportError, AttributeError) as cause:
            raise Unavailable(f"humming-kernels cannot be imported, or is too old: {cause}") from cause
        self.version = f"humming-kernels {version}, PyTorch {self.torch.__version__}"
        self._loaded: tuple[Cell, list[Any], Any, int] | None = None

    def ready(self, cell: Cell) -> _Ready:
        """Raises Unavailable for a K that is no multiple of its group; ValueError and others are the library's."""
        if cell.shape.columns % GROUP:
            raise Unavailable(f"K = {cell.shape.columns} is no multiple of its group of {GROUP}")
        torch = self.torch
        layers, rows, launches = self._layers(cell)
        x = torch.from_numpy(cell.x).to("cuda")
        last: list[Any] = []

        def issue(i: int) -> None:
            last[:] = [layers[i % len(layers)](x.to(torch.float16))]

        graph = Graph(torch, issue, launches)
        graph.lap()
        found = error(last[0].float().cpu().numpy()[:, cell.sample], rows, cell.x)
        return _Ready(graph, f"int{bits(cell.format)} g{GROUP}", found)

    def _layers(self, cell: Cell) -> tuple[list[Any], Any, int]:
        """Copies of the matrix in its layout, and float32[sample, K]: what its integers mean."""
        torch = self.torch
        if self._loaded is None or self._loaded[0] != cell.weights:
            self.drop()
            layer = self.layer(
                shape_n=cell.shape.rows,
                shape_k=cell.shape.columns,
                weight_config={"dtype": f"int{bits(cell.format)}", "group_size": GROUP},
                torch_dtype=torch.float16,
            ).cuda()
            layer.load_from_unquantized(torch.from_numpy(cell.decoded).to("cuda", torch.float16))
            meant = layer.weight_schema.dequant_tensors(layer.state_dict())
            rows = meant.float().cpu().numpy()[cell.sample]
            layer.transform()
            nbytes = sum(p.numel() * p.element_size() for p in layer.parameters())
            copies, launches = cell.turns(nbytes)
            layers = [layer, *(copy.deepcopy(layer) for _ in range(copies - 1))]
            self._loaded = cell.weights, layers, rows, launches
        return self._loaded[1:]

    def drop(self) -> None:
        """Free the weights."""
        self._loaded = None
        self.torch.cuda.empty_cache()
