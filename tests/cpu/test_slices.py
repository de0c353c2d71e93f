"""Slices of the contract taken one after the other: their order, and their sums added by halving, for every number of
slices a part may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulate_programs import ORDERS, program

from qgen.emulate import Buffer

SHAPES = [(1, 2), (1, 4), (2, 4), (1, 8), (4, 8), (2, 16), (1, 32), (4, 32)]  # split and slices
GROUPS = 3
UNTOUCHED = 0xFFFFFFFF

each_order = pytest.mark.parametrize(("order", "seed"), ORDERS)
each_shape = pytest.mark.parametrize(("split", "slices"), SHAPES)


def reversed_bits(number: int, count: int) -> int:
    """Of a number below `count`, a power of two."""
    return int(f"{number:0{count.bit_length() - 1}b}"[::-1], 2)


@each_shape
@pytest.mark.parametrize("bundles", [0, 1, 3, 32, 71])
def test_bundles_come_slice_by_slice(split: int, slices: int, bundles: int) -> None:
    """Those of part p in slices that are p modulo split, each slice's bundles in turn, group after group."""
    begin, end, own = 1, 1 + GROUPS, slices // split
    visits = np.full((split, GROUPS * bundles + 1), UNTOUCHED, dtype=np.uint32)
    program("slices").launch(
        f"walk_{split}_{slices}",
        grid=1,
        block=split,
        shared=0,
        args=[begin, end, bundles, Buffer("visits", visits, writable=True), visits.shape[1]],
    )
    for part in range(split):
        order = [reversed_bits(i, own) * split + part for i in range(own)]
        once = [bundle for slice in order for bundle in range(slice, bundles, slices)]
        wanted = [group * bundles + bundle for group in range(begin, end) for bundle in once]
        found = visits[part]
        assert found[: len(wanted)].tolist() == wanted and (found[len(wanted) :] == UNTOUCHED).all()


@each_order
@each_shape
@pytest.mark.parametrize("kept", [False, True])
def test_sums_are_added_by_halving(split: int, slices: int, kept: bool, order: Any, seed: int) -> None:
    """First those whose numbers differ in the highest bit, in shared memory no larger than the levels that wait there;
    a NaN in one group is none in the next."""
    rng = np.random.default_rng(slices)
    x = (rng.standard_normal((GROUPS, slices, 32, 8)) * 10.0 ** rng.integers(-4, 4, (slices, 1, 1))).astype(np.float32)
    x[0, -1] = np.nan
    y, taken = np.zeros((GROUPS, 32, 8), dtype=np.float32), np.zeros(1, dtype=np.uint32)
    levels = (slices // split).bit_length() - 1 - kept
    room = max(levels, split > 1) * 1024 * split
    program("slices").launch(
        f"add_{split}_{slices}",
        grid=1,
        block=32 * split,
        shared=room + 8,
        args=[Buffer("x", x), Buffer("y", y, writable=True), GROUPS, int(kept), Buffer("bytes", taken, writable=True)],
        order=order,
        seed=seed,
    )
    assert taken == room
    wanted = x
    while wanted.shape[1] > 1:
        half = wanted.shape[1] // 2
        wanted = wanted[:, :half] + wanted[:, half:]
    assert np.isnan(y[0]).all() and np.array_equal(y[1:].view(np.uint32), wanted[1:, 0].view(np.uint32))
