"""What a ksplit_mma kernel over tiles must do to pass: what one over native storage must, and its own traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from judging import U8, Wrong, holes, same
from ksplit_cases import Case, Operands, block_of, bundles, cases, numbers, operands, record_type
from ksplit_checks import SM_90, Ksplit
from repack_checks import tiles_of

from qgen.emulate import Buffer, Report
from qgen.plan import launch_ksplit


class Tiled(Ksplit):
    """One rung of a compiled file over tiles, ready to be judged."""

    def cases(self) -> list[Case]:
        """Those of native storage, whose rows lie back to back from an aligned address; and some more of few CTAs."""
        seen = dict.fromkeys(replace(case, pad=0, offset=0) for case in cases(self.plan, self.rung))
        longest = max(seen, key=lambda case: case.rows * case.blocks)
        few = [replace(longest, tokens=1, multiprocessors=2), replace(longest, rows=32, tokens=3)]
        # A rung for one token meets more than one column tile of records.
        return [*seen, *few, *([Case(rows=17, blocks=67, tokens=11)] if self.columns == 1 else [])]

    def weight(self, given: Operands, case: Case, laid: U8 | None) -> list[Buffer | int]:
        tiles = tiles_of(self.format, given.packed[: case.rows]) if laid is None else laid
        return [Buffer("weight", tiles, offset_bytes=16, constant=True)]

    def weight_bytes(self, given: Operands, case: Case) -> int:
        assert self.plan.tile is not None
        return self.plan.tile.bytes(case.rows, given.blocks)

    def check_far_rows(self) -> None:
        """The last row tile begins past 2^32 bytes, the last token's y past 2^31 floats: offsets are 64-bit throughout.

        Every row tile has a CTA; the last one alone runs.
        """
        assert self.plan.tile is not None
        given, there, tokens = operands(self.format, self.few), 13, 2
        tiles = tiles_of(self.format, given.packed[:there])
        number = (1 << 32) // tiles.size + 1  # of the last row tile
        weight, rows, stride = holes((number + 1) * tiles.size), 16 * number + there, (1 << 31) + 5
        weight[-tiles.size :] = tiles
        y = holes(4 * ((tokens - 1) * stride + rows)).view(np.float32)
        shape, grid_y = launch_ksplit(self.plan, self.rung, rows, tokens, number + 1, tokens, SM_90)
        report = self.program.launch(
            self.name,
            grid=(shape.grid, grid_y, 1),
            block=shape.block,
            shared=shape.shared,
            args=[
                Buffer("weight", weight, constant=True),
                rows,
                given.blocks,
                tokens,
                Buffer("activation", self.workspace(given, tokens)),
                Buffer("y", y, writable=True),
                stride,
            ],
            dependent=True,
            ctas=range(shape.grid * grid_y - 1, shape.grid * grid_y),
        )
        # A rung for one token has a CTA for each: the last one's is the last token.
        own = range(tokens)[-1:] if self.columns == 1 else range(tokens)
        found = np.stack([y[token * stride + 16 * number :][:there] for token in own])
        if shape.grid != number + 1 or not same(found, given.wanted[numbers(tokens)[own.start :], :there]).all():
            raise Wrong("rows gigabytes apart", str(found))
        if report.bytes_touched["weight"] != tiles.size or report.bytes_written["y"] != 4 * found.size:
            raise Wrong("bytes outside the packed ones are read", str(report))

    def check_reads(self, given: Operands, case: Case, report: Report, grid_y: int) -> None:
        # A bulk copy counts once a sector, 32 bytes; others move 16.
        if self.bulk != (report.read_requests["weight"] < self.weight_bytes(given, case) * grid_y / 16):
            raise Wrong("way of copying", f"{report.read_requests['weight']} requests; {case}")
        layout, tiles = self.plan.layout, -(-case.tokens // 8)
        used = sum(block_of(layout, u, 0) < given.blocks for u in range(bundles(layout, given.blocks)))
        own = tiles * used * record_type(layout).itemsize
        if self.columns == 1:
            # One token's share of each block that is there.
            words = self.plan.code_words
            packed = layout.sums and layout.packed_sums
            parts = layout.scales + layout.units * (bool(layout.starts) + (layout.sums and not packed))
            block = (32 if words == 2 else -(-words // 4) * 64) + 4 * parts // layout.bundle + 32 * packed
            own = case.tokens * given.blocks * block
        elif self.columns == 8:
            # Of tokens that only fill up neither codes nor packed sums are read.
            absent = 8 * tiles - case.tokens
            own -= absent * used * (64 * layout.chunks + (32 if layout.sums and layout.packed_sums else 0))
        if report.bytes_touched["activation"] != own:
            raise Wrong("activation read", f"{report.bytes_touched['activation']} of {own} bytes; {case}")
