"""mul_mat made ready for one weight on one device: the kernels, loaded, and the launches of a call."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from qgen import emit, operands, paths, plan
from qgen.dispatch import trace
from qgen.operands import refusal
from qgen.run import device as room
from qgen.run import launching
from qgen.run.multiplying import Product, multiply
from qgen.spec import Format
from qgen.weights import Weight

_INT32 = 2**31 - 1

# What quantisers write, by itself: one object for all that are equal, so that calls compare no long lists.
_written: dict[object, object] = {}

# A launch but for its stream: grid, block, arguments, bytes of shared memory.
Launch = tuple[tuple[int, ...], tuple[int, ...], Sequence[Any], int]


class Bound(ABC):
    """The two launches of mul_mat for one weight on one device: quantise x, multiply. Or one that does both.

    instance:   the variant of the matmul plan that runs
    activation: whatever the quantiser writes depends on: where it is equal, one quantised x serves two bindings; None
                where the matmul reads x itself
    """

    _fit: tuple[int, int]  # multiprocessors, and CTAs of the matmul that fit on one
    instance: plan.Variant
    activation: tuple[object, int] | None
    max_tokens: int
    tiled = False  # over tiled storage, where no multiprocessor takes more CTAs than its share, see plan.launch_ksplit
    x_dtypes: tuple[str, ...] = ("float32",)

    def __init__(self, weight: Weight, device: int, alignment: int) -> None:
        """weight: with its bytes on `device`; alignment: bytes that the plan needs it aligned to.

        Raises QgenError when no kernel takes it there.
        """
        if max(weight.rows, weight.columns) > _INT32:
            found = f"{weight.rows} rows of {weight.columns}"
            raise refusal(weight.name, found, f"at most {_INT32} of each", "split the weight")
        operands.check_aligned(
            weight.name, weight.data, alignment, f"{weight.format.name} blocks are loaded in vectors"
        )
        self.weight = weight
        self.device = device
        # The sizes the kernels expect: int64 strides, int32 counts.
        self._blocks = np.int32(weight.columns // weight.format.block)
        planes: list[Any] = [weight.data] if self.tiled else []
        for span in () if self.tiled else weight.planes:
            planes += [weight.data[span.offset :] if span.offset else weight.data, np.int64(span.row_stride)]
        self._leading = (*planes, np.int32(weight.rows), self._blocks)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that a call with one token needs."""
        return self.workspace_for(1)

    @abstractmethod
    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory that a call with this many tokens needs."""

    @abstractmethod
    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[Launch | None, Launch]:
        """The quantiser's launch, None where the matmul reads x itself, and the matmul's."""

    def __call__(self, x: Any, out: Any = None, *, workspace: Any = None) -> Any:
        """y = weight @ x; see `qgen.mul_mat`, which is this behind a search for the binding."""
        return multiply([Product(self, out, "weight", "out")], x, workspace=workspace)[0]

    def check_x(self, x: Any) -> int:
        """That an array is an x for this binding. Returns T. Raises QgenError."""
        tokens = operands.check_matrix(
            "x", x, length=self.weight.columns, what="K", device=self.device, dtypes=self.x_dtypes
        )
        if not 1 <= tokens <= self.max_tokens:
            raise refusal(
                "x",
                f"shape {list(x.shape)}: T = {tokens} tokens",
                f"T = 1 to {self.max_tokens} for {self.instance.name}",
                "call qgen.mul_mat, which picks the kernel by T",
            )
        return tokens

    def issue(self, tokens: int, x: Any, workspace: Any, out: Any, *, quantise: bool) -> None:
        """The launches, on the current stream of the current device, for operands that `multiply` has checked.

        quantise: False where the workspace already holds this x as the matmul reads it, see `activation`.
        """
        first, second = self._launches(tokens, x, workspace, out)
        if quantise and first is not None:
            self._issue(self._quantize, self._quantiser, first, dependent=True)
        self._issue(self._matmul, self.instance.name, second, dependent=self._begins_early(math.prod(second[0])))

    def _begins_early(self, ctas: int) -> bool:
        """Whether a launch of so many CTAs of the matmul may begin before the kernel in front has ended."""
        multiprocessors, resident = self._fit
        if self.tiled:
            resident = min(resident, -(-ctas // multiprocessors))
        return launching.spreads(ctas, multiprocessors, resident)

    def _issue(self, function: Any, name: str, launch: Launch, *, dependent: bool) -> None:
        grid, block, args, shared = launch
        if dependent and launching.why_not_dependent(room.arch_of_device(self.device)) is None:
            stream = int(room.cupy_module().cuda.get_current_stream().ptr)
            extent = (grid[0], grid[1] if len(grid) > 1 else 1)
            launching.launch_dependent(function, name, extent, block[0], args, shared, stream)
        else:
            function(grid, block, args, shared)
        trace.ran(name)

    def _load(
        self,
        quantize: plan.QuantizePlan | plan.FragmentQuantizePlan | plan.ArrangePlan,
        entry: str,
        matmul: plan.Plan,
        threads: int,
        shared: int,
    ) -> tuple[int, int]:
        """Load both kernels. Returns the multiprocessors, and how many CTAs of the matmul fit on one of them."""
        with room.cupy_module().cuda.Device(self.device):
            self._quantiser = entry
            written = replace(quantize.layout, name="")
            self.activation = _written.setdefault(written, written), int(self._blocks)
            self._quantize = load_kernel(quantize, entry, self.device)
            self._matmul = load_kernel(matmul, self.instance.name, self.device)
            room.allow_shared(self._matmul, shared)
            return room.occupancy(self._matmul, threads=threads, shared=shared, device=self.device)

    def _allow(self, shared: int) -> None:
        """Launches of the matmul may ask for so much shared memory."""
        with room.cupy_module().cuda.Device(self.device):
            room.allow_shared(self._matmul, shared)


class Matvec(Bound):
    """mul_mat at T = 1, family matvec. Made by `qgen.run.bind`."""

    max_tokens = 1

    def __init__(self, weight: Weight, device: int, instance: plan.Instance) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        super().__init__(weight, device, weight.format.alignment)
        self.instance = instance
        matvec, quantize = matvec_plans(weight.format)
        blocks = int(self._blocks)
        self._nbytes = matvec.workspace_bytes(blocks)
        self._fit = self._load(quantize, quantize.name, matvec, 32 * matvec.warps, instance.shared_bytes)
        first, y = plan.launch_quantize(quantize, blocks, 1)
        second = plan.launch(matvec, instance, weight.rows, *self._fit)
        self._first = ((first.grid, y), (first.block,), first.shared)
        self._x_stride = np.int64(weight.columns)
        self._second = ((second.grid,), (second.block,), second.shared)

    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory of a call; T is 1."""
        return self._nbytes

    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[Launch, Launch]:
        grid, block, shared = self._first
        first: Launch = (grid, block, (x, self._x_stride, self._blocks, workspace), shared)
        return first, (*self._second[:2], (*self._leading, workspace, out), self._second[2])


class Multirow(Bound):
    """mul_mat for T tokens by one variant of the family multirow. Made by `qgen.run.bind`.

    Every variant takes every T, so many tokens at a time as it has columns.
    """

    max_tokens = plan.MAX_TOKENS

    def __init__(self, weight: Weight, device: int, instance: plan.MultirowInstance) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        super().__init__(weight, device, weight.format.alignment)
        self.instance: plan.MultirowInstance = instance
        self._plan, quantize = multirow_plans(weight.format)
        self._quantize_plan = quantize
        # Unrouted variants are printed alone: a file of all of them takes long to compile.
        only = replace(self._plan, instances=(instance,))
        self._fit = self._load(quantize, quantize.name, only, 32 * instance.warps, instance.shared_bytes)

    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory of a call with this many tokens."""
        return self._plan.workspace_bytes(int(self._blocks), tokens)

    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[Launch, Launch]:
        first, y = plan.launch_quantize(self._quantize_plan, int(self._blocks), tokens)
        quantize: Launch = (
            (first.grid, y),
            (first.block,),
            (x, np.int64(operands.row_stride(x)), self._blocks, workspace),
            first.shared,
        )
        second, y = plan.launch_multirow(self.instance, self.weight.rows, tokens, *self._fit)
        multiply: Launch = (
            (second.grid, y),
            (second.block,),
            (*self._leading, np.int32(tokens), workspace, out, np.int64(operands.row_stride(out))),
            second.shared,
        )
        return quantize, multiply


class Ladder(Bound):
    """mul_mat for T tokens on one rung of the family ksplit_mma. Made by `qgen.run.bind`.

    Every rung takes every T, a rung's capacity of tokens at a time.
    """

    max_tokens = plan.MAX_TOKENS

    def __init__(self, weight: Weight, device: int, rung: plan.Rung) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        self.tiled = weight.storage == "tiled"
        self._plan, self._quantize_plan = ladder_plans(weight.format, weight.storage)
        _check_rung(weight, rung, self._plan.rungs)
        super().__init__(weight, device, self._plan.alignment)
        self.instance: plan.Rung = rung
        self._arch = room.arch_of_device(device)
        quantize = self._quantize_plan
        self._fit = self._load(quantize, quantize.name, self._plan, 32 * rung.warps, rung.shared_bytes)
        if self.tiled and self._fit[1] > 1:
            self._allow(plan.launch_ksplit(self._plan, rung, 1, 1, *self._fit, self._arch)[0].shared)

    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory of a call with this many tokens: they grow with every eight."""
        return self._plan.workspace_bytes(int(self._blocks), tokens)

    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[Launch, Launch]:
        count = np.int32(tokens)
        first, y = plan.launch_quantize_fragments(self._quantize_plan, int(self._blocks), tokens)
        quantize: Launch = (
            (first.grid, y),
            (first.block,),
            (x, np.int64(operands.row_stride(x)), self._blocks, workspace),
            first.shared,
        )
        second, y = plan.launch_ksplit(self._plan, self.instance, self.weight.rows, tokens, *self._fit, self._arch)
        multiply: Launch = (
            (second.grid, y),
            (second.block,),
            (*self._leading, count, workspace, out, np.int64(operands.row_stride(out))),
            second.shared,
        )
        return quantize, multiply


class FloatLadder(Bound):
    """mul_mat for T tokens with f16 or bf16 activations, on one rung. Made by `qgen.run.bind`.

    Every rung takes every T, a rung's capacity of tokens at a time.
    """

    max_tokens = plan.MAX_TOKENS

    def __init__(self, weight: Weight, device: int, rung: plan.FloatRung) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        self.tiled = weight.storage == "tiled"
        self._plan, self._arrange_plan = float_plans(weight.format, rung.activation, weight.storage)
        _check_rung(weight, rung, self._plan.rungs)
        super().__init__(weight, device, self._plan.alignment)
        self.instance: plan.FloatRung = rung
        self._arch = room.arch_of_device(device)
        self.x_dtypes = x_dtypes(rung.activation)
        arrange = self._arrange_plan
        self._fit = self._load(arrange, arrange.name, self._plan, 32 * rung.warps, rung.shared_bytes)
        if self.tiled and self._fit[1] > 1:
            self._allow(plan.launch_ksplit_float(self._plan, rung, 1, 1, *self._fit, self._arch)[0].shared)

    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory of a call with this many tokens: they grow with every eight."""
        return self._plan.workspace_bytes(int(self._blocks), tokens)

    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[Launch, Launch]:
        count = np.int32(tokens)
        first, y = plan.launch_arrange(self._arrange_plan, int(self._blocks), tokens)
        size = np.int32(x.dtype.itemsize)
        arrange: Launch = (
            (first.grid, y),
            (first.block,),
            (x, np.int64(operands.row_stride(x)), size, self._blocks, count, workspace),
            first.shared,
        )
        second, y = plan.launch_ksplit_float(
            self._plan, self.instance, self.weight.rows, tokens, *self._fit, self._arch
        )
        multiply: Launch = (
            (second.grid, y),
            (second.block,),
            (*self._leading, count, workspace, out, np.int64(operands.row_stride(out))),
            second.shared,
        )
        return arrange, multiply


def _check_rung(weight: Weight, rung: plan.Rung | plan.FloatRung, known: Sequence[plan.Rung | plan.FloatRung]) -> None:
    """That a rung is one over the weight's storage. Raises QgenError."""
    if rung not in known:
        found = f"{rung.name} for {weight.storage} storage"
        allowed = ", ".join(other.name for other in known)
        raise refusal("instance", found, allowed, "leave it out: the dispatch picks one")


def x_dtypes(activation: str) -> tuple[str, ...]:
    """The dtypes of x that kernels of an activation take. CuPy has no bfloat16: its bits come as uint16."""
    own = {"f16": ("float16",), "bf16": ("bfloat16", "uint16")}
    return ("float32", *own.get(activation, ()))


@cache
def matvec_plans(format: Format) -> tuple[plan.MatvecPlan, plan.QuantizePlan]:
    """What runs T = 1. Raises QgenError for a format without kernels."""
    matvec = plan.plan_matvec(format)
    return matvec, plan.plan_quantize(matvec)


@cache
def multirow_plans(format: Format) -> tuple[plan.MultirowPlan, plan.QuantizePlan]:
    """What runs T > 1 by dp4a. Raises QgenError for a format without kernels."""
    return plan.plan_multirow(format), matvec_plans(format)[1]


@cache
def ladder_plans(format: Format, storage: str) -> tuple[plan.KsplitPlan, plan.FragmentQuantizePlan]:
    """What runs T > 1, over tiles any T, on tensor cores. Raises QgenError for a format without such kernels."""
    ladder = plan.plan_ksplit(format, storage)
    return ladder, plan.plan_quantize_fragments(ladder)


@cache
def float_plans(format: Format, activation: str, storage: str) -> tuple[plan.FloatKsplitPlan, plan.ArrangePlan]:
    """What runs an activation class. Raises QgenError for a format without such kernels."""
    ladder = plan.plan_ksplit_float(format, activation, storage)
    return ladder, plan.plan_arrange(ladder)


@cache
def _source(chosen: plan.Plan, entry: str, device: int) -> str:
    """The text that `qgen build` wrote, so that what was proved is what runs; for variants that it does not compile for
    this device, printed anew.
    """
    text = written(chosen, entry)
    if text and entry in (r.entry for r in room.compiled(chosen.file, text, device).entries):
        return text
    return emit.emit(chosen).text


def written(chosen: plan.Plan, entry: str) -> str | None:
    """The text that `qgen build` wrote for a plan, where this kernel is in it."""
    path = paths.data_dir("generated") / chosen.family / f"{chosen.file}.cu"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text if f"{entry}(" in text else None


def load_kernel(chosen: plan.Plan, entry: str, device: int) -> Any:
    """One kernel of a plan as a CuPy function. Raises QgenError as `load_module` does."""
    return room.load_module(chosen.file, _source(chosen, entry, device), device).get_function(entry)
