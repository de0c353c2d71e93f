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
        entry = routed_repack(weight.format, weight.storage, weight.rows, weight.columns, arch)
        kernel = _Kernel(weight, made, entry, device)
        target = cupy.empty(made.nbytes, dtype=np.uint8)
        if not weight.on_host:
            row_tiles = -(-weight.rows // plan.TILE_ROWS)
            kernel.launch([data.reshape(-1)[part] for part in _parts(weight, 0, row_tiles)], target, 0, row_tiles)
        else:
            pieces = [(first, count, _parts(weight, first, count)) for first, count in chunks(weight, chunk_bytes)]
            staging = cupy.empty(max(_end(parts) for *_, parts in pieces), dtype=np.uint8)
            for first, count, parts in pieces:
                staged = []
                for number, part in enumerate(parts):
                    begin = _end(parts[:number])
                    staged.append(staging[begin : begin + part.stop - part.start])
                    staged[-1].set(np.asarray(data[part]), stream=stream)
                kernel.launch(staged, target, first, count)
                stream.synchronize()  # the next chunk goes where this one is read
        # Other streams may use the result from now on; none of them would wait for what fills it.
        stream.synchronize()
        return replace(made, data=target)


class _Kernel:
    """One of a format's two repackers, loaded."""

    def __init__(self, weight: Weight, made: Weight, entry: str, device: int) -> None:
        """weight: what it reads; made: what it makes."""
        self._made, self._entry = made, entry
        self._strides = [np.int64(span.row_stride) for span in (weight if made.storage == "tiled" else made).planes]
        self._plan = _repack_plan(made.format)
        self._function = load_kernel(self._plan, entry, device)
        room.allow_shared(self._function, self._plan.shared_bytes)

    def launch(self, sources: list[Any], target: Any, first: int, count: int) -> None:
        """Row tiles first .. first + count - 1 to their place in `target`.

        sources: where those rows begin, plane by plane; or those tiles
        """
        made = self._made
        sizes = (np.int32(made.rows), np.int32(made.row_blocks), np.int32(first), np.int32(count))
        planes = sources if made.storage == "tiled" else [target[span.offset :] for span in made.planes]
        native = [argument for pair in zip(planes, self._strides, strict=True) for argument in pair]
        args = (*native, *sizes, target) if made.storage == "tiled" else (*sources, *sizes, *native)
        launch, grid_y = plan.launch_repack(self._plan, made.row_blocks, count)
        self._function((launch.grid, grid_y), (launch.block,), args, launch.shared)
        trace.ran(self._entry)


def _parts(weight: Weight, first: int, count: int) -> list[slice]:
    """Where row tiles first .. first + count - 1 lie in the weight's data: plane by plane, or the tiles."""
    begin, end = plan.TILE_ROWS * first, plan.TILE_ROWS * (first + count)
    if weight.storage == "tiled":
        return [slice(begin * weight.row_bytes, end * weight.row_bytes)]
    last = min(end, weight.rows) - 1
    return [
        slice(
            span.offset + begin * span.row_stride,
            span.offset + last * span.row_stride + weight.row_blocks * span.block_bytes,
        )
        for span in weight.planes
    ]


def _end(parts: list[slice]) -> int:
    """Where the bytes of `parts` end, one after the other."""
    return sum(part.stop - part.start for part in parts)


@cache
def _repack_plan(format: Format) -> plan.RepackPlan:
    return plan.plan_repack(format)
