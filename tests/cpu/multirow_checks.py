"""What a multirow kernel must do to pass, and the shapes it is tried at: for good kernels and for broken ones alike."""

from __future__ import annotations

from functools import cache

import numpy as np
from batch_checks import Batch
from judging import U8, Wrong
from kernel_cases import place
from ksplit_cases import Case, Operands

from qgen import emulate
from qgen.emit import emit
from qgen.emulate import Program, Report
from qgen.plan import Launch, MultirowInstance, MultirowPlan, launch_multirow
from qgen.spec import Format

PAST_END = 0xFF  # every byte of a token's activation past its last block: codes -1, scales NaN


class Multirow(Batch):
    """One variant of a compiled file, ready to be judged."""

    def __init__(self, format: Format, program: Program, plan: MultirowPlan, instance: MultirowInstance) -> None:
        super().__init__(format, program, plan)
        self.plan, self.instance = plan, instance
        self.name, self.columns = instance.name, instance.columns
        self.few = max(1, instance.team_blocks - 1)

    def cases(self) -> list[Case]:
        return cases(self.plan, self.instance)

    def special_cases(self) -> list[Case]:
        return [Case(rows=18, blocks=self.instance.team_blocks + 1, tokens=self.columns + 1)]

    def workspace(self, given: Operands, tokens: int) -> U8:
        made = (place(self.plan.layout, q, given.blocks, fill=PAST_END) for q in given.quantised(tokens))
        return np.concatenate(list(made))

    def shape(self, case: Case) -> tuple[Launch, int]:
        return launch_multirow(self.instance, case.rows, case.tokens, case.multiprocessors, 1)

    def check_reads(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        """A token's fragment is loaded once for a team's rows and each step of it, and nothing else is."""
        wanted = reads(self.plan, self.instance, case)
        if report.read_bytes["activation"] != wanted:
            found = f"{report.read_bytes['activation']} of {wanted} bytes; {case}"
            raise Wrong("activation read", found)
        layout = self.plan.layout
        tiles = layout.tiles(case.blocks)
        own = layout.scale_offset(case.blocks) + 4 * tiles * (
            layout.tile_blocks * layout.scales + 32 * layout.sum_slots
        )
        if report.bytes_touched["activation"] > case.tokens * own:
            raise Wrong("activation read", f"{report.bytes_touched['activation']} distinct bytes; {case}")


def reads(plan: MultirowPlan, instance: MultirowInstance, case: Case) -> int:
    """Bytes of activation that a launch requests.

    Of the rows and the tokens of a team, it keeps those in registers of which there are fewer, and walks the others; it
    stops where they end, but only where the sums of the threads of a block have been dealt. A fragment is the codes,
    sums and scales of one thread, block and token.
    """
    layout = plan.layout
    rows, columns = instance.rows, instance.columns
    dealt = min(plan.lanes, rows * columns)
    held, walked = min(rows, columns), max(rows, columns)
    stride = max(1, dealt // held)  # of those walked, how many share a deal
    sums = plan.groups if len(plan.parts) > 1 or layout.sum_slots % 4 else layout.sum_slots
    fragment = 16 * layout.chunks + (4 * sums if plan.sums else 0) + 4 * layout.scales
    teams = instance.warp_rows // rows
    steps = -(-case.blocks // instance.team_blocks)
    total = 0
    for first in range(0, case.tokens, columns):
        for row in range(0, -(-case.rows // instance.warp_rows) * teams * rows, rows):
            left = case.tokens - first if rows <= columns else case.rows - row
            done = min(walked, max(0, -(-left // stride) * stride))
            loaded = (done if rows <= columns else columns) if done else 0
            total += steps * (32 // teams) * loaded * fragment
    return total


def cases(plan: MultirowPlan, instance: MultirowInstance) -> list[Case]:
    """Ends and tails of every tile in rows, blocks and tokens, over the alignments that the format allows."""
    step, slices, columns = instance.team_blocks, plan.contract.slices, instance.columns
    tile = instance.warp_rows * instance.warps
    shapes = [
        (1, 1, 1),
        (max(1, instance.warp_rows - 1), max(1, step - 1), columns),
        (tile + 1, step + 1, max(1, columns - 1)),
        (37, 2 * slices + 3, columns + 1),
        (instance.warp_rows + 1, slices, max(1, columns // 2 + 1)),
        (min(37, 2 * tile + 3), slices + 1, 9),
    ]
    starts = 16 // plan.alignment
    return [
        Case(
            rows=rows,
            blocks=blocks,
            tokens=tokens,
            pad=plan.alignment * (number * 3 % 5),
            offset=plan.alignment * ((3 + 5 * number) % starts),
            y_pad=number * 2 % 7,
            multiprocessors=(1000, 1, 2)[number % 3],
        )
        for number, (rows, blocks, tokens) in enumerate(shapes)
    ]


@cache
def compiled(plan: MultirowPlan) -> Program:
    """The plan's file, compiled for the emulator."""
    return emulate.compile(emit(plan).text, plan.file)
