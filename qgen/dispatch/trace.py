"""Which kernel ran: counters per kernel and per refusal, and a line per decision where QGEN_TRACE asks for it.

QGEN_TRACE, read at the first decision: 1 prints a line to stderr for every decision and every launch; `summary` prints
all counters when the program ends; 0 or nothing prints nothing. The counters run always.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from functools import cache

from qgen.dispatch.request import Decision, Request

VARIABLE = "QGEN_TRACE"


@dataclass(frozen=True)
class Counts:
    """A copy of the counters. decided, ran: by kernel name; refused: by (code, reason)."""

    decided: dict[str, int]
    ran: dict[str, int]
    refused: dict[tuple[str, str], int]


_lock = threading.Lock()
_decided: Counter[str] = Counter()
_ran: Counter[str] = Counter()
_refused: Counter[tuple[str, str]] = Counter()


def decided(request: Request, decision: Decision) -> None:
    """Count a decision. `lookup` calls this; nobody else need."""
    with _lock:
        if decision.kernel is not None:
            _decided[decision.kernel] += 1
        else:
            _refused[decision.code or "", decision.reason] += 1
    if _mode() == "lines":
        to = decision.kernel or f"refused: {decision.reason}"
        r = request
        print(f"qgen: {r.op} {r.format} T={r.T} N={r.N} K={r.K} {r.arch} -> {to}", file=sys.stderr)


def ran(kernel: str) -> None:
    """Count a launch of a kernel; to be called beside it."""
    with _lock:
        _ran[kernel] += 1
    if _mode() == "lines":
        print(f"qgen: ran {kernel}", file=sys.stderr)


def counts() -> Counts:
    """The counters since the start or the last `reset`."""
    with _lock:
        return Counts(dict(_decided), dict(_ran), dict(_refused))


def reset() -> None:
    """All counters back to nothing."""
    with _lock:
        _decided.clear()
        _ran.clear()
        _refused.clear()


@cache
def _mode() -> str:
    text = os.environ.get(VARIABLE, "")
    if text == "summary":
        atexit.register(_summary)
    return "silent" if text in ("", "0") else "summary" if text == "summary" else "lines"


def _summary() -> None:
    now = counts()
    print("qgen: decisions and launches", file=sys.stderr)
    for name in sorted(now.decided.keys() | now.ran.keys()):
        print(f"qgen: {now.decided.get(name, 0):10} {now.ran.get(name, 0):10}  {name}", file=sys.stderr)
    for (code, reason), count in sorted(now.refused.items()):
        print(f"qgen: {count:10} refused     {code}: {reason}", file=sys.stderr)
