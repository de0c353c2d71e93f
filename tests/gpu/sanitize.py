"""Every kernel on small matrices with tails, for compute-sanitizer to watch:

    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/sanitize.py [FORMAT ...]

Each buffer is an allocation of its own and of exactly its size, so that a tool that watches allocations sees a step
beside one; nothing comes from a pool. Results are held against the contract. Not a test by itself: pytest does not
collect it, because the tools slow kernels down by a hundred times.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from qgen import codec, contract, contract_float, layout, run
from qgen.generate import generate
from qgen.plan import (
    FloatKsplitPlan,
    FloatRung,
    FloatWgmmaPlan,
    FusedInstance,
    FusedPlan,
    Instance,
    KsplitPlan,
    MatvecPlan,
    MultirowInstance,
    MultirowPlan,
    Rung,
    WgmmaPlan,
    WgmmaRung,
    plan_all,
    plan_wgmma_float,
)
from qgen.run.device import cupy_module
from qgen.spec import load_formats
from qgen.weights import Weight

FORMATS = load_formats()
# Kernels for warpgroups with float activations: of a folded contract, and with several blocks a bundle.
FLOAT_MATRICES = (("Q4_K", "f16"), ("Q4_0", "bf16"))


def shapes(plan: MatvecPlan, instance: Instance) -> tuple[tuple[int, int], ...]:
    """(rows, blocks a row): a tail of the row tile and of the steps, and less than one of either."""
    return ((70, 3 * instance.team_blocks + 1), (1, 1))


def check(cupy: Any, plan: MatvecPlan, instance: Instance, rows: int, blocks: int) -> bool:
    """Whether the kernel gives the contract's bits for a matrix that lies at the end of its allocation."""
    format = FORMATS[plan.format]
    packed = codec.random_blocks(format, rows * blocks, seed=rows + blocks)
    assert isinstance(packed, np.ndarray)
    x = np.random.default_rng(blocks).standard_normal(blocks * format.block, dtype=np.float32)
    # Begun as badly aligned as the format allows; the last block ends with the allocation.
    data = cupy.asarray(np.concatenate([np.zeros(format.alignment, np.uint8), packed.reshape(-1)]))[format.alignment :]
    weight = Weight.of(format, data, rows=rows, columns=x.size)
    bound = run.bind(weight, instance=instance)
    scratch = cupy.zeros(bound.workspace_bytes, dtype=cupy.uint8)
    y = cupy.zeros(rows, dtype=cupy.float32)
    bound(cupy.asarray(x), y, workspace=scratch)
    wanted = contract.mul_mat(format, packed.reshape(rows, blocks, format.bytes), x)
    return bool(np.array_equal(cupy.asnumpy(y).view(np.uint32), wanted.view(np.uint32)))


def check_fused(cupy: Any, plan: FusedPlan, instance: FusedInstance, rows: int, blocks: int) -> bool:
    """The same for a kernel that quantises x by itself: tiles, x and y end with their allocations."""
    format = FORMATS[plan.format]
    packed = codec.random_blocks(format, rows * blocks, seed=rows + blocks)
    assert isinstance(packed, np.ndarray)
    x = np.random.default_rng(blocks).standard_normal(blocks * format.block, dtype=np.float32)
    weight = Weight.of(format, cupy.asarray(packed.reshape(-1)), rows=rows, columns=x.size)
    bound = run.bind(run.to_device(weight, storage="tiled"), instance=instance)
    y = cupy.zeros(rows, dtype=cupy.float32)
    bound(cupy.asarray(x), y)
    wanted = contract.mul_mat(format, packed.reshape(rows, blocks, format.bytes), x)
    return bool(np.array_equal(cupy.asnumpy(y).view(np.uint32), wanted.view(np.uint32)))


def fused_shapes(plan: FusedPlan, instance: FusedInstance) -> tuple[tuple[int, int], ...]:
    """(rows, blocks a row): tails of row tiles, of stages and of rounds of quantising; the longest row."""
    turn = 16 * plan.ladder.layout.bundle
    return ((37, instance.stage_blocks + 1), (17, turn + 1), (1, plan.most_blocks), (1, 1))


def check_batch(
    cupy: Any,
    plan: KsplitPlan | MultirowPlan | WgmmaPlan,
    rung: Rung | MultirowInstance | WgmmaRung,
    rows: int,
    blocks: int,
    tokens: int,
) -> bool:
    """The same for a kernel of several tokens, x and y with gaps between their rows."""
    format = FORMATS[plan.format]
    packed = codec.random_blocks(format, rows * blocks, seed=rows + blocks)
    assert isinstance(packed, np.ndarray)
    x = np.random.default_rng(blocks).standard_normal((tokens, blocks * format.block), dtype=np.float32)
    data = cupy.asarray(np.concatenate([np.zeros(format.alignment, np.uint8), packed.reshape(-1)]))[format.alignment :]
    weight = Weight.of(format, data, rows=rows, columns=x.shape[1])
    if plan.storage == "tiled":
        weight = run.repack(weight)
    bound = run.bind(weight, instance=rung)
    scratch = cupy.zeros(bound.workspace_for(tokens), dtype=cupy.uint8)
    # Rows apart, but the last ends with its allocation.
    wide, tall = (cupy.zeros(tokens * (n + 3) - 3, dtype=cupy.float32) for n in (x.shape[1], rows))
    shape, y = (tokens, x.shape[1]), cupy.lib.stride_tricks.as_strided(tall, (tokens, rows), (4 * (rows + 3), 4))
    spread = cupy.lib.stride_tricks.as_strided(wide, shape, (4 * (shape[1] + 3), 4))
    spread[...] = cupy.asarray(x)
    bound(spread, y, workspace=scratch)
    wanted = np.stack([contract.mul_mat(format, packed.reshape(rows, blocks, format.bytes), row) for row in x])
    return bool(np.array_equal(cupy.asnumpy(y).view(np.uint32), wanted.view(np.uint32)))


def multirow_variants(plan: MultirowPlan) -> list[MultirowInstance]:
    """One that holds its rows in registers and one that holds its tokens: no route may name any on this device."""
    return [i for i in plan.instances if (i.rows, i.columns) in ((2, 8), (4, 2))]


def check_float(
    cupy: Any,
    plan: FloatKsplitPlan | FloatWgmmaPlan,
    rung: FloatRung | WgmmaRung,
    rows: int,
    blocks: int,
    tokens: int,
) -> bool:
    """The same for a rung with f16 or bf16 activations, against the contract's bound; its buffer ends with a plane."""
    format = FORMATS[plan.format]
    columns = blocks * format.block
    count = layout.matrix(format, rows=rows, columns=columns).blocks
    x = np.random.default_rng(blocks).standard_normal((tokens, columns), dtype=np.float32)
    packed: contract_float.Packed
    if format.split:
        planes = codec.random_planes(format, rows * count, seed=rows + blocks)
        packed = {name: part.reshape(rows, count, -1)[:, :blocks] for name, part in planes.items()}
        data: Any = planes
    else:
        data = packed = codec.random_blocks(format, rows * blocks, seed=rows + blocks).reshape(rows, blocks, -1)
    weight = run.to_device(Weight.of(format, data, rows=rows, columns=columns), storage=plan.storage)
    bound = run.bind(weight, instance=rung)
    scratch = cupy.zeros(bound.workspace_for(tokens), dtype=cupy.uint8)
    y = cupy.zeros((tokens, rows), dtype=cupy.float32)
    bound(cupy.asarray(x), y, workspace=scratch)
    exact = [contract_float.reference(format, packed, row, rung.activation) for row in x]
    return all(bool((np.abs(found - e) <= b).all()) for found, (e, b) in zip(cupy.asnumpy(y), exact, strict=True))


def main(names: list[str]) -> int:
    """Run all kernels, or those of the formats named; 1 when a result is wrong."""
    cupy = cupy_module()
    cupy.cuda.set_allocator(None)  # straight to cudaMalloc
    made = generate().plans
    plans = [p for p in made if isinstance(p, MatvecPlan) and (not names or p.format in names)]
    wrong, count, started = 0, 0, time.monotonic()
    for plan in plans:
        for instance in plan.instances:
            for rows, blocks in shapes(plan, instance):
                count += 1
                if not check(cupy, plan, instance, rows, blocks):
                    wrong += 1
                    print(f"WRONG {instance.name}: {rows} rows of {blocks} blocks", flush=True)
    for fused in (p for p in plan_all(FORMATS)[0] if isinstance(p, FusedPlan) and (not names or p.format in names)):
        for own in fused.instances:
            for rows, blocks in fused_shapes(fused, own):
                count += 1
                if not check_fused(cupy, fused, own, rows, blocks):
                    wrong += 1
                    print(f"WRONG {own.name}: {rows} rows of {blocks} blocks", flush=True)
    for ladder in (p for p in made if isinstance(p, KsplitPlan) and (not names or p.format in names)):
        for rung in ladder.rungs:
            for rows, blocks, tokens in ((37, rung.stage_blocks + 1, rung.columns + 3), (1, 1, 2)):
                count += 1
                if not check_batch(cupy, ladder, rung, rows, blocks, tokens):
                    wrong += 1
                    print(f"WRONG {rung.name}: {rows} rows of {blocks} blocks, T = {tokens}", flush=True)
    for matrices in (p for p in made if isinstance(p, WgmmaPlan) and (not names or p.format in names)):
        # A group of rows and some more, bundles that end short, two CTAs of columns.
        more = matrices.contract.slices * (matrices.layout.bundle - 1) + 3
        for wide in matrices.rungs:
            for rows, blocks, tokens in ((wide.rows + 37, more, wide.columns + 3), (1, 1, 2)):
                count += 1
                if not check_batch(cupy, matrices, wide, rows, blocks, tokens):
                    wrong += 1
                    print(f"WRONG {wide.name}: {rows} rows of {blocks} blocks, T = {tokens}", flush=True)
    for floats in (p for p in made if isinstance(p, FloatKsplitPlan) and (not names or p.format in names)):
        for float_rung in floats.rungs:
            for rows, blocks, tokens in ((37, float_rung.stage_blocks + 1, float_rung.columns + 3), (1, 1, 2)):
                count += 1
                if not check_float(cupy, floats, float_rung, rows, blocks, tokens):
                    wrong += 1
                    print(f"WRONG {float_rung.name}: {rows} rows of {blocks} blocks, T = {tokens}", flush=True)
    for name, activation in FLOAT_MATRICES:
        if names and name not in names:
            continue
        of_class = plan_wgmma_float(FORMATS[name], activation)
        more = of_class.contract.slices * (of_class.layout.bundle - 1) + 3
        for wide in (of_class.rungs[0], of_class.rungs[-1]):
            for rows, blocks, tokens in ((wide.rows + 37, more, wide.columns + 3), (1, 1, 2)):
                count += 1
                if not check_float(cupy, of_class, wide, rows, blocks, tokens):
                    wrong += 1
                    print(f"WRONG {wide.name}: {rows} rows of {blocks} blocks, T = {tokens}", flush=True)
    for several in (p for p in plan_all(FORMATS)[0] if isinstance(p, MultirowPlan)):
        if names and several.format not in names:
            continue
        for few in multirow_variants(several):
            for rows, blocks, tokens in ((37, few.team_blocks + 1, few.columns + 1), (1, 1, 2)):
                count += 1
                if not check_batch(cupy, several, few, rows, blocks, tokens):
                    wrong += 1
                    print(f"WRONG {few.name}: {rows} rows of {blocks} blocks, T = {tokens}", flush=True)
    print(f"{count} launches, {wrong} wrong, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
