"""The device room, and the only one that imports CuPy: pick and load a kernel, check its operands, launch it.

Launches go to CuPy's current stream of the operands' device and never synchronise, so they can be captured in a
CUDA graph. What a capture must not meet (compiling, loading, copying a weight to the device) happens on the first
call for a weight with as many tokens.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qgen import operands, plan
from qgen.dispatch import routed_batch, routed_float, routed_instance
from qgen.operands import refusal
from qgen.run.bound import Bound, FloatLadder, Ladder, Matvec, Multirow, matvec_plans, written, x_dtypes
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
from qgen.run.fused import Fused
from qgen.run.multiplying import Product, listed, multiply, quantisers
from qgen.run.repacking import repack
from qgen.run.wgmma import Wgmma
from qgen.weights import Weight, check_bytes

__all__ = [
    "Bound", "FloatLadder", "Fused", "Ladder", "Matvec", "Multirow", "Product", "Wgmma", "as_cupy", "bind",
    "current_device", "device_label", "from_host", "listed", "mul_mat", "mul_mats", "multiply", "quantisers", "repack",
    "to_device", "to_host", "why_no_device", "workspace", "written",
]  # fmt: skip


# What a weight's binding is looked up by: device, T, policy, activation (None for the format's own).
_Key = tuple[int, int, str, str | None]


def mul_mat(
    weight: Weight,
    x: Any,
    out: Any = None,
    *,
    workspace: Any = None,
    policy: str = "fastest",
    activation: str | None = None,
) -> Any:
    """y = weight @ x for T tokens, as a float32 CuPy array: [N] for x of [K], [T, N] for x of [T, K].

    x:          float32 on a CUDA device, dense along K, its rows any whole number of elements (at least K) apart; CuPy,
                or anything with __dlpack__ or __cuda_array_interface__ (PyTorch), taken without a copy. With activation
                "f16" also float16; with "bf16" also bfloat16, which CuPy knows as the uint16 of its bits
    out:        where to put the result: float32, [T, N] with rows at least N apart, for T = 1 also [N]; returned as a
                CuPy view of the same memory
    workspace:  scratch for the quantised activation, from `workspace(weight, tokens=T)`; left out, it comes from
                CuPy's pool
    policy:     "fastest", or "invariant": a token's bits do not depend on T
    activation: how x meets the weights: left out, as the format's file says; "f16" or "bf16" rounds it to that, and the
                products are added in float32. Each is a contract of its own

    The dispatch picks the kernel by T. T = 0 and N = 0 give an empty result, and nothing is launched.

    A weight that is still on the host is copied to x's device on its first use, and the copy is kept for as long as
    the Weight lives. Under stream capture the weight must have been used before, with as many tokens; the graph may be
    replayed for as long as the result (and what was passed in) is alive.

    Raises QgenError before anything is launched: no CuPy, no device, an unsupported architecture, operands of a wrong
    kind, device, dtype, shape, stride or alignment, or a request that the dispatch refuses.
    """
    _check_weight("weight", weight)
    _check_names(policy, activation)
    x = as_cupy("x", x)
    bound = _served(weight, x, policy, activation)
    if bound is None:
        return _nothing(weight, x, "out", out, policy, activation)
    return bound(x, out, workspace=workspace)


def mul_mats(
    weights: Sequence[Weight],
    x: Any,
    outs: Sequence[Any] | None = None,
    *,
    workspace: Any = None,
    policy: str = "fastest",
    activation: str | None = None,
) -> list[Any]:
    """The products of several weights with one x, as `mul_mat` gives them, bit for bit; they share quantised x.

    weights:   all with as many columns, of any formats and storages; one may be there twice
    x:         as for `mul_mat`
    outs:      where to put the results: for each weight what `mul_mat` takes as `out`, or None
    workspace: scratch that does for every weight, the largest of `workspace(weight, tokens=T)`; left out, it comes from
               CuPy's pool
    policy, activation: as for `mul_mat`, for every weight

    One quantised x serves neighbours in the list whose kernels read it in the same order, as those of one format,
    storage and kind do; where that changes, x is quantised again into the same workspace. Kernels that quantise x by
    themselves may lie between. T = 0 gives empty results and launches nothing, no more does a weight with N = 0.

    Under stream capture what `mul_mat` says holds for every weight. Without a workspace one of the results must be
    new; those that are share one allocation with the scratch, which therefore lives as long as any of them.

    Raises QgenError before anything is launched, as `mul_mat` does; and for weights with different columns, for another
    number of outs than of weights, for weights on another device than x, and for results that share memory with each
    other or another operand. An empty list gives an empty list, whatever else is passed.
    """
    if isinstance(weights, Weight) or not isinstance(weights, Sequence):
        found = f"a {type(weights).__module__}.{type(weights).__qualname__}"
        raise refusal("weights", found, "a list of qgen.Weight", "put them into a list; for one there is qgen.mul_mat")
    for number, weight in enumerate(weights):
        _check_weight(f"weights[{number}]", weight)
        if weight.columns != weights[0].columns:
            raise refusal(
                f"weights[{number}]",
                f"K = {weight.columns} columns",
                f"K = {weights[0].columns}, as weights[0] has: all take the same x",
                "multiply weights that take another x in a call of their own",
            )
    _check_names(policy, activation)
    if outs is None:
        outs = [None] * len(weights)
    elif not isinstance(outs, Sequence) or len(outs) != len(weights):
        counted = f"{len(outs)} arrays" if isinstance(outs, Sequence) else f"a {type(outs).__qualname__}"
        raise refusal(
            "outs",
            f"{counted} for {len(weights)} weights",
            "a list with an array, or None, for each weight",
            "leave it out, or give one entry a weight",
        )
    if not weights:
        return []
    x = as_cupy("x", x)
    for number, weight in enumerate(weights):
        if not weight.on_host and _device_of(weight) != int(x.device.id):
            raise refusal(
                f"weights[{number}]",
                f"on CUDA device {_device_of(weight)}",
                f"on CUDA device {x.device.id}, where x is, as all weights of a call",
                f"move it: qgen.to_device(weight, {x.device.id}), or x",
            )
    bounds = [_served(weight, x, policy, activation) for weight in weights]
    empty = [
        _nothing(weight, x, f"outs[{number}]", out, policy, activation)
        for number, (weight, out, bound) in enumerate(zip(weights, outs, bounds, strict=True))
        if bound is None
    ]
    products = listed(bounds, outs)
    made = multiply(products, x, workspace=workspace) if products else []
    return [(empty if bound is None else made).pop(0) for bound in bounds]


def workspace(weight: Weight, device: int | None = None, *, tokens: int = 1, activation: str | None = None) -> Any:
    """Scratch memory for `mul_mat`, to be used again and again on one stream: a CuPy uint8 array.

    It does for this weight with 1 to `tokens` tokens and this activation; where its kernels need none it is empty.
    Raises QgenError for what `mul_mat` would refuse.
    """
    bound = [bind(weight, device, tokens=count, activation=activation) for count in {1, tokens}]
    nbytes = max(b.workspace_for(min(tokens, b.max_tokens)) for b in bound)
    with device_errors(weight.name), cupy_module().cuda.Device(bound[0].device):
        return cupy_module().empty(nbytes, dtype=np.uint8)


def to_device(weight: Weight, device: int | None = None, *, storage: str | None = None) -> Weight:
    """The same weight with its bytes in the memory of a CUDA device (left out, the current one).

    storage: "tiled" or "native"; left out, as it is. Another one than the weight's is made on the way, see
             `qgen.run.repack`.
    Rows keep their stride. Data that is on that device already is taken without a copy.
    Raises QgenError for a missing device and for data that does not fit the weight.
    """
    if storage not in (None, weight.storage):
        return repack(weight, storage, device)
    return replace(weight, data=_resident(weight, current_device() if device is None else device))


# By weight, as long as it lives: its twins with the bytes on a device, the bindings made from them by kernel, and which
# of those serves which key. None may refer to the weight itself, or it would live for ever.
_twins: weakref.WeakKeyDictionary[Weight, dict[int, Weight]] = weakref.WeakKeyDictionary()
_bindings: weakref.WeakKeyDictionary[Weight, dict[tuple[int, str], Bound]] = weakref.WeakKeyDictionary()
_chosen: weakref.WeakKeyDictionary[Weight, dict[_Key, Bound]] = weakref.WeakKeyDictionary()
_NONE: dict[_Key, Bound] = {}


def bind(
    weight: Weight,
    device: int | None = None,
    *,
    instance: plan.Variant | None = None,
    tokens: int = 1,
    policy: str = "fastest",
    activation: str | None = None,
) -> Bound:
    """The ready-made launches for a weight on a device, made on first use and kept while the Weight lives.

    device:   left out, the one the weight is on, or CuPy's current one for a weight on the host
    instance: one of the plans' variants; left out, the one the dispatch picks for `tokens`, `policy` and `activation`.
              All of one activation give the same bits.
    Raises QgenError when the weight, the device, its architecture or the number of tokens does not do.
    """
    chosen = _device_of(weight) if device is None else device
    if instance is None:
        served = _chosen.setdefault(weight, {})
        key = (chosen, tokens, policy, activation)
        if key not in served:
            served[key] = bind(
                weight, chosen, instance=_routed(weight, weight.rows, chosen, tokens, policy, activation)
            )
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
        elif isinstance(instance, plan.FloatRung):
            made[name] = FloatLadder(twins[chosen], chosen, instance)
        elif isinstance(instance, plan.FusedInstance):
            made[name] = Fused(twins[chosen], chosen, instance)
        elif isinstance(instance, plan.WgmmaRung):
            made[name] = Wgmma(twins[chosen], chosen, instance)
        elif isinstance(instance, plan.MultirowInstance):
            made[name] = Multirow(twins[chosen], chosen, instance)
        else:
            made[name] = Matvec(twins[chosen], chosen, instance)
    return made[name]


# ---- inside -----------------------------------------------------------------------------------------------------


def _routed(weight: Weight, rows: int, device: int, tokens: int, policy: str, activation: str | None) -> plan.Variant:
    """The variant that the dispatch picks for `rows` rows. Raises QgenError with its reason, or the planner's."""
    check_device_number(device)
    arch = arch_of_device(device).name
    format, columns, storage = weight.format, weight.columns, weight.storage
    own = activation is None or activation == format.activation
    if not own or format.activation in plan.CLASSES:
        return routed_float(format, activation or format.activation or "", rows, columns, tokens, arch, policy, storage)
    matvec, _ = matvec_plans(format)
    if tokens == 1 and storage == "native":
        return routed_instance(matvec, rows, columns, arch, policy)
    return routed_batch(format, rows, columns, tokens, arch, policy, storage)


def _check_weight(name: str, weight: object) -> None:
    if not isinstance(weight, Weight):
        raise refusal(
            name,
            f"a {type(weight).__module__}.{type(weight).__qualname__}",
            "a qgen.Weight",
            'wrap the bytes: qgen.Weight.of("Q4_K", data, rows=N, columns=K), or take one from qgen.load(path)',
        )


def _check_names(policy: object, activation: object) -> None:
    if not isinstance(policy, str):
        raise refusal("policy", repr(policy), '"fastest" or "invariant"', "name one of the two")
    if activation is not None and not isinstance(activation, str):
        raise refusal("activation", repr(activation), '"f16", "bf16" or None', "name the class, or leave it out")


def _served(weight: Weight, x: Any, policy: str, activation: str | None) -> Bound | None:
    """The binding for an x, made where there is none yet; None where there is nothing to multiply."""
    device = int(x.device.id)
    bound = _chosen.get(weight, _NONE).get((device, _tokens(x), policy, activation))
    if bound is not None:
        return bound
    # Before the long work of a first use, not after it.
    if not weight.on_host:
        operands.check_device("x", x, _device_of(weight))
    dtypes = x_dtypes(activation or weight.format.activation or "")
    tokens = operands.check_matrix("x", x, length=weight.columns, what="K", device=device, dtypes=dtypes)
    if tokens == 0 or weight.rows == 0:
        return None
    return bind(weight, device, tokens=tokens, policy=policy, activation=activation)


def _tokens(x: Any) -> int:
    return int(x.shape[0]) if x.ndim == 2 else 1


def _nothing(weight: Weight, x: Any, name: str, out: Any, policy: str, activation: str | None) -> Any:
    """The empty result, refused where one token times one row would be. name: what errors call `out`."""
    device, tokens = int(x.device.id), _tokens(x)
    _routed(weight, max(1, weight.rows), device, 1, policy, activation)
    if out is not None:
        out = as_cupy(name, out)
        operands.check_matrix(name, out, length=weight.rows, what="N", device=device, tokens=tokens)
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
