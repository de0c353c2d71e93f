"""`qgen profile`: what the profiler counts of kernels, beside what emulator and machine code predict of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from qgen.bench import ncu
from qgen.bench.candidates import (
    AnyCandidate,
    Candidate,
    FloatCandidate,
    FusedCandidate,
    MultirowCandidate,
    WgmmaCandidate,
    candidates,
    every_candidate,
)
from qgen.bench.cases import Case, Skipped, cases, choose_formats, parse_shape
from qgen.bench.inputs import SEED, pattern
from qgen.bench.instructions import SHAPE, predict
from qgen.emulated import ARCH, EmulatedFused, EmulatedLadder, EmulatedMatvec, EmulatedMultirow
from qgen.emulated_wgmma import EmulatedWgmma
from qgen.errors import QgenError
from qgen.plan import Plan, plan_all
from qgen.spec import Format, load_formats

SECTOR = 32  # bytes
SAMPLE_CTAS = 2  # whose rows the emulator runs; others repeat their traffic

Profiler = Callable[[Sequence[str], str, Sequence[str]], Mapping[str, float]]

# The profiler's pipes that make up one of qgen.count; of several lists the first of which all are there.
COUNTED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "alu": (("alu",),),
    "fma": (("fma",), ("fmaheavy", "fmalite")),
    "xu": (("xu",),),
    "lsu": (("lsu",),),
    "tensor": (("tensor",), ("tensor_op_imma",)),
    "uniform": (("uniform",),),
    "control": (("cbu", "adu"),),
}


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

    emulated, predicted (instructions a weight by pipe, see qgen.count): None, with the reason in `notes`, where they
    could not be taken; counters are empty likewise
    """

    kernel: str
    label: str
    format: str
    rows: int
    columns: int
    tokens: int
    storage: str
    packed_bytes: int
    emulated: Emulated | None
    predicted: Mapping[str, float] | None
    counters: Mapping[str, float]
    raw: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def weights(self) -> int:
        """N x K."""
        return self.rows * self.columns

    @property
    def copied_bytes(self) -> float | None:
        """Sectors that cp.async (the weights' way in where there are no bulk copies) moved, in bytes.

        The sum of the copies that bypass L1 and those that do not, or the count of all, whichever saw more: a chip
        may lack one of these counters.
        """
        parts = [self.counters.get(f"copy_sectors_{way}") for way in ("bypass", "access")]
        found = [part for part in parts if part is not None]
        every = self.counters.get("copy_sectors")
        counts = ([sum(found)] if found else []) + ([every] if every is not None else [])
        return SECTOR * max(counts) if counts else None

    @property
    def measured(self) -> dict[str, float]:
        """Instructions a weight as the profiler counted them, by pipe of qgen.count where it has them, and "all"."""
        found: dict[str, float] = {}
        for pipe, ways in COUNTED.items():
            for way in ways:
                counts = [self.counters.get(ncu.EXECUTED + name) for name in way]
                known = [count for count in counts if count is not None]
                if len(known) == len(way):
                    found[pipe] = 32 * sum(known) / self.weights
                    break
        if "instructions" in self.counters:
            found["all"] = 32 * self.counters["instructions"] / self.weights
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data, the derived figures among it."""
        return asdict(self) | {"copied_bytes": self.copied_bytes, "measured": self.measured}


@dataclass(frozen=True)
class Profiles:
    """What one `qgen profile` found."""

    rows: tuple[Profile, ...]
    skipped: tuple[Skipped, ...]
    command: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "command": self.command,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [asdict(some) for some in self.skipped],
        }


def choose(case: Case, plans: Sequence[Plan], kernel: str | None) -> AnyCandidate:
    """The kernel to look at: the routed one, or the one named. Raises QgenError for a name that the case has not."""
    if kernel is None:
        return next(c for c in candidates(case, plans, every=False, arch=ARCH) if c.routed)
    found = every_candidate(case, plans, arch=ARCH)
    for candidate in found:
        if kernel in (candidate.instance.name, candidate.label):
            return candidate
    raise QgenError(
        stage="bench",
        subject=f"--kernel {kernel}",
        found=f"no such kernel of {case}, {case.storage} storage",
        allowed=", ".join(candidate.instance.name for candidate in found),
        next=f"run `qgen show {case.format.name}`",
    )


def emulated(case: Case, candidate: AnyCandidate) -> Emulated:
    """Count the weight reads of the kernel's text on the first rows of the matrix. Raises QgenError without g++."""
    assert not isinstance(candidate, FloatCandidate)
    if isinstance(candidate, Candidate):
        a_cta = candidate.plan.warps * candidate.instance.warp_rows
    elif isinstance(candidate, MultirowCandidate):
        a_cta = candidate.instance.warps * candidate.instance.warp_rows
    else:
        a_cta = candidate.instance.rows
    rows = min(case.shape.rows, SAMPLE_CTAS * a_cta)
    blocks = pattern(case.format)["block"]
    weight = blocks[np.arange(rows * case.blocks) % len(blocks)].reshape(rows, case.row_bytes)
    x = np.random.default_rng(SEED).standard_normal((case.tokens, case.shape.columns), dtype=np.float32)
    if isinstance(candidate, Candidate):
        launched = EmulatedMatvec(case.format).run(weight, x[0], instance=candidate.instance, count_sectors=True)
    elif isinstance(candidate, MultirowCandidate):
        launched = EmulatedMultirow(case.format).run(weight, x, instance=candidate.instance, count_sectors=True)
    elif isinstance(candidate, FusedCandidate):
        launched = EmulatedFused(case.format).run(weight, x[0], instance=candidate.instance, count_sectors=True)
    elif isinstance(candidate, WgmmaCandidate):
        launched = EmulatedWgmma(case.format).run(weight, x, rung=candidate.instance, count_sectors=True)
    else:
        ladder = EmulatedLadder(case.format, case.storage)
        launched = ladder.run(weight, x, rung=candidate.instance, count_sectors=True)
    scale = case.shape.rows / rows
    return Emulated(
        sample_rows=rows,
        read_bytes=scale * launched.report.read_bytes["weight"],
        touched_bytes=scale * launched.report.bytes_touched["weight"],
        sector_bytes=scale * SECTOR * launched.report.read_sectors["weight"],
    )


def _count(
    profiler: Profiler | None, case: Case, kernel: str, notes: list[str]
) -> tuple[dict[str, float], Mapping[str, float]]:
    """Counters by role, and under the profiler's names; what goes wrong on the way is noted."""
    if profiler is None:
        path = ncu.find()
        wanted = ncu.choose(ncu.query(path))
        profiler = partial(ncu.profile, path)
    else:
        wanted = ncu.choose({name.split(".")[0] for names in ncu.ROLES.values() for name in names})
    child = [sys.executable, "-m", "qgen.bench.profile_child", kernel, str(case.shape), str(case.tokens)]
    asks = list(wanted.asks())
    for last, asked in zip([*[False] * (len(asks) - 1), True], asks, strict=True):
        try:
            raw = profiler(list(asked.values()), kernel, child)
            break
        except QgenError as error:
            if last:
                raise
            notes.append(f"asked again with fewer counters: {error.found}")
    counters = {role: raw[name] for role, name in asked.items() if name in raw}
    for role in counters:
        if role.endswith("_bytes") and "sectors" in asked[role]:
            counters[role] *= SECTOR
    if wanted.missing:
        notes.append(f"this ncu has no counter for: {', '.join(wanted.missing)}")
    return counters, raw


def profile(
    case: Case, plans: Sequence[Plan], kernel: str | None = None, *, profiler: Profiler | None = None
) -> Profile:
    """Count one kernel. What is missing on this machine (ncu, nvdisasm, a compiler for the emulator) is in `notes`.

    profiler: stands in for ncu, for tests. Raises QgenError for a kernel that does not exist.
    """
    candidate = choose(case, plans, kernel)
    notes: list[str] = []
    counted: Emulated | None = None
    predicted: Mapping[str, float] | None = None
    counters: dict[str, float] = {}
    raw: Mapping[str, float] = {}
    try:
        counted = emulated(case, candidate)
    except QgenError as error:
        notes.append(f"emulator skipped: {error.subject}: {error.found}")
    try:
        predicted = predict(case, candidate).a_weight()
    except QgenError as error:
        notes.append(f"not predicted: {error.subject}: {error.found}; {error.next}")
    try:
        counters, raw = _count(profiler, case, candidate.instance.name, notes)
    except QgenError as error:
        notes.append(f"profiler skipped: {error.subject}: {error.found}; {error.next}")
    return Profile(
        kernel=candidate.instance.name,
        label=candidate.label,
        format=case.format.name,
        rows=case.shape.rows,
        columns=case.shape.columns,
        tokens=case.tokens,
        storage=case.storage,
        packed_bytes=case.weight_bytes,
        emulated=counted,
        predicted=predicted,
        counters=counters,
        raw=dict(raw),
        notes=tuple(notes),
    )


def profiles(
    names: Sequence[str],
    *,
    shape: str = SHAPE,
    tokens: int = 1,
    storage: str = "native",
    kernel: str | None = None,
    command: str = "qgen profile",
    profiler: Profiler | None = None,
) -> Profiles:
    """Count the routed kernel of every format named (default: all), or of one format the kernel named.

    Raises QgenError for names and shapes that do not exist, and for a format named that has no kernel for the case.
    """
    formats = load_formats()
    plans, _ = plan_all(formats)
    chosen = choose_formats(names, formats, plans)
    if kernel is not None and len(chosen) != 1:
        raise QgenError(
            stage="bench",
            subject=f"--kernel {kernel}",
            found=f"{len(chosen)} formats",
            allowed="one format, whose kernel it is",
            next="name the format first",
        )
    found, skipped = cases([f for f in chosen if not f.split], [parse_shape(shape)], (tokens,), storage=storage)
    skipped += [Skipped(f.name, "only float activations, whose kernels are not profiled") for f in chosen if f.split]
    if names and skipped:
        _refuse(chosen[0], skipped[0])
    rows = []
    for case in found:
        try:
            rows.append(profile(case, plans, kernel, profiler=profiler))
        except QgenError as error:
            if names:
                raise
            skipped.append(Skipped(str(case), error.found))
    return Profiles(tuple(rows), tuple(skipped), command)


def _refuse(format: Format, why: Skipped) -> None:
    raise QgenError(
        stage="bench",
        subject=why.what,
        found=why.reason,
        allowed=f"a format for int8 activations and a multiple of its block: {format.block} for {format.name}",
        next="choose another format or another K",
    )
