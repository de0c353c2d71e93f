"""The emulator: arrivals at barriers that bring asynchronous copies, as kernels from sm_80 on have them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from emulate_programs import ORDERS, kernel_text
from numpy.typing import NDArray

from qgen.emulate import Argument, Buffer, Program, Report, compile
from qgen.errors import QgenError

each_order = pytest.mark.parametrize(("order", "seed"), ORDERS)


@cache
def arrivals(broken: int = 0, arch: int = 800) -> Program:
    return compile(f"#define BROKEN {broken}\n" + kernel_text("arrivals"), f"arrivals_{broken}", arch=arch)


@each_order
def test_copies_land_at_the_wait_for_the_barrier_their_threads_arrive_at(order: Any, seed: int) -> None:
    x = np.arange(1, 129, dtype=np.uint8)
    y = np.zeros((4, 32), np.uint32)
    args: list[Argument] = [Buffer("x", x), Buffer("y", y, writable=True)]
    report = arrivals().launch("lands_late", grid=2, block=32, shared=144, args=args, order=order, seed=seed)
    assert (y[0] == 7).all() and (y[1:3] == 0xA5A5A5A5).all(), "who does not wait sees poison"
    np.testing.assert_array_equal(y[3], x.view(np.uint32))
    assert (report.read_bytes["x"], report.read_requests["x"]) == (2 * 128, 2 * 8)


@each_order
def test_an_arrival_brings_all_copies_asked_for_before_it_and_none_after(order: Any, seed: int) -> None:
    x = np.array([1, 0, 0, 0, 2, 0, 0, 0], np.uint32)
    for awaited, found in ((0, [1, 0xA5A5A5A5]), (1, [1, 2])):
        y = np.zeros(2, np.uint32)
        args: list[Argument] = [Buffer("x", x), awaited, Buffer("y", y, writable=True)]
        arrivals().launch("two_barriers", grid=1, block=32, shared=48, args=args, order=order, seed=seed)
        assert y.tolist() == found


def test_an_arrival_while_copies_of_the_phase_may_be_in_flight_is_refused() -> None:
    x = Buffer("x", np.zeros(16, np.uint8))
    with pytest.raises(QgenError, match="arrival 2 at a barrier for 1 whose copies may be in flight") as error:
        arrivals().launch("never_awaited", grid=1, block=32, shared=32, args=[x])
    lines = f"#define BROKEN 0\n{kernel_text('arrivals')}".splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("// <- never_awaited"))
    assert f"arrivals_0.cu:{line}" in error.value.found


@pytest.mark.parametrize(
    ("arch", "which", "name"),
    [(750, 0, "qgen_barrier_init"), (890, 1, "qgen_barrier_expect"), (800, 2, "qgen_copy_bulk")],
)
def test_what_an_architecture_lacks_is_refused(arch: int, which: int, name: str) -> None:
    x = Buffer("x", np.zeros(16, np.uint8))
    # The reduction in the text's last kernel begins with sm_80, too.
    text = kernel_text("arrivals").split("// y[w][step]")[0]
    with pytest.raises(QgenError, match=f"{name}, which begins with sm_..?, in text for sm_{arch // 10}"):
        compile(text, "arrivals_of", arch=arch).launch("too_new", grid=1, block=32, shared=48, args=[x, which])


def copied_rows(text: Program, order: Any, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Report]:
    """What three warps find in seven steps of a ring of copies, what they should, and the report."""
    x = np.random.default_rng(11).integers(0, 1 << 20, (7, 128), dtype=np.uint32)
    y = np.zeros((3, 7), np.uint32)
    args: list[Argument] = [Buffer("x", x), 7, Buffer("y", y, writable=True)]
    report = text.launch("copied_rows", grid=1, block=96, shared=32 + 1024, args=args, order=order, seed=seed)
    return y, np.broadcast_to(x.sum(axis=1, dtype=np.uint32), (3, 7)), report


@each_order
def test_a_ring_of_copies_runs_in_every_order_and_is_counted(order: Any, seed: int) -> None:
    y, expected, report = copied_rows(arrivals(), order, seed)
    np.testing.assert_array_equal(y, expected)
    assert report.read_bytes["x"] == report.bytes_touched["x"] == 16 * report.read_requests["x"] == 7 * 512


@pytest.mark.parametrize("broken", range(1, 9))
def test_a_wrong_step_of_the_ring_changes_the_result_or_ends_it(broken: int) -> None:
    noticed = []
    for order, seed in ORDERS:
        try:
            y, expected, _ = copied_rows(arrivals(broken), order, seed)
            noticed.append(bool((y != expected).any()))
        except QgenError as error:
            assert "qgen_barrier_wait" in error.found or "arrival" in error.found, error.found
            noticed.append(True)
    assert any(noticed)
    if broken != 2:  # no order can hide copies that nobody waited for, or a slot that nobody gives back
        assert all(noticed)
