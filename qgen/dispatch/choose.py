"""From a plan to the variant the dispatch gives a weight."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar

from qgen.dispatch.request import Request
from qgen.dispatch.table import lookup
from qgen.errors import QgenError
from qgen.plan import (
    FloatRung,
    FusedInstance,
    Instance,
    MatvecPlan,
    MultirowInstance,
    Rung,
    Variant,
    WgmmaRung,
    plan_fused,
    plan_ksplit,
    plan_ksplit_float,
    plan_multirow,
    plan_wgmma,
    plan_wgmma_float,
)
from qgen.spec import Format

V = TypeVar("V", bound=Variant)


def routed_instance(plan: MatvecPlan, rows: int, columns: int, arch: str, policy: str = "fastest") -> Instance:
    """The variant for one token and a weight of `rows` x `columns` in native storage on `arch`.

    Raises QgenError with the reason of a refusal.
    """
    return _routed(plan.format, plan.contract.activation, plan.instances, 1, rows, columns, arch, policy, "native")


def routed_batch(
    format: Format,
    rows: int,
    columns: int,
    tokens: int,
    arch: str,
    policy: str = "fastest",
    storage: str = "native",
) -> Rung | MultirowInstance | FusedInstance | WgmmaRung:
    """The variant for `tokens` > 1 tokens (over tiles, 1 or more) and a weight of `rows` x `columns` on `arch`.

    storage: the weight's
    Raises QgenError with the reason of a refusal.
    """
    variants: list[Rung | MultirowInstance | FusedInstance | WgmmaRung] = []
    with contextlib.suppress(QgenError):  # the dispatch has better words for a format without such kernels
        variants += plan_multirow(format).instances
    with contextlib.suppress(QgenError):
        variants += plan_ksplit(format, storage).rungs
        if storage == "tiled" and tokens == 1:
            variants += plan_fused(format).instances
    if storage == "tiled" and tokens > 1:
        with contextlib.suppress(QgenError):
            variants += plan_wgmma(format).rungs
    return _routed(format.name, format.activation or "none", variants, tokens, rows, columns, arch, policy, storage)


def routed_float(
    format: Format,
    activation: str,
    rows: int,
    columns: int,
    tokens: int,
    arch: str,
    policy: str = "fastest",
    storage: str = "native",
) -> FloatRung | WgmmaRung:
    """The rung for `tokens` tokens of activation class "f16" or "bf16", and a weight of `rows` x `columns` on `arch`.

    storage: the weight's
    Raises QgenError with the reason of a refusal.
    """
    rungs: list[FloatRung | WgmmaRung] = []
    with contextlib.suppress(QgenError):  # the dispatch has better words for a format without a ladder
        rungs += plan_ksplit_float(format, activation, storage).rungs
        if storage == "tiled":
            rungs += plan_wgmma_float(format, activation).rungs
    return _routed(format.name, activation, rungs, tokens, rows, columns, arch, policy, storage)


def routed_repack(format: Format, storage: str, rows: int, columns: int, arch: str) -> str:
    """The kernel that brings a weight of `rows` x `columns` from `storage` to the other one on `arch`.

    Raises QgenError with the reason of a refusal.
    """
    # How x comes is all the same to it, but every request names it.
    request = Request(
        "repack", format.name, format.activation or "f32", T=1, N=rows, K=columns, arch=arch, storage=storage
    )
    decision = lookup(request)
    if decision.kernel is None:
        raise QgenError(
            stage="dispatch",
            subject=f"{format.name} {rows} x {columns} on {arch}",
            found=decision.reason,
            allowed="a weight that the dispatch serves",
            next=f"qgen explain --op repack --format {format.name} --arch {arch} -N {rows} -K {columns} "
            f"--storage {storage}",
        )
    return decision.kernel


def _routed(
    format: str,
    activation: str,
    variants: Sequence[V],
    tokens: int,
    rows: int,
    columns: int,
    arch: str,
    policy: str,
    storage: str,
) -> V:
    request = Request(
        "mul_mat", format, activation, T=tokens, N=rows, K=columns, arch=arch, policy=policy, storage=storage
    )
    decision = lookup(request)
    for variant in variants:
        if variant.name == decision.kernel:
            return variant
    raise QgenError(
        stage="dispatch",
        subject=f"{format} {rows} x {columns}, T = {tokens}, on {arch}",
        found=decision.reason or f"kernel {decision.kernel}, which this plan does not make",
        allowed="a request that the dispatch serves",
        next=f"qgen explain --op mul_mat --format {format} --arch {arch} -T {tokens} -N {rows} -K {columns}"
        + f" --activation {activation}"
        + ("" if policy == "fastest" else f" --policy {policy}")
        + ("" if storage == "native" else f" --storage {storage}"),
    )
