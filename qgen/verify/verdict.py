"""The judgement of `qgen verify`: results of a kernel against the arithmetic contract and the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from qgen import contract
from qgen.weights import Weight

SHOWN = 3  # bad blocks or rows a finding names

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Rows = NDArray[np.int64]


def row_bytes(weight: Weight, rows: Rows) -> U8:
    """uint8[len(rows), bytes of a row]: copies of the chosen rows of a weight on the host, without padding.

    Raises QgenError for a weight in tiles.
    """
    weight.check_native()
    lines = np.lib.stride_tricks.as_strided(
        weight.data.reshape(-1), (weight.rows, weight.row_bytes), (weight.row_stride_bytes, 1), writeable=False
    )
    return np.ascontiguousarray(lines[rows])


class Verdict:
    """Collects the results on which a kernel and a judge disagree."""

    def __init__(self, tokens: int = 1) -> None:
        """tokens: how many the matrix was multiplied by."""
        self._tokens = tokens
        self.largest_error = 0.0
        self.allowed_error = 0.0
        self._wrong: dict[str, tuple[int, str]] = {}

    def judge(self, weight: Weight, x: F32, rows: Rows, y: F32, token: int = 0) -> None:
        """Hold y float32[n], the chosen rows of `weight` times x float32[K], against contract and oracle."""
        blocks = row_bytes(weight, rows).reshape(len(rows), -1, weight.format.bytes)
        agreed = contract.mul_mat(weight.format, blocks, x)
        same = (y.view(np.uint32) == agreed.view(np.uint32)) | (np.isnan(y) & np.isnan(agreed))
        self._count(
            "other bits than the arithmetic contract gives",
            ~same,
            lambda i: f"{y[i]!r}, not {agreed[i]!r}",
            rows,
            token,
        )
        exact, bound = contract.reference(weight.format, blocks, x)
        with np.errstate(all="ignore"):
            error = np.abs(y.astype(np.float64) - exact)
            # A sum with an Inf or NaN in it has no bound; it must not come out as a number.
            fits = np.where(np.isfinite(bound), error <= bound, ~np.isfinite(y))
        self._count(
            "off by more than rounding explains",
            ~fits,
            lambda i: f"{y[i]!r}, not {exact[i]!r} within {bound[i]:.2e}",
            rows,
            token,
        )
        finite = np.isfinite(error) & np.isfinite(bound)
        if finite.any():
            worst = int(np.argmax(np.where(finite, error, -1.0)))
            if error[worst] >= self.largest_error:
                self.largest_error, self.allowed_error = float(error[worst]), float(bound[worst])

    def _count(self, what: str, wrong: NDArray[np.bool_], show: Callable[[int], str], rows: Rows, token: int) -> None:
        found = np.flatnonzero(wrong)
        if not len(found):
            return
        seen, text = self._wrong.get(what, (0, ""))
        at = f", token {token}" if self._tokens > 1 else ""
        named = [f"row {rows[i]}{at}: {show(int(i))}" for i in found[: max(0, SHOWN - seen)]]
        self._wrong[what] = (seen + len(found), "; ".join(filter(None, [text, *named])))

    def findings(self) -> Iterator[str]:
        """One text a kind of disagreement: how many results, and the first few of them."""
        things = "results" if self._tokens > 1 else "rows"
        for what, (count, text) in self._wrong.items():
            yield f"{count} {things} {what} ({text}{'; ...' if count > SHOWN else ''})"
