"""A live peer as the run sees it: a process that is asked for cells and laps, and may end at any time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qgen import paths
from qgen.bench.cases import Case, Skipped
from qgen.bench.peers import Figure
from qgen.bench.protocol import Timing, cold_bytes
from qgen.bench.records import About, Report
from qgen.errors import QgenError

NAMES = ("ggml", "humming", "torch")
PROVENANCE = "measured in this run, in a process of its own, pass by pass between qgen's kernels"
_WAIT = 300.0  # seconds an answer may take: some compile on a first call
_RESTARTS = 3  # of a process that ended on a cell


class Gone(Exception):
    """The peer's process has ended, or did not answer."""


class LivePeer:
    """One peer. `about` is None, and `why_not` says why, where it cannot run."""

    def __init__(self, wanted: str, *, child: Sequence[str] = ("-m", "qgen.bench.live.child")) -> None:
        """wanted: NAME or NAME=ARGUMENT. Raises QgenError for a name that is no peer's."""
        self.name, _, self.argument = wanted.partition("=")
        if self.name not in NAMES:
            raise QgenError(
                stage="bench",
                subject=f"--peer {wanted}",
                found=f"{self.name!r}",
                allowed=", ".join(NAMES),
                next="write --peer torch, --peer humming, or --peer ggml=/path/to/libggml-cuda.so",
            )
        self._child, self._restarts = child, 0
        self._process: subprocess.Popen[str] | None = None
        self.about: About | None = None
        self.why_not = ""
        self._start()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        package = str(Path(paths.__file__).resolve().parents[1])
        found = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, *self._child, self.name, self.argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        )
        try:
            hello = self._read()
        except Gone as gone:
            self.why_not = str(gone)
            return
        if "skip" in hello:
            self.why_not = hello["skip"]
            self.close()
        else:
            self.about = About(self.name, hello["version"], hello["how"], hello["tolerance"])

    def _read(self) -> dict[str, Any]:
        assert self._process and self._process.stdout
        answered, _, _ = select.select([self._process.stdout], [], [], _WAIT)
        line = self._process.stdout.readline() if answered else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if not answered:
            self._process.kill()
        status = self._process.wait()
        self._process.stdin and self._process.stdin.close()
        self._process.stdout.close()
        self._process = None
        how = f"ended with status {status}" if answered else f"gave no answer in {_WAIT:.0f} seconds"
        self._errors.seek(0)
        said = [text.strip() for text in self._errors.read().splitlines() if text.strip()]
        self._errors.close()
        raise Gone(f"its process {how}" + (f"; the last it said: {said[-1]}" if said else ""))

    def _ask(self, **request: Any) -> dict[str, Any]:
        if self._process is None:
            raise Gone("its process has ended")
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is with its end
        return self._read()

    def cell(self, case: Case, cold: int) -> tuple[int, str] | str:
        """A number to lap with, and the peer's own name of what it runs; or why there is none."""
        if self._process is None and self._restarts < _RESTARTS:
            self._restarts += 1
            self._start()
        shape = case.shape.rows, case.shape.columns
        try:
            answer = self._ask(do="cell", format=case.format.name, shape=shape, tokens=case.tokens, cold=cold)
        except Gone as gone:
            return str(gone)
        return answer.get("skip") or (answer["id"], answer["row"])

    def lap(self, number: int) -> float:
        """Microseconds a launch of one pass. Raises Gone when it fails."""
        answer = self._ask(do="lap", id=number)
        if "skip" in answer:
            raise Gone(answer["skip"])
        return float(answer["us"])

    def drop(self) -> None:
        """Free the memory of the cells so far."""
        if self._process is not None:
            try:
                self._ask(do="drop")
            except Gone:
                pass  # then it is free

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._errors.close()
            self._process = None


class Live:
    """All peers of a run. `skipped` names every peer and cell without a figure, with its reason."""

    def __init__(self, peers: Sequence[LivePeer], cold: int) -> None:
        self.cold = cold
        self.peers = [peer for peer in peers if peer.about]
        self.skipped = [Skipped(f"peer {peer.name}", peer.why_not) for peer in peers if not peer.about]
        self._missing: dict[tuple[str, str, str], list[int]] = {}
        self._rows: dict[str, tuple[LivePeer, str, Case]] = {}

    @property
    def about(self) -> list[About]:
        """Those that took part."""
        return [peer.about for peer in self.peers if peer.about]

    def subjects(self, cases: Sequence[Case]) -> dict[str, Callable[[], float | None]]:
        """Subjects for `protocol.measure`, of every peer at every case that it has."""
        found: dict[str, Callable[[], float | None]] = {}
        for peer in self.peers:
            for case in cases:
                made = peer.cell(case, self.cold)
                if isinstance(made, str):
                    self._miss(peer, case, made)
                    continue
                number, row = made
                name = f"peer {peer.name}, {case}"
                self._rows[name] = peer, row, case
                found[name] = self._lap(peer, number, case)
        return found

    def _lap(self, peer: LivePeer, number: int, case: Case) -> Callable[[], float | None]:
        failed = False

        def lap() -> float | None:
            nonlocal failed
            if failed:
                return None
            try:
                return peer.lap(number)
            except Gone as gone:
                failed = True
                self._miss(peer, case, str(gone))
                return None

        return lap

    def _miss(self, peer: LivePeer, case: Case, reason: str) -> None:
        self._missing.setdefault((peer.name, f"{case.format.name} {case.shape}", reason), []).append(case.tokens)

    def figures(self, case: Case, times: Mapping[str, Timing]) -> tuple[Figure, ...]:
        """What peers took for a case, of the times that `measure` returned for the subjects."""
        found = []
        for name, (peer, row, own) in self._rows.items():
            if own == case and name in times:
                found.append(Figure(peer.name, row, times[name].median, PROVENANCE, live=times[name]))
        return tuple(found)

    def end_case(self) -> None:
        """The figures of a matrix are taken: free its memory at the peers, and name what was missing."""
        for peer in self.peers:
            peer.drop()
        self._rows.clear()
        for (name, what, reason), tokens in self._missing.items():
            self.skipped.append(Skipped(f"peer {name}, {what}, T = {', '.join(map(str, tokens))}", reason))
        self._missing.clear()


@contextmanager
def live_peers(wanted: Sequence[str], l2: int, report: Report) -> Iterator[Live]:
    """The peers of a run, whose descriptions and gaps go into the report; their processes end with the block.

    wanted: as `LivePeer` takes them, which also says what is raised
    """
    peers: list[LivePeer] = []
    try:
        for name in dict.fromkeys(wanted):
            peers.append(LivePeer(name))
        live = Live(peers, cold_bytes(l2))
        report.live += live.about
        try:
            yield live
        finally:
            live.end_case()
            report.skipped += live.skipped
    finally:
        for peer in peers:
            peer.close()
