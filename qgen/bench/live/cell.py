"""What a peer is asked to time: one matrix of a format times some tokens, and how its result is judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qgen import codec
from qgen.bench.cases import Case, Shape
from qgen.bench.inputs import F32, drawn, pattern
from qgen.bench.protocol import turns
from qgen.spec import Format, load_formats


class Unavailable(Exception):
    """Why a peer cannot run at all, or not this cell, in a few words."""


@dataclass(frozen=True)
class Cell:
    """One matrix times `tokens` columns of x: the weights and the x that qgen's own kernels have.

    cold: bytes that must be read between two reads of the weights
    """

    format: Format
    shape: Shape
    tokens: int
    cold: int

    @classmethod
    def of(cls, format: str, shape: tuple[int, int], tokens: int, cold: int) -> Cell:
        return cls(load_formats()[format], Shape(*shape), tokens, cold)

    @property
    def weights(self) -> Cell:
        """Alike for all cells with the same weights."""
        return replace(self, tokens=1)

    @property
    def sample(self) -> NDArray[np.int64]:
        """The rows that are judged."""
        return drawn(self.shape, 1)[0]

    @property
    def x(self) -> F32:
        """float32[tokens, K]."""
        return drawn(self.shape, self.tokens)[1]

    @property
    def packed(self) -> NDArray[np.uint8]:
        """The matrix in bytes, rows back to back. Formats stored in blocks only."""
        case = Case(self.format, self.shape)
        return np.resize(pattern(self.format)["block"].reshape(-1), case.weight_bytes)

    @property
    def decoded(self) -> F32:
        """float32[N, K]."""
        return _decoded(self.format.name, self.shape)

    def turns(self, nbytes: int) -> tuple[int, int]:
        """Copies of a matrix of `nbytes` bytes, and launches a pass."""
        return turns(nbytes, self.cold)


@lru_cache(maxsize=1)
def _decoded(format: str, shape: Shape) -> F32:
    known = load_formats()[format]
    blocks = pattern(known)
    values = codec.decode(known, blocks if known.split else blocks["block"])
    if not known.split:
        return np.resize(values.reshape(-1), (shape.rows, shape.columns))
    # Planes are filled each from its own begin, so row r has the blocks r * blocks of a row and on, padding included.
    count = Case(known, shape).placed.blocks
    places = (np.arange(shape.rows)[:, None] * count + np.arange(shape.columns // known.block)) % len(values)
    weights: F32 = values[places].reshape(shape.rows, shape.columns)
    return weights


def error(y: NDArray[np.floating], weights: NDArray[np.floating], x: F32) -> float:
    """Normalised mean square error of y [tokens, n] against weights [n, K] times x [tokens, K], taken in float64."""
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    with np.errstate(all="ignore"):
        return float(np.sum((y.astype(np.float64) - exact) ** 2) / np.sum(exact**2))


class Ready(Protocol):
    """A cell made ready by a peer.

    row: the peer's own name of what it runs; error: of its result, as `error` says
    """

    row: str
    error: float

    def lap(self) -> float:
        """Microseconds a launch of one pass. Raises Unavailable or RuntimeError when the peer fails."""


class Peer(Protocol):
    """A library in this process. how: how time is taken, for the report; tolerance: the largest error of a cell."""

    version: str
    how: str
    tolerance: float

    def ready(self, cell: Cell) -> Ready:
        """Raises Unavailable for a cell that the library lacks."""

    def drop(self) -> None:
        """Free what the cells so far hold."""
