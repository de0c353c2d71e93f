"""What is measured: matrices of a format, a shape, a number of tokens, a class of activations and a storage."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qgen import layout
from qgen.errors import QgenError
from qgen.plan import TILE_ROWS, FloatKsplitPlan, KsplitPlan, MatvecPlan, Plan
from qgen.spec import Format

SHAPES = ("14336x4096", "4096x14336", "4096x4096", "262144x640")
QUICK_SHAPES = ("4096x4096",)
QUICK_FORMATS = ("TQ1_0", "Q4_K", "Q8_0")
# What `qgen bench multirow` times: matrices of public models (specs/models), the hardest formats first.
MULTIROW_CASES = (
    ("Q4_K", "14336x4096"),
    ("Q4_K", "4096x14336"),
    ("Q4_K", "25600x5120"),
    ("Q4_K", "1024x4096"),
    ("Q5_K", "14336x4096"),
    ("Q5_K", "4096x4096"),
    ("Q6_K", "14336x4096"),
    ("Q6_K", "4096x14336"),
    ("IQ4_XS", "14336x4096"),
    ("IQ4_XS", "5120x5120"),
    ("Q3_K", "18944x3584"),
    ("Q2_K", "14336x4096"),
    ("TQ1_0", "14336x4096"),
    ("Q8_0", "4096x4096"),
    ("Q4_0", "9728x2560"),
)
_SHAPE = re.compile(r"(\d+)x(\d+)")
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """N rows by K columns."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Case:
    """One matrix times `tokens` columns of x.

    activation: "f16", "bf16", or "" for int8 as the format's file says; storage: of the matrix
    """

    format: Format
    shape: Shape
    tokens: int = 1
    activation: str = ""
    storage: str = "native"

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.shape.columns // self.format.block

    @property
    def placed(self) -> layout.Matrix:
        """The matrix in bytes, in native storage; rows lie back to back."""
        return layout.matrix(self.format, rows=self.shape.rows, columns=self.shape.columns)

    @property
    def stored_bytes(self) -> int:
        """Bytes from the matrix' first to its last, those that only fill up planes and row tiles included."""
        if self.storage == "tiled":
            return -(-self.shape.rows // TILE_ROWS) * TILE_ROWS * self.row_bytes
        return self.placed.total

    @property
    def in_planes(self) -> bool:
        """Whether the matrix lies in planes: tiles are one piece."""
        return self.format.split and self.storage == "native"

    @property
    def unit(self) -> int:
        """Bytes of a piece of the format's pattern that its matrices are made of; planes are filled one by one."""
        if self.in_planes:
            return 1
        return self.format.bytes * (TILE_ROWS if self.storage == "tiled" else 1)

    @property
    def row_bytes(self) -> int:
        """Packed bytes of a row, over all planes."""
        return sum(span.row_stride for span in self.placed.spans)

    @property
    def weight_bytes(self) -> int:
        """Packed bytes of the matrix: the least that must be read."""
        return self.shape.rows * self.row_bytes

    def __str__(self) -> str:
        activation = f" x {self.activation}" if self.activation else ""
        return f"{self.format.name}{activation} {self.shape}, T = {self.tokens}"


@dataclass(frozen=True)
class Skipped:
    """A format, or a format at a shape, that is not measured, and why."""

    what: str
    reason: str


def parse_shape(text: str) -> Shape:
    """ "14336x4096" -> N = 14336, K = 4096. Raises QgenError for anything else."""
    found = _SHAPE.fullmatch(text.lower())
    shape = Shape(int(found[1]), int(found[2])) if found else Shape(0, 0)
    if not (1 <= shape.rows <= _INT32 and 1 <= shape.columns <= _INT32):
        raise QgenError(
            stage="bench",
            subject="--shape",
            found=repr(text),
            allowed=f"NxK, rows by columns, each from 1 to {_INT32}",
            next="write it like 14336x4096",
        )
    return shape


def choose_formats(wanted: Sequence[str], formats: Mapping[str, Format], plans: Iterable[Plan]) -> list[Format]:
    """The formats named (any case), or all that have kernels. Raises QgenError for a name without kernels."""
    served = {plan.format for plan in plans if isinstance(plan, MatvecPlan | KsplitPlan | FloatKsplitPlan)}
    if not wanted:
        return [format for name, format in formats.items() if name in served]
    chosen = []
    for name in dict.fromkeys(name.upper() for name in wanted):
        if name not in served:
            near = difflib.get_close_matches(name, served, n=1)
            found = "a format without kernels" if name in formats else "no such format"
            raise QgenError(
                stage="bench",
                subject=f"--format {name}",
                found=found + (f" (did you mean {near[0]}?)" if near and name not in formats else ""),
                allowed=", ".join(sorted(served)),
                next="run `qgen formats` for the reason a format has none",
            )
        chosen.append(formats[name])
    return chosen


def cases(
    formats: Iterable[Format],
    shapes: Sequence[Shape],
    tokens: Sequence[int] = (1,),
    activation: str = "",
    storage: str = "native",
) -> tuple[list[Case], list[Skipped]]:
    """Every format at every shape and token count, format by format; those whose block does not divide K are named."""
    found: list[Case] = []
    skipped: list[Skipped] = []
    for format in formats:
        for shape in shapes:
            quotient, rest = divmod(shape.columns, format.block)
            if rest:
                reason = f"K = {shape.columns} = {quotient} x {format.block} + {rest}: not whole blocks"
                skipped.append(Skipped(f"{format.name} {shape}", reason))
            else:
                found += [Case(format, shape, count, activation, storage) for count in tokens]
    return found, skipped
