"""mul_mat of many tokens by kernels for warpgroups in the emulator: the texts and launches that qgen.run sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qgen import emit, emulate, plan
from qgen.emulated import Launched, Order, quantise_fragments
from qgen.spec import Format
from qgen.storage import repack
from qgen.weights import Weight


class EmulatedWgmma:
    """The emulated quantiser and kernels of the family wgmma of one format, compiled on construction or cached."""

    def __init__(self, format: Format) -> None:
        """Raises QgenError when the format has no such kernels or the host has no C++ compiler."""
        self.format = format
        self.plan = plan.plan_wgmma(format)
        self._quantize = emulate.compile(emit.emit(self.plan.quantize).text, self.plan.quantize.file)
        self._programs: dict[str, emulate.Program] = {}

    def __call__(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        rung: plan.WgmmaRung | None = None,
        order: Order = "forward",
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """float32[T, n]: the rows uint8[n, K // block * bytes], in native storage and repacked here, times every row of
        x, a C-contiguous float32[T, K].

        rung: left out, the narrowest; any one takes any T of 1 and more
        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        return self.run(rows, x, rung=rung, order=order, seed=seed).y

    def run(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
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
        native = Weight.of(self.format, np.ascontiguousarray(rows), rows=len(rows), columns=columns)
        activation = np.zeros(self.plan.workspace_bytes(blocks, tokens), dtype=np.uint8)
        quantise_fragments(self._quantize, self.plan.quantize, x, activation, blocks, order=order, seed=seed)
        y = np.full((tokens, len(rows)), np.nan, dtype=np.float32)
        launch, grid_y = plan.launch_wgmma(chosen, len(rows), tokens, multiprocessors=1)
        report = self._program(chosen).launch(
            chosen.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("weight", repack(native, "tiled").data, constant=True),
                len(rows),
                blocks,
                tokens,
                emulate.Buffer("activation", activation),
                emulate.Buffer("y", y, writable=True),
                len(rows),
            ],
            order=order,
            seed=seed,
            count_sectors=count_sectors,
            dependent=True,
        )
        return Launched(y, report)

    def _program(self, rung: plan.WgmmaRung) -> emulate.Program:
        """One rung is compiled at a time: all of them take long, and a call needs one."""
        if rung.name not in self._programs:
            only = replace(self.plan, rungs=(rung,))
            self._programs[rung.name] = emulate.compile(emit.emit(only).text, rung.name)
        return self._programs[rung.name]
