"""`qgen count`: instructions a weight by pipe, counted in machine code, and the walls they and the bytes put up."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from qgen import build, emit
from qgen.bench.candidates import AnyCandidate, FloatCandidate, RungCandidate, WgmmaCandidate, candidates
from qgen.bench.cases import Case, Skipped, cases, choose_formats, parse_shape
from qgen.bench.tables import columns, markdown_table, number
from qgen.count import PIPES, Count, count, nvdisasm, pipes
from qgen.errors import QgenError
from qgen.generate import Generated, generate
from qgen.plan import plan_all
from qgen.spec import load_formats

SHAPE = "14336x4096"


@dataclass(frozen=True)
class Device:
    """What turns instructions and bytes into microseconds. bandwidth: bytes a microsecond."""

    name: str
    multiprocessors: int
    mhz: float
    bandwidth: float

    @property
    def schedulers(self) -> int:
        """Of all multiprocessors; each issues one warp instruction a cycle."""
        return 4 * self.multiprocessors


H200 = Device("NVIDIA H200", multiprocessors=132, mhz=1980, bandwidth=4.8e6)


# Columns of results.csv of `qgen bench` and `qgen profile` that may stand beside a prediction, and their headings.
MEASURED = {
    "read_floor_us": "read floor",
    "us": "call us",
    "alone_us": "alone us",
    "measured_all": "all, ncu",
    "issue_percent": "issue %, ncu",
}
Key = tuple[str, int, int, int]  # kernel, N, K, T


@dataclass(frozen=True)
class Prediction:
    """The routed kernel of a case, counted, and the times below which it cannot get; all in microseconds.

    measured: by column of MEASURED, where a report has it
    """

    case: Case
    label: str
    count: Count
    device: Device
    measured: Mapping[str, float]

    def _cycles_us(self, cycles: float) -> float:
        return cycles / self.device.schedulers / self.device.mhz

    @property
    def walls(self) -> Mapping[str, float]:
        """issue: a slot an instruction; alu, fma: what the busiest half of a pipe takes, at two cycles an instruction,
        where the work is spread over all schedulers evenly; bytes: the packed weights at the device's bandwidth."""
        used = self.count.pipes
        fma = max(2 * self.count.heavy, used["fma"])  # the halves share what either can take
        return {
            "issue": self._cycles_us(self.count.instructions),
            "alu": self._cycles_us(2 * used["alu"]),
            "fma": self._cycles_us(fma),
            "bytes": self.case.weight_bytes / self.device.bandwidth,
        }

    @property
    def wall(self) -> str:
        """The highest of the walls."""
        return max(self.walls, key=lambda name: self.walls[name])

    def a_weight(self) -> dict[str, float]:
        """Instructions a weight by pipe, and "all"."""
        by_pipe = {pipe: self.count.a_weight(some) for pipe, some in self.count.pipes.items()}
        return by_pipe | {"all": self.count.a_weight(self.count.instructions)}

    def to_json(self) -> dict[str, Any]:
        """Plain data, the derived figures among it."""
        case = self.case
        return {
            "format": case.format.name,
            "rows": case.shape.rows,
            "columns": case.shape.columns,
            "tokens": case.tokens,
            "storage": case.storage,
            "kernel": self.count.kernel,
            "weight_bytes": case.weight_bytes,
            "resident": self.count.resident,
            "warps": self.count.warps,
            "warp_instructions": dict(self.count.pipes),
            "a_weight": self.a_weight(),
            "walls_us": dict(self.walls),
            "wall": self.wall,
            "measured": dict(self.measured),
        }


@dataclass(frozen=True)
class Predictions:
    """What one `qgen count` found. refused: kernels whose loops are not the plan's, or that no plan serves."""

    rows: tuple[Prediction, ...]
    skipped: tuple[Skipped, ...]
    refused: tuple[Skipped, ...]
    device: Device
    command: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "device": asdict(self.device),
            "command": self.command,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [asdict(some) for some in self.skipped],
            "refused": [asdict(some) for some in self.refused],
        }


@cache
def _made() -> Generated:
    return generate()


def machine_code(candidate: AnyCandidate) -> build.Cubin:
    """The compiled text that has the candidate's kernel: that of generated/, or of its plan alone where no route leads
    to it. Raises QgenError where it does not compile."""
    name = candidate.instance.name
    try:
        planned, source = _made().source_of(name)
        return build.compile(source.text, planned.file, pipes.ARCH)
    except QgenError as error:
        if error.stage != "show":
            raise
    own: dict[str, Any] = {"rungs" if isinstance(candidate, RungCandidate) else "instances": (candidate.instance,)}
    text = emit.emit(replace(candidate.plan, file=name, **own)).text
    return build.compile(text, name, pipes.ARCH)


def read_measured(paths: Iterable[Path]) -> dict[Key, dict[str, float]]:
    """What results.csv of earlier runs have of each kernel and case. Raises QgenError for other files."""
    found: dict[Key, dict[str, float]] = {}
    for path in paths:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    key = (row["kernel"], int(row["rows"]), int(row["columns"]), int(row["tokens"]))
                    found.setdefault(key, {}).update((n, float(row[n])) for n in MEASURED if row.get(n))
        except (OSError, KeyError, ValueError, UnicodeDecodeError) as error:
            raise QgenError(
                stage="count",
                subject=f"--beside {path}",
                found=f"it cannot be read: {error}",
                allowed="results.csv as `qgen bench --out` or `qgen profile --out` writes it",
                next="give another file, or none",
            ) from error
    return found


def predict(
    case: Case,
    candidate: AnyCandidate,
    device: Device = H200,
    measured: Mapping[Key, Mapping[str, float]] | None = None,
) -> Prediction:
    """Count one kernel on one case. Raises QgenError where that cannot be done; see qgen.count."""
    if isinstance(candidate, FloatCandidate):
        raise QgenError(
            stage="count",
            subject=candidate.instance.name,
            found=f"a kernel for {case.activation} activations",
            allowed="kernels for int8 activations: matvec, multirow, ksplit_mma, fused",
            next="leave the activation out",
        )
    if isinstance(candidate, WgmmaCandidate):
        raise QgenError(
            stage="count",
            subject=candidate.instance.name,
            found="a kernel of family wgmma, whose fetching and multiplying warps run loops of their own side by side",
            allowed="kernels whose warps all run the same loops: matvec, multirow, ksplit_mma, fused",
            next="count fewer tokens, or profile it on a device: qgen profile",
        )
    found = count(
        candidate.plan,
        candidate.instance,
        machine_code(candidate),
        rows=case.shape.rows,
        columns=case.shape.columns,
        tokens=case.tokens,
        multiprocessors=device.multiprocessors,
    )
    key = (found.kernel, case.shape.rows, case.shape.columns, case.tokens)
    return Prediction(case, candidate.label, found, device, (measured or {}).get(key, {}))


def predictions(
    formats: Sequence[str],
    *,
    shapes: Sequence[str] = (SHAPE,),
    tokens: int = 1,
    storage: str = "native",
    device: Device = H200,
    beside: Sequence[Path] = (),
    command: str = "qgen count",
) -> Predictions:
    """Count the routed kernel of every format named (default: all) at every shape.

    beside: results.csv of earlier runs, whose figures stand beside the predicted ones
    Raises QgenError for names, shapes and files that do not exist, and where nvdisasm is not installed.
    """
    nvdisasm.find()
    measured = read_measured(beside)
    known = load_formats()
    plans, _ = plan_all(known)
    chosen = choose_formats(formats, known, plans)
    planes = [f for f in chosen if f.split]
    found, skipped = cases(
        [f for f in chosen if not f.split], [parse_shape(shape) for shape in shapes], (tokens,), storage=storage
    )
    skipped += [Skipped(f.name, "only float activations, whose kernels are not counted") for f in planes]
    rows: list[Prediction] = []
    refused: list[Skipped] = []
    for case in found:
        try:
            (candidate,) = (c for c in candidates(case, plans, every=False, arch=pipes.ARCH) if c.routed)
            rows.append(predict(case, candidate, device, measured))
        except QgenError as error:
            refused.append(Skipped(str(case), f"{error.found}; allowed: {error.allowed}"))
    return Predictions(tuple(rows), tuple(skipped), tuple(refused), device, command)


# ---- text --------------------------------------------------------------------------------------------------------

_HEAD = ("format", "N x K", "T", "kernel", "CTAs/SM", *PIPES, "all", "issue us", "alu us", "fma us", "bytes us", "wall")


def _sheet(report: Predictions) -> list[tuple[str, ...]]:
    """Head and rows; measured columns that no row has are left out."""
    extras = [name for name in MEASURED if any(name in row.measured for row in report.rows)]
    lines = [(*_HEAD, *(MEASURED[name] for name in extras))]
    for row in report.rows:
        facts = (row.case.format.name, str(row.case.shape), str(row.case.tokens), row.label, str(row.count.resident))
        figures = (*(number(some) for some in row.a_weight().values()), *(number(us, 1) for us in row.walls.values()))
        lines.append((*facts, *figures, row.wall, *(number(row.measured.get(name), 1) for name in extras)))
    return lines


def _opening(report: Predictions) -> str:
    d = report.device
    return (
        f"{pipes.ARCH}, {d.name}: {d.multiprocessors} multiprocessors at {d.mhz:g} MHz, {d.bandwidth / 1e6:g} TB/s; "
        "instructions a weight by pipe"
    )


def _missing(some: Iterable[Skipped], word: str) -> list[str]:
    return [f"{word} {s.what}: {s.reason}" for s in some]


def table(report: Predictions) -> str:
    """The table for the terminal, with what is missing in it below."""
    lines = [_opening(report)]
    if report.rows:
        lines += ["", *columns(_sheet(report))]
    return "\n".join([*lines, *_missing(report.skipped, "skipped"), *_missing(report.refused, "REFUSED")])


def markdown(report: Predictions) -> str:
    """The report to keep."""
    lines = ["# qgen count", "", f"- {_opening(report)}", f"- command: `{report.command}`", ""]
    head, *rows = _sheet(report)
    lines += markdown_table(head, rows)
    lines += [f"- {line}" for line in [*_missing(report.skipped, "skipped"), *_missing(report.refused, "REFUSED")]]
    return "\n".join(lines).rstrip() + "\n"


def csv_text(report: Predictions) -> str:
    """One line a kernel and case."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    facts = ("format", "rows", "columns", "tokens", "storage", "kernel", "weight_bytes", "resident", "warps")
    walls = ("issue", "alu", "fma", "bytes")
    writer.writerow((*facts, *PIPES, "all", *(f"{name}_us" for name in walls), "wall", *MEASURED))
    for row in report.rows:
        plain = row.to_json()
        figures = [*plain["a_weight"].values(), *plain["walls_us"].values()]
        measured = (row.measured.get(name, "") for name in MEASURED)
        writer.writerow((*(plain[name] for name in facts), *(round(f, 4) for f in figures), row.wall, *measured))
    return output.getvalue()
