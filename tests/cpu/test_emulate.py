"""The emulator: small kernels for each feature, compared with NumPy."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from emulate_programs import ORDERS, kernel_text, program
from numpy.typing import NDArray

from qgen.emulate import Argument, Buffer, Program, Report, compile
from qgen.errors import QgenError

U32 = NDArray[np.uint32]


def elementwise(entry: str, *inputs: NDArray[Any], out: NDArray[Any]) -> None:
    """Runs an entry of arithmetic.cu over all elements, 256 a CTA."""
    n = len(inputs[0])
    buffers = [Buffer(f"in{i}", array) for i, array in enumerate(inputs)]
    args: list[Argument] = [*buffers, Buffer("out", out, writable=True), n]
    program("arithmetic").launch(entry, grid=-(-n // 256), block=256, args=args)


def words(rng: np.random.Generator, n: int) -> U32:
    return rng.integers(0, 2**32, n, dtype=np.uint32)


# ---- arithmetic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["permute", "permute_signs"])
def test_permutes_follow_their_rules_for_every_selector(entry: str) -> None:
    rng = np.random.default_rng(1)
    selector = np.arange(2**16, dtype=np.uint32) | words(rng, 2**16) << np.uint32(16)  # upper half must not matter
    x, y, out = words(rng, 2**16), words(rng, 2**16), np.zeros(2**16, np.uint32)
    elementwise(entry, x, y, selector, out=out)
    pool = np.concatenate([x.view(np.uint8).reshape(-1, 4), y.view(np.uint8).reshape(-1, 4)], axis=1)
    expected = np.zeros((2**16, 4), np.uint8)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i) & np.uint32(15)
        byte = pool[np.arange(2**16), nibble & np.uint32(7)]
        signs = (nibble & np.uint32(8)) * np.uint32(entry == "permute_signs")  # __byte_perm does not look at that bit
        expected[:, i] = np.where(signs, np.where(byte >= 128, 255, 0), byte)
    np.testing.assert_array_equal(out, expected.view(np.uint32)[:, 0])


def test_funnel_shifts_at_every_amount() -> None:
    rng = np.random.default_rng(2)
    shift = np.concatenate([np.tile(np.arange(70, dtype=np.uint32), 50), np.array([2**31, 2**32 - 1], np.uint32)])
    low, high, out = words(rng, len(shift)), words(rng, len(shift)), np.zeros(4 * len(shift), np.uint32)
    elementwise("funnel", low, high, shift, out=out)
    expected: list[int] = []
    for clamp, to_right in itertools.product((False, True), (False, True)):
        for lo, hi, s in zip(low.tolist(), high.tolist(), shift.tolist(), strict=True):
            both, by = hi << 32 | lo, min(s, 32) if clamp else s % 32
            expected.append((both >> by if to_right else both << by >> 32) % 2**32)
    left, right, left_c, right_c = np.array(expected, np.uint64).reshape(4, -1)
    np.testing.assert_array_equal(out.reshape(4, -1), [left, left_c, right, right_c])


def test_dp4a_signed_and_unsigned() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (words(rng, 5000) for _ in range(3))
    a[:4], b[:4] = [0x80808080, 0x80808080, 0xFFFFFFFF, 0x7F7F7F7F], [0x80808080, 0x7F7F7F7F, 0xFFFFFFFF, 0x80808080]
    out = np.zeros(10000, np.uint32)
    elementwise("dot", a, b, c, out=out)
    for part, dtype in zip(out.reshape(2, -1), (np.int8, np.uint8), strict=True):
        products = a.view(dtype).astype(np.int64) * b.view(dtype).astype(np.int64)
        np.testing.assert_array_equal(part, (products.reshape(-1, 4).sum(axis=1) + c).astype(np.uint32))


def test_bit_counts_conversions_and_extrema() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([words(rng, 1000), [0, 1, 2**31, 2**32 - 1], 1 << np.arange(32)]).astype(np.uint32)
    n, out = len(x), np.zeros(8 * len(x), np.uint32)
    elementwise("bits", x, out=out)
    text = [f"{v:032b}" for v in x.tolist()]
    signed = x.view(np.int32)
    expected = [
        [t.count("1") for t in text],
        [t.index("1") if "1" in t else 32 for t in text],
        [32 - t.rindex("1") if "1" in t else 0 for t in text],
        [int(t[::-1], 2) for t in text],
        signed.astype(np.float32).view(np.uint32),
        x.astype(np.float32).view(np.uint32),
        (np.minimum(signed, 7) ^ np.maximum(signed, -7)).view(np.uint32),
        np.minimum(x, 7) ^ np.maximum(x, 9),
    ]
    for row, want in zip(out.reshape(8, n), expected, strict=True):
        np.testing.assert_array_equal(row, np.asarray(want, np.uint32))


def test_float_to_int_rounds_to_even_and_saturates() -> None:
    rng = np.random.default_rng(5)
    ties = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 8388607.5]
    special = [*ties, np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2147483520.0, -3e9]
    x = np.concatenate([np.array(special, np.float32), rng.normal(0, 1000, 4000).astype(np.float32)])
    out = np.zeros(len(x), np.uint32)
    elementwise("round_to_int", x, out=out)
    expected = np.clip(np.nan_to_num(np.rint(x.astype(np.float64)), nan=0.0), -(2.0**31), 2.0**31 - 1)
    np.testing.assert_array_equal(out.view(np.int32), expected.astype(np.int32))


def test_float_operations_are_rounded_once_each() -> None:
    rng = np.random.default_rng(6)
    a, b, c = (rng.normal(0, 2, 4000).astype(np.float32) for _ in range(3))
    a[:2], b[:2] = [np.nan, 1.0], [1.0, np.nan]
    out = np.zeros(10 * len(a), np.float32)
    elementwise("floats", a, b, c, out=out)
    # A product of two float32 is exact in longdouble and double; the sum's one further rounding to 64 bits of mantissa
    # cannot meet a float32 tie that the exact sum does not meet, for operands of like size.
    fused = (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)
    expected = [a + b, a - b, a * b, a / b, fused, a * b + c, np.fmax(a, b), np.fmin(a, b), np.abs(a), np.rint(a)]
    for row, want in zip(out.reshape(10, -1), expected, strict=True):
        np.testing.assert_array_equal(row, want)
    assert (fused[2:] != (a * b + c)[2:]).any()  # contraction would make rows 4 and 5 equal


def test_f16_conversion_of_all_values() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    out = np.zeros(2**16, np.float32)
    elementwise("from_f16", halves.view(np.uint32), out=out)
    expected = halves.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(out.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert np.isnan(out[~number]).all()


# ---- warp collectives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_shuffles_at_every_width_and_distance(order: Any, seed: int) -> None:
    out = np.zeros((4, 6, 32, 32), np.uint32)
    args: list[Argument] = [Buffer("out", out, writable=True)]
    program("warp").launch("shuffles", grid=1, block=32, args=args, order=order, seed=seed)
    for w, by, lane in itertools.product(range(6), range(32), range(32)):
        width = 1 << w
        first = lane // width * width
        index = first + by % width
        up = lane - by if lane - by >= first else lane
        down = lane + by if lane + by < first + width else lane
        butterfly = lane ^ by if lane ^ by < first + width else lane
        assert out[:, w, by, lane].tolist() == [100 + source for source in (index, up, down, butterfly)]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_votes_and_reductions_within_masks(order: Any, seed: int) -> None:
    x = words(np.random.default_rng(7), 96)
    x[:8] = [8, 16, 24, 1, 2**31, 2**31 - 1, 0, 2**32 - 1]
    out = np.zeros((96, 9), np.uint32)
    args: list[Argument] = [Buffer("x", x), Buffer("out", out, writable=True)]
    program("warp").launch("masked", grid=1, block=96, args=args, order=order, seed=seed)
    for thread in range(96):
        lanes = np.arange(thread % 4, 32, 4)
        v = x[thread // 32 * 32 + lanes]
        total = int(v.sum(dtype=np.uint64) % 2**32)
        ballot = sum(1 << int(lane) for lane, odd in zip(lanes, v & 1, strict=True) if odd)
        votes = [ballot, int((v % 8 == 0).any()), int((v % 8 != 0).all())]
        signed = v.view(np.int32)
        extrema = [v.max(), signed.max().view(np.uint32), v.min(), signed.min().view(np.uint32)]
        assert out[thread].tolist() == [total, total, *extrema[:2], *votes, *extrema[2:]]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_tensor_core_instruction_fits_the_exchange(order: Any, seed: int) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.integers(-128, 128, (16, 32), dtype=np.int8), rng.integers(-128, 128, (8, 32), dtype=np.int8)
    d = np.zeros((16, 8), np.int32)
    args: list[Argument] = [Buffer("a", a), Buffer("b", b), Buffer("d", d, writable=True)]
    program("tensor_core").launch("tensor_core", grid=1, block=32, args=args, order=order, seed=seed)
    np.testing.assert_array_equal(d, 3 * (a.astype(np.int32) @ b.astype(np.int32).T))


# ---- asynchronous copies, barriers, orders ----------------------------------------------------------------------


def sum_rows(text: Program, x: NDArray[np.uint8], order: Any, seed: int) -> tuple[NDArray[np.float32], Report]:
    rows, stride = x.shape
    y = np.full(rows, np.nan, np.float32)
    args: list[Argument] = [Buffer("x", x), stride, stride, Buffer("y", y, writable=True)]
    report = text.launch("sum_rows", grid=rows, block=64, shared=3 * 64 * 16, args=args, order=order, seed=seed)
    return y, report


def pipeline_rows() -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Five rows of 5 1/2 steps and a ragged end, with sums that float32 holds exactly."""
    x = np.random.default_rng(9).integers(0, 256, (5, 5632), dtype=np.uint8)
    x.view(np.uint32)[:] &= 0x3FF
    weights = np.tile(np.array([1, 3, 5, 7], np.uint32), 352)
    return x, (x.view(np.uint32) * weights).sum(axis=1, dtype=np.uint64).astype(np.float32)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_copy_pipeline_runs_in_every_order_and_is_counted(order: Any, seed: int) -> None:
    x, expected = pipeline_rows()
    y, report = sum_rows(program("pipeline"), x, order, seed)
    np.testing.assert_array_equal(y, expected)
    assert report.read_bytes["x"] == report.bytes_touched["x"] == 16 * report.read_requests["x"] == x.size
    assert (report.written_bytes["y"], report.write_requests["y"], report.bytes_written["y"]) == (20, 5, 20)
    assert (report.read_bytes["y"], report.written_bytes["x"], report.bytes_rewritten["y"]) == (0, 0, 0)


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
def test_a_missing_wait_or_barrier_changes_the_result(broken: int) -> None:
    x, expected = pipeline_rows()
    text = compile(f"#define BROKEN {broken}\n" + kernel_text("pipeline"), "pipeline_broken")
    wrong = [bool((sum_rows(text, x, order, seed)[0] != expected).any()) for order, seed in ORDERS]
    assert any(wrong)
    if broken in (1, 4):  # no order can hide a copy that nobody waited for
        assert all(wrong)


def test_copies_land_at_the_wait_for_a_committed_group() -> None:
    x = np.arange(1, 129, dtype=np.uint8)
    y = np.zeros((3, 32), np.uint32)
    args: list[Argument] = [Buffer("x", x), Buffer("y", y, writable=True)]
    report = program("pipeline").launch("copy4", grid=1, block=32, shared=128, args=args)
    assert (y[:2] == 0xA5A5A5A5).all()
    np.testing.assert_array_equal(y[2], x.view(np.uint32))
    assert report.read_bytes["x"] == report.bytes_touched["x"] == 128
    assert report.read_requests["x"] == 32


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_bulk_copies_land_at_the_wait_for_their_barrier(order: Any, seed: int) -> None:
    x = np.arange(1, 129, dtype=np.uint8)
    y = np.zeros((3, 32), np.uint32)
    args: list[Argument] = [Buffer("x", x), Buffer("y", y, writable=True)]
    program("barriers").launch("lands_late", grid=1, block=32, shared=144, args=args, order=order, seed=seed)
    assert (y[0] == 7).all() and (y[1] == 0xA5A5A5A5).all(), "who does not wait sees poison"
    np.testing.assert_array_equal(y[2], x.view(np.uint32))


@pytest.mark.parametrize(
    ("offset", "bytes", "sectors"), [(0, 128, 4), (16, 128, 5), (16, 16, 1), (48, 32, 2), (0, 16, 1)]
)
def test_a_bulk_copy_asks_once_for_every_sector(offset: int, bytes: int, sectors: int) -> None:
    args: list[Argument] = [Buffer("x", np.zeros(256, np.uint8)), offset, 16, bytes, bytes]
    report = program("barriers").launch("copy_bulk", grid=3, block=32, shared=256, args=args, count_sectors=True)
    assert report.read_requests["x"] == report.read_sectors["x"] == 3 * sectors
    assert (report.read_bytes["x"], report.bytes_touched["x"]) == (3 * bytes, bytes)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_the_phases_of_a_barrier(order: Any, seed: int) -> None:
    y = np.zeros(96, np.uint32)
    args: list[Argument] = [5, Buffer("y", y, writable=True)]
    program("barriers").launch("rounds_of", grid=2, block=96, shared=400, args=args, order=order, seed=seed)
    assert (y == 5).all()


def ring_rows(text: Program, order: Any, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Report]:
    """What three warps find in seven steps of a ring of bulk copies, what they should, and the report."""
    x = np.random.default_rng(11).integers(0, 1 << 20, (7, 128), dtype=np.uint32)
    y = np.zeros((3, 7), np.uint32)
    args: list[Argument] = [Buffer("x", x), 7, Buffer("y", y, writable=True)]
    report = text.launch("ring_rows", grid=1, block=96, shared=32 + 1024, args=args, order=order, seed=seed)
    return y, np.broadcast_to(x.sum(axis=1, dtype=np.uint32), (3, 7)), report


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_ring_of_bulk_copies_runs_in_every_order_and_is_counted(order: Any, seed: int) -> None:
    y, expected, report = ring_rows(program("barriers"), order, seed)
    np.testing.assert_array_equal(y, expected)
    assert report.read_bytes["x"] == report.bytes_touched["x"] == 32 * report.read_requests["x"] == 7 * 512


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
def test_a_missing_step_of_the_ring_changes_the_result_or_ends_it(broken: int) -> None:
    text = compile(f"#define BROKEN {broken}\n" + kernel_text("barriers"), "barriers_broken")
    noticed = []
    for order, seed in ORDERS:
        try:
            y, expected, _ = ring_rows(text, order, seed)
            noticed.append(bool((y != expected).any()))
        except QgenError as error:
            assert "qgen_barrier_wait" in error.found or "arrival" in error.found, error.found
            noticed.append(True)
    assert any(noticed)
    if broken != 2:  # no order can hide bytes that nobody waited for, or that nobody gives way
        assert all(noticed)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_missing_barrier_shows_as_poison_and_the_barrier_cures_it(order: Any, seed: int) -> None:
    expected = np.roll(np.arange(96, dtype=np.uint32), -1)
    for skip in (0, 1):
        y = np.zeros(96, np.uint32)
        args: list[Argument] = [Buffer("y", y, writable=True), skip]
        program("faults").launch("neighbour", grid=1, block=96, shared=384, args=args, order=order, seed=seed)
        assert (y == expected).all() == (not skip)
        assert (y == 0xA5A5A5A5).any() == bool(skip)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_some_ctas_of_a_grid_run_as_they_would_among_all(order: Any, seed: int) -> None:
    whole, part = np.zeros((60, 42), np.uint32), np.zeros((60, 42), np.uint32)
    for out, ctas in ((whole, None), (part, range(17, 23))):
        buffer = Buffer("out", out, writable=True)
        program("grid").launch(
            "indices", grid=(3, 4, 5), block=(7, 3, 2), args=[buffer], order=order, seed=seed, ctas=ctas
        )
    np.testing.assert_array_equal(part[17:23], whole[17:23])
    assert not part[:17].any() and not part[23:].any()
    for wrong in (range(0), range(59, 61), range(-1, 3), range(0, 9, 2)):
        with pytest.raises(QgenError, match="some of range"):
            program("grid").launch("indices", grid=(3, 4, 5), block=42, args=[buffer], ctas=wrong)


def test_threads_that_left_do_not_hold_up_a_barrier() -> None:
    y = np.zeros(64, np.uint32)
    for order, seed in ORDERS:
        y[:] = 0
        args: list[Argument] = [Buffer("y", y, writable=True)]
        program("faults").launch("leave_early", grid=1, block=64, args=args, order=order, seed=seed)
        assert y.tolist() == [1] * 40 + [0] * 24


def test_orders_decide_who_runs_last() -> None:
    out = np.zeros(1, np.uint32)

    def last(order: Any, seed: int = 0) -> int:
        args: list[Argument] = [Buffer("out", out, writable=True)]
        report = program("grid").launch("last_writer", grid=5, block=64, args=args, order=order, seed=seed)
        assert (report.written_bytes["out"], report.bytes_written["out"], report.write_requests["out"]) == (
            1280,
            4,
            320,
        )
        assert report.bytes_rewritten["out"] >= 319
        return int(out[0])

    assert (last("forward"), last("reverse")) == (319, 0)
    drawn = [last("shuffle", seed) for seed in range(8)]
    assert drawn == [last("shuffle", seed) for seed in range(8)]
    assert len(set(drawn)) > 4


# ---- grid, parameters, counters ---------------------------------------------------------------------------------


def test_indices_in_three_dimensions() -> None:
    out = np.zeros((3 * 4 * 5, 2 * 3 * 7), np.uint32)
    program("grid").launch("indices", grid=(3, 4, 5), block=(7, 3, 2), args=[Buffer("out", out, writable=True)])
    np.testing.assert_array_equal(out, np.arange(60)[:, None] << 16 | np.arange(42)[None])


def test_parameters_of_every_type_arrive() -> None:
    out = np.zeros(11, np.uint32)
    numbers: list[Argument] = [-5, 250, -300, 65000, ctypes.c_int32(-7), np.uint32(2**32 - 1)]
    numbers += [ctypes.c_int64(-(2**40)), 2**64 - 2**32, ctypes.c_float(1.5), 2.5]
    args: list[Argument] = [*numbers, None, Buffer("out", out, writable=True)]
    program("grid").launch("parameters", grid=1, block=1, args=args)
    assert out[:8].view(np.int32).tolist() == [-5, 250, -300, 65000, -7, -1, -256, -1]
    assert out[8:10].view(np.float32).tolist() == [1.5, 2.5]
    assert out[10] == 1


def test_sectors_are_counted_as_a_warp_asks_for_them() -> None:
    x, y = np.zeros(256, np.uint32), np.zeros(64, np.uint32)
    for offset, extra in ((0, 0), (16, 1)):  # 16 bytes past a sector: one more sector for a warp's 128 bytes
        args: list[Argument] = [Buffer("x", x, offset_bytes=offset), Buffer("y", y, writable=True)]
        report = program("grid").launch("sectors", grid=1, block=64, args=args, order="shuffle", count_sectors=True)
        assert report.read_warp_requests["x"] == 2 * 3
        assert report.read_sectors["x"] == 2 * (1 + (4 + extra) + 16)
    assert report.read_bytes["x"] == 64 * (4 + 4) + 32 * 16


def test_an_array_is_seen_at_the_chosen_misalignment_and_written_in_place() -> None:
    x, y = np.arange(64, dtype=np.uint8), np.zeros(1, np.uint32)
    args: list[Argument] = [Buffer("x", x, offset_bytes=2), 2, Buffer("y", y, writable=True)]
    program("faults").launch("load_any", grid=1, block=1, args=args)
    assert y[0] == 0x05040302
