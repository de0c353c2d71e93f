"""The device room, and the only one that imports CuPy: pick and load a kernel, check its operands, launch it.

Launches go to CuPy's current stream of the operands' device and never synchronise, so they can be captured in a
CUDA graph. What a capture must not meet (compiling, loading, copying a weight to the device) happens on the first
call for a weight with as many tokens.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np

from qgen import operands, plan
from qgen.dispatch import routed_batch, routed_instance
from qgen.operands import refusal
from qgen.run.bound import Bound, Ladder, Matvec, Multirow, matvec_plans
from qgen.run.device import (
    arch_of_device,
    as_cupy,
    check_device_number,
    cupy_module,
    current_device,
    device_errors,
    device_label,
    from_host,
    to_host,
    why_no_device,
)
from qgen.weights import Weight, check_bytes

__all__ = [
    "Bound", "Ladder", "Matvec", "Multirow", "as_cupy", "bind", "current_device", "device_label", "from_host",
    "mul_mat", "to_device", "to_host", "why_no_device", "workspace",
]  # fmt: skip


def mul_mat(weight: Weight, x: Any, out: Any = None, *, workspace: Any = None, policy: str = "fastest") -> Any:
    """y = weight @ x for T tokens, as a float32 CuPy array: [N] for x of [K], [T, N] for x of [T, K].

    x:         float32 on a CUDA device, dense along K, its rows any whole number of elements (at least K) apart; CuPy,
               or anything with __dlpack__ or __cuda_array_interface__ (PyTorch), taken without a copy
    out:       where to put the result: float32, [T, N] with rows at least N apart, for T = 1 also [N]; returned as a
               CuPy view of the same memory
    workspace: scratch for the quantised activation, from `workspace(weight, tokens=T)`; left out, it comes from
               CuPy's pool
    policy:    "fastest", or "invariant": a token's bits do not depend on T

    The dispatch picks the kernel by T. T = 0 and N = 0 give an empty result, and nothing is launched.

    A weight that is still on the host is copied to x's device on its first use, and the copy is kept for as long as
    the Weight lives. Under stream capture the weight must have been used before, with as many tokens; the graph may be
    replayed for as long as the result (and what was passed in) is alive.

    Raises QgenError before anything is launched: no CuPy, no device, an unsupported architecture, operands of a wrong
    kind, device, dtype, shape, stride or alignment, or a request that the dispatch refuses.
    """
    if not isinstance(weight, Weight):
        raise refusal(
            "weight",
            f"a {type(weight).__module__}.{type(weight).__qualname__}",
            "a qgen.Weight",
            'wrap the bytes: qgen.Weight.of("Q4_K", data, rows=N, columns=K), or take one from qgen.load(path)',
        )
    if not isinstance(policy, str):
        raise refusal("policy", repr(policy), '"fastest" or "invariant"', "name one of the two")
    x = as_cupy("x", x)
    device = int(x.device.id)
    tokens = int(x.shape[0]) if x.ndim == 2 else 1
    bound = _chosen.get(weight, _NONE).get((device, tokens, policy))
    if bound is None:
        # Before the long work of a first use, not after it.
        if not weight.on_host:
            operands.check_device("x", x, _device_of(weight))
        tokens = operands.check_matrix("x", x, length=weight.columns, what="K", device=device)
        if tokens == 0 or weight.rows == 0:
            return _nothing(weight, x, out, tokens, device, policy)
        bound = bind(weight, device, tokens=tokens, policy=policy)
    return bound(x, out, workspace=workspace)


def workspace(weight: Weight, device: int | None = None, *, tokens: int = 1) -> Any:
    """Scratch memory for `mul_mat`, to be used again and again on one stream: a CuPy uint8 array.

    It does for this weight with 1 to `tokens` tokens. Raises QgenError for what `mul_mat` would refuse.
    """
    bound = [bind(weight, device, tokens=count) for count in {1, tokens}]
    nbytes = max(b.workspace_for(min(tokens, b.max_tokens)) for b in bound)
    with device_errors(weight.name), cupy_module().cuda.Device(bound[0].device):
        return cupy_module().empty(nbytes, dtype=np.uint8)


def to_device(weight: Weight, device: int | None = None) -> Weight:
    """The same weight with its bytes in the memory of a CUDA device (left out, the current one).

    Rows keep their stride. Data that is on that device already is taken without a copy.
    Raises QgenError for a missing device and for data that does not fit the weight.
    """
    return replace(weight, data=_resident(weight, current_device() if device is None else device))


# By weight, as long as it lives: its twins with the bytes on a device, the bindings made from them by kernel, and which
# of those serves which (device, T, policy). None may refer to the weight itself, or it would live for ever.
_twins: weakref.WeakKeyDictionary[Weight, dict[int, Weight]] = weakref.WeakKeyDictionary()
_bindings: weakref.WeakKeyDictionary[Weight, dict[tuple[int, str], Bound]] = weakref.WeakKeyDictionary()
_chosen: weakref.WeakKeyDictionary[Weight, dict[tuple[int, int, str], Bound]] = weakref.WeakKeyDictionary()
_NONE: dict[tuple[int, int, str], Bound] = {}


def bind(
    weight: Weight,
    device: int | None = None,
    *,
    instance: plan.Instance | plan.MultirowInstance | plan.Rung | None = None,
    tokens: int = 1,
    policy: str = "fastest",
) -> Bound:
    """The ready-made launches for a weight on a device, made on first use and kept while the Weight lives.

    device:   left out, the one the weight is on, or CuPy's current one for a weight on the host
    instance: one of the plans' variants; left out, the one the dispatch picks for `tokens` and `policy`. All give the
              same bits.
    Raises QgenError when the weight, the device, its architecture or the number of tokens does not do.
    """
    chosen = _device_of(weight) if device is None else device
    if instance is None:
        served = _chosen.setdefault(weight, {})
        key = (chosen, tokens, policy)
        if key not in served:
            served[key] = bind(weight, chosen, instance=_routed(weight, chosen, tokens, policy))
        return served[key]
    made = _bindings.setdefault(weight, {})
    name = (chosen, instance.name)
    if name not in made:
        _refuse_capture(weight, chosen)
        twins = _twins.setdefault(weight, {})
        if chosen not in twins:
            twins[chosen] = replace(weight, data=_resident(weight, chosen))
        if isinstance(instance, plan.Rung):
            made[name] = Ladder(twins[chosen], chosen, instance)
        elif isinstance(instance, plan.MultirowInstance):
            made[name] = Multirow(twins[chosen], chosen, instance)
        else:
            made[name] = Matvec(twins[chosen], chosen, instance)
    return made[name]


# ---- inside -----------------------------------------------------------------------------------------------------


def _routed(weight: Weight, device: int, tokens: int, policy: str) -> plan.Instance | plan.MultirowInstance | plan.Rung:
    """The variant that the dispatch picks. Raises QgenError with the planner's reason, or the dispatch's."""
    check_device_number(device)
    arch = arch_of_device(device).name
    matvec, _ = matvec_plans(weight.format)
    if tokens == 1:
        return routed_instance(matvec, weight.rows, weight.columns, arch, policy)
    return routed_batch(weight.format, weight.rows, weight.columns, tokens, arch, policy)


def _nothing(weight: Weight, x: Any, out: Any, tokens: int, device: int, policy: str) -> Any:
    """The empty result, refused where one token times one row would be."""
    routed_instance(
        matvec_plans(weight.format)[0], max(1, weight.rows), weight.columns, arch_of_device(device).name, policy
    )
    if out is not None:
        out = as_cupy("out", out)
        operands.check_matrix("out", out, length=weight.rows, what="N", device=device, tokens=tokens)
        return out
    with device_errors(weight.name), cupy_module().cuda.Device(device):
        return cupy_module().empty((weight.rows,) if x.ndim == 1 else (tokens, weight.rows), dtype=np.float32)


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
                "call qgen.mul_mat with this weight and as many tokens once before the capture",
            )
