"""`qgen verify`: passes on what is right, and says what is wrong with what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy, install
from gguf_files import FileSpec, TensorSpec, excerpt, write

from qgen import codec, contract, verify
from qgen.emulated import EmulatedLadder, EmulatedMatvec
from qgen.errors import QgenError
from qgen.run import device as device_room
from qgen.spec import load_formats
from qgen.verify import bad_scales, sample_rows
from qgen.verify.verdict import row_bytes
from qgen.weights import Weight, load

FORMATS = load_formats()
KERNELLESS = "IQ2_XXS"


def tensor(name: str, format: str, columns: int, rows: int, seed: int = 1) -> TensorSpec:
    chosen = FORMATS[format]
    blocks = codec.random_blocks(chosen, rows * columns // chosen.block, seed)
    assert isinstance(blocks, np.ndarray) and chosen.id is not None
    return TensorSpec(name, [columns, rows], chosen.id, blocks.tobytes())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Every kind of tensor: two formats with kernels, one without, a norm, an unknown type."""
    tensors = [
        tensor("a.weight", "Q4_K", 256, 30),
        TensorSpec("norm.weight", [256], 0, bytes(1024)),
        tensor("b.weight", "PTQ1_0", 384, 7),
        tensor("grid.weight", KERNELLESS, 256, 2),
        TensorSpec("odd.weight", [32, 2], 4242, bytes(64)),
    ]
    return write(tmp_path / "small.gguf", FileSpec(tensors=tensors))


def check(path: Path, **options: Any) -> verify.VerifyReport:
    return verify.verify(path, **{"device": "cpu", "show_progress": False, **options})


def test_a_right_file_passes_and_the_report_says_all(small: Path) -> None:
    report = check(small)
    assert report.ok
    a, b = report.matrices
    assert (a.name, a.format, a.rows, a.columns, a.rows_run, a.rows_compared) == ("a.weight", "Q4_K", 30, 256, 30, 30)
    assert (b.name, b.rows_compared) == ("b.weight", 7)
    assert 0 < a.largest_error <= a.allowed_error
    assert a.kernel in EmulatedMatvec(FORMATS["Q4_K"])._matvec.parameters
    reasons = {s.name: (s.refused, s.reason) for s in report.skipped}
    assert reasons["norm.weight"] == (False, "not a matrix: 1-dimensional, F32 (type 0)")
    assert reasons["odd.weight"] == (True, "no format file for unknown (type 4242)")
    refused, reason = reasons["grid.weight"]
    assert refused and reason.startswith(f"no kernel for {KERNELLESS}: ")
    table = report.table()
    for text in (
        "a.weight",
        "30 x 256",
        "grid.weight",
        "odd.weight",
        "norm.weight",
        "emulator",
        "2 matrices ok",
        "seed 0",
    ):
        assert text in table
    plain = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert plain["ok"] and [m["ok"] for m in plain["matrices"]] == [True, True]
    assert plain["skipped"][1]["name"] == "grid.weight"


def test_rows_are_sampled_as_stated(small: Path) -> None:
    report = check(small, rows=5, seed=7)
    assert [m.rows_compared for m in report.matrices] == [5, 5]
    assert "at most 5" in report.sample and "seed 7" in report.sample
    rng = np.random.default_rng(0)
    for count, limit in ((1, 5), (2, 1), (2, 2), (3, 2), (9, 4), (9, 9), (1000, 64), (6, None)):
        rows = sample_rows(count, limit, rng)
        assert len(rows) == min(count, limit or count) and np.all(np.diff(rows) > 0)
        assert rows[0] == 0 and (len(rows) < 2 or rows[-1] == count - 1)


def test_row_bytes_honours_the_stride() -> None:
    lines = np.arange(5 * 40, dtype=np.uint8).reshape(5, 40)
    weight = Weight.of("Q8_0", lines.reshape(-1)[: 4 * 40 + 34], rows=5, columns=32, row_stride_bytes=40)
    np.testing.assert_array_equal(row_bytes(weight, np.array([0, 2, 4])), lines[[0, 2, 4], :34])


@pytest.mark.parametrize(("value", "text"), [(0x7E00, "nan"), (0x7C00, "inf"), (0xFC00, "-inf")])
def test_scales_that_are_no_numbers_fail_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: int, text: str
) -> None:
    broken = tensor("w", "Q4_K", 768, 300)
    data = bytearray(broken.data)
    at = (123 * 3 + 2) * 144 + 2  # dmin of block 2 of row 123: no row that a small sample looks at
    data[at : at + 2] = value.to_bytes(2, "little")
    path = write(tmp_path / "m.gguf", FileSpec(tensors=[TensorSpec("w", [768, 300], 12, bytes(data))]))
    monkeypatch.setattr(verify, "_CHUNK", 768 * 50)
    for rows in (2, 300):
        report = check(path, rows=rows)
        assert not report.ok
        (finding,) = report.matrices[0].findings
        assert f"block 2 of row 123: dmin = {text}" in finding and finding.startswith("1 scales")
        assert "FAILED w: " in report.table() and "1 of 1 matrices failed" in report.table()
        json.dumps(report.to_json(), allow_nan=False)


def test_many_bad_scales_are_counted_and_a_few_named() -> None:
    data = np.frombuffer(tensor("w", "NVFP4", 64, 50).data, np.uint8).copy()
    assert not list(bad_scales(Weight.of("NVFP4", data, rows=50, columns=64)))
    q8 = np.frombuffer(tensor("w", "Q8_0", 64, 50).data, np.uint8).reshape(100, 34).copy()
    q8[:, :2] = 0xFF
    (finding,) = bad_scales(Weight.of("Q8_0", q8, rows=50, columns=64))
    assert finding.startswith("100 scales") and finding.count("block") == 3 and "..." in finding


class Wrong(EmulatedMatvec):
    """A kernel that is wrong in one row."""

    change: float = 0.0

    def __call__(self, rows: Any, x: Any, **options: Any) -> Any:
        y = super().__call__(rows, x, **options)
        y[3] = np.nextafter(y[3], np.float32(np.inf)) if self.change == 0.0 else self.change
        return y


@pytest.mark.parametrize(("change", "off"), [(0.0, False), (1e6, True), (np.inf, True), (np.nan, True)])
def test_a_wrong_kernel_is_caught(small: Path, monkeypatch: pytest.MonkeyPatch, change: float, off: bool) -> None:
    """One bit in one row: too little for any tolerance, and still a finding."""
    monkeypatch.setattr(verify, "EmulatedMatvec", Wrong)
    monkeypatch.setattr(Wrong, "change", change)
    monkeypatch.setattr(verify, "_CHUNK", 4 * 256)  # row 3 is the last of its chunk
    report = check(small)
    assert not report.ok and "2 of 2 matrices failed" in report.table()
    for matrix in report.matrices:
        texts = "\n".join(matrix.findings)
        assert "1 rows other bits than the arithmetic contract gives (row 3: " in texts
        assert ("off by more than rounding explains (row 3: " in texts) == off
    json.dumps(report.to_json(), allow_nan=False)


def test_a_number_where_the_oracle_has_none_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(tensor("w", "Q8_0", 32, 5).data)
    data[3 * 34 : 3 * 34 + 2] = b"\x00\x7e"
    path = write(tmp_path / "m.gguf", FileSpec(tensors=[TensorSpec("w", [32, 5], 8, bytes(data))]))
    assert len(check(path).matrices[0].findings) == 1
    monkeypatch.setattr(verify, "EmulatedMatvec", Wrong)
    monkeypatch.setattr(Wrong, "change", 1.0)
    findings = check(path).matrices[0].findings
    assert len(findings) == 3
    assert all(text in finding for text, finding in zip(("scales", "contract", "rounding"), findings, strict=True))


def test_a_wrong_contract_is_caught_by_the_float_oracle(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel and contract agreeing on a wrong number does not pass."""
    honest = contract.mul_mat

    def wrong(format: Any, blocks: Any, x: Any) -> Any:
        return honest(format, blocks, x) * np.float32(1.01)

    class Agreeing(EmulatedMatvec):
        def __call__(self, rows: Any, x: Any, **options: Any) -> Any:
            return super().__call__(rows, x, **options) * np.float32(1.01)

    monkeypatch.setattr(contract, "mul_mat", wrong)
    monkeypatch.setattr(verify, "EmulatedMatvec", Agreeing)
    report = check(small)
    assert not report.ok
    assert all(len(m.findings) == 1 and "rounding" in m.findings[0] for m in report.matrices)


def test_a_file_without_quantised_matrices_is_no_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", FileSpec(tensors=[TensorSpec("w", [4, 4], 0, bytes(64))]))
    report = check(path)
    assert not report.ok and "nothing was verified" in report.table()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("tokens", "columns"), [(5, 8), (49, 32)])
def test_more_tokens_run_the_ladder(
    small: Path, monkeypatch: pytest.MonkeyPatch, device: str, tokens: int, columns: int
) -> None:
    fake = install(monkeypatch, FakeCupy())
    report = check(small, device=device, tokens=tokens, rows=6)
    assert report.ok and report.tokens == tokens and f"tokens: {tokens}" in report.table()
    assert [(m.tokens, m.rows_compared) for m in report.matrices] == [(tokens, 6), (tokens, 6)]
    assert all(f"_t{columns}__ksplit_mma" in m.kernel for m in report.matrices)
    assert bool(fake.launches) == (device == "cuda")
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["tokens"] == tokens
    device_room.load_module.cache_clear()


def test_a_ladder_that_is_wrong_for_one_token_is_caught(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongLadder(EmulatedLadder):
        def __call__(self, rows: Any, x: Any, **options: Any) -> Any:
            y = super().__call__(rows, x, **options)
            y[4, 3] = np.nextafter(y[4, 3], np.float32(np.inf))
            return y

    monkeypatch.setattr(verify, "EmulatedLadder", WrongLadder)
    report = check(small, tokens=5)
    assert not report.ok
    for matrix in report.matrices:
        (finding,) = matrix.findings
        assert finding.startswith("1 results other bits than the arithmetic contract gives (row 3, token 4: ")


@pytest.mark.parametrize("options", [{"device": "tpu"}, {"rows": 0}, {"rows": -3}, {"tokens": 0}])
def test_arguments_that_make_no_sense(small: Path, options: dict[str, Any]) -> None:
    with pytest.raises(QgenError, match="arguments"):
        check(small, **options)


def test_broken_files_and_missing_devices_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(QgenError, match="cut short"):
        check(tmp_path / "m.gguf")
    install(monkeypatch, FakeCupy(devices=0))
    path = write(tmp_path / "ok.gguf", FileSpec(tensors=[tensor("w", "Q8_0", 32, 2)]))
    with pytest.raises(QgenError, match="no device"):
        check(path, device="cuda")
    assert "no device" in (where := check(path, device="auto").device) and "emulator" in where


def test_a_device_runs_all_rows(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeCupy())
    report = check(small, device="auto", rows=4)
    assert report.ok and "Fake GPU" in report.device and "all were run" in report.sample
    assert [(m.rows_run, m.rows_compared) for m in report.matrices] == [(30, 4), (7, 4)]
    assert [name for name, _ in fake.launches if name.startswith("mul")] == [m.kernel for m in report.matrices]
    everything = check(small, device="cuda")
    assert everything.ok and everything.sample == "all" and everything.matrices[0].rows_compared == 30
    device_room.load_module.cache_clear()


def test_the_real_model_passes(gemma_path: Path) -> None:
    report = check(gemma_path, rows=8)
    assert report.ok, report.table()
    assert len(report.matrices) == 127 and not any(s.refused for s in report.skipped)
    assert {m.format for m in report.matrices} == {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}
    assert {(m.format, m.rows, m.columns) for m in report.matrices} >= {("Q8_0", 262144, 640), ("Q4_K", 640, 1024)}
    model = load(gemma_path)
    assert {s.name for s in report.skipped} | set(model) == set(model.file.tensors)


def test_an_excerpt_of_the_real_model_has_every_type_and_shape(gemma_path: Path, tmp_path: Path) -> None:
    small = excerpt(gemma_path, tmp_path / "small.gguf", limit=1 << 20)
    assert small.stat().st_size < 10 << 20
    report, model = check(small, rows=4), load(gemma_path)
    assert report.ok and not report.skipped
    kinds = {(model[name].format.name, model[name].columns) for name in model}
    assert {(m.format, m.columns) for m in report.matrices} == kinds
    assert len(report.matrices) == len({(model[n].format.name, model[n].columns, model[n].rows) for n in model})
