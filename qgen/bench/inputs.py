"""What the kernels of a case take on a machine: weights, x and room for y; and the judgement of what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import codec, contract, contract_float, plan
from qgen.bench.cases import Case, Shape
from qgen.bench.machine import Machine
from qgen.bench.protocol import Rotation
from qgen.plan import TILE_ROWS
from qgen.spec import Format
from qgen.storage import repack
from qgen.weights import Weight

PATTERN_BLOCKS = 4096  # different blocks; they repeat over the weights, which no cache notices
SAMPLE = 8  # rows held against the contract, the first and the last among them
SEED = 20240229

F32 = NDArray[np.float32]
_Quantised = (
    plan.MatvecPlan | plan.MultirowPlan | plan.KsplitPlan | plan.FloatKsplitPlan | plan.WgmmaPlan | plan.FloatWgmmaPlan
)

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

    def activation(self, chosen: _Quantised) -> Any:
        """Scratch for the quantised x, shared by the plans of one layout."""
        if chosen.layout.name not in self._activations:
            if isinstance(chosen, plan.MatvecPlan):
                nbytes = chosen.workspace_bytes(self.case.blocks)
            else:
                nbytes = chosen.workspace_bytes(self.case.blocks, self.case.tokens)
            self._activations[chosen.layout.name] = self.machine.put(np.zeros(nbytes, dtype=np.uint8))
        return self._activations[chosen.layout.name]


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
