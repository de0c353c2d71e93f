"""`qgen verify`: every quantised matrix of a GGUF file through its kernel, judged by the oracle.

Two judges, and a matrix passes when both agree on every compared row: the arithmetic contract in NumPy, bit for
bit, and the float64 dot of the decoded weights with the quantised activation, within a computed bound.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from qgen import codec, plan
from qgen.dispatch import routed_batch, routed_instance
from qgen.emulated import ARCH, EmulatedLadder, EmulatedMatvec, EmulatedMultirow
from qgen.errors import QgenError
from qgen.gguf import GgufTensor
from qgen.gguf.types import PLAIN_TYPES
from qgen.progress import progress
from qgen.spec import Format
from qgen.verify.verdict import F32, SHOWN, Rows, Verdict, row_bytes
from qgen.weights import Model, Weight, formats_by_id, load, not_a_matrix

EMULATED_ROWS = 256  # rows of a matrix that the emulator runs unless told otherwise: seconds for a small model
_CHUNK = 1 << 20  # weights the oracle decodes at a time: some 30 MB of temporaries


@dataclass(frozen=True, kw_only=True)
class MatrixResult:
    """One matrix: what ran, what was compared, and what was found. It passed when there are no findings.

    tokens:                  columns of x
    rows_run, rows_compared: rows the kernel computed, rows both judges looked at, for every token
    largest_error:           largest |y - oracle| over the rows compared, and `allowed_error` the bound there
    kernel:                  entry that ran
    """

    name: str
    format: str
    rows: int
    columns: int
    tokens: int
    kernel: str
    rows_run: int
    rows_compared: int
    largest_error: float
    allowed_error: float
    seconds: float
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(frozen=True, kw_only=True)
class SkippedTensor:
    """A tensor that was not run. `refused`: it is a quantised matrix, but qgen has no kernel for it."""

    name: str
    type: str
    shape: tuple[int, ...]
    reason: str
    refused: bool


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The outcome for one file. `device` says where kernels ran, `sample` which rows were run and compared.

    tokens: how many every matrix was multiplied by
    """

    path: str
    device: str
    sample: str
    tokens: int
    matrices: tuple[MatrixResult, ...]
    skipped: tuple[SkippedTensor, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether at least one matrix was run and none had findings."""
        return bool(self.matrices) and all(result.ok for result in self.matrices)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data for json.dumps; numbers that JSON cannot write become strings."""
        plain = asdict(self)
        for entry, result in zip(plain["matrices"], self.matrices, strict=True):
            entry["ok"] = result.ok
            for key in ("largest_error", "allowed_error"):
                if not np.isfinite(entry[key]):
                    entry[key] = str(entry[key])
        return {"ok": self.ok, **plain}

    def table(self) -> str:
        """The report as text: one line a matrix, then what was not run and why, then the findings and the verdict."""
        lines = [f"{self.path}", f"device: {self.device}", f"rows:   {self.sample}"]
        lines += [*([f"tokens: {self.tokens}"] if self.tokens != 1 else []), ""]
        cells: list[tuple[str, ...]] = [("tensor", "format", "N x K", "rows", "largest error", "allowed", "result")]
        cells += [
            (
                r.name,
                r.format,
                f"{r.rows} x {r.columns}",
                f"{r.rows_compared}",
                f"{r.largest_error:.2e}",
                f"{r.allowed_error:.2e}",
                "ok" if r.ok else "FAILED",
            )
            for r in self.matrices
        ]
        lines += _columns(cells)
        lines += self._skipped_lines()
        lines += ["", *(f"FAILED {r.name}: {finding}" for r in self.matrices for finding in r.findings)]
        bad = sum(not r.ok for r in self.matrices)
        verdict = f"{bad} of {len(self.matrices)} matrices failed" if bad else f"{len(self.matrices)} matrices ok"
        if not self.matrices:
            verdict = "nothing was verified: the file has no quantised matrix that qgen has a kernel for"
        return "\n".join([*lines, f"{verdict}, {self.seconds:.1f} s"])

    def _skipped_lines(self) -> list[str]:
        """By reason; refused matrices are all named, of the others (norms and the like) the first few."""
        lines: list[str] = []
        for title, refused in (("refused", True), ("not run", False)):
            reasons = dict.fromkeys(s.reason for s in self.skipped if s.refused == refused)
            for reason in reasons:
                names = [s.name for s in self.skipped if (s.refused, s.reason) == (refused, reason)]
                shown = names if refused else names[:SHOWN]
                more = f", ... ({len(names)} tensors)" if len(names) > len(shown) else ""
                lines += ["", f"{title}: {reason}", f"  {', '.join(shown)}{more}"]
        return lines


def verify(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    rows: int | None = None,
    tokens: int = 1,
    seed: int = 0,
    show_progress: bool = True,
) -> VerifyReport:
    """Run and judge every quantised matrix of a GGUF file.

    tokens: columns of x: 1 runs the matvec, more what the dispatch picks for them
    device: "cuda", "cpu" (the emulator), or "auto": the first device where there is one, else the emulator
    rows:   rows of each matrix to compare (the first, the last, and others drawn from `seed`); left out, all of them
            on a device and EMULATED_ROWS in the emulator. A device computes all rows either way.
    seed:   of the activations, float32 normal, and of the sample

    Mismatches are findings in the report. QgenError is raised for a broken file, a device that is not there, or a
    missing compiler.
    """
    if device not in ("auto", "cuda", "cpu") or (rows is not None and rows < 1) or tokens < 1:
        raise QgenError(
            stage="verify",
            subject="arguments",
            found=f"device {device!r}, rows {rows}, tokens {tokens}",
            allowed="device auto, cuda or cpu; rows and tokens at least 1",
            next="run `qgen verify --help`",
        )
    started = time.monotonic()
    model = load(path)
    runner = _runner(device)
    limit = rows or (None if runner.runs_all else EMULATED_ROWS)
    jobs, skipped = _sort(model)
    results = []
    with progress("verify", len(jobs), show=show_progress) as step:
        for index, weight in enumerate(jobs):
            results.append(_verify_matrix(weight, runner, tokens=tokens, limit=limit, seed=(seed, index)))
            step()
    chosen = "all" if limit is None else f"first, last and random ones (seed {seed}), at most {limit} a matrix"
    return VerifyReport(
        path=str(path),
        device=runner.label,
        sample=f"{chosen}; all were run" if runner.runs_all and limit else chosen,
        tokens=tokens,
        matrices=tuple(results),
        skipped=skipped,
        seconds=time.monotonic() - started,
    )


def _sort(model: Model) -> tuple[list[Weight], tuple[SkippedTensor, ...]]:
    """The matrices to run, in file order, and the rest with the reason."""
    formats = formats_by_id()
    refusals: dict[str, str | None] = {}
    jobs: list[Weight] = []
    skipped: list[SkippedTensor] = []
    for tensor in model.file.tensors.values():
        reason = not_a_matrix(tensor, formats)
        if reason is None:
            format = formats[tensor.type_id]
            if format.name not in refusals:
                refusals[format.name] = _refusal(format)
            reason = refusals[format.name]
        if reason is None:
            jobs.append(model[tensor.name])
        else:
            skipped.append(
                SkippedTensor(
                    name=tensor.name,
                    type=tensor.type_label,
                    shape=tensor.shape,
                    reason=reason,
                    refused=_is_quantised_matrix(tensor),
                )
            )
    return jobs, tuple(skipped)


def _refusal(format: Format) -> str | None:
    try:
        plan.plan_matvec(format)
    except QgenError as error:
        return f"no kernel for {format.name}: {error.found}"
    return None


def _is_quantised_matrix(tensor: GgufTensor) -> bool:
    return len(tensor.shape) > 1 and tensor.type_id not in PLAIN_TYPES


# ---- where kernels run ------------------------------------------------------------------------------------------


class _Runner(Protocol):
    label: str
    runs_all: bool

    def run(self, weight: Weight, x: F32, rows: Rows) -> tuple[F32, str]:
        """y float32[T, n] of the chosen rows for x float32[T, K], and the entry that computed it."""


class _Emulator:
    runs_all = False

    def __init__(self, why: str) -> None:
        self.label = f"none ({why}); kernels run in the emulator on the CPU"
        self._programs: dict[str, EmulatedMatvec] = {}
        self._multirows: dict[str, EmulatedMultirow] = {}
        self._ladders: dict[str, EmulatedLadder] = {}

    def run(self, weight: Weight, x: F32, rows: Rows) -> tuple[F32, str]:
        name = weight.format.name
        # The kernel of the whole matrix, not of the sample.
        if len(x) > 1:
            chosen = routed_batch(weight.format, weight.rows, weight.columns, len(x), ARCH)
            if isinstance(chosen, plan.MultirowInstance):
                if name not in self._multirows:
                    self._multirows[name] = EmulatedMultirow(weight.format)
                return self._multirows[name](row_bytes(weight, rows), x, instance=chosen), chosen.name
            assert isinstance(chosen, plan.Rung)
            if name not in self._ladders:
                self._ladders[name] = EmulatedLadder(weight.format)
            return self._ladders[name](row_bytes(weight, rows), x, rung=chosen), chosen.name
        if name not in self._programs:
            self._programs[name] = EmulatedMatvec(weight.format)
        program = self._programs[name]
        instance = routed_instance(program.plan, weight.rows, weight.columns, ARCH)
        return program(row_bytes(weight, rows), x[0], instance=instance)[None], instance.name


class _Device:
    runs_all = True

    def __init__(self) -> None:
        from qgen import run  # the device room: nobody without a device pays for it

        self._run = run
        self.label = run.device_label()

    def run(self, weight: Weight, x: F32, rows: Rows) -> tuple[F32, str]:
        # A copy that ends with this call: the model as a whole need not fit on the device.
        bound = self._run.bind(self._run.to_device(weight), tokens=len(x))
        return self._run.to_host(bound(self._run.from_host(x)))[:, rows], bound.instance.name


def _runner(device: str) -> _Runner:
    if device == "cpu":
        return _Emulator("as asked")
    from qgen import run

    missing = run.why_no_device()
    if missing is None:
        return _Device()
    if device == "cuda":
        raise missing
    return _Emulator(f"{missing.subject} {missing.found}")


# ---- judging ----------------------------------------------------------------------------------------------------


def sample_rows(count: int, limit: int | None, rng: np.random.Generator) -> Rows:
    """Ascending row numbers: all of `count`, or the first, the last, and others at random, `limit` in total."""
    if limit is None or limit >= count:
        return np.arange(count)
    ends = np.unique([0, count - 1])[:limit]
    others = 1 + rng.choice(count - 2, size=limit - len(ends), replace=False) if limit > len(ends) else ends[:0]
    return np.sort(np.concatenate([ends, others]))


def _verify_matrix(
    weight: Weight, runner: _Runner, *, tokens: int, limit: int | None, seed: tuple[int, int]
) -> MatrixResult:
    started = time.monotonic()
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, weight.columns), dtype=np.float32)
    rows = sample_rows(weight.rows, limit, rng)
    findings = list(bad_scales(weight))
    y, kernel = runner.run(weight, x, rows)
    verdict = Verdict(tokens)
    each = max(1, _CHUNK // weight.columns)
    for first in range(0, len(rows), each):
        part = slice(first, first + each)
        for token in range(tokens):
            verdict.judge(weight, x[token], rows[part], y[token, part], token)
    return MatrixResult(
        name=weight.name,
        format=weight.format.name,
        rows=weight.rows,
        columns=weight.columns,
        tokens=tokens,
        kernel=kernel,
        rows_run=weight.rows if runner.runs_all else len(rows),
        rows_compared=len(rows),
        largest_error=verdict.largest_error,
        allowed_error=verdict.allowed_error,
        seconds=time.monotonic() - started,
        findings=(*findings, *verdict.findings()),
    )


def bad_scales(weight: Weight) -> Iterator[str]:
    """One finding per float field of the format that holds a NaN or Inf anywhere in a weight on the host."""
    per_row = weight.columns // weight.format.block
    each = max(1, _CHUNK // weight.columns)
    for field in (f for f in weight.format.fields if f.scope == "block" and f.kind == "float"):
        count = 0
        named: list[str] = []
        for first in range(0, weight.rows, each):
            rows = np.arange(first, min(first + each, weight.rows))
            values = codec.scalars(weight.format, field.name, row_bytes(weight, rows).reshape(-1, weight.format.bytes))
            bad = np.argwhere(~np.isfinite(values))
            count += len(bad)
            for block, entry in bad[: max(0, SHOWN - len(named))]:
                row, place = first + block // per_row, block % per_row
                part = f" entry {entry}" if values.shape[1] > 1 else ""
                named.append(f"block {place} of row {row}: {field.name}{part} = {values[block, entry]}")
        if count:
            yield f"{count} scales are NaN or Inf ({'; '.join(named)}{'; ...' if count > SHOWN else ''})"


def _columns(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
