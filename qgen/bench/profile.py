"""`qgen profile`: one kernel's traffic as the profiler counts it, beside what the emulator counts in the same text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from qgen import emit, emulate, plan
from qgen.bench import ncu
from qgen.bench.cases import Candidate, Case, candidates, choose_formats, parse_shape
from qgen.bench.matvec import pattern
from qgen.emulated import ARCH
from qgen.errors import QgenError
from qgen.plan import plan_all
from qgen.spec import load_formats

SECTOR = 32  # bytes
SAMPLE_WARPS = 2  # row tiles of a CTA's warps that the emulator runs; rows repeat their traffic
SHAPE = "14336x4096"

Profiler = Callable[[Sequence[str], str, Sequence[str]], Mapping[str, float]]


@dataclass(frozen=True)
class Emulated:
    """Reads of the weights as the emulator counts them, scaled from `sample_rows` rows to the matrix; bytes."""

    sample_rows: int
    read_bytes: float
    touched_bytes: float
    sector_bytes: float


@dataclass(frozen=True)
class Profile:
    """One kernel on one case. `counters`: role -> value; `raw`: the profiler's own names.

    emulated: None, with the reason in `notes`, where the emulator cannot run; counters are empty likewise
    """

    kernel: str
    format: str
    shape: str
    packed_bytes: int
    weights: int
    emulated: Emulated | None
    counters: Mapping[str, float]
    raw: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def copied_bytes(self) -> float | None:
        """Sectors that global-to-shared copies (the weights' way in) moved, in bytes.

        The sum of the copies that bypass L1 and those that do not, or the count of all, whichever saw more: a chip
        may lack one of these counters.
        """
        parts = [self.counters.get(f"copy_sectors_{way}") for way in ("bypass", "access")]
        found = [part for part in parts if part is not None]
        every = self.counters.get("copy_sectors")
        counts = ([sum(found)] if found else []) + ([every] if every is not None else [])
        return SECTOR * max(counts) if counts else None

    @property
    def dram_bytes(self) -> float | None:
        """Bytes read from device memory: weights and activation."""
        return self.counters.get("dram_bytes")

    @property
    def instructions_a_weight(self) -> float | None:
        """Thread instructions executed a weight: warp instructions x 32 over N x K."""
        count = self.counters.get("instructions")
        return None if count is None else 32 * count / self.weights

    def to_json(self) -> dict[str, Any]:
        """Plain data, the derived figures among it."""
        return asdict(self) | {
            "copied_bytes": self.copied_bytes,
            "dram_bytes": self.dram_bytes,
            "instructions_a_weight": self.instructions_a_weight,
        }


def choose(format: str, shape: str, kernel: str | None) -> tuple[Case, Candidate]:
    """The case and the kernel to look at: the routed one, or the one named. Raises QgenError for names unknown."""
    formats = load_formats()
    plans, _ = plan_all(formats)
    (chosen,) = choose_formats([format], formats, plans)
    case = Case(chosen, parse_shape(shape))
    if case.shape.columns % chosen.block:
        raise QgenError(
            stage="bench",
            subject=f"--shape {shape}",
            found=f"K = {case.shape.columns}",
            allowed=f"a multiple of {chosen.block}, the block of {chosen.name}",
            next="choose another K",
        )
    found = [c for c in candidates(case, plans, every=kernel is not None, arch=ARCH) if isinstance(c, Candidate)]
    for candidate in found:
        if kernel in (None, candidate.instance.name, candidate.label):
            return case, candidate
    raise QgenError(
        stage="bench",
        subject=f"--kernel {kernel}",
        found=f"no such kernel of {chosen.name}",
        allowed=", ".join(candidate.label for candidate in found),
        next=f"run `qgen show {chosen.name}`",
    )


def emulated(case: Case, candidate: Candidate) -> Emulated:
    """Count the weight reads of the kernel's text on the first rows of the matrix. Raises QgenError without g++."""
    matvec, instance = candidate.plan, candidate.instance
    rows = min(case.shape.rows, SAMPLE_WARPS * matvec.warps * instance.warp_rows)
    blocks = pattern(case.format)["block"]
    weight = blocks[np.arange(rows * case.blocks) % len(blocks)].reshape(rows, case.row_bytes)
    program = emulate.compile(emit.emit(matvec).text, matvec.file)
    launch = plan.launch(matvec, instance, rows, multiprocessors=1, ctas_per_multiprocessor=1)
    report = program.launch(
        instance.name,
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        args=[
            emulate.Buffer("weight", weight, constant=True),
            case.row_bytes,
            rows,
            case.blocks,
            emulate.Buffer("activation", np.zeros(matvec.workspace_bytes(case.blocks), dtype=np.uint8)),
            emulate.Buffer("y", np.zeros(rows, dtype=np.float32), writable=True),
        ],
        count_sectors=True,
        dependent=True,
    )
    scale = case.shape.rows / rows
    return Emulated(
        sample_rows=rows,
        read_bytes=scale * report.read_bytes["weight"],
        touched_bytes=scale * report.bytes_touched["weight"],
        sector_bytes=scale * SECTOR * report.read_sectors["weight"],
    )


def profile(format: str, shape: str = SHAPE, kernel: str | None = None, *, profiler: Profiler | None = None) -> Profile:
    """Count one kernel. What is missing on this machine (ncu, a compiler for the emulator) is named in `notes`.

    profiler: stands in for `count`, for tests. Raises QgenError for a format, shape or kernel that does not exist.
    """
    case, candidate = choose(format, shape, kernel)
    notes: list[str] = []
    counted: Emulated | None = None
    try:
        counted = emulated(case, candidate)
    except QgenError as error:
        notes.append(f"emulator skipped: {error.subject}: {error.found}")
    counters: dict[str, float] = {}
    raw: Mapping[str, float] = {}
    wanted: ncu.Choice
    entry = candidate.instance.name
    child = [sys.executable, "-m", "qgen.bench.profile_child", entry, str(case.shape)]
    try:
        if profiler is None:
            path = ncu.find()
            wanted = ncu.choose(ncu.query(path))
            profiler = partial(ncu.profile, path)
        else:
            wanted = ncu.choose({name.split(".")[0] for names in ncu.ROLES.values() for name in names})
        asked = {**wanted.names, **wanted.extras}
        try:
            raw = profiler(list(asked.values()), entry, child)
        except QgenError as error:
            asked = dict(wanted.names)
            raw = profiler(list(asked.values()), entry, child)
            notes.append(f"asked again without the extra counters: {error.found}")
        counters = {role: raw[name] for role, name in asked.items() if name in raw}
        if wanted.names.get("dram_bytes", "").startswith("dram__sectors") and "dram_bytes" in counters:
            counters["dram_bytes"] *= SECTOR
        if wanted.missing:
            notes.append(f"this ncu has no counter for: {', '.join(wanted.missing)}")
    except QgenError as error:
        notes.append(f"profiler skipped: {error.subject}: {error.found}; {error.next}")
    return Profile(
        kernel=entry,
        format=case.format.name,
        shape=str(case.shape),
        packed_bytes=case.weight_bytes,
        weights=case.shape.rows * case.shape.columns,
        emulated=counted,
        counters=counters,
        raw=dict(raw),
        notes=tuple(notes),
    )


def text(result: Profile) -> str:
    """The comparison, and the counters below it."""
    packed = result.packed_bytes

    def line(what: str, value: float | None) -> str:
        return f"  {what:44} " + ("-" if value is None else f"{value:>15,.0f}  {value / packed:6.3f} x packed")

    e = result.emulated
    lines = [
        f"{result.kernel} at {result.shape}",
        "weights, bytes:",
        line("packed", packed),
        line(f"emulator, requested{f' (from {e.sample_rows} rows)' if e else ''}", e.read_bytes if e else None),
        line("emulator, sectors x 32", e.sector_bytes if e else None),
        line("ncu, copy (LDGSTS) sectors x 32", result.copied_bytes),
        line("ncu, DRAM bytes read (activation included)", result.dram_bytes),
    ]
    if result.instructions_a_weight is not None:
        lines.append(f"instructions a weight: {result.instructions_a_weight:.3f}")
    for role, value in result.counters.items():
        lines.append(f"  {role:44} {value:>15,.2f}")
    return "\n".join([*lines, *(f"NOTE {note}" for note in result.notes)])
