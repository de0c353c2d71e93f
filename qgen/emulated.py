"""mul_mat in the emulator, for one token and for many: the texts and launches that qgen.run sends to a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qgen import emit, emulate, plan
from qgen.archs import load_archs
from qgen.dispatch import routed_batch, routed_instance
from qgen.errors import QgenError
from qgen.spec import Format
from qgen.storage import repack
from qgen.weights import Weight

ARCH = "sm_90"  # the architecture the emulator stands for
MULTIROW_ARCH = "sm_75"  # the one whose routes pick among the kernels for a few tokens without tensor cores
Order = Literal["forward", "reverse", "shuffle"]


@dataclass(frozen=True)
class Launched:
    """Results of a matmul kernel, as a call gives them, and what its launch did to its buffers, "weight" among them."""

    y: NDArray[np.float32]
    report: emulate.Report


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
        return self.run(rows, x, instance=instance, order=order, seed=seed).y

    def run(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        instance: plan.Instance | None = None,
        order: Order = "forward",
        seed: int = 0,
        count_sectors: bool = False,
    ) -> Launched:
        """As a call, with the launch's report; count_sectors: as for qgen.emulate."""
        chosen = instance or routed_instance(self.plan, len(rows), x.size, ARCH)
        weight = np.ascontiguousarray(rows)
        activation = self.activation(x, order=order, seed=seed)
        y = np.full(len(weight), np.nan, dtype=np.float32)
        second = plan.launch(self.plan, chosen, len(weight), multiprocessors=1, ctas_per_multiprocessor=1)
        report = self._matvec.launch(
            chosen.name,
            grid=second.grid,
            block=second.block,
            shared=second.shared,
            args=[
                emulate.Buffer("weight", weight, constant=True),
                weight.shape[1],
                len(weight),
                x.size // self.format.block,
                emulate.Buffer("activation", activation),
                emulate.Buffer("y", y, writable=True),
            ],
            order=order,
            seed=seed,
            count_sectors=count_sectors,
            dependent=True,
        )
        return Launched(y, report)

    def activation(self, x: NDArray[np.float32], *, order: Order = "forward", seed: int = 0) -> NDArray[np.uint8]:
        """x float32[K] quantised, as the workspace of a launch holds it; bytes that no kernel writes are 0."""
        blocks = x.size // self.format.block
        activation = np.zeros(self.plan.workspace_bytes(blocks), dtype=np.uint8)
        _quantise(self._quantize, self._quantize_plan, x[None], activation, order=order, seed=seed)
        return activation


class EmulatedMultirow:
    """The emulated quantiser and kernels of the family multirow of one format, compiled on construction or cached."""

    def __init__(self, format: Format) -> None:
        """Raises QgenError when the format has no such kernels or the host has no C++ compiler."""
        self.format = format
        self.plan = plan.plan_multirow(format)
        self._quantize_plan = plan.plan_quantize(plan.plan_matvec(format))
        self._quantize = emulate.compile(emit.emit(self._quantize_plan).text, self._quantize_plan.file)
        self._programs: dict[str, emulate.Program] = {}

    def __call__(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        instance: plan.MultirowInstance | None = None,
        order: Order = "forward",
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """float32[T, n]: the rows uint8[n, K // block * bytes] times every row of x, a C-contiguous float32[T, K].

        instance: left out, the one the dispatch of MULTIROW_ARCH picks for T > 1; any one takes any T of 1 and more
        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        return self.run(rows, x, instance=instance, order=order, seed=seed).y

    def run(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        instance: plan.MultirowInstance | None = None,
        order: Order = "forward",
        seed: int = 0,
        count_sectors: bool = False,
    ) -> Launched:
        """As a call, with the launch's report; count_sectors: as for qgen.emulate."""
        tokens, columns = x.shape
        blocks = columns // self.format.block
        chosen = instance or routed_batch(self.format, len(rows), columns, tokens, MULTIROW_ARCH)
        assert isinstance(chosen, plan.MultirowInstance)
        weight = np.ascontiguousarray(rows)
        activation = self.activation(x, order=order, seed=seed)
        y = np.full((tokens, len(weight)), np.nan, dtype=np.float32)
        launch, grid_y = plan.launch_multirow(chosen, len(weight), tokens, multiprocessors=1, ctas_per_multiprocessor=1)
        report = self._program(chosen).launch(
            chosen.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("weight", weight, constant=True),
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
            count_sectors=count_sectors,
            dependent=True,
        )
        return Launched(y, report)

    def activation(self, x: NDArray[np.float32], *, order: Order = "forward", seed: int = 0) -> NDArray[np.uint8]:
        """x float32[T, K] quantised, as the workspace of a launch holds it; bytes that no kernel writes are 0."""
        tokens, columns = x.shape
        activation = np.zeros(self.plan.workspace_bytes(columns // self.format.block, tokens), dtype=np.uint8)
        _quantise(self._quantize, self._quantize_plan, x, activation, order=order, seed=seed)
        return activation

    def _program(self, instance: plan.MultirowInstance) -> emulate.Program:
        """One instance is compiled at a time: all of them take long, and a call needs one."""
        if instance.name not in self._programs:
            only = replace(self.plan, instances=(instance,))
            self._programs[instance.name] = emulate.compile(emit.emit(only).text, instance.name)
        return self._programs[instance.name]


def _quantise(
    program: emulate.Program,
    planned: plan.QuantizePlan,
    x: NDArray[np.float32],
    activation: NDArray[np.uint8],
    *,
    order: Order,
    seed: int,
) -> None:
    """x float32[T, K] into the planes of the layout that the dp4a kernels read."""
    blocks = x.shape[1] // planned.layout.block
    launch, grid_y = plan.launch_quantize(planned, blocks, len(x))
    program.launch(
        planned.name,
        grid=(launch.grid, grid_y, 1),
        block=launch.block,
        shared=launch.shared,
        args=[
            emulate.Buffer("x", x),
            x.shape[1],
            blocks,
            emulate.Buffer("activation", activation, writable=True),
        ],
        order=order,
        seed=seed,
        dependent=True,
    )


def quantise_fragments(
    program: emulate.Program,
    planned: plan.FragmentQuantizePlan,
    x: NDArray[np.float32],
    activation: NDArray[np.uint8],
    blocks: int,
    *,
    order: Order,
    seed: int,
) -> None:
    """x float32[T, K], K in `blocks` weight blocks, into the records that tensor-core kernels read."""
    launch, grid_y = plan.launch_quantize_fragments(planned, blocks, len(x))
    program.launch(
        planned.name,
        grid=(launch.grid, grid_y, 1),
        block=launch.block,
        shared=launch.shared,
        args=[
            emulate.Buffer("x", x),
            x.shape[1],
            blocks,
            emulate.Buffer("activation", activation, writable=True),
        ],
        order=order,
        seed=seed,
        dependent=True,
    )


class EmulatedLadder:
    """The emulated quantiser and ladder (family ksplit_mma) of one format, compiled on construction or cached."""

    def __init__(self, format: Format, storage: str = "native") -> None:
        """storage: of the weights that calls take. Raises QgenError when the format has no such ladder or the host has
        no C++ compiler."""
        self.format = format
        self.plan = plan.plan_ksplit(format, storage)
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

        rows: as in native storage; for a ladder over tiles they are repacked here
        rung: left out, the one the dispatch picks for T > 1; any rung takes any T of 1 and more
        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        return self.run(rows, x, rung=rung, order=order, seed=seed).y

    def run(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        rung: plan.Rung | None = None,
        order: Order = "forward",
        seed: int = 0,
        count_sectors: bool = False,
    ) -> Launched:
        """As a call, with the launch's report; count_sectors: as for qgen.emulate."""
        tokens, columns = x.shape
        blocks = columns // self.format.block
        storage = self.plan.storage
        chosen = rung or routed_batch(self.format, len(rows), columns, tokens, ARCH, storage=storage)
        if not isinstance(chosen, plan.Rung):
            raise QgenError(
                stage="emulate",
                subject=chosen.name,
                found="no rung of the ladder, but what the dispatch picks",
                allowed="; ".join(r.name for r in self.plan.rungs),
                next="name a rung, or call the class of its family: EmulatedFused, EmulatedWgmma, EmulatedMultirow",
            )
        native = Weight.of(self.format, np.ascontiguousarray(rows), rows=len(rows), columns=columns)
        weight = (native if storage == "native" else repack(native, storage)).data
        place = [emulate.Buffer("weight", weight, constant=True), *([rows.shape[1]] if storage == "native" else [])]
        activation = self.activation(x, order=order, seed=seed)
        y = np.full((tokens, len(rows)), np.nan, dtype=np.float32)
        launch, grid_y = plan.launch_ksplit(self.plan, chosen, len(rows), tokens, 1, 1, load_archs()[ARCH])
        report = self._ladder.launch(
            chosen.name,
            grid=(launch.grid, grid_y, 1),
            block=launch.block,
            shared=launch.shared,
            args=[
                *place,
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

    def activation(self, x: NDArray[np.float32], *, order: Order = "forward", seed: int = 0) -> NDArray[np.uint8]:
        """x float32[T, K] quantised, as the workspace of a launch holds it; bytes that no kernel writes are 0."""
        tokens, columns = x.shape
        blocks = columns // self.format.block
        activation = np.zeros(self.plan.workspace_bytes(blocks, tokens), dtype=np.uint8)
        quantise_fragments(self._quantize, self._quantize_plan, x, activation, blocks, order=order, seed=seed)
        return activation


class EmulatedFused:
    """The emulated kernels of one token that quantise x by themselves (family fused), compiled or cached."""

    def __init__(self, format: Format) -> None:
        """Raises QgenError when the format has no such kernels or the host has no C++ compiler."""
        self.format = format
        self.plan = plan.plan_fused(format)
        self._program = emulate.compile(emit.emit(self.plan).text, self.plan.file)

    def __call__(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        instance: plan.FusedInstance | None = None,
        order: Order = "forward",
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """float32[n]: the rows uint8[n, K // block * bytes], in native storage and repacked here, times x float32[K].

        instance: left out, the one of most teams
        order, seed: which thread goes next, see qgen.emulate. Raises QgenError for any fault of the kernels.
        """
        return self.run(rows, x, instance=instance, order=order, seed=seed).y

    def run(
        self,
        rows: NDArray[np.uint8],
        x: NDArray[np.float32],
        *,
        instance: plan.FusedInstance | None = None,
        order: Order = "forward",
        seed: int = 0,
        count_sectors: bool = False,
    ) -> Launched:
        """As a call, with the launch's report; count_sectors: as for qgen.emulate."""
        chosen = instance or self.plan.instances[0]
        most = self.plan.most_blocks * self.format.block
        if x.size > most:
            raise QgenError(
                stage="emulate",
                subject=chosen.name,
                found=f"K = {x.size} columns",
                allowed=f"at most {most}: shared memory holds no more of x",
                next="call EmulatedLadder, which takes any K",
            )
        native = Weight.of(self.format, np.ascontiguousarray(rows), rows=len(rows), columns=x.size)
        y = np.full(len(rows), np.nan, dtype=np.float32)
        launch = plan.launch_fused(chosen, len(rows), multiprocessors=1)
        report = self._program.launch(
            chosen.name,
            grid=launch.grid,
            block=launch.block,
            shared=launch.shared,
            args=[
                emulate.Buffer("weight", repack(native, "tiled").data, constant=True),
                len(rows),
                x.size // self.format.block,
                emulate.Buffer("x", np.ascontiguousarray(x)),
                emulate.Buffer("y", y, writable=True),
            ],
            order=order,
            seed=seed,
            count_sectors=count_sectors,
            dependent=True,
        )
        return Launched(y, report)
