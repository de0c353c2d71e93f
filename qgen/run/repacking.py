"""Native rows to tiles and back on a device, a chunk at a time where the bytes come from the host."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from qgen import operands, plan
from qgen.dispatch import routed_repack, trace
from qgen.run import device as room
from qgen.run.bound import load_kernel
from qgen.spec import Format
from qgen.storage import changed, check_change, chunks, refusal
from qgen.weights import Weight, check_bytes

CHUNK_BYTES = 1 << 26  # uploaded at once: enough for the full speed of the bus, little beside a model
_ALIGNMENT = 16  # of tiles: they are read and written in vectors


def repack(
    weight: Weight,
    storage: str = "tiled",
    device: int | None = None,
    *,
    row_stride_bytes: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Weight:
    """The same matrix in the other storage ("tiled" or "native"), with its bytes in the memory of a CUDA device.

    weight:           its data on the host, mapped or not, or on that device; it stays as it is. A native row may begin
                      at any address; tiles must be aligned to 16 bytes
    device:           left out, the one the data is on, or the current one for data on the host
    row_stride_bytes: from one native row to the next, for storage "native"; left out, rows lie back to back. What lies
                      between them is undefined
    chunk_bytes:      of host data on the device at once, beside the result; at least a row tile (sixteen rows)

    Waits for the device at the end, so that any stream may use the result.
    Raises QgenError before anything is allocated or launched: see `qgen.repack`, and a missing or another device, a
    stream that is being captured, an architecture or size without a kernel.
    """
    check_change(weight, storage, row_stride_bytes, chunk_bytes)
    made = changed(weight, storage, None, row_stride_bytes)
    data = weight.data.reshape(-1) if weight.on_host else room.as_cupy(weight.name, weight.data)
    if device is None:
        device = room.current_device() if weight.on_host else int(data.device.id)
    room.check_device_number(device)
    if not weight.on_host:
        operands.check_device(weight.name, data, device)
        if weight.storage == "tiled":
            operands.check_aligned(weight.name, data, _ALIGNMENT, "tiles are read in vectors")
    check_bytes(weight, data)
    cupy = room.cupy_module()
    with room.device_errors(weight.name), cupy.cuda.Device(device):
        stream = cupy.cuda.get_current_stream()
        if stream.is_capturing():
            raise refusal(weight.name, "a repacking under stream capture", "no capture", "repack before the capture")
        if not weight.rows:
            return replace(made, data=cupy.empty(0, dtype=np.uint8))
        arch = room.arch_of_device(device).name
        kernel = _Kernel(made, routed_repack(weight.format, weight.storage, weight.rows, weight.columns, arch), device)
        target = cupy.empty(made.nbytes, dtype=np.uint8)
        if not weight.on_host:
            kernel.launch(data.reshape(-1), weight.row_stride_bytes, target, 0, -(-weight.rows // plan.TILE_ROWS))
        else:
            parts = [(first, count, _bytes_of(weight, first, count)) for first, count in chunks(weight, chunk_bytes)]
            staging = cupy.empty(max(part.stop - part.start for *_, part in parts), dtype=np.uint8)
            for first, count, part in parts:
                chunk = staging[: part.stop - part.start]
                chunk.set(np.asarray(data[part]), stream=stream)
                kernel.launch(chunk, weight.row_stride_bytes, target, first, count)
                stream.synchronize()  # the next chunk goes where this one is read
        # Other streams may use the result from now on; none of them would wait for what fills it.
        stream.synchronize()
        return replace(made, data=target)


class _Kernel:
    """One of a format's two repackers, loaded."""

    def __init__(self, made: Weight, entry: str, device: int) -> None:
        """made: the weight that it makes."""
        self._made, self._entry = made, entry
        self._plan = _repack_plan(made.format)
        self._function = load_kernel(self._plan, entry, device)
        room.allow_shared(self._function, self._plan.shared_bytes)

    def launch(self, source: Any, source_stride: int, target: Any, first: int, count: int) -> None:
        """Row tiles first .. first + count - 1, which begin where `source` does, to their place in `target`."""
        made = self._made
        blocks = made.columns // made.format.block
        sizes = (np.int32(made.rows), np.int32(blocks), np.int32(first), np.int32(count))
        args = (
            (source, np.int64(source_stride), *sizes, target)
            if made.storage == "tiled"
            else (source, *sizes, target, np.int64(made.row_stride_bytes))
        )
        launch, grid_y = plan.launch_repack(self._plan, blocks, count)
        self._function((launch.grid, grid_y), (launch.block,), args, launch.shared)
        trace.ran(self._entry)


def _bytes_of(weight: Weight, first: int, count: int) -> slice:
    """Where row tiles first .. first + count - 1 lie in the weight's data."""
    begin = plan.TILE_ROWS * first
    if weight.storage == "tiled":
        return slice(begin * weight.row_bytes, (begin + plan.TILE_ROWS * count) * weight.row_bytes)
    last = min(begin + plan.TILE_ROWS * count, weight.rows) - 1
    return slice(begin * weight.row_stride_bytes, last * weight.row_stride_bytes + weight.row_bytes)


@cache
def _repack_plan(format: Format) -> plan.RepackPlan:
    return plan.plan_repack(format)
