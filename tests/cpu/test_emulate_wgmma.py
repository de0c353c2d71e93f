"""The emulator's instructions of warpgroups: products against NumPy, and the errors of those who do not wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulate_programs import ORDERS, kernel_text, program
from numpy.typing import NDArray
from test_mma import G, T, fragments_a, matrix_d, wide

from qgen.emulate import Argument, Buffer
from qgen.errors import QgenError

POISON = 0xA5A5A5A5
TILE_BYTES = 384  # kTileBytes of the kernels
SHARED = 8 * TILE_BYTES
APART = 768  # kApart of the kernels with floats
END = 227 * 1024 - TILE_BYTES - 256 + 16  # of shared memory: the first place that two tiles do not fit at

each_order = pytest.mark.parametrize(("order", "seed"), ORDERS)


def tile_of(b: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A tile's bytes from B uint8[32, 8], by PTX's table of matrices without swizzle: two cores of eight columns, and
    sixteen k behind each other in a column."""
    laid = np.full(TILE_BYTES, 0xEE, dtype=np.uint8)
    laid[:256] = b.reshape(2, 16, 8).swapaxes(1, 2).reshape(-1)
    return laid


def launch(entry: str, *args: Argument, grid: int = 1, warps: int = 1, order: Any = "forward", seed: int = 0) -> None:
    block = 32 * warps
    program("warpgroup").launch(entry, grid=grid, block=block, shared=SHARED, args=args, order=order, seed=seed)


def results(entry: str, count: int, order: Any = "forward", seed: int = 0) -> NDArray[np.uint32]:
    """What each thread of a warp stores, [thread, count]."""
    y = np.zeros((32, count), dtype=np.uint32)
    launch(entry, Buffer("y", y, writable=True), order=order, seed=seed)
    return y


@each_order
@pytest.mark.parametrize(
    ("entry", "tiles", "kind", "fresh"),
    [("n16", 2, np.int8, False), ("n32", 4, np.int8, True), ("n48", 6, np.uint8, False), ("n64", 8, np.uint8, True)],
)
def test_products(entry: str, tiles: int, kind: type[np.generic], fresh: bool, order: Any, seed: int) -> None:
    """Four warps have sixteen rows each; sums begin with what d holds, or with nothing."""
    rng = np.random.default_rng(tiles)
    for extreme in (False, True):
        a = rng.integers(0, 256, (4, 16, 32), dtype=np.uint8)
        b = rng.integers(0, 256, (tiles, 32, 8), dtype=np.uint8)
        if extreme:
            a[:], b[:] = 0x80, 0x80
        words = np.stack([fragments_a(own) for own in a]).reshape(128, 4)
        laid = np.concatenate([tile_of(own) for own in b]).view(np.uint32)
        d = np.zeros((128, tiles, 4), dtype=np.int32)
        buffers = Buffer("a", words), Buffer("b", laid), Buffer("d", d.view(np.uint32), writable=True)
        launch(entry, *buffers, warps=4, order=order, seed=seed)
        if not fresh:
            d -= (1000 * np.arange(128)[:, None] + np.arange(4 * tiles)).astype(np.int32).reshape(d.shape)
        for warp, n in np.ndindex(4, tiles):
            wanted = a[warp].view(kind).astype(np.int32) @ b[n].view(np.int8).astype(np.int32)
            assert np.array_equal(matrix_d(d[32 * warp : 32 * warp + 32, n]), wanted)


@each_order
def test_sums_are_poison_until_waited_for(order: Any, seed: int) -> None:
    y = results("reads_early", 2, order, seed)
    assert (y[:, 0] == POISON).all() and (y[:, 1] == 32).all()


@each_order
def test_shared_memory_that_changes_before_the_wait_changes_the_result(order: Any, seed: int) -> None:
    """As it may on a device; behind the wait it does not."""
    assert (results("overwrites", 2, order, seed) == [64, 64]).all()


@each_order
def test_a_wait_is_for_the_older_groups(order: Any, seed: int) -> None:
    """Both instructions of a group, one upon the other; and not for what is in no group yet."""
    assert (results("groups", 3, order, seed) == [64, POISON, 32]).all()
    assert (results("commits_late", 1, order, seed) == POISON).all()


@pytest.mark.parametrize(
    ("place", "offset"), [(8, 0), (0, 8), (8, 8), (15, 1), (-16, 0), (16, -32), (END, 0), (16, END - 16)]
)
def test_a_place_that_is_misaligned_or_outside_is_refused(place: int, offset: int) -> None:
    with pytest.raises(QgenError, match=rf"qgen_wgmma_k32 of byte {place} \+ {offset}, tiles 384 bytes apart") as error:
        launch("at", place, offset)
    line = next(i for i, text in enumerate(kernel_text("warpgroup").splitlines(), 1) if "(d, kOnes" in text)
    assert f"warpgroup.cu:{line}" in error.value.found and "multiple of 16 bytes" in error.value.allowed
    for least, most in ((16, 16), (32, -32), (END - 16, 0), (0, END - 16)):
        launch("at", least, most)


def test_more_instructions_on_their_way_than_there_is_room_for_are_refused() -> None:
    launch("asks", 64, 1)
    with pytest.raises(QgenError, match="another qgen_wgmma_k32"):
        launch("asks", 65, 1)


@pytest.mark.parametrize("grid", [1, 2])
def test_instructions_nobody_waited_for_are_reported(grid: int) -> None:
    """With and without another block behind the one that left them; and the next launch knows nothing of it."""
    with pytest.raises(QgenError, match=r"3 instructions of block \(0,0\) that nobody waited for"):
        launch("asks", 3, 0, grid=grid)
    launch("asks", 3, 1, grid=grid)


def test_a_launch_that_failed_leaves_no_instructions_to_the_next() -> None:
    """Some threads of this one have asked and not waited when another fails."""
    with pytest.raises(QgenError, match="byte 8"):
        launch("at", 8, 0)
    with pytest.raises(QgenError, match="qgen_wgmma_k32"):
        launch("one_thread_short")
    assert (results("reads_early", 2)[:, 1] == 32).all()


def test_a_launch_after_a_deadlock_that_the_last_thread_to_exit_finds() -> None:
    """Its fibre begins anew, as those of the threads that wait do."""
    y = np.zeros(32, dtype=np.uint32)
    with pytest.raises(QgenError, match="deadlock"):
        launch("stuck", 1, Buffer("y", y, writable=True))
    y[:] = 0
    launch("stuck", 0, Buffer("y", y, writable=True))
    assert np.array_equal(y, np.arange(32))


# ---- f16 and bf16 ------------------------------------------------------------------------------------------------


def launch_floats(entry: str, *args: Argument, warps: int = 1, order: Any = "forward", seed: int = 0) -> None:
    shared = 8 * APART
    program("warpgroup_float").launch(entry, grid=1, block=32 * warps, shared=shared, args=args, order=order, seed=seed)


def halves(x: NDArray[np.float64], name: str) -> NDArray[np.uint32]:
    """The 16 bits of numbers, cut off where bf16 has no place for them."""
    if name == "f16":
        return x.astype(np.float16).view(np.uint16).astype(np.uint32)
    return x.astype(np.float32).view(np.uint32) >> np.uint32(16)


@each_order
@pytest.mark.parametrize(
    ("name", "tiles", "fresh"), [("f16", 2, False), ("bf16", 4, True), ("f16", 6, True), ("bf16", 8, False)]
)
def test_sums_of_floats(name: str, tiles: int, fresh: bool, order: Any, seed: int) -> None:
    """Two instructions, one upon the other: each adds exactly and rounds once; registers may change behind the ask."""
    rng = np.random.default_rng(tiles)
    a, b = halves(rng.standard_normal((4, 2, 16, 16)), name), halves(rng.standard_normal((tiles, 2, 16, 8)), name)
    # Register i of A: row g + 8 (i mod 2), columns 8 (i / 2) + 2t, + 1. Of B a column's eight k lie side by side.
    columns = [(G + 8 * (i % 2), 8 * (i // 2) + 2 * T) for i in range(4)]
    words = np.stack([a[:, :, row, k] | a[:, :, row, k + 1] << 16 for row, k in columns], axis=3)
    laid = np.full((tiles, APART), 0xEE, dtype=np.uint8)
    placed = b.astype(np.uint16).reshape(tiles, 2, 2, 8, 8).swapaxes(3, 4)
    laid[:, :512] = np.ascontiguousarray(placed).reshape(tiles, -1).view(np.uint8)
    d = np.zeros((128, tiles, 4), dtype=np.uint32)
    registers = np.ascontiguousarray(
        words.transpose(0, 2, 1, 3), dtype=np.uint32
    )  # [warp, lane, instruction, register]
    buffers = Buffer("a", registers), Buffer("b", laid.view(np.uint32)), Buffer("d", d, writable=True)
    launch_floats(f"{name}_{tiles}", *buffers, warps=4, order=order, seed=seed)
    starts = (100 * np.arange(128)[:, None] + np.arange(4 * tiles)).astype(np.float32).reshape(d.shape)
    for warp, n in np.ndindex(4, tiles):
        own = slice(32 * warp, 32 * warp + 32)
        total = np.zeros((16, 8), dtype=np.float32)
        if not fresh:
            total = matrix_d(starts[own, n].view(np.int32)).view(np.float32)
        for j in range(2):
            total = (total + wide(a[warp, j], name) @ wide(b[n, j], name)).astype(np.float32)
        assert np.array_equal(matrix_d(d[own, n].view(np.int32)), total.view(np.int32))


@each_order
def test_sums_of_floats_are_poison_until_waited_for(order: Any, seed: int) -> None:
    """Of a chain as well whose older instruction is waited for already."""
    y = np.zeros((32, 4), dtype=np.uint32)
    launch_floats("reads_early", Buffer("y", y, writable=True), order=order, seed=seed)
    assert (y[:, :2] == POISON).all()
    assert (y[:, 2:].copy().view(np.float32) == [32, 16]).all()


@pytest.mark.parametrize(("place", "offset"), [(8, 0), (0, 8), (-16, 0)])
def test_a_place_of_floats_that_is_misaligned_or_outside_is_refused(place: int, offset: int) -> None:
    with pytest.raises(QgenError, match=rf"qgen_wgmma_k16 of byte {place} \+ {offset}, tiles 768 bytes apart"):
        launch_floats("at", place, offset)
    launch_floats("at", 16, 16)
