"""mul_mat in the emulator, for one token and for many: the texts and launches that qgen.run sends to a device."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qgen import emit, emulate, plan
from qgen.dispatch import routed_instance, routed_rung
from qgen.spec import Format

ARCH = "sm_90"  # the architecture the emulator stands for
Order = Literal["forward", "reverse", "shuffle"]


class EmulatedMatvec:
    """The emulated quantiser and matvec of one format, compiled on construction (or taken from the cache)."""

    def __init__(self, format: Format) -> None:
        """Raises QgenError when the format has no kernels or the host has no C++ compiler."""
        self.format = format
        self.plan = plan.plan_matvec(format)
        self._quantize_plan = plan.plan_quantize(self.plan)
        self._matvec = emulate.compile(emit.emit(self.plan).text, self.plan.file)
        self._quantize = emulate.compile(emit.emit(self._quantize_plan).text, self._quantize_plan.file)

    def __call__(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        instance: plan.Instance | None = None,
        order: Order = "forward",
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """float32[n]: the rows uint8[n, K // block * bytes] times x float32[K].

        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        chosen = instance or routed_instance(self.plan, len(rows), x.size, ARCH)
        weight = np.ascontiguousarray(rows)
        activation = self.activation(x, order=order, seed=seed)
        y = np.full(len(weight), np.nan, dtype=np.float32)
        second = plan.launch(self.plan, chosen, len(weight), multiprocessors=1, ctas_per_multiprocessor=1)
        self._matvec.launch(
            chosen.name,
            grid=second.grid,
            block=second.block,
            shared=second.shared,
            args=[
                emulate.Buffer("weight", weight),
                weight.shape[1],
                len(weight),
                x.size // self.format.block,
                emulate.Buffer("activation", activation),
                emulate.Buffer("y", y, writable=True),
            ],
            order=order,
            seed=seed,
        )
        return y

    def activation(self, x: NDArray[np.float32], *, order: Order = "forward", seed: int = 0) -> NDArray[np.uint8]:
        """x float32[K] quantised, as the workspace of a launch holds it; bytes that no kernel writes are 0."""
        blocks = x.size // self.format.block
        activation = np.zeros(self.plan.workspace_bytes(blocks), dtype=np.uint8)
        launch = plan.launch_quantize(self._quantize_plan, blocks)
        self._quantize.launch(
            self._quantize_plan.name,
            grid=launch.grid,
            block=launch.block,
            shared=launch.shared,
            args=[emulate.Buffer("x", x), blocks, emulate.Buffer("activation", activation, writable=True)],
            order=order,
            seed=seed,
        )
        return activation


class EmulatedLadder:
    """The emulated quantiser and ladder (family ksplit_mma) of one format, compiled on construction or cached."""

    def __init__(self, format: Format) -> None:
        """Raises QgenError when the format has no ladder or the host has no C++ compiler."""
        self.format = format
        self.plan = plan.plan_ksplit(format)
        self._quantize_plan = plan.plan_quantize_fragments(self.plan)
        self._ladder = emulate.compile(emit.emit(self.plan).text, self.plan.file)
        self._quantize = emulate.compile(emit.emit(self._quantize_plan).text, self._quantize_plan.file)

    def __call__(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        rung: plan.Rung | None = None,
        order: Order = "forward",
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """float32[T, n]: the rows uint8[n, K // block * bytes] times every row of x, a C-contiguous float32[T, K].

        rung: left out, the one the dispatch picks for T > 1; any rung takes any T of 1 and more
        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        tokens, columns = x.shape
        blocks = columns // self.format.block
        chosen = rung or routed_rung(self.format, len(rows), columns, tokens, ARCH)
        weight = np.ascontiguousarray(rows)
        activation = self.activation(x, order=order, seed=seed)
        y = np.full((tokens, len(weight)), np.nan, dtype=np.float32)
        launch, grid_y = plan.launch_ksplit(
            self.plan, chosen, len(weight), tokens, multiprocessors=1, ctas_per_multiprocessor=1
        )
        self._ladder.launch(
            chosen.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("weight", weight),
                weight.shape[1],
                len(weight),
                blocks,
                tokens,
                emulate.Buffer("activation", activation),
                emulate.Buffer("y", y, writable=True),
                len(weight),
            ],
            order=order,
            seed=seed,
        )
        return y

    def activation(self, x: NDArray[np.float32], *, order: Order = "forward", seed: int = 0) -> NDArray[np.uint8]:
        """x float32[T, K] quantised, as the workspace of a launch holds it; bytes that no kernel writes are 0."""
        tokens, columns = x.shape
        blocks = columns // self.format.block
        activation = np.zeros(self.plan.workspace_bytes(blocks, tokens), dtype=np.uint8)
        launch, grid_y = plan.launch_quantize_fragments(self._quantize_plan, blocks, tokens)
        self._quantize.launch(
            self._quantize_plan.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("x", x),
                columns,
                blocks,
                tokens,
                emulate.Buffer("activation", activation, writable=True),
            ],
            order=order,
            seed=seed,
        )
        return activation
