"""mul_mat of one token in one launch, made ready for one weight on one device: the kernel quantises x by itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from qgen import plan
from qgen.operands import refusal
from qgen.run import device as room
from qgen.run.bound import Bound, Launch, load_kernel
from qgen.spec import Format
from qgen.weights import Weight


class Fused(Bound):
    """mul_mat at T = 1, family fused, over tiles. Made by `qgen.run.bind`."""

    max_tokens = 1
    tiled = True
    activation = None

    def __init__(self, weight: Weight, device: int, instance: plan.FusedInstance) -> None:
        """weight: with its bytes on `device`. Raises QgenError when no kernel takes it there."""
        fused = fused_plan(weight.format)
        if weight.storage != "tiled" or instance not in fused.instances:
            found = f"{instance.name} for {weight.storage} storage"
            allowed = ", ".join(other.name for other in fused.instances) + " for tiled storage"
            raise refusal(weight.name, found, allowed, "leave it out: the dispatch picks one")
        super().__init__(weight, device, fused.alignment)
        most = fused.most_blocks * weight.format.block
        if weight.columns > most:
            found = f"K = {weight.columns} columns"
            raise refusal(weight.name, found, f"at most {most} for {instance.name}", "leave the instance out")
        self.instance = instance
        with room.device_errors(weight.name), room.cupy_module().cuda.Device(device):
            self._matmul = load_kernel(fused, instance.name, device)
            room.allow_shared(self._matmul, instance.shared_bytes)
            threads = 32 * plan.FUSED_WARPS
            count, _ = room.occupancy(self._matmul, threads=threads, shared=instance.shared_bytes, device=device)
        launch = plan.launch_fused(instance, weight.rows, multiprocessors=count)
        self._launch = (launch.grid,), (launch.block,), launch.shared

    def workspace_for(self, tokens: int) -> int:
        """Bytes of scratch memory of a call: none."""
        return 0

    def _launches(self, tokens: int, x: Any, workspace: Any, out: Any) -> tuple[None, Launch]:
        grid, block, shared = self._launch
        return None, (grid, block, (*self._leading, x, out), shared)

    def _begins_early(self, ctas: int) -> bool:
        """Always: a CTA takes a multiprocessor, so that few of them cannot gather on one."""
        return True


@cache
def fused_plan(format: Format) -> plan.FusedPlan:
    """The kernels of a format that quantise x by themselves. Raises QgenError for a format without such kernels."""
    return plan.plan_fused(format)
