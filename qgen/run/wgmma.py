"""mul_mat of many tokens by instructions of warpgroups, made ready for one weight on one device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from qgen import operands, plan
from qgen.operands import refusal
from qgen.run.bound import Bound, Launch, x_dtypes
from qgen.spec import Format
from qgen.weights import Weight


class Wgmma(Bound):
    """mul_mat for T tokens on one rung of the family wgmma, over tiles. Made by `qgen.run.bind`.

    Every rung takes every T, a rung's capacity of tokens at a time.
    """

    max_tokens = plan.MAX_TOKENS
    tiled = True

    def __init__(self, weight: Weight, device: int, rung: plan.WgmmaRung) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        self._plan = wgmma_plan(weight.format, rung.activation)
        if weight.storage != "tiled" or rung not in self._plan.rungs:
            found = f"{rung.name} for {weight.storage} storage"
            allowed = ", ".join(other.name for other in self._plan.rungs) + " for tiled storage"
            raise refusal("instance", found, allowed, "leave it out: the dispatch picks one")
        super().__init__(weight, device, self._plan.alignment)
        self.instance: plan.WgmmaRung = rung
        self.x_dtypes = x_dtypes(rung.activation)
        quantize = self._plan.quantize
        # Unrouted rungs are printed alone: a file of all of them takes long to compile.
        only = replace(self._plan, rungs=(rung,))
        self._fit = self._load(quantize, quantize.name, only, rung.threads, rung.shared_bytes)

    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory of a call with this many tokens: they grow with every eight."""
        return self._plan.workspace_bytes(int(self._blocks), tokens)

    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[Launch, Launch]:
        convert, stride = self._plan.quantize, np.int64(operands.row_stride(x))
        args: tuple[Any, ...]
        if isinstance(convert, plan.ArrangePlan):
            first, y = plan.launch_arrange(convert, int(self._blocks), tokens)
            args = (x, stride, np.int32(x.dtype.itemsize), self._blocks, np.int32(tokens), workspace)
        else:
            first, y = plan.launch_quantize_fragments(convert, int(self._blocks), tokens)
            args = (x, stride, self._blocks, workspace)
        quantize: Launch = (first.grid, y), (first.block,), args, first.shared
        second, y = plan.launch_wgmma(self.instance, self.weight.rows, tokens, self._fit[0])
        multiply: Launch = (
            (second.grid, y),
            (second.block,),
            (*self._leading, np.int32(tokens), workspace, out, np.int64(operands.row_stride(out))),
            second.shared,
        )
        return quantize, multiply

    def _begins_early(self, ctas: int) -> bool:
        """Where all are there at once: a CTA takes a multiprocessor, so that few of them cannot gather on one."""
        return ctas <= self._fit[0]


@cache
def wgmma_plan(format: Format, activation: str) -> plan.WgmmaPlan | plan.FloatWgmmaPlan:
    """The kernels of a format for warpgroups. Raises QgenError for a format without such kernels."""
    return plan.plan_wgmma_float(format, activation) if activation in plan.CLASSES else plan.plan_wgmma(format)
