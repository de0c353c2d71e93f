"""The device room, and the only one that imports CuPy: load a compiled kernel, check its operands, launch it.

Launches go to CuPy's current stream of the operands' device and never synchronise, so they can be captured in a
CUDA graph. What a capture must not meet (compiling, loading, copying a weight to the device) happens on the first
call for a weight.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from qgen import emit, operands, plan
from qgen.dispatch import routed_instance
from qgen.operands import refusal
from qgen.run.device import (
    allow_shared,
    arch_of_device,
    as_cupy,
    check_device_number,
    cupy_module,
    current_device,
    device_errors,
    device_label,
    from_host,
    load_module,
    occupancy,
    to_host,
    why_no_device,
)
from qgen.spec import Format
from qgen.weights import Weight, check_bytes

__all__ = [
    "Matvec", "as_cupy", "bind", "current_device", "device_label", "from_host", "mul_mat",
    "to_device", "to_host", "why_no_device", "workspace",
]  # fmt: skip

_ALIGNMENT = 256  # between the parts of one allocation; more than any vector load needs
_INT32 = 2**31 - 1


def mul_mat(weight: Weight, x: Any, out: Any = None, *, workspace: Any = None) -> Any:
    """y = weight @ x for one token, as a float32 CuPy array: [N] for x of [K], [1, N] for x of [1, K].

    x:         float32 on a CUDA device, dense along K; CuPy, or anything with __dlpack__ or __cuda_array_interface__
               (PyTorch), taken without a copy
    out:       where to put the result: float32, [N] or [1, N], as x; returned as a CuPy view of the same memory
    workspace: scratch for the quantised activation, from `workspace(weight)`; left out, it comes from CuPy's pool

    A weight that is still on the host is copied to x's device on its first use, and the copy is kept for as long as
    the Weight lives. Under stream capture the weight must have been used before; the graph may be replayed for as
    long as the result (and what was passed in) is alive.

    Raises QgenError before anything is launched: no CuPy, no device, an unsupported architecture, operands of a wrong
    kind, device, dtype, shape, stride or alignment, T > 1.
    """
    if not isinstance(weight, Weight):
        raise refusal(
            "weight",
            f"a {type(weight).__module__}.{type(weight).__qualname__}",
            "a qgen.Weight",
            'wrap the bytes: qgen.Weight.of("Q4_K", data, rows=N, columns=K), or take one from qgen.load(path)',
        )
    vector = as_cupy("x", x)
    device = int(vector.device.id)
    if (device, "") not in _bindings.get(weight, ()):
        # Before the long work of a first use, not after it.
        if not weight.on_host:
            operands.check_device("x", vector, _device_of(weight))
        operands.check_vector("x", vector, length=weight.columns, what="K", device=device)
    return bind(weight, device)(vector, out, workspace=workspace)


def workspace(weight: Weight, device: int | None = None) -> Any:
    """Scratch memory that `mul_mat` can use for this weight again and again, on one stream: a CuPy uint8 array."""
    bound = bind(weight, device)
    with device_errors(weight.name), cupy_module().cuda.Device(bound.device):
        return cupy_module().empty(bound.workspace_bytes, dtype=np.uint8)


def to_device(weight: Weight, device: int | None = None) -> Weight:
    """The same weight with its bytes in the memory of a CUDA device (left out, the current one).

    Rows keep their stride. Data that is on that device already is taken without a copy.
    Raises QgenError for a missing device and for data that does not fit the weight.
    """
    return replace(weight, data=_resident(weight, current_device() if device is None else device))


class Matvec:
    """The two launches of mul_mat at T = 1, made ready for one weight on one device. Made by `bind`."""

    def __init__(self, weight: Weight, device: int, instance: plan.Instance | None) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        matvec, quantize = _plans(weight.format)
        chosen = instance or routed_instance(matvec, weight.rows, weight.columns, arch_of_device(device).name)
        if max(weight.rows, weight.columns) > _INT32:
            found = f"{weight.rows} rows of {weight.columns}"
            raise refusal(weight.name, found, f"at most {_INT32} of each", "split the weight")
        operands.check_aligned(
            weight.name, weight.data, weight.format.alignment, f"{weight.format.name} blocks are loaded in vectors"
        )
        self.weight = weight
        self.device = device
        self.instance = chosen
        blocks = weight.columns // weight.format.block
        self.workspace_bytes = matvec.workspace_bytes(blocks)
        with cupy_module().cuda.Device(device):
            self._quantize = _function(quantize, quantize.name, device)
            self._matvec = _function(matvec, chosen.name, device)
            allow_shared(self._matvec, chosen.shared_bytes)
            fit = occupancy(self._matvec, threads=32 * matvec.warps, shared=chosen.shared_bytes, device=device)
            second = plan.launch(matvec, chosen, weight.rows, *fit)
        first = plan.launch_quantize(quantize, blocks)
        self._first = ((first.grid,), (first.block,), first.shared)
        self._second = ((second.grid,), (second.block,), second.shared)
        # The sizes the kernels expect: int64 stride, int32 counts.
        self._blocks = np.int32(blocks)
        self._leading = (weight.data, np.int64(weight.row_stride_bytes), np.int32(weight.rows), self._blocks)

    def __call__(self, x: Any, out: Any = None, *, workspace: Any = None) -> Any:
        """y = weight @ x; see `mul_mat`, which is this behind a search for the binding."""
        x = as_cupy("x", x)
        operands.check_vector("x", x, length=self.weight.columns, what="K", device=self.device)
        given = {"weight": self.weight.data, "x": x}
        if out is not None:
            out = given["out"] = as_cupy("out", out)
            operands.check_vector("out", out, length=self.weight.rows, what="N", device=self.device)
        if workspace is not None:
            workspace = given["workspace"] = as_cupy("workspace", workspace)
            operands.check_workspace(workspace, nbytes=self.workspace_bytes, alignment=16, device=self.device)
        operands.check_apart(given)
        cupy = cupy_module()
        with device_errors(self.weight.name), cupy.cuda.Device(self.device):
            if workspace is None or out is None:
                out, workspace = self._allocate(out, workspace, x.ndim)
            grid, block, shared = self._first
            self._quantize(grid, block, (x, self._blocks, workspace), shared)
            grid, block, shared = self._second
            self._matvec(grid, block, (*self._leading, workspace, out), shared)
        return out

    def _allocate(self, out: Any, workspace: Any, dimensions: int) -> tuple[Any, Any]:
        cupy = cupy_module()
        shape = (self.weight.rows,) if dimensions == 1 else (1, self.weight.rows)
        if not cupy.cuda.get_current_stream().is_capturing():
            return (
                cupy.empty(shape, dtype=np.float32) if out is None else out,
                cupy.empty(self.workspace_bytes, dtype=np.uint8) if workspace is None else workspace,
            )
        # Under capture the workspace must outlive this call: the graph writes to it at every replay. It therefore
        # shares one allocation with the result, which the caller keeps.
        if out is not None:
            raise refusal(
                "workspace",
                "none, with `out` given, on a stream that is being captured",
                "scratch memory that lives as long as the graph",
                "pass workspace=qgen.workspace(weight), made before the capture, and keep it",
            )
        begin = 0 if workspace is not None else -(-self.workspace_bytes // _ALIGNMENT) * _ALIGNMENT
        buffer = cupy.empty(begin + 4 * self.weight.rows, dtype=np.uint8)
        result = buffer[begin:].view(np.float32).reshape(shape)
        return result, buffer[:begin] if workspace is None else workspace


# By weight, as long as it lives: its twins with the bytes on a device, and the bindings made from them. Neither may
# refer to the weight itself, or it would live for ever.
_twins: weakref.WeakKeyDictionary[Weight, dict[int, Weight]] = weakref.WeakKeyDictionary()
_bindings: weakref.WeakKeyDictionary[Weight, dict[tuple[int, str], Matvec]] = weakref.WeakKeyDictionary()


def bind(weight: Weight, device: int | None = None, *, instance: plan.Instance | None = None) -> Matvec:
    """The ready-made launches for a weight on a device, made on first use and kept while the Weight lives.

    device:   left out, the one the weight is on, or CuPy's current one for a weight on the host
    instance: one of the plan's variants; left out, the default one. All give the same bits.
    Raises QgenError when the weight, the device or its architecture does not do.
    """
    chosen = _device_of(weight) if device is None else device
    key = (chosen, instance.name if instance else "")
    made = _bindings.setdefault(weight, {})
    if key not in made:
        _refuse_capture(weight, chosen)
        twins = _twins.setdefault(weight, {})
        if chosen not in twins:
            twins[chosen] = replace(weight, data=_resident(weight, chosen))
        made[key] = Matvec(twins[chosen], chosen, instance)
    return made[key]


# ---- inside -----------------------------------------------------------------------------------------------------


def _device_of(weight: Weight) -> int:
    """Where the weight's bytes are; for a weight on the host, the current device."""
    return current_device() if weight.on_host else int(as_cupy(weight.name, weight.data).device.id)


def _resident(weight: Weight, device: int) -> Any:
    """The weight's bytes as a flat CuPy array on `device`, copied there if they are on the host."""
    cupy = cupy_module()
    if not weight.on_host:
        data = as_cupy(weight.name, weight.data)
        operands.check_device(weight.name, data, device)
        check_bytes(weight, data)
    check_device_number(device)
    with device_errors(weight.name), cupy.cuda.Device(device):
        if weight.on_host:
            data = cupy.asarray(weight.data.reshape(-1)[: weight.nbytes])
        # Other streams may use the weight from now on; none of them would wait for what fills it.
        cupy.cuda.get_current_stream().synchronize()
        return data.reshape(-1)


def _refuse_capture(weight: Weight, device: int) -> None:
    cupy = cupy_module()
    with cupy.cuda.Device(device):
        if cupy.cuda.get_current_stream().is_capturing():
            raise refusal(
                weight.name,
                "its first use falls into a stream capture",
                "a weight whose kernel is compiled and loaded, and whose bytes are on the device",
                "call qgen.mul_mat with this weight once before the capture",
            )


@cache
def _plans(format: Format) -> tuple[plan.MatvecPlan, plan.QuantizePlan]:
    matvec = plan.plan_matvec(format)
    return matvec, plan.plan_quantize(matvec)


@cache
def _source(chosen: plan.Plan) -> str:
    return emit.emit(chosen).text


def _function(chosen: plan.Plan, entry: str, device: int) -> Any:
    return load_module(chosen.file, _source(chosen), device).get_function(entry)
