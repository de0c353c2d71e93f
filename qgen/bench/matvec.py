"""One case made ready on a machine: operands, the launches of its candidates, and the judgement of their results.

A further family brings its own class beside `Runnable`, with the same methods, and a line in `make`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import codec, contract, contract_float, emit, plan
from qgen.archs import load_archs
from qgen.bench.candidates import (
    AnyCandidate,
    Candidate,
    FloatCandidate,
    FusedCandidate,
    MultirowCandidate,
    RungCandidate,
)
from qgen.bench.cases import Case, Shape
from qgen.bench.machine import Grid, Machine
from qgen.bench.protocol import Rotation
from qgen.plan import TILE_ROWS
from qgen.run.launching import spreads
from qgen.spec import Format
from qgen.storage import repack
from qgen.weights import Weight

PATTERN_BLOCKS = 4096  # different blocks; they repeat over the weights, which no cache notices
SAMPLE = 8  # rows held against the contract, the first and the last among them
SEED = 20240229

F32 = NDArray[np.float32]


# uint8[PATTERN_BLOCKS, bytes] by plane; of formats stored in blocks there is one, called "block".
Pattern = dict[str, NDArray[np.uint8]]


def pattern(format: Format) -> Pattern:
    """Random blocks in which every code occurs."""
    if format.split:
        return codec.random_planes(format, PATTERN_BLOCKS, SEED)
    return {"block": codec.random_blocks(format, PATTERN_BLOCKS, SEED)}


def stored(case: Case, blocks: Pattern) -> NDArray[np.uint8]:
    """The pattern as the case's storage has it, but for planes: uint8[bytes]. Sixteen blocks of it that follow each
    other are the rows of a tile."""
    if case.storage == "native":
        return blocks["block"].reshape(-1)
    # One block a row; in planes there are others behind it that fill up the row, whose tiles are left out.
    count = case.format.k_pad // case.format.block
    rows = {name: np.pad(part[:, None], ((0, 0), (0, count - 1), (0, 0))) for name, part in blocks.items()}
    data = rows if case.format.split else rows["block"]
    native = Weight.of(case.format, data, rows=PATTERN_BLOCKS, columns=case.format.block)
    tiles = repack(native, case.storage).data.reshape(PATTERN_BLOCKS // TILE_ROWS, count, -1)
    return np.ascontiguousarray(tiles[:, 0]).reshape(-1)


def fill(machine: Machine, buffer: Any, case: Case, turn: Rotation, blocks: Pattern) -> None:
    """Fill all copies of the case's weights in `buffer` with the pattern, plane by plane."""
    if not case.in_planes:
        machine.repeat(buffer, stored(case, blocks))
        return
    for copy in range(turn.copies):
        for span in case.placed.spans:  # each is cut off by what comes behind it
            machine.repeat(machine.at(buffer, turn.offset(copy) + span.offset), blocks[span.plane])


def drawn(shape: Shape, tokens: int) -> tuple[NDArray[np.int64], F32]:
    """The rows that are judged, and x float32[tokens, K]: the same for a shape in every run."""
    rng = np.random.default_rng((SEED, shape.rows, shape.columns))
    inner = rng.integers(0, shape.rows, SAMPLE)
    x = rng.standard_normal((tokens, shape.columns), dtype=np.float32)
    return np.unique(np.concatenate([[0, shape.rows - 1], inner])[:SAMPLE]), x


@cache
def text(chosen: plan.Plan) -> str:
    """The CUDA text of a plan."""
    return emit.emit(chosen).text


class Inputs:
    """x of a case, room for its y, and what y must be for weights that are the format's pattern.

    A case of fewer tokens has the first of those of a case of more. like: inputs of the same K and T, whose x it takes.
    """

    def __init__(self, machine: Machine, case: Case, blocks: Pattern, like: Inputs | None = None) -> None:
        self.machine, self.case, self.pattern = machine, case, blocks
        self.sample, self.host_x = drawn(case.shape, case.tokens)
        if like is not None:
            self.host_x = like.host_x
        self.x: Any = machine.put(self.host_x) if like is None else like.x
        self.y = machine.put(np.zeros((case.tokens, case.shape.rows), dtype=np.float32))

    def sampled(self) -> Pattern:
        """The packed rows of `sample`, by plane: uint8[sample, blocks, bytes]."""
        count = self.case.placed.blocks
        rows, columns = self.sample[:, None], np.arange(self.case.blocks)
        if self.case.storage == "tiled":
            tile = rows // TILE_ROWS * count + columns
            places = (tile * TILE_ROWS + rows % TILE_ROWS) % PATTERN_BLOCKS
        else:
            places = (rows * count + columns) % PATTERN_BLOCKS
        return {name: part[places] for name, part in self.pattern.items()}

    def wanted(self) -> F32:
        """float32[tokens, sample]: what the contract of int8 says for the rows of `sample`."""
        rows = self.sampled()["block"]
        return np.stack([contract.mul_mat(self.case.format, rows, x) for x in self.host_x])

    def judge(self, y: F32) -> str:
        """What is wrong with results float32[tokens, sample]; "" for nothing.

        int8 must have the contract's bits; f16 and bf16 lie within its bound, for inside an instruction the hardware
        rounds as it likes.
        """
        if not self.case.activation:
            return difference(y, self.wanted(), self.sample)
        rows = self.sampled()
        for token, x in enumerate(self.host_x):
            packed = rows if self.case.format.split else rows["block"]
            exact, bound = contract_float.reference(self.case.format, packed, x, self.case.activation)
            for row in np.flatnonzero(~(np.abs(y[token] - exact) <= bound)):
                found = f"{y[token, row]:.9g}, {bound[row]:.3g} around {exact[row]:.9g} are allowed"
                return f"row {self.sample[row]} of token {token} is {found}"
        return ""


class Operands(Inputs):
    """The inputs of a case with its weights: `buffer`, filled with the format's pattern by the caller."""

    def __init__(self, machine: Machine, case: Case, buffer: Any, turn: Rotation, blocks: Pattern) -> None:
        super().__init__(machine, case, blocks)
        self.buffer, self.turn = buffer, turn
        self._activations: dict[str, Any] = {}

    def activation(self, chosen: plan.MatvecPlan | plan.MultirowPlan | plan.KsplitPlan | plan.FloatKsplitPlan) -> Any:
        """Scratch for the quantised x, shared by the plans of one layout."""
        if chosen.layout.name not in self._activations:
            if isinstance(chosen, plan.MatvecPlan):
                nbytes = chosen.workspace_bytes(self.case.blocks)
            else:
                nbytes = chosen.workspace_bytes(self.case.blocks, self.case.tokens)
            self._activations[chosen.layout.name] = self.machine.put(np.zeros(nbytes, dtype=np.uint8))
        return self._activations[chosen.layout.name]


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
        ctas = int(np.prod(self.grids[1]))
        self.multiply(i, chained=spreads(ctas, self._operands.machine.facts.multiprocessors, self.resident))

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

    def quantise(self, _: int, *, chained: bool = False) -> None:
        """x to int8. chained: it may begin before the kernel in front of it has ended."""
        o = self._operands
        sizes = np.int64(o.case.shape.columns), np.int32(o.case.blocks)
        o.machine.launch(self._quantize, self.grids[0], (o.x, *sizes, self._activation), chained=chained)

    def multiply(self, i: int, *, chained: bool = False) -> None:
        """The product with the weights of copy i. chained: as for `quantise`."""
        self._multiply_tokens(i, chained)


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
        o = self._operands
        sizes = np.int64(o.case.shape.columns), np.int32(4), np.int32(o.case.blocks), np.int32(o.case.tokens)
        o.machine.launch(self._quantize, self.grids[0], (o.x, *sizes, self._activation), chained=chained)

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
    if isinstance(candidate, RungCandidate):
        return RungRunnable(operands, candidate)
    if isinstance(candidate, MultirowCandidate):
        return MultirowRunnable(operands, candidate)
    return Runnable(operands, candidate)


def difference(y: F32, wanted: F32, rows: NDArray[np.int64] | None = None) -> str:
    """Where two results [tokens, n] differ in bits, in one line; "" where they do not. NaNs of any kind are alike.

    rows: the row numbers of y and wanted, where they are a sample.
    """
    unlike = np.argwhere((y.view(np.uint32) != wanted.view(np.uint32)) & ~(np.isnan(y) & np.isnan(wanted)))
    if not len(unlike):
        return ""
    token, column = map(int, unlike[0])
    row = column if rows is None else int(rows[column])
    where = f"row {row}" + (f" of token {token}" if len(y) > 1 else "")
    found, right = float(y[token, column]), float(wanted[token, column])
    return f"{len(unlike)} of {y.size} results differ; {where} is {found:.9g}, should be {right:.9g}"
