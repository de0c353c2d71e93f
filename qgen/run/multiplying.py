"""One x times one weight or several: the checks of a call, its memory, and its launches in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qgen import operands
from qgen.operands import refusal
from qgen.run import device as room

if TYPE_CHECKING:
    from qgen.run.bound import Bound

_ALIGNMENT = 256  # between the parts of one allocation; more than any vector load needs


class Product(NamedTuple):
    """One weight of a call. weight_name, out_name: what errors call its operands."""

    bound: Bound
    out: Any
    weight_name: str
    out_name: str


def listed(bounds: Sequence[Bound | None], outs: Sequence[Any]) -> list[Product]:
    """The products of a list of weights, those without a binding left out, under the names of its operands."""
    return [
        Product(bound, out, f"weights[{i}]", f"outs[{i}]")
        for i, (bound, out) in enumerate(zip(bounds, outs, strict=True))
        if bound is not None
    ]


def quantisers(bounds: Sequence[Bound]) -> list[bool]:
    """Which of the bindings of a call quantise x in front: those that read another quantised activation than the one in
    front of them, where bindings that read x itself do not count."""
    found = []
    last = None
    for own in (bound.activation for bound in bounds):
        found.append(own is not None and own != last)
        last = own or last
    return found


def multiply(products: Sequence[Product], x: Any, *, workspace: Any = None) -> list[Any]:
    """The results for one x, at least one; see `qgen.mul_mats`, which is this behind a search for the bindings.

    Raises QgenError before anything is launched.
    """
    x = room.as_cupy("x", x)
    bounds = [product.bound for product in products]
    tokens = [bound.check_x(x) for bound in bounds][0]
    device = bounds[0].device
    nbytes = max(bound.workspace_for(tokens) for bound in bounds)
    outs, given = [], {"x": x}
    for bound, out, _, name in products:
        if out is not None:
            out = given[name] = room.as_cupy(name, out)
            operands.check_matrix(name, out, length=bound.weight.rows, what="N", device=device, tokens=tokens)
        outs.append(out)
    if workspace is not None:
        workspace = given["workspace"] = room.as_cupy("workspace", workspace)
        operands.check_workspace(workspace, nbytes=nbytes, alignment=16, device=device)
    operands.check_apart(given, read={product.weight_name: product.bound.weight.data for product in products})
    subject = ", ".join(dict.fromkeys(bound.weight.name for bound in bounds))
    with room.device_errors(subject), room.cupy_module().cuda.Device(device):
        if workspace is None or any(out is None for out in outs):
            shapes = [(b.weight.rows,) if x.ndim == 1 else (tokens, b.weight.rows) for b in bounds]
            outs, workspace = _allocate(products, outs, shapes, workspace, nbytes)
        # One workspace does for quantisers that differ: launches of a stream come in order, and every kernel waits for
        # those in front of it before it writes, see `launching`.
        for bound, out, quantise in zip(bounds, outs, quantisers(bounds), strict=True):
            bound.issue(tokens, x, workspace, out, quantise=quantise)
    return outs


def _allocate(
    products: Sequence[Product], outs: Sequence[Any], shapes: Sequence[tuple[int, ...]], workspace: Any, nbytes: int
) -> tuple[list[Any], Any]:
    """The results and the workspace, those that were given and new ones."""
    cupy = room.cupy_module()
    if not cupy.cuda.get_current_stream().is_capturing():
        return (
            [cupy.empty(shape, dtype=np.float32) if o is None else o for o, shape in zip(outs, shapes, strict=True)],
            cupy.empty(nbytes, dtype=np.uint8) if workspace is None else workspace,
        )
    # Under capture the workspace must outlive this call: the graph writes to it at every replay. It therefore
    # shares one allocation with the results, of which the caller keeps one at least.
    if nbytes and all(out is not None for out in outs):
        raise refusal(
            "workspace",
            f"none, with {', '.join(f'`{product.out_name}`' for product in products)} given, on a stream that is "
            "being captured",
            "scratch memory that lives as long as the graph",
            "pass workspace=qgen.workspace(weight, tokens=T), the largest of several weights, made before the "
            "capture, and keep it",
        )
    end = 0 if workspace is not None else _padded(nbytes)
    begins = []
    for out, shape in zip(outs, shapes, strict=True):
        begins.append(end)
        end += _padded(4 * math.prod(shape)) if out is None else 0
    buffer = cupy.empty(end, dtype=np.uint8)
    return (
        [
            buffer[begin : begin + 4 * math.prod(shape)].view(np.float32).reshape(shape) if out is None else out
            for out, shape, begin in zip(outs, shapes, begins, strict=True)
        ],
        buffer[: begins[0]] if workspace is None else workspace,
    )


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
