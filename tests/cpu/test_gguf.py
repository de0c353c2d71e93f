"""The GGUF reader: right on whole files, held against the gguf package; one clear error on everything else."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import gguf as reference
import numpy as np
import pytest
from gguf_files import FileSpec, TensorSpec, file_bytes, key_value, string, value_bytes, write

from qgen import gguf
from qgen.errors import QgenError
from qgen.gguf.types import OTHER_TYPE_NAMES, PLAIN_TYPES, TypeSize
from qgen.spec import load_formats

SIZES = {
    8: TypeSize(name="Q8_0", block=32, bytes=34),
    12: TypeSize(name="Q4_K", block=256, bytes=144),
    34: TypeSize(name="TQ1_0", block=256, bytes=54),
    142: TypeSize(name="PQ2_0", block=128, bytes=34),
}

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.int": 7,
    "a.negative": -7,
    "a.float": 0.5,
    "a.strings": ["one", "", "drei"],
    "a.numbers": [1, 2, 3],
    "a.bools": [True, False],
    "a.nested": [[1, 2], [3]],
}


def small_spec() -> FileSpec:
    """Two quantised matrices, a norm, and one tensor of a number nobody knows."""
    return FileSpec(
        metadata=METADATA,  # type: ignore[arg-type]
        tensors=[
            TensorSpec("w.q8", [64, 3], 8, bytes(range(204))),
            TensorSpec("norm", [5], 0, struct.pack("<5f", *range(5))),
            TensorSpec("w.tq1", [256, 2], 34, bytes(range(108))),
            TensorSpec("strange", [40], 4242, bytes(9)),
            TensorSpec("last", [128, 1], 142, bytes(range(34))),
        ],
    )


def refused(path: Path) -> QgenError:
    with pytest.raises(QgenError) as caught:
        gguf.read(path, SIZES)
    assert caught.value.stage == "gguf"
    assert str(path) in caught.value.subject
    assert caught.value.found and caught.value.allowed and caught.value.next
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_reads_everything_back(tmp_path: Path, version: int, alignment: int) -> None:
    spec = dataclasses.replace(small_spec(), version=version, alignment=alignment)
    file = gguf.read(write(tmp_path / "m.gguf", spec), SIZES)
    assert (file.version, file.alignment, file.data_offset % alignment) == (version, alignment, 0)
    for key in ("general.architecture", "a.bool", "a.int", "a.negative", "a.float"):
        assert file.metadata[key] == METADATA[key]
        assert type(file.metadata[key]) is type(METADATA[key])
    assert file.metadata["a.strings"] == ("one", "", "drei")
    numbers, bools, nested = (file.metadata[f"a.{key}"] for key in ("numbers", "bools", "nested"))
    assert isinstance(numbers, np.ndarray) and numbers.tolist() == [1, 2, 3]
    assert isinstance(bools, np.ndarray) and bools.dtype == np.bool_ and bools.tolist() == [True, False]
    assert isinstance(nested, tuple) and [list(row) for row in nested] == [[1, 2], [3]]  # type: ignore[arg-type]
    assert list(file.tensors) == [t.name for t in spec.tensors]
    for wanted in spec.tensors:
        tensor = file.tensors[wanted.name]
        assert (tensor.name, tensor.shape, tensor.type_id) == (wanted.name, tuple(wanted.shape), wanted.type_id)
        if wanted.type_id in SIZES or wanted.type_id == 0:
            assert tensor.data.tobytes() == wanted.data
            assert tensor.nbytes == len(wanted.data)
            assert not tensor.data.flags.writeable


def test_unknown_type_is_read_and_its_data_refused(tmp_path: Path) -> None:
    tensor = gguf.read(write(tmp_path / "m.gguf", small_spec()), SIZES).tensors["strange"]
    assert (tensor.type_name, tensor.nbytes, tensor.type_label) == (None, None, "unknown (type 4242)")
    with pytest.raises(QgenError, match="4242"):
        _ = tensor.data


def test_data_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    file = gguf.read(write(tmp_path / "m.gguf", small_spec()), SIZES)
    first, last = file.tensors["w.q8"].data, file.tensors["last"].data
    assert isinstance(first, np.memmap) and np.shares_memory(first, file.tensors["w.q8"].data)
    assert last.ctypes.data - first.ctypes.data == file.tensors["last"].offset - file.tensors["w.q8"].offset


def test_value_that_is_not_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    body = struct.pack("<IQ", 8, 1) + string(b"\xff\xfetoken")
    blob = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key_value("tokens", 9, body)
    (tmp_path / "m.gguf").write_bytes(blob)
    tokens = gguf.read(tmp_path / "m.gguf", SIZES).metadata["tokens"]
    assert isinstance(tokens, tuple) and len(tokens) == 1
    token = tokens[0]
    assert isinstance(token, str) and token.encode("utf-8", "surrogateescape") == b"\xff\xfetoken"


def test_format_files_size_the_types(tmp_path: Path) -> None:
    data = bytes(2 * 144)
    file = gguf.read(write(tmp_path / "m.gguf", FileSpec(tensors=[TensorSpec("w", [256, 2], 12, data)])))
    assert (file.tensors["w"].type_name, file.tensors["w"].nbytes) == ("Q4_K", len(data))
    named = gguf.sizes_of(load_formats().values())
    assert not set(named) & (set(PLAIN_TYPES) | set(OTHER_TYPE_NAMES))


def test_type_names_agree_with_the_gguf_package() -> None:
    ours = {**PLAIN_TYPES, **gguf.sizes_of(load_formats().values())}
    for kind in reference.GGMLQuantizationType:
        name = ours[kind].name if kind in ours else OTHER_TYPE_NAMES[kind]
        assert name.split(",")[0] == kind.name
        if kind in ours:
            assert (ours[kind].block, ours[kind].bytes) == reference.GGML_QUANT_SIZES[kind]


def test_real_model_agrees_with_the_gguf_package(gemma_path: Path) -> None:
    theirs = reference.GGUFReader(gemma_path)
    ours = gguf.read(gemma_path)
    assert (ours.data_offset, ours.alignment) == (theirs.data_offset, theirs.alignment)
    assert len(ours.tensors) == len(theirs.tensors) == 236
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(extent) for extent in tensor.shape)
        assert (mine.type_id, mine.type_name) == (int(tensor.tensor_type), tensor.tensor_type.name)
        assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
        ends = np.r_[0 : min(4096, tensor.n_bytes), max(0, tensor.n_bytes - 4096) : tensor.n_bytes]
        np.testing.assert_array_equal(mine.data[ends], tensor.data.reshape(-1).view(np.uint8)[ends])
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert keys == list(ours.metadata)
    for key in keys:
        value, wanted = ours.metadata[key], theirs.fields[key].contents()
        if isinstance(wanted, list):
            assert isinstance(value, (tuple, np.ndarray))
            assert list(value) == wanted
        else:
            assert value == wanted


# ---- refusals -------------------------------------------------------------------------------------------------


def test_missing_empty_directory_and_foreign_files(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.gguf").found
    assert "directory" in refused(tmp_path).found
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert "empty" in refused(tmp_path / "empty.gguf").found
    for content in (b"G", b"\x80\x02}q\x00", b"PK\x03\x04" + bytes(100), bytes(4096)):
        (tmp_path / "other").write_bytes(content)
        assert "b'GGUF'" in refused(tmp_path / "other").allowed


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def info(name: str = "w", shape: tuple[int, ...] = (256, 2), kind: int = 12, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def pad(blob: bytes, data: int = 0) -> bytes:
    return blob + bytes(-len(blob) % 32 + data)


HUGE = 2**64 - 1
BROKEN: dict[str, tuple[bytes, str]] = {
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "swapped magic": (b"FUGG" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 0": (header(version=0), "found:   0"),
    "version 1": (header(version=1), "found:   1"),
    "version 4": (header(version=4), "found:   4"),
    "too many tensors": (header(tensors=HUGE), str(HUGE)),
    "too many keys": (header(keys=2**40), str(2**40)),
    "key longer than file": (header(keys=1) + struct.pack("<Q", HUGE) + bytes(64), "metadata key 1 of 1"),
    "key not text": (header(keys=1) + string(b"\xff\xff") + bytes(64), "UTF-8"),
    "same key twice": (header(keys=2) + key_value("k", 4, bytes(4)) * 2, "'k'"),
    "unknown value type": (header(keys=1) + key_value("k", 13, bytes(64)), "value type 13"),
    "unknown element type": (header(keys=1) + key_value("k", 9, struct.pack("<IQ", 13, 1) + bytes(9)), "type 13"),
    "truth value 2": (header(keys=1) + key_value("k", 7, b"\x02"), "truth value of 2"),
    "long array": (header(keys=1) + key_value("k", 9, struct.pack("<IQ", 0, 2**62) + bytes(64)), str(2**62)),
    "long array of strings": (header(keys=1) + key_value("k", 9, struct.pack("<IQ", 8, 9) + bytes(64)), "found:   9,"),
    "deep array": (header(keys=1) + key_value("k", 9, struct.pack("<IQ", 9, 1) * 500 + bytes(64)), "nested"),
    "alignment 0": (header(keys=1) + key_value("general.alignment", 4, bytes(4)), "found:   0"),
    "alignment 24": (header(keys=1) + key_value("general.alignment", 4, struct.pack("<I", 24)), "found:   24"),
    "alignment of text": (header(keys=1) + key_value("general.alignment", 8, string("32")), "'32'"),
    "alignment of truth": (header(keys=1) + key_value("general.alignment", 7, b"\x01"), "found:   True"),
    "five dimensions": (pad(header(tensors=1) + info(shape=(256, 1, 1, 1, 1)), 144), "5 dimensions"),
    "no elements": (pad(header(tensors=1) + info(shape=(256, 0)), 144), "[256, 0]"),
    "K not a multiple": (pad(header(tensors=1) + info(shape=(640, 2)), 999), "K = 640 = 2 x 256 + 128"),
    "name not text": (pad(header(tensors=1) + string(b"\xc0") + info()[9:], 288), "UTF-8"),
    "offset misaligned": (pad(header(tensors=1) + info(offset=48), 999), "48 = 1 x 32 + 16"),
    "offset past the end": (pad(header(tensors=1) + info(offset=2**63), 288), "inside the file"),
    "more rows than data": (pad(header(tensors=1) + info(shape=(256, 2**50)), 288), "inside the file"),
    "no byte of an unknown type": (pad(header(tensors=1) + info(kind=99)), "inside the file"),
    "name twice": (pad(header(tensors=2) + info() + info(offset=288), 576), "given twice"),
    "overlap": (pad(header(tensors=2) + info() + info(name="v", offset=256), 576), "begins 256 bytes after"),
    "overlap of unknown types": (pad(header(tensors=2) + info(kind=99) + info(name="v", kind=99), 576), "overlap"),
    "gap": (pad(header(tensors=2) + info() + info(name="v", offset=320), 640), "begins 320 bytes after"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused(tmp_path: Path, case: str) -> None:
    blob, wanted = BROKEN[case]
    (tmp_path / "m.gguf").write_bytes(blob)
    assert wanted in str(refused(tmp_path / "m.gguf"))


def test_truncated_at_every_byte_is_refused(tmp_path: Path) -> None:
    blob = file_bytes(small_spec())
    last = len(blob) - (-34 % 32)  # the padding after the last tensor may be missing
    path = tmp_path / "m.gguf"
    path.write_bytes(blob[:last])
    assert gguf.read(path, SIZES).tensors["last"].data.tobytes() == bytes(range(34))
    for size in range(last):
        path.write_bytes(blob[:size])
        refused(path)


def test_flipped_bytes_give_a_file_or_a_clear_error(tmp_path: Path) -> None:
    """Only QgenError may come out; what is still read as a file must lie inside it."""
    blob = file_bytes(small_spec())
    header_bytes = gguf.read(write(tmp_path / "m.gguf", small_spec()), SIZES).data_offset
    rng = np.random.default_rng(20)
    path, outcomes = tmp_path / "m.gguf", [0, 0]
    for trial in range(3000):
        broken = bytearray(blob)
        for _ in range(1 + trial % 4):
            broken[int(rng.integers(header_bytes))] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
        path.write_bytes(broken)
        try:
            file = gguf.read(path, SIZES)
        except QgenError as error:
            assert error.stage == "gguf", f"trial {trial}"
            assert str(error)
            outcomes[0] += 1
            continue
        outcomes[1] += 1
        for tensor in file.tensors.values():
            if tensor.nbytes is not None:
                assert tensor.data.size == tensor.nbytes, f"trial {trial}: {tensor}"
    assert min(outcomes) > 250, f"the flips no longer reach both outcomes: {outcomes}"


def test_every_length_field_survives_extreme_values(tmp_path: Path) -> None:
    """Eight bytes of every pattern at every position: each count and each length of the header is hit."""
    blob = file_bytes(small_spec())
    path = tmp_path / "m.gguf"
    for at in range(4, len(blob) - 8):
        for value in (2**63, 2**31, HUGE):
            path.write_bytes(blob[:at] + struct.pack("<Q", value) + blob[at + 8 :])
            try:
                gguf.read(path, SIZES)
            except QgenError as error:
                assert error.stage == "gguf"


def test_helper_writes_what_the_gguf_package_reads(tmp_path: Path) -> None:
    spec = small_spec()
    known = [tensor for tensor in spec.tensors if tensor.type_id in (0, 8, 34)]
    path = write(tmp_path / "m.gguf", dataclasses.replace(spec, tensors=known))
    theirs = reference.GGUFReader(path)
    assert {t.name: t.data.tobytes() for t in theirs.tensors} == {t.name: bytes(t.data) for t in known}
    assert theirs.fields["a.int"].contents() == 7 and value_bytes(7)[0] == 4
