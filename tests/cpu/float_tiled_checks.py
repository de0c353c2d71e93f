"""What a kernel with f16 or bf16 activations over tiles must do to pass: what one over native storage must, and its own
traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from float_cases import Operands
from float_checks import Float
from judging import Wrong
from ksplit_cases import ROWS, Case
from repack_checks import weight_of

from qgen.emulate import Buffer, Program, Report
from qgen.plan import FloatKsplitPlan, FloatRung
from qgen.spec import Format
from qgen.storage import repack


class FloatTiled(Float):
    """One rung of a compiled file over tiles, ready to be judged."""

    def __init__(
        self, format: Format, program: Program, plan: FloatKsplitPlan, rung: FloatRung, *, bulk: bool = True
    ) -> None:
        """bulk: the architecture it is compiled for has bulk copies."""
        super().__init__(format, program, plan, rung)
        self.bulk = bulk

    def cases(self) -> list[Case]:
        """Those of native storage, whose rows lie back to back from an aligned address; and some more of few CTAs."""
        seen = dict.fromkeys(replace(case, pad=0, offset=0) for case in super().cases())
        rung = self.rung
        return [
            *seen,
            # The ring goes round, and every warp has its turn; the last stage is short, and so is the last row tile.
            Case(rows=ROWS, blocks=3 * rung.stage_blocks + 3, tokens=max(1, rung.columns - 1)),
            # One stage a result, so that they follow each other as fast as they can.
            Case(rows=ROWS, blocks=rung.warps + 1, tokens=2, multiprocessors=2),
            Case(rows=32, blocks=2 * rung.stage_blocks, tokens=1, multiprocessors=1000),
        ]

    def weight(self, given: Operands, case: Case) -> list[Buffer | int]:
        """Tiles, of rows filled up by bytes of no meaning."""
        row_blocks = self.format.k_pad // self.format.block
        fill = -given.blocks % row_blocks
        parts = [
            np.pad(p[: case.rows], ((0, 0), (0, fill), (0, 0)), constant_values=0xA5) for p in given.planes.values()
        ]
        return [Buffer("weight", repack(weight_of(self.format, parts)).data, offset_bytes=16, constant=True)]

    def weight_bytes(self, given: Operands, case: Case) -> dict[str, int]:
        """Blocks that only fill up a row are not read; rows that only fill up a tile are."""
        return {"weight": -(-case.rows // 16) * 16 * given.blocks * self.plan.block_bytes}

    def check_traffic(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        super().check_traffic(given, case, report, grid_y)
        # A bulk copy counts once a sector, 32 bytes; others move 16.
        if self.bulk != (report.read_requests["weight"] < self.weight_bytes(given, case)["weight"] * grid_y / 16):
            raise Wrong("way of copying", f"{report.read_requests['weight']} requests; {case}")
