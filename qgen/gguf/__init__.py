"""A strict reader of GGUF files: versions 2 and 3, little endian, memory-mapped.

Nothing in the file is believed before it is checked against the file's size, and a tensor's bytes stay on disk
until somebody looks at them. Type numbers that qgen has no format for are read all the same and named in messages.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qgen.errors import QgenError
from qgen.gguf.types import OTHER_TYPE_NAMES, PLAIN_TYPES, TypeSize
from qgen.spec import Format, load_formats

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4

MetaValue: TypeAlias = "bool | int | float | str | NDArray[np.generic] | tuple[MetaValue, ...]"


# Numeric value types of the metadata, by number.
_NUMBERS: Mapping[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# The fewest bytes one value of a type can take, which bounds every count in the file by the file's size.
_MIN_BYTES: Mapping[int, int] = {
    **{kind: dtype.itemsize for kind, dtype in _NUMBERS.items()},
    _STRING: 8,
    _ARRAY: 4 + 8,
}
_MIN_KEY_VALUE = 8 + 4 + 1  # key, value type, value
_MIN_TENSOR_INFO = 8 + 4 + 4 + 8  # name, dimensions, type, offset

_FETCH_AGAIN = "compare the file's size and checksum with where it came from, and fetch it again"


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a file.

    shape:     extents, fastest first as in the file: (K, N, ...), each at least 1
    type_id:   the file's type number; type_name is None where qgen knows no name for it
    offset:    where the data begins, in bytes from the start of the file
    nbytes:    the data's size, or None for a type that qgen cannot size
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str | None
    offset: int
    nbytes: int | None
    _file: NDArray[np.uint8] = field(repr=False, compare=False)

    @property
    def type_label(self) -> str:
        """The type for messages: name and number, or the number alone where there is no name."""
        return f"{self.type_name or 'unknown'} (type {self.type_id})"

    @property
    def data(self) -> NDArray[np.uint8]:
        """The tensor's bytes, uint8[nbytes]: a read-only view into the mapped file, no copy.

        Raises QgenError for a type that qgen cannot size.
        """
        if self.nbytes is None:
            raise QgenError(
                stage="gguf",
                subject=f"tensor {self.name!r}",
                found=f"type {self.type_label}, of a size that qgen does not know",
                allowed="a tensor of a type with a format file, or a plain number type",
                next="run `qgen formats` for the types with a format file",
            )
        return self._file[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True)
class GgufFile:
    """A parsed file: metadata by key, tensors by name, both in file order."""

    path: Path
    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, MetaValue] = field(repr=False)
    tensors: Mapping[str, GgufTensor] = field(repr=False)


def sizes_of(formats: Iterable[Format]) -> dict[int, TypeSize]:
    """What `read` has to know of the formats that have a type number, by that number."""
    return {f.id: TypeSize(name=f.name, block=f.block, bytes=f.bytes) for f in formats if f.id is not None}


def read(path: str | os.PathLike[str], sizes: Mapping[int, TypeSize] | None = None) -> GgufFile:
    """Map a GGUF file and parse its header.

    sizes: quantised types by number; left out, those of qgen's own format files.
    Raises QgenError (stage "gguf") for anything that is not a whole, well-formed file.
    """
    where = Path(path)
    known = {**PLAIN_TYPES, **(sizes_of(load_formats().values()) if sizes is None else sizes)}
    return _Parser(path=where, data=_map(where), sizes=known).parse()


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise QgenError(
                stage="gguf",
                subject=str(path),
                found="a directory" if stat.S_ISDIR(info.st_mode) else "something that is not a regular file",
                allowed="a GGUF file",
                next="give the path of the .gguf file itself",
            )
        if info.st_size == 0:
            raise QgenError(
                stage="gguf", subject=str(path), found="an empty file", allowed="a GGUF file", next=_FETCH_AGAIN
            )
        return np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        # ValueError: the path holds a null byte, or the file was cut to nothing between stat and mmap.
        raise QgenError(
            stage="gguf",
            subject=str(path),
            found=f"cannot be opened: {error}",
            allowed="a GGUF file that this user can read",
            next="check the path and the file's permissions",
        ) from error


class _TensorInfo(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type_id: int
    relative: int


class _Parser:
    """Walks the header once, from byte 0; `_at` is the next unread byte."""

    def __init__(self, *, path: Path, data: NDArray[np.uint8], sizes: Mapping[int, TypeSize]) -> None:
        self._path = path
        self._data = data
        self._bytes = data.data
        self._sizes = sizes
        self._at = 0

    def parse(self) -> GgufFile:
        version = self._version()
        tensor_count = self._count(what="tensors", at_least=_MIN_TENSOR_INFO, ahead=8)
        metadata = self._metadata(self._count(what="metadata keys", at_least=_MIN_KEY_VALUE, ahead=0))
        infos = [self._tensor_info(index, tensor_count) for index in range(tensor_count)]
        alignment = self._alignment(metadata)
        data_offset = -(-self._at // alignment) * alignment
        return GgufFile(
            path=self._path,
            version=version,
            alignment=alignment,
            data_offset=data_offset,
            metadata=metadata,
            tensors=self._tensors(infos, data_offset=data_offset, alignment=alignment),
        )

    # ---- refusals ------------------------------------------------------------------------------------------

    def _error(self, *, what: str, found: str, allowed: str, next: str = _FETCH_AGAIN) -> QgenError:
        return QgenError(stage="gguf", subject=f"{self._path}: {what}", found=found, allowed=allowed, next=next)

    def _take(self, size: int, what: str) -> memoryview:
        """The next `size` bytes, which the file must have: nothing is allocated by a length that was only claimed."""
        end = self._at + size
        if end > len(self._bytes):
            raise self._error(
                what=what,
                found=f"{size} bytes from byte {self._at} end at {end}, and the file has {len(self._bytes)} bytes",
                allowed="a file that is not cut short",
            )
        piece = self._bytes[self._at : end]
        self._at = end
        return piece

    def _unsigned(self, size: int, what: str) -> int:
        return int.from_bytes(self._take(size, what), "little")

    def _count(self, *, what: str, at_least: int, ahead: int) -> int:
        count = self._unsigned(8, f"number of {what}")
        room = (len(self._bytes) - self._at - ahead) // at_least
        if count > room:
            raise self._error(
                what=f"number of {what}",
                found=f"{count}, at {at_least} bytes or more each, in a file of {len(self._bytes)} bytes",
                allowed=f"at most {max(room, 0)}",
            )
        return count

    # ---- header --------------------------------------------------------------------------------------------

    def _version(self) -> int:
        magic = bytes(self._take(min(4, len(self._bytes)), "magic"))
        if magic != MAGIC:
            raise self._error(
                what="magic",
                found=f"{magic!r}" + (" (a byte-swapped, big-endian file)" if magic == MAGIC[::-1] else ""),
                allowed=f"{MAGIC!r}, the first four bytes of a GGUF file",
                next="give a .gguf file; other model files have to be converted to GGUF first",
            )
        version = self._unsigned(4, "version")
        if version and version & 0xFFFF == 0:
            raise self._error(
                what="version",
                found=f"0x{version:08x}: a big-endian file",
                allowed="a little-endian file",
                next="convert it with `gguf-convert-endian FILE little` from the Python package gguf",
            )
        if version not in VERSIONS:
            raise self._error(
                what="version",
                found=f"{version}",
                allowed=" or ".join(str(v) for v in VERSIONS),
                next="write the file anew with a current converter",
            )
        return version

    def _string_bytes(self, what: str) -> memoryview:
        return self._take(self._unsigned(8, f"length of {what}"), what)

    def _name(self, what: str) -> str:
        raw = bytes(self._string_bytes(what))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(what=what, found=f"{raw[:40]!r}: {error.reason}", allowed="UTF-8 text") from error

    def _metadata(self, count: int) -> dict[str, MetaValue]:
        metadata: dict[str, MetaValue] = {}
        for index in range(count):
            key = self._name(f"metadata key {index + 1} of {count}")
            if key in metadata:
                raise self._error(what=f"metadata key {key!r}", found="given twice", allowed="each key once")
            metadata[key] = self._value(self._unsigned(4, f"type of {key!r}"), what=f"value of {key!r}", depth=0)
        return metadata

    def _value(self, kind: int, *, what: str, depth: int) -> MetaValue:
        if kind in _NUMBERS:
            return self._numbers(kind, 1, what)[0].item()  # type: ignore[no-any-return]
        if kind == _STRING:
            # Vocabularies hold tokens that are not UTF-8 by themselves; their bytes must survive.
            return str(self._string_bytes(what), "utf-8", "surrogateescape")
        if kind == _ARRAY:
            return self._array(what=what, depth=depth + 1)
        raise self._error(what=what, found=f"value type {kind}", allowed="0 to 12")

    def _array(self, *, what: str, depth: int) -> MetaValue:
        if depth > MAX_ARRAY_DEPTH:
            raise self._error(
                what=what, found=f"arrays nested more than {depth - 1} deep", allowed=f"at most {MAX_ARRAY_DEPTH}"
            )
        kind = self._unsigned(4, f"element type of {what}")
        if kind not in _MIN_BYTES:
            raise self._error(what=what, found=f"array element type {kind}", allowed="0 to 12")
        count = self._count(what=f"elements of {what}", at_least=_MIN_BYTES[kind], ahead=0)
        if kind in _NUMBERS:
            return self._numbers(kind, count, what)
        return tuple(self._value(kind, what=what, depth=depth) for _ in range(count))

    def _numbers(self, kind: int, count: int, what: str) -> NDArray[np.generic]:
        dtype = _NUMBERS[kind]
        values = np.frombuffer(self._take(dtype.itemsize * count, what), dtype=dtype)
        if kind != _BOOL:
            return values
        if count and int(values.max()) > 1:
            raise self._error(what=what, found=f"a truth value of {values.max()}", allowed="0 or 1")
        return values.astype(np.bool_)

    def _alignment(self, metadata: Mapping[str, MetaValue]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
            raise self._error(
                what="metadata key 'general.alignment'", found=f"{value!r}", allowed="a power of two, as an integer"
            )
        return value

    # ---- tensors -------------------------------------------------------------------------------------------

    def _tensor_info(self, index: int, count: int) -> _TensorInfo:
        name = self._name(f"name of tensor {index + 1} of {count}")
        what = f"tensor {name!r}"
        dimensions = self._unsigned(4, f"dimensions of {what}")
        if dimensions > MAX_DIMENSIONS:
            raise self._error(what=what, found=f"{dimensions} dimensions", allowed=f"at most {MAX_DIMENSIONS}")
        shape = tuple(self._unsigned(8, f"extents of {what}") for _ in range(dimensions))
        if 0 in shape:
            raise self._error(what=what, found=f"extents {list(shape)}", allowed="every extent at least 1")
        return _TensorInfo(
            name=name,
            shape=shape,
            type_id=self._unsigned(4, f"type of {what}"),
            relative=self._unsigned(8, f"offset of {what}"),
        )

    def _tensors(self, infos: list[_TensorInfo], *, data_offset: int, alignment: int) -> dict[str, GgufTensor]:
        tensors: dict[str, GgufTensor] = {}
        for info in infos:
            what = f"tensor {info.name!r}"
            if info.name in tensors:
                raise self._error(what=what, found="given twice", allowed="each name once")
            if info.relative % alignment:
                raise self._error(
                    what=what,
                    found=f"data offset {info.relative} = {info.relative // alignment} x {alignment} "
                    f"+ {info.relative % alignment}",
                    allowed=f"a multiple of the file's alignment, {alignment}",
                )
            size = self._sizes.get(info.type_id)
            nbytes = None if size is None else self._size_of(info, size)
            begin = data_offset + info.relative
            end = begin + (1 if nbytes is None else nbytes)
            if end > len(self._bytes):
                raise self._error(
                    what=what,
                    found=f"data from byte {begin} to {end}, and the file has {len(self._bytes)} bytes",
                    allowed="data that lies inside the file",
                )
            tensors[info.name] = GgufTensor(
                name=info.name,
                shape=info.shape,
                type_id=info.type_id,
                type_name=OTHER_TYPE_NAMES.get(info.type_id) if size is None else size.name,
                offset=begin,
                nbytes=nbytes,
                _file=self._data,
            )
        self._check_packed(list(tensors.values()), alignment)
        return tensors

    def _size_of(self, info: _TensorInfo, size: TypeSize) -> int:
        columns = info.shape[0] if info.shape else 1
        if columns % size.block:
            raise self._error(
                what=f"tensor {info.name!r}",
                found=f"K = {columns} = {columns // size.block} x {size.block} + {columns % size.block}",
                allowed=f"a multiple of {size.block}, the block of {size.name}",
                next="quantise this tensor to a type whose block divides K",
            )
        elements = 1
        for extent in info.shape:
            elements *= extent
        return elements // size.block * size.bytes

    def _check_packed(self, tensors: list[GgufTensor], alignment: int) -> None:
        """Neighbours in the data section must meet exactly, padding aside: a gap or an overlap is a wrong size."""
        ordered = sorted(tensors, key=lambda t: t.offset)
        for tensor, follower in zip(ordered, ordered[1:], strict=False):
            room = follower.offset - tensor.offset
            needed = 1 if tensor.nbytes is None else tensor.nbytes
            if room < needed or (tensor.nbytes is not None and room >= needed + alignment):
                raise self._error(
                    what=f"tensor {tensor.name!r}",
                    found=f"{tensor.type_label} of extents {list(tensor.shape)} takes {needed} bytes, "
                    f"and {follower.name!r} begins {room} bytes after it begins",
                    allowed=f"{needed} to {needed + alignment - 1} bytes up to the next tensor"
                    if tensor.nbytes is not None
                    else "tensors that do not overlap",
                )
