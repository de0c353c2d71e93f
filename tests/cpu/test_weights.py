"""Weight records and the matrices of a file: what fits, what is refused, and that bytes stay mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import FileSpec, TensorSpec, write

import qgen
from qgen.errors import QgenError
from qgen.spec import load_formats
from qgen.weights import Model, Weight

Q4_K_ROW = 3 * 144


def q4_k(data: Any = None, **changes: Any) -> Weight:
    given = {"format": "Q4_K", "rows": 4, "columns": 768, **changes}
    return Weight.of(given.pop("format"), np.zeros(4 * Q4_K_ROW, np.uint8) if data is None else data, **given)


def test_a_weight_knows_its_sizes() -> None:
    packed, padded = q4_k(), q4_k(np.zeros(4 * 448, np.uint8), row_stride_bytes=448)
    assert (packed.row_bytes, packed.row_stride_bytes, packed.nbytes) == (Q4_K_ROW, Q4_K_ROW, 4 * Q4_K_ROW)
    assert (padded.row_bytes, padded.row_stride_bytes, padded.nbytes) == (Q4_K_ROW, 448, 3 * 448 + Q4_K_ROW)
    assert packed.on_host and packed.format is not None and packed.format.name == "Q4_K"
    # The last row needs no padding behind it.
    assert q4_k(np.zeros(padded.nbytes, np.uint8), row_stride_bytes=448).nbytes == padded.nbytes


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown format": ({"format": "Q4_Q"}, "'Q4_Q'"),
    "stride of planes": ({"format": "Q4G64_F16S", "row_stride_bytes": 416}, "408: the rows of a plane lie back"),
    "planes too short": ({"format": "Q4G64_F16S", "data": np.zeros(1631, np.uint8)}, "at least 1632 = the end of"),
    "fewer rows than none": ({"rows": -1}, "-1 rows"),
    "no columns": ({"columns": 0}, "of 0"),
    "K not a multiple": ({"columns": 640}, "640 = 2 x 256 + 128"),
    "stride below the row": ({"row_stride_bytes": Q4_K_ROW - 16}, "at least 432 = 768 / 256 x 144"),
    "stride misaligned": ({"row_stride_bytes": Q4_K_ROW + 8}, "a multiple of 16"),
    "too few bytes": ({"data": np.zeros(4 * Q4_K_ROW - 1, np.uint8)}, f"at least {4 * Q4_K_ROW} = 3 x 432 + 432"),
    "not bytes": ({"data": np.zeros(4 * Q4_K_ROW, np.int8)}, "dtype int8"),
    "strided bytes": ({"data": np.zeros((4 * Q4_K_ROW, 2), np.uint8)[:, 1]}, "strides"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    changes, text = REFUSED[case]
    with pytest.raises(QgenError) as caught:
        q4_k(**changes)
    assert caught.value.stage == "weight" and text in str(caught.value)


def test_two_byte_formats_take_two_byte_strides() -> None:
    assert Weight.of("Q8_0", np.zeros(200, np.uint8), rows=2, columns=64, row_stride_bytes=70).row_stride_bytes == 70
    assert Weight.of("MXFP4", np.zeros(200, np.uint8), rows=2, columns=64, row_stride_bytes=35).row_stride_bytes == 35


@pytest.fixture
def model(tmp_path: Path) -> Model:
    ids = {name: f.id for name, f in load_formats().items() if f.id is not None}
    spec = FileSpec(
        tensors=[
            TensorSpec("blk.0.ffn_up.weight", [256, 3], ids["Q4_K"], bytes(range(144)) * 3),
            TensorSpec("norm.weight", [256], 0, bytes(1024)),
            TensorSpec("embedding.weight", [8, 4], 1, bytes(64)),
            TensorSpec("experts.weight", [32, 2, 3], ids["Q8_0"], bytes(34 * 6)),
            TensorSpec("one.weight", [32, 2, 1, 1], ids["Q8_0"], bytes(34 * 2)),
            TensorSpec("bias.quantised", [32], ids["Q8_0"], bytes(34)),
            TensorSpec("future.weight", [32, 2], 4242, bytes(64)),
        ]
    )
    return qgen.load(write(tmp_path / "m.gguf", spec))


def test_load_gives_the_matrices_mapped(model: Model) -> None:
    assert list(model) == ["blk.0.ffn_up.weight", "one.weight"] and len(model) == 2
    weight = model["blk.0.ffn_up.weight"]
    assert (weight.format.name, weight.rows, weight.columns, weight.name) == ("Q4_K", 3, 256, "blk.0.ffn_up.weight")
    assert isinstance(weight.data, np.memmap) and weight.data.tobytes() == bytes(range(144)) * 3
    assert np.shares_memory(weight.data, model.file.tensors[weight.name].data)
    assert model["blk.0.ffn_up.weight"] is weight
    assert (model["one.weight"].rows, "one.weight" in model, "norm.weight" in model) == (2, True, False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("norm.weight", "1-dimensional, F32"),
        ("embedding.weight", "not quantised: F16"),
        ("experts.weight", "a stack of 3 matrices"),
        ("bias.quantised", "1-dimensional, Q8_0"),
        ("future.weight", "no format file for unknown (type 4242)"),
        ("blk.0.ffn_up.weigth", "near it: blk.0.ffn_up.weight"),
        ("zzz", "no tensor 'zzz'"),
    ],
)
def test_other_tensors_are_refused_with_the_reason(model: Model, name: str, text: str) -> None:
    with pytest.raises(QgenError) as caught:
        model[name]
    assert text in caught.value.found


def test_load_refuses_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(QgenError, match="No such file"):
        qgen.load(tmp_path / "absent.gguf")


def test_the_real_model_has_its_matrices(gemma_path: Path) -> None:
    model = qgen.load(gemma_path)
    assert len(model) == 127
    head = model["token_embd.weight"]
    assert (head.format.name, head.rows, head.columns, head.nbytes) == ("Q8_0", 262144, 640, 262144 * 20 * 34)
    assert {model[name].format.name for name in model} == {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}
