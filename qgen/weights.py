"""Weight matrices: the record every kernel call takes, and the quantised matrices of a GGUF file as such records."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import gguf, layout
from qgen.errors import QgenError
from qgen.gguf import GgufFile, GgufTensor
from qgen.gguf.types import PLAIN_TYPES
from qgen.plan import TILE_ROWS, TileLayout, plan_tile
from qgen.spec import Format, load_formats

STORAGES = ("native", "tiled")


@dataclass(frozen=True, eq=False, kw_only=True)
class Weight:
    """A quantised matrix of `rows` (N, output features) by `columns` (K, input features).

    storage:          "native", as in the file, or "tiled": the same bytes interleaved over sixteen rows, as
                      `qgen.repack` makes them, for formats that have such a layout (see qgen.plan.tile)
    row_stride_bytes: from one row to the next; of a format stored in planes, the bytes of a row over all of them; of
                      tiles, the bytes of a row's blocks. Both with the blocks that fill up a row of planes
    data:             uint8, C-contiguous, row 0 at its first byte, at least (rows - 1) * row_stride_bytes plus one
                      row; planes one after the other, each from a multiple of the format's plane_align, rows filled up
                      to whole multiples of its k_pad columns; tiles whole, the last ones with their zero rows. A NumPy
                      array (mapped or in memory) or anything on a device with __cuda_array_interface__ or __dlpack__,
                      which is checked when a kernel first takes it.
    Raises QgenError (stage "weight") when these do not fit together.
    """

    format: Format
    rows: int
    columns: int
    row_stride_bytes: int
    data: Any = field(repr=False)
    name: str = "weight"
    storage: str = "native"

    @classmethod
    def of(
        cls,
        format: str | Format,
        data: Any,
        *,
        rows: int,
        columns: int,
        row_stride_bytes: int | None = None,
        name: str = "weight",
        storage: str = "native",
    ) -> Weight:
        """A Weight from a format's name: `Weight.of("Q4_K", data, rows=N, columns=K)`.

        data:             of a format stored in planes and in native storage, also {plane: uint8 array}, in host
                          memory; they are copied to one buffer
        row_stride_bytes: left out, rows lie back to back.
        """
        resolved = _format_named(format) if isinstance(format, str) else format
        if isinstance(data, Mapping):
            if storage == "tiled":
                raise QgenError(
                    stage="weight",
                    subject=name,
                    found=f"planes {', '.join(data)} for tiled storage",
                    allowed="one array of tiles",
                    next="take the planes as native storage, then qgen.repack(weight)",
                )
            data = _joined(resolved, data, rows, columns, name)
        return cls(
            format=resolved,
            rows=rows,
            columns=columns,
            row_stride_bytes=_row_bytes(resolved, columns) if row_stride_bytes is None else row_stride_bytes,
            data=data,
            name=name,
            storage=storage,
        )

    def __post_init__(self) -> None:
        if self.format.tensor_bytes:
            raise self._error(
                found=f"{self.format.name}, stored as blocks with metadata behind the last row",
                allowed="a format whose rows are whole blocks",
                next="only `qgen.codec.decode` takes this format so far",
            )
        if self.rows < 0 or self.columns < 1:
            raise self._error(
                found=f"{self.rows} rows of {self.columns}",
                allowed="0 rows or more (with 0, every product is empty), and at least one column",
            )
        quotient, rest = divmod(self.columns, self.format.block)
        if rest:
            raise self._error(
                found=f"K = {self.columns} = {quotient} x {self.format.block} + {rest}",
                allowed=f"a multiple of {self.format.block}, the block of {self.format.name}",
                next="quantise to a format whose block divides K",
            )
        self._check_storage()
        self._check_stride()
        if isinstance(self.data, np.ndarray):
            check_bytes(self, self.data)

    def _check_storage(self) -> None:
        if self.storage not in STORAGES:
            raise self._error(found=f"storage {self.storage!r}", allowed=" or ".join(map(repr, STORAGES)))
        if self.storage != "tiled":
            return
        try:
            tile_layout(self.format)
        except QgenError as reason:
            raise self._error(
                found=f"tiled storage of {self.format.name}: {reason.found}",
                allowed=f"native storage, or {reason.allowed}",
                next="keep the bytes as they are in the file: storage='native'",
            ) from reason
        if self.row_stride_bytes != self.row_bytes:
            raise self._error(
                found=f"a row stride of {self.row_stride_bytes} bytes",
                allowed=f"{self.row_bytes}: in tiles there is nothing between the rows",
            )

    def _check_stride(self) -> None:
        if self.format.split and self.row_stride_bytes != self.row_bytes:
            raise self._error(
                found=f"a row stride of {self.row_stride_bytes} bytes",
                allowed=f"{self.row_bytes}: the rows of a plane lie back to back",
            )
        if self.row_stride_bytes < self.row_bytes:
            raise self._error(
                found=f"a row stride of {self.row_stride_bytes} bytes",
                allowed=f"at least {self.row_bytes} = {self.columns} / {self.format.block} x {self.format.bytes}"
                + (f" + {self.format.row_bytes}" if self.format.row_bytes else ""),
            )
        if not self.format.split and self.row_stride_bytes % self.format.alignment:
            raise self._error(
                found=f"a row stride of {self.row_stride_bytes} bytes",
                allowed=f"a multiple of {self.format.alignment}, the alignment that {self.format.name} blocks have",
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without padding."""
        return _row_bytes(self.format, self.columns)

    @property
    def row_blocks(self) -> int:
        """Blocks of a row as it is stored: in planes, those that fill it up are counted."""
        return (self.row_bytes - self.format.row_bytes) // self.format.bytes

    @property
    def planes(self) -> tuple[layout.Span, ...]:
        """Where each plane lies in the data, and its rows; one for formats stored in blocks, none without rows.

        Raises QgenError for a weight in tiles, whose rows lie between each other.
        """
        self.check_native()
        if not self.rows:
            return ()
        if self.format.split:
            return layout.matrix(self.format, rows=self.rows, columns=self.columns).spans
        return (layout.Span("block", 0, self.row_stride_bytes, self.format.bytes),)

    @property
    def nbytes(self) -> int:
        """Bytes from the first row's first byte to the last row's last; of tiles, those of the zero rows too."""
        if self.storage == "tiled":
            return tile_layout(self.format).bytes(self.rows, self.columns // self.format.block)
        if self.format.split:
            return layout.matrix(self.format, rows=self.rows, columns=self.columns).total if self.rows else 0
        return (self.rows - 1) * self.row_stride_bytes + self.row_bytes if self.rows else 0

    @property
    def on_host(self) -> bool:
        """Whether the bytes are in host memory, or still in a mapped file."""
        return isinstance(self.data, np.ndarray)

    def check_native(self) -> None:
        """Raises QgenError for a weight whose bytes are not as in the file."""
        if self.storage != "native":
            raise self._error(
                found=f"{self.storage} storage",
                allowed="native storage: rows of whole blocks",
                next="repack it first: qgen.repack(weight, storage='native'), on a device qgen.run.repack",
            )

    def _error(self, *, found: str, allowed: str, next: str = "correct the arguments of qgen.Weight") -> QgenError:
        return QgenError(stage="weight", subject=self.name, found=found, allowed=allowed, next=next)


def check_bytes(weight: Weight, data: Any) -> None:
    """That an array (NumPy or CuPy) can hold the weight: uint8, C-contiguous, long enough. Raises QgenError."""

    def refuse(found: str, allowed: str, next: str = "pass the raw bytes of the blocks") -> QgenError:
        return QgenError(stage="weight", subject=weight.name, found=found, allowed=allowed, next=next)

    if data.dtype != np.uint8:
        raise refuse(f"data of dtype {data.dtype}", "uint8", "view it as bytes: data.view('uint8')")
    if not data.flags.c_contiguous:
        raise refuse(f"data of shape {data.shape} with strides {data.strides}", "C-contiguous data")
    if data.size < weight.nbytes:
        sum_of = f"{weight.rows - 1} x {weight.row_stride_bytes} + {weight.row_bytes}"
        if weight.storage == "tiled":
            sum_of = f"{-(-weight.rows // TILE_ROWS)} row tiles x {TILE_ROWS} rows x {weight.row_bytes}"
        elif weight.format.split:
            sum_of = "the end of the last plane; " + ", ".join(
                f"{span.plane} at {span.offset}: {weight.rows} x {span.row_stride}" for span in weight.planes
            )
        raise refuse(f"{data.size} bytes of data", f"at least {weight.nbytes} = {sum_of}")


def _row_bytes(format: Format, columns: int) -> int:
    """Bytes of one row without padding between rows; of planes, filled up to k_pad columns, all together."""
    padded = -(-columns // format.k_pad) * format.k_pad if format.split else columns
    return format.row_bytes + padded // format.block * format.bytes


def _joined(format: Format, planes: Mapping[str, Any], rows: int, columns: int, name: str) -> NDArray[np.uint8]:
    """The planes of a tensor in one buffer, as they lie in a file. Raises QgenError for planes that do not fit."""

    def refuse(found: str, allowed: str) -> QgenError:
        next = "pass every plane of the tensor as it was stored, uint8, rows filled up"
        return QgenError(stage="weight", subject=name, found=found, allowed=allowed, next=next)

    wanted = [plane.name for plane in format.planes]
    if not format.split or sorted(planes) != sorted(wanted):
        allowed = ", ".join(wanted) if format.split else f"one array: {format.name} is stored in blocks"
        raise refuse(f"planes {', '.join(planes) or 'none'}", allowed)
    if rows < 1 or columns < 1:
        return np.zeros(0, dtype=np.uint8)
    placed = layout.matrix(format, rows=rows, columns=columns)
    buffer = np.zeros(placed.total, dtype=np.uint8)
    for span in placed.spans:
        plane = planes[span.plane]
        if not isinstance(plane, np.ndarray) or plane.dtype != np.uint8:
            kind = f"dtype {plane.dtype}" if isinstance(plane, np.ndarray) else f"a {type(plane).__qualname__}"
            raise refuse(f"plane {span.plane}: {kind}", "NumPy arrays of uint8")
        nbytes = rows * span.row_stride
        if plane.size != nbytes:
            raise refuse(
                f"plane {span.plane}: {plane.size} bytes",
                f"{nbytes} = {rows} rows x {placed.blocks} blocks x {span.block_bytes} bytes",
            )
        buffer[span.offset : span.offset + nbytes] = plane.reshape(-1)
    return buffer


def _format_named(name: str) -> Format:
    formats = _formats()
    if name not in formats:
        raise QgenError(
            stage="weight",
            subject="format",
            found=f"{name!r}",
            allowed=", ".join(formats),
            next="run `qgen formats` for what each of them is",
        )
    return formats[name]


def not_a_matrix(tensor: GgufTensor, formats: Mapping[int, Format]) -> str | None:
    """Why a tensor of a file is no quantised matrix, in one line; None when it is one.

    formats: by type number, see `formats_by_id`.
    """
    if len(tensor.shape) < 2:
        return f"not a matrix: {len(tensor.shape)}-dimensional, {tensor.type_label}"
    stack = 1
    for extent in tensor.shape[2:]:
        stack *= extent
    if tensor.type_id in PLAIN_TYPES:
        return f"not quantised: {tensor.type_label}"
    if tensor.type_id not in formats:
        return f"no format file for {tensor.type_label}"
    if stack != 1:
        return f"a stack of {stack} matrices: mul_mat takes one matrix"
    return None


def formats_by_id() -> dict[int, Format]:
    """Every format that has a GGUF type number, by that number."""
    return {f.id: f for f in _formats().values() if f.id is not None}


# Read once a process: every weight asks for them.
_formats = cache(load_formats)


@cache
def tile_layout(format: Format) -> TileLayout:
    """Where the bytes of a format lie in tiled storage. Raises QgenError with the planner's reason without one."""
    return plan_tile(format)


class Model:
    """The quantised matrices of a GGUF file by tensor name. Their bytes stay in the mapped file until a kernel
    or the caller touches them; one name always gives the same Weight.

    Iterating, `len` and `in` cover the quantised matrices; `file` has everything else.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._formats = formats_by_id()
        self._weights: dict[str, Weight] = {}
        self._names = tuple(
            name for name, tensor in file.tensors.items() if not_a_matrix(tensor, self._formats) is None
        )

    def __getitem__(self, name: str) -> Weight:
        """The matrix called `name`. Raises QgenError when there is none, or when it is no quantised matrix."""
        if name not in self._weights:
            self._weights[name] = self._weight(name)
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def _weight(self, name: str) -> Weight:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            near = difflib.get_close_matches(name, self.file.tensors, n=3, cutoff=0.5)
            raise QgenError(
                stage="weight",
                subject=str(self.file.path),
                found=f"no tensor {name!r}" + (f"; near it: {', '.join(near)}" if near else ""),
                allowed=f"one of the {len(self.file.tensors)} tensors of the file",
                next=f"run `qgen verify {self.file.path}` for the list",
            )
        reason = not_a_matrix(tensor, self._formats)
        if reason is not None:
            raise QgenError(
                stage="weight",
                subject=f"{self.file.path}: tensor {name!r}",
                found=reason,
                allowed="a two-dimensional tensor of a type with a format file",
                next="run `qgen formats` for the types, `qgen verify` for the matrices of this file",
            )
        return Weight.of(
            self._formats[tensor.type_id], tensor.data, rows=tensor.shape[1], columns=tensor.shape[0], name=name
        )


def load(path: str | os.PathLike[str]) -> Model:
    """Map a GGUF file: `load("model.gguf")["blk.0.ffn_up.weight"]` is a Weight. Raises QgenError on a broken file."""
    return Model(gguf.read(path, gguf.sizes_of(_formats().values())))
