"""Progress of long work, on stderr: a bar for people at a terminal, a short line now and then for logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_EVERY = 5.0  # seconds between lines where there is no terminal


@contextmanager
def progress(label: str, total: int, *, show: bool = True) -> Iterator[Callable[[], None]]:
    """Yields the function to call after each of `total` steps, from one thread.

    A bar is drawn when stderr is a terminal or QGEN_PROGRESS=1; otherwise a line every few seconds, and nothing
    for work that ends before the first. QGEN_PROGRESS=0 or `show=False` keeps it silent.
    """
    choice = os.environ.get("QGEN_PROGRESS", "")
    if not show or choice == "0":
        yield lambda: None
    elif choice == "1" or sys.stderr.isatty():
        from tqdm import tqdm  # imported here: only people at a terminal pay for it

        with tqdm(total=total, desc=label, file=sys.stderr, dynamic_ncols=True) as bar:
            yield lambda: bar.update(1)
    else:
        done, last = 0, time.monotonic()

        def step() -> None:
            nonlocal done, last
            done += 1
            now = time.monotonic()
            if now - last >= _LINE_EVERY:
                last = now
                print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

        yield step
