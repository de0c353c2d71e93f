"""One case made ready on a machine: the launches of its candidates.

A further family brings its own class beside `Runnable`, with the same methods, and a line in `make`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from qgen import emit, plan
from qgen.archs import load_archs
from qgen.bench.candidates import (
    AnyCandidate,
    Candidate,
    FloatCandidate,
    FusedCandidate,
    MultirowCandidate,
    RungCandidate,
    WgmmaCandidate,
)
from qgen.bench.inputs import F32, Operands
from qgen.bench.machine import Grid
from qgen.run.launching import spreads


@cache
def text(chosen: plan.Plan) -> str:
    """The CUDA text of a plan."""
    return emit.emit(chosen).text


class Runnable:
    """A candidate's two launches. `quantise(i)` and `multiply(i)` issue them for the i-th copy of the weights."""

    grids: tuple[Grid, ...]  # of the launches in order, the product's last

    def __init__(self, operands: Operands, candidate: Candidate) -> None:
        """Loads both kernels. Raises QgenError when one does not compile or load."""
        self.candidate, self._operands = candidate, operands
        machine, case = operands.machine, operands.case
        matvec, quantize, instance = candidate.plan, candidate.quantize, candidate.instance
        first, y = plan.launch_quantize(quantize, case.blocks, case.tokens)
        self._quantize = machine.kernel(
            quantize.file, text(quantize), quantize.name, threads=first.block, shared=first.shared
        )
        self._matmul = machine.kernel(
            matvec.file, text(matvec), instance.name, threads=32 * matvec.warps, shared=instance.shared_bytes
        )
        second = plan.launch(matvec, instance, case.shape.rows, machine.facts.multiprocessors, self._matmul.resident)
        self.grids = (first.grid, y), second.grid
        self.resident = self._matmul.resident
        self._activation = operands.activation(matvec)

    def quantise(self, _: int, *, chained: bool = False) -> None:
        """x to int8. chained: it may begin before the kernel in front of it has ended."""
        o = self._operands
        sizes = np.int64(o.case.shape.columns), np.int32(o.case.blocks)
        o.machine.launch(self._quantize, self.grids[0], (o.x, *sizes, self._activation), chained=chained)

    def multiply(self, i: int, *, chained: bool = False) -> None:
        """The product with the weights of copy i. chained: as for `quantise`."""
        o = self._operands
        weight = o.machine.at(o.buffer, o.turn.offset(i))
        sizes = np.int64(o.case.row_bytes), np.int32(o.case.shape.rows), np.int32(o.case.blocks)
        o.machine.launch(self._matmul, self.grids[1], (weight, *sizes, self._activation, o.y), chained=chained)

    def _multiply_tokens(self, i: int, chained: bool) -> None:
        """The launch of a kernel that takes any number of tokens."""
        o = self._operands
        weight = o.machine.at(o.buffer, o.turn.offset(i))
        stride = (np.int64(o.case.row_bytes),) if o.case.storage == "native" else ()  # between tiles there is none
        sizes = *stride, np.int32(o.case.shape.rows), np.int32(o.case.blocks)
        args = (weight, *sizes, np.int32(o.case.tokens), self._activation, o.y, np.int64(o.case.shape.rows))
        o.machine.launch(self._matmul, self.grids[1], args, chained=chained)

    def both(self, i: int) -> None:
        """What a user's call costs, its launches dependent where they can be."""
        self.quantise(i, chained=True)
        self.multiply(i, chained=self._begins_early(int(np.prod(self.grids[1]))))

    def _begins_early(self, ctas: int) -> bool:
        """Whether a call's product, a launch of so many CTAs, may begin before the quantiser has ended."""
        return spreads(ctas, self._operands.machine.facts.multiprocessors, self.resident)

    @property
    def parts(self) -> dict[str, Callable[[int], None]]:
        """What is timed, by the fields of `Times`: a call, and its launches one by one where it has two."""
        return {"total": self.both, "product": self.multiply, "quantise": self.quantise}

    def result(self) -> F32:
        """y float32[tokens, N] of the first copy, from poisoned scratch and output."""
        o = self._operands
        o.machine.poison(self._activation)
        o.machine.poison(o.y)
        self.both(0)
        return o.machine.fetch(o.y)

    def graph(self, issue: Callable[[int], None]) -> tuple[Any, int]:
        """A subject for `protocol.measure`."""
        launches = self._operands.turn.launches
        return self._operands.machine.capture(issue, launches), launches


class MultirowRunnable(Runnable):
    """The two launches of a variant of multirow, for all tokens of the case at once."""

    def __init__(self, operands: Operands, candidate: MultirowCandidate) -> None:
        """Loads both kernels. Raises QgenError when one does not compile or load."""
        self._operands = operands
        machine, case = operands.machine, operands.case
        multirow, quantize, instance = candidate.plan, candidate.quantize, candidate.instance
        first, tokens = plan.launch_quantize(quantize, case.blocks, case.tokens)
        self._quantize = machine.kernel(
            quantize.file, text(quantize), quantize.name, threads=first.block, shared=first.shared
        )
        self._matmul = machine.kernel(
            multirow.file, text(multirow), instance.name, threads=32 * instance.warps, shared=instance.shared_bytes
        )
        self.resident = self._matmul.resident
        second, tiles = plan.launch_multirow(
            instance, case.shape.rows, case.tokens, machine.facts.multiprocessors, self.resident
        )
        self.grids = (first.grid, tokens), (second.grid, tiles)
        self._activation = operands.activation(multirow)

    def multiply(self, i: int, *, chained: bool = False) -> None:
        """The product with the weights of copy i. chained: as for `quantise`."""
        self._multiply_tokens(i, chained)


class RungRunnable(Runnable):
    """The two launches of a rung, for all tokens of the case at once."""

    def __init__(self, operands: Operands, candidate: RungCandidate) -> None:
        """Loads both kernels. Raises QgenError when one does not compile or load."""
        self._operands = operands
        machine, case = operands.machine, operands.case
        ladder, quantize, rung = candidate.plan, candidate.quantize, candidate.instance
        first, columns = plan.launch_quantize_fragments(quantize, case.blocks, case.tokens)
        self._quantize = machine.kernel(
            quantize.file, text(quantize), quantize.name, threads=first.block, shared=first.shared
        )
        threads = 32 * rung.warps
        arch = load_archs()[machine.facts.arch]
        alone = machine.kernel(ladder.file, text(ladder), rung.name, threads=threads, shared=rung.shared_bytes)
        second, tiles = plan.launch_ksplit(
            ladder, rung, case.shape.rows, case.tokens, machine.facts.multiprocessors, alone.resident, arch
        )
        # A launch may ask for more shared memory than the kernel needs, so that its CTAs spread.
        self._matmul = machine.kernel(ladder.file, text(ladder), rung.name, threads=threads, shared=second.shared)
        self.resident = self._matmul.resident
        self.grids = (first.grid, columns), (second.grid, tiles)
        self._activation = operands.activation(ladder)

    def multiply(self, i: int, *, chained: bool = False) -> None:
        """The product with the weights of copy i. chained: as for `quantise`."""
        self._multiply_tokens(i, chained)


class WgmmaRunnable(RungRunnable):
    """The two launches of a rung for warpgroups, for all tokens of the case at once."""

    def __init__(self, operands: Operands, candidate: WgmmaCandidate) -> None:
        """Loads both kernels. Raises QgenError when one does not compile or load."""
        self._operands = operands
        machine, case = operands.machine, operands.case
        wgmma, quantize, rung = candidate.plan, candidate.quantize, candidate.instance
        self._arranges = isinstance(quantize, plan.ArrangePlan)
        if isinstance(quantize, plan.ArrangePlan):
            first, columns = plan.launch_arrange(quantize, case.blocks, case.tokens)
        else:
            first, columns = plan.launch_quantize_fragments(quantize, case.blocks, case.tokens)
        self._quantize = machine.kernel(
            quantize.file, text(quantize), quantize.name, threads=first.block, shared=first.shared
        )
        second, tiles = plan.launch_wgmma(rung, case.shape.rows, case.tokens, machine.facts.multiprocessors)
        self._matmul = machine.kernel(wgmma.file, text(wgmma), rung.name, threads=second.block, shared=second.shared)
        self.resident = self._matmul.resident
        self.grids = (first.grid, columns), (second.grid, tiles)
        self._activation = operands.activation(wgmma)

    def quantise(self, i: int, *, chained: bool = False) -> None:
        """x as the kernel reads it. chained: it may begin before the kernel in front of it has ended."""
        if self._arranges:
            _arrange(self._operands, self._quantize, self.grids[0], self._activation, chained)
        else:
            super().quantise(i, chained=chained)

    def _begins_early(self, ctas: int) -> bool:
        """As qgen.run has it: where all CTAs are there at once, however few."""
        return ctas <= self._operands.machine.facts.multiprocessors


class FloatRunnable(Runnable):
    """The two launches of a rung with f16 or bf16 activations: x from float32, all tokens of the case at once."""

    def __init__(self, operands: Operands, candidate: FloatCandidate) -> None:
        """Loads both kernels. Raises QgenError when one does not compile or load."""
        self._operands = operands
        machine, case = operands.machine, operands.case
        ladder, arrange, rung = candidate.plan, candidate.quantize, candidate.instance
        first, columns = plan.launch_arrange(arrange, case.blocks, case.tokens)
        self._quantize = machine.kernel(
            arrange.file, text(arrange), arrange.name, threads=first.block, shared=first.shared
        )
        threads = 32 * rung.warps
        arch = load_archs()[machine.facts.arch]
        alone = machine.kernel(ladder.file, text(ladder), rung.name, threads=threads, shared=rung.shared_bytes)
        second, tiles = plan.launch_ksplit_float(
            ladder, rung, case.shape.rows, case.tokens, machine.facts.multiprocessors, alone.resident, arch
        )
        # A launch may ask for more shared memory than the kernel needs, so that its CTAs spread.
        self._matmul = machine.kernel(ladder.file, text(ladder), rung.name, threads=threads, shared=second.shared)
        self.resident = self._matmul.resident
        self.grids = (first.grid, columns), (second.grid, tiles)
        self._activation = operands.activation(ladder)

    def quantise(self, _: int, *, chained: bool = False) -> None:
        """x to the class, in fragment order. chained: it may begin before the kernel in front of it has ended."""
        _arrange(self._operands, self._quantize, self.grids[0], self._activation, chained)

    def multiply(self, i: int, *, chained: bool = False) -> None:
        """The product with the weights of copy i. chained: as for `quantise`."""
        o = self._operands
        if o.case.storage == "tiled":
            self._multiply_tokens(i, chained)
            return
        planes = (
            argument
            for span in o.case.placed.spans
            for argument in (o.machine.at(o.buffer, o.turn.offset(i) + span.offset), np.int64(span.row_stride))
        )
        sizes = np.int32(o.case.shape.rows), np.int32(o.case.blocks), np.int32(o.case.tokens)
        args = (*planes, *sizes, self._activation, o.y, np.int64(o.case.shape.rows))
        o.machine.launch(self._matmul, self.grids[1], args, chained=chained)


def _arrange(o: Operands, kernel: Any, grid: int | tuple[int, int], activation: Any, chained: bool) -> None:
    """x from float32 to a class, in the order that the matmul reads."""
    sizes = np.int64(o.case.shape.columns), np.int32(4), np.int32(o.case.blocks), np.int32(o.case.tokens)
    o.machine.launch(kernel, grid, (o.x, *sizes, activation), chained=chained)


class FusedRunnable(Runnable):
    """The one launch of a kernel that quantises x by itself: there is no scratch."""

    def __init__(self, operands: Operands, candidate: FusedCandidate) -> None:
        """Loads the kernel. Raises QgenError when it does not compile or load."""
        self._operands = operands
        fused, instance, machine = candidate.plan, candidate.instance, operands.machine
        launch = plan.launch_fused(instance, operands.case.shape.rows, machine.facts.multiprocessors)
        self._matmul = machine.kernel(
            fused.file, text(fused), instance.name, threads=launch.block, shared=launch.shared
        )
        self.resident = self._matmul.resident
        self.grids = (launch.grid,)

    def quantise(self, _: int, *, chained: bool = False) -> None:
        """Nothing: the product does it."""

    def multiply(self, i: int, *, chained: bool = False) -> None:
        """The product of x in float32 with the weights of copy i. chained: as for `Runnable.quantise`."""
        o = self._operands
        weight = o.machine.at(o.buffer, o.turn.offset(i))
        sizes = np.int32(o.case.shape.rows), np.int32(o.case.blocks)
        o.machine.launch(self._matmul, self.grids[0], (weight, *sizes, o.x, o.y), chained=chained)

    def both(self, i: int) -> None:
        """What a user's call costs: one launch, dependent where it can be, however few its CTAs are."""
        self.multiply(i, chained=True)

    @property
    def parts(self) -> dict[str, Callable[[int], None]]:
        """A call alone."""
        return {"total": self.both}

    def result(self) -> F32:
        """y float32[1, N] of the first copy, from poisoned output."""
        o = self._operands
        o.machine.poison(o.y)
        self.both(0)
        return o.machine.fetch(o.y)


def make(operands: Operands, candidate: AnyCandidate) -> Runnable:
    """The candidate, loaded. Raises QgenError when one of its kernels does not compile or load."""
    if isinstance(candidate, FusedCandidate):
        return FusedRunnable(operands, candidate)
    if isinstance(candidate, FloatCandidate):
        return FloatRunnable(operands, candidate)
    if isinstance(candidate, WgmmaCandidate):
        return WgmmaRunnable(operands, candidate)
    if isinstance(candidate, RungCandidate):
        return RungRunnable(operands, candidate)
    if isinstance(candidate, MultirowCandidate):
        return MultirowRunnable(operands, candidate)
    return Runnable(operands, candidate)
