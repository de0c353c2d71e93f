"""Under what conditions a run took place: device state by nvidia-smi (only asked), software, revision, date."""

from __future__ import annotations

import csv
import datetime
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from qgen import paths
from qgen.bench.machine import Facts

BUSY_PERCENT = 5  # of utilisation before the run's own work: somebody else's
CLOCK_LOSS = 0.05  # of the highest SM clock, under load, that is still no throttling
# Bits of nvidia-smi's clock event reasons that slow a device under load.
_SLOWED = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "temperature", 0x40: "temperature", 0x80: "power brake"}
_FIELDS = (
    "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu",
)  # fmt: skip
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new name, name of older drivers
_TIMEOUT = 20  # seconds an answer may take


@dataclass(frozen=True)
class State:
    """One reading of nvidia-smi; None where it gives no figure. MHz, degrees Celsius, watts, percent."""

    driver: str
    sm_mhz: float | None
    sm_max_mhz: float | None
    memory_mhz: float | None
    celsius: float | None
    watts: float | None
    utilisation: float | None
    reasons: int | None


@dataclass
class Conditions:
    """Everything about a run that is no measurement of it. `notes`: sentences a reader of the report must see."""

    facts: Facts
    date: str
    command: str
    label: str
    revision: str
    software: str
    states: dict[str, State] = field(default_factory=dict)  # "before", "loaded, first", "loaded, last"
    others: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def driver(self) -> str:
        """The driver's version, if nvidia-smi said it."""
        return next((state.driver for state in self.states.values()), "unknown")

    def judge(self) -> None:
        """Put into `notes` what the states say against the figures of this run."""
        self.notes += judge(self.states, self.others)


def judge(states: dict[str, State], others: tuple[str, ...]) -> list[str]:
    """Sentences about a busy or throttled device, or about what could not be read."""
    if not states:
        return ["nvidia-smi gave no reading: clocks, throttling and other load are unknown"]
    notes = []
    before = states.get("before")
    if before and before.utilisation is not None and before.utilisation > BUSY_PERCENT:
        notes.append(f"the device was busy before the run: {before.utilisation:.0f} percent utilisation")
    if others:
        notes.append(f"other processes use the device: {'; '.join(others)}")
    for name, state in states.items():
        if not name.startswith("loaded"):
            continue
        if state.sm_mhz and state.sm_max_mhz and state.sm_mhz < (1 - CLOCK_LOSS) * state.sm_max_mhz:
            notes.append(f"{name}: SM clock {state.sm_mhz:.0f} of {state.sm_max_mhz:.0f} MHz")
        slowed = sorted({text for bit, text in _SLOWED.items() if (state.reasons or 0) & bit})
        if slowed:
            notes.append(f"{name}: the driver slows the clocks ({', '.join(slowed)})")
    return notes


def parse_state(line: str) -> State:
    """One CSV line of `nvidia-smi --query-gpu` for _FIELDS and, if it is there, the reasons."""
    cells = [cell.strip() for cell in next(csv.reader([line]))]

    def number(index: int) -> float | None:
        try:
            return float(cells[index])
        except (IndexError, ValueError):
            return None  # "[N/A]", "[Not Supported]"

    reasons: int | None
    try:
        reasons = int(cells[len(_FIELDS)], 16)
    except (IndexError, ValueError):
        reasons = None
    sm, sm_max, memory, celsius, watts, utilisation = (number(i) for i in range(1, len(_FIELDS)))
    return State(cells[0], sm, sm_max, memory, celsius, watts, utilisation, reasons)


def _ask(bus: str, *query: str, meanwhile: Callable[[], None] | None = None) -> list[str]:
    """The lines nvidia-smi prints, none where it fails; `meanwhile` is called again and again until it has answered."""
    command = ["nvidia-smi", "-i", bus, *query, "--format=csv,noheader,nounits"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            while meanwhile and process.poll() is None:
                meanwhile()
            try:
                output, _ = process.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                return []
            return [line.strip() for line in output.splitlines() if line.strip()] if process.returncode == 0 else []
    except OSError:
        return []


def read_state(bus: str, meanwhile: Callable[[], None] | None = None) -> State | None:
    """The device's state now, or while `meanwhile` keeps it at work. None when nvidia-smi gives none."""
    for reasons in (*_REASONS, ""):
        fields = ",".join((*_FIELDS, *([reasons] if reasons else [])))
        lines = _ask(bus, f"--query-gpu={fields}", meanwhile=meanwhile)
        if lines:
            return parse_state(lines[0])
    return None


def other_processes(bus: str, own: int) -> tuple[str, ...]:
    """Other compute processes on the device, as nvidia-smi lists them."""
    lines = _ask(bus, "--query-compute-apps=pid,process_name,used_memory")
    return tuple(f"{line} MiB" for line in lines if line.split(",")[0].strip() != str(own))


def revision() -> str:
    """The git commit of this checkout and whether it was changed since; "unknown" outside one."""
    root = paths.data_dir("specs").parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=_TIMEOUT)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return (commit + (" with changes" if git("status", "--porcelain") else "")) if commit else "unknown"
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def software() -> str:
    """Versions of what takes part, one line."""
    names = ("qgen", "nvidia-cuda-nvrtc", "numpy")
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} (not installed as a package)")
    return ", ".join([f"Python {platform.python_version()}", *found])


def now() -> str:
    """The date and time, UTC, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
