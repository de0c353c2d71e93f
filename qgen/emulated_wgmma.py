"""mul_mat of many tokens by kernels for warpgroups in the emulator: the texts and launches that qgen.run sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import emit, emulate, plan
from qgen.emulated import Launched, Order, quantise_fragments
from qgen.errors import QgenError
from qgen.spec import Format
from qgen.storage import repack
from qgen.weights import Weight

Rows = NDArray[np.uint8] | Mapping[str, NDArray[np.uint8]]  # by plane of formats that have such
_OWN = {"f16": (np.float16,), "bf16": (np.uint16,)}  # dtypes of x beside float32; a bf16 comes as its bits


class EmulatedWgmma:
    """The emulated quantiser and kernels of the family wgmma of one format, compiled on construction or cached."""

    def __init__(self, format: Format, activation: str | None = None) -> None:
        """activation: "f16" or "bf16"; left out, as the format's file says, as in `qgen.mul_mat`.

        Raises QgenError when the format has no such kernels or the host has no C++ compiler.
        """
        self.format = format
        own = activation or format.activation or ""
        made: plan.WgmmaPlan | plan.FloatWgmmaPlan
        floats = own in plan.CLASSES or own != format.activation
        made = plan.plan_wgmma_float(format, own) if floats else plan.plan_wgmma(format)
        self.plan = made
        self._quantize = emulate.compile(emit.emit(self.plan.quantize).text, self.plan.quantize.file)
        self._programs: dict[str, emulate.Program] = {}

    def __call__(
        self,
        rows: Rows,
        x: NDArray[Any],
        *,
        rung: plan.WgmmaRung | None = None,
        order: Order = "forward",
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """float32[T, n]: the rows uint8[n, K // block * bytes], in native storage and repacked here, times every row of
        x, a C-contiguous float32[T, K]; with f16 and bf16 also float16 and the uint16 bits of bf16.

        rows: of formats in planes each plane's, uint8[n, bytes], as a file has them
        rung: left out, the narrowest; any one takes any T of 1 and more
        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        return self.run(rows, x, rung=rung, order=order, seed=seed).y

    def run(
        self,
        rows: Rows,
        x: NDArray[Any],
        *,
        rung: plan.WgmmaRung | None = None,
        order: Order = "forward",
        seed: int = 0,
        count_sectors: bool = False,
    ) -> Launched:
        """As a call, with the launch's report; count_sectors: as for qgen.emulate."""
        tokens, columns = x.shape
        blocks = columns // self.format.block
        chosen = rung or self.plan.rungs[0]
        if chosen not in self.plan.rungs:
            raise QgenError(
                stage="emulate",
                subject=chosen.name,
                found=f"no kernel of {self.plan.file}",
                allowed="; ".join(r.name for r in self.plan.rungs),
                next="name one of these, or construct with the format and activation of the kernel",
            )
        split = isinstance(rows, Mapping)
        count = len(next(iter(rows.values())) if isinstance(rows, Mapping) else rows)
        native = Weight.of(self.format, rows if split else np.ascontiguousarray(rows), rows=count, columns=columns)
        activation = self.activation(x, order=order, seed=seed)
        y = np.full((tokens, count), np.nan, dtype=np.float32)
        launch, grid_y = plan.launch_wgmma(chosen, count, tokens, multiprocessors=1)
        report = self._program(chosen).launch(
            chosen.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("weight", repack(native, "tiled").data, constant=True),
                count,
                blocks,
                tokens,
                emulate.Buffer("activation", activation),
                emulate.Buffer("y", y, writable=True),
                count,
            ],
            order=order,
            seed=seed,
            count_sectors=count_sectors,
            dependent=True,
        )
        return Launched(y, report)

    def activation(self, x: NDArray[Any], *, order: Order = "forward", seed: int = 0) -> NDArray[np.uint8]:
        """x [T, K] as the workspace of a launch holds it; bytes that no kernel writes are 0."""
        tokens, columns = x.shape
        blocks, convert = columns // self.format.block, self.plan.quantize
        allowed = (np.float32, *_OWN.get(self.plan.layout.activation, ()))
        if x.dtype not in allowed:
            raise QgenError(
                stage="emulate",
                subject="x",
                found=f"dtype {x.dtype}",
                allowed=" or ".join(np.dtype(kind).name for kind in allowed),
                next="convert x, or construct with its activation",
            )
        activation = np.zeros(self.plan.workspace_bytes(blocks, tokens), dtype=np.uint8)
        if isinstance(convert, plan.FragmentQuantizePlan):
            quantise_fragments(self._quantize, convert, x, activation, blocks, order=order, seed=seed)
            return activation
        launch, grid_y = plan.launch_arrange(convert, blocks, tokens)
        self._quantize.launch(
            convert.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("x", x),
                columns,
                x.itemsize,
                blocks,
                tokens,
                emulate.Buffer("activation", activation, writable=True),
            ],
            order=order,
            seed=seed,
            dependent=True,
        )
        return activation

    def _program(self, rung: plan.WgmmaRung) -> emulate.Program:
        """One rung is compiled at a time: all of them take long, and a call needs one."""
        if rung.name not in self._programs:
            only = replace(self.plan, rungs=(rung,))
            self._programs[rung.name] = emulate.compile(emit.emit(only).text, rung.name)
        return self._programs[rung.name]
