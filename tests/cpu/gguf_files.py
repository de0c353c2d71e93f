"""Writes small GGUF files for tests: any type number, any lie about a field, or an excerpt of a real model.

`PYTHONPATH=. python tests/cpu/gguf_files.py MODEL.gguf SMALL.gguf` writes the excerpt: one matrix of every type and
shape, as many rows of each as fit 16 MiB, for machines that the whole model cannot be carried to.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qgen.weights import load

Value = bool | int | float | str | list["Value"]


@dataclass
class TensorSpec:
    """One tensor to write; extents fastest first. `offset` overrides where the header says the data begins."""

    name: str
    shape: Sequence[int]
    type_id: int
    data: bytes
    offset: int | None = None


@dataclass
class FileSpec:
    """One file to write; `tensor_count` and `key_count` override the true counts."""

    tensors: Sequence[TensorSpec] = ()
    metadata: Mapping[str, Value] = field(default_factory=dict)
    version: int = 3
    alignment: int = 32
    tensor_count: int | None = None
    key_count: int | None = None
    magic: bytes = b"GGUF"


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value: Value) -> tuple[int, bytes]:
    """The value type number and the bytes: bool, uint32 (int64 where negative or large), float32, string, array."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if 0 <= value < 2**32 else (11, struct.pack("<q", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, string(value)
    parts = [value_bytes(entry) for entry in value]
    kind = parts[0][0] if parts else 4
    return 9, struct.pack("<IQ", kind, len(parts)) + b"".join(body for _, body in parts)


def key_value(key: str, kind: int, body: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + body


def file_bytes(spec: FileSpec) -> bytes:
    infos, data = b"", b""
    for tensor in spec.tensors:
        offset = len(data) if tensor.offset is None else tensor.offset
        dimensions = len(tensor.shape)
        infos += string(tensor.name) + struct.pack(f"<I{dimensions}Q", dimensions, *tensor.shape)
        infos += struct.pack("<IQ", tensor.type_id, offset)
        data += tensor.data + bytes(-len(tensor.data) % spec.alignment)
    metadata = dict(spec.metadata)
    if spec.alignment != 32:
        metadata["general.alignment"] = spec.alignment
    keys = b"".join(key_value(key, *value_bytes(value)) for key, value in metadata.items())
    counts = (
        len(spec.tensors) if spec.tensor_count is None else spec.tensor_count,
        len(metadata) if spec.key_count is None else spec.key_count,
    )
    header = spec.magic + struct.pack("<IQQ", spec.version, *counts) + keys + infos
    return header + bytes(-len(header) % spec.alignment) + data


def write(path: Path, spec: FileSpec) -> Path:
    path.write_bytes(file_bytes(spec))
    return path


def excerpt(source: Path, target: Path, limit: int = 16 << 20) -> Path:
    """The first matrix of every (type, N, K) of a model, cut to the rows that fit `limit` bytes each."""
    model = load(source)
    chosen: dict[tuple[int, tuple[int, ...]], TensorSpec] = {}
    for name in model:
        tensor, weight = model.file.tensors[name], model[name]
        rows = min(weight.rows, limit // weight.row_bytes)
        spec = TensorSpec(
            name, [weight.columns, rows], tensor.type_id, weight.data[: rows * weight.row_bytes].tobytes()
        )
        chosen.setdefault((tensor.type_id, tensor.shape), spec)
    return write(target, FileSpec(tensors=list(chosen.values())))


if __name__ == "__main__":
    excerpt(Path(sys.argv[1]), Path(sys.argv[2]))
