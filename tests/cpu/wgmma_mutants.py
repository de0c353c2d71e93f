"""Damage to kernels of the family wgmma and their quantisers, one slip at a time, as changes of the text and of the
header about slices that it includes."""

from __future__ import annotations

from dataclasses import dataclass

from judging import Edit
from ksplit_mutants import BITS, FACTOR, FAR, FAULT, LOST, ORDER, TRAFFIC, TWICE

CODES, SCALES, STARTS, SUMS = (f"{field} of a record" for field in ("codes", "scales", "starts", "sums"))
Target = tuple[str, str]  # a format, and how the rung's name ends; "" for the quantiser


@dataclass(frozen=True)
class Mutant:
    """One way to break a kernel.

    edits:  (text, replacement) in turn, at the first place; the text must be there
    caught: the check that must fail, or "fault" for the emulator's
    """

    name: str
    target: Target
    edits: tuple[Edit, ...]
    caught: str


# Q4_K: blocks alone, by bulk copies, with integer scales and sums; in two parts, and in one with two sets of sums on
# their way. Q4_0: bundles of four blocks, by cp.async, with starts; in two and in four parts. Q2_K: codes times scales.
K2, K1, S2, S4, F2 = (
    ("Q4_K", "t16__wgmma_tiled_g2s2"),
    ("Q4_K", "t48__wgmma_tiled_g2s1"),
    ("Q4_0", "t16__wgmma_tiled_g2s2"),
    ("Q4_0", "t16__wgmma_tiled_g1s4"),
    ("Q2_K", "t16__wgmma_tiled_g2s2"),
)
KQ, SQ = ("Q4_K", ""), ("Q4_0", "")


def _each(name: str, caught: dict[Target, str], *edits: Edit) -> list[Mutant]:
    return [Mutant(name, target, edits, check) for target, check in caught.items()]


def _one(name: str, target: Target, caught: str, *edits: Edit) -> list[Mutant]:
    return _each(name, {target: caught}, *edits)


MEET = "            meet();\n"
TAKEN = "            if (part < h) take(sum, at + h * (512 * (warps / split)));\n"
EMPTY = "            qgen_barrier_wait(empty + stage, (round + 1) & 1);\n"
FULL = "                qgen_barrier_wait(full + stage, round & 1);\n"
DONE = "                qgen_barrier_arrive(empty + stage);\n"
FROM = "                const int from = first_stage + stage * S::stage_bytes;\n"
INPUTS = "    qgen_wait_for_inputs();\n    int stage = 0;\n    uint32_t round = 0;\n"
MULTIPLY = "    for (int group = share.begin"
ZERO = "sum[j] = 0.0f;"
WAITED = "    qgen_wgmma_wait<0>();\n"
EVEN = """\
            for (int j = 0; j < 4 * column_tiles; ++j) sum[j] = __fadd_rn(even[j], sum[j]);
"""
WAITING = "        if (i + 1 < parts) keep("
NEXT_STAGE = "                if (++stage == S::stages) stage = 0, ++round;\n"

SLICES = [
    *_each("slices one after the other", {K2: BITS, K1: BITS, S4: BITS},
        ("(int)(__brev((unsigned)number) >> (32 - bits)) * split", "number * split")),
    *_one("slices of the first part in all parts", S2, BITS,
        ("bundle = slice_of(number) + part;", "bundle = slice_of(number);")),
    *_one("one slice a group of rows left out", K1, FAULT,
        ("if (++number == parts)", "if (++number == parts - 1)")),
    *_one("a sum that waits is not kept", K2, BITS, ("if (i + 1 < parts) keep(", "if (i + 2 < parts) keep(")),
    *_one("a pair's sum that waits is not kept", K1, BITS, ("if (i + 1 < parts) keep(", "if (i + 3 < parts) keep(")),
    *_each("sums of all levels in one place", {K2: BITS, K1: BITS, S4: BITS}, (", place += level_bytes)", ")")),
    *_one("sums in registers left out", K1, BITS, (EVEN, "")),
    *_one("sums in registers added last", K1, BITS, (EVEN, ""), (WAITING, "        if (i % 2)\n" + EVEN + WAITING)),
    *_one("sums in registers added to those before them", K1, BITS, ("even[j] = sum[j];", "even[j] += sum[j];")),
    *_one("sums in registers awaited in shared memory too", K1, FAULT, ("int level = first_level,", "int level = 0,")),
    *_one("levels of column tiles overlap", K2, BITS,
        ("level_bytes = 512 * column_tiles * warps", "level_bytes = 512 * warps")),
    *_one("sums of all column tiles in one place", S2, BITS, ("int step = 512 * warps;", "int step = 0;")),
    *_one("sums of all threads of a warp in one place", K1, BITS,
        ("16 * (int)threadIdx.x)", "16 * ((int)threadIdx.x & ~31))")),
    *_each("parts not added", {K2: BITS, S4: BITS}, ("        pending.add_parts(sum, part);\n", "")),
    *_one("parts added in another order", S4, BITS,
        ("for (int h = split / 2; h > 0; h /= 2)", "for (int h = 1; h < split; h *= 2)"),
        ("part >= h && part < 2 * h", "part % (2 * h) == h"), ("if (part < h) take", "if (part % (2 * h) == 0) take")),
    *_one("partner of a neighbour", S4, BITS, ("at + h * (512 * (warps / split))", "at + 512 * (warps / split)")),
    *_each("parts added before they are there", {K2: BITS, S4: BITS}, (MEET + TAKEN, TAKEN)),
    *_each("sums of parts overwritten before they are added", {K2: ORDER, S4: ORDER}, (TAKEN + MEET, TAKEN)),
    *_one("parts meet in one phase", K2, FAULT, ("round++ & 1", "round & 1")),
    *_one("one part meets", K2, BITS,
        ("qgen_barrier_init(exchange, 32 * S::warps)", "qgen_barrier_init(exchange, 32 * S::row_tiles)")),
    *_one("sum not begun anew", S2, BITS, (ZERO, "sum[j] = i == 0 ? 0.0f : sum[j];")),
]  # fmt: skip

FETCHING = [
    *_each("stage filled before it is free", {K2: BITS, S2: BITS}, (EMPTY, "")),
    *_each("stage awaited in the wrong phase", {K2: FAULT, S4: FAULT}, (EMPTY, EMPTY.replace("(round + 1)", "round"))),
    *_each("no wait for inputs", {K2: FAULT, S2: FAULT}, (INPUTS, INPUTS.replace("    qgen_wait_for_inputs();\n", ""))),
    *_one("results stored before inputs are awaited", K2, FAULT,
        (INPUTS + MULTIPLY, INPUTS.replace("    qgen_wait_for_inputs();\n", "") + MULTIPLY)),
    *_each("first bundle in all stages", {K2: FACTOR, S2: FACTOR}, (", early.step(share.end, bundles)) ask", ") ask")),
    *_one("weights of the first round asked for once more", K2, FAULT, ("        if (round > 0) {\n", "        {\n")),
    *_one("weights asked for in the first round only", K2, FAULT, ("            ask_weights(next, stage);\n", "")),
    *_one("every tile by every warp that fetches", K2, BITS, ("tile += S::fetchers)", "tile += 1)")),
    *_one("all tiles announced by all", K2, FAULT,
        ("max(tiles - fetcher + S::fetchers - 1, 0)", "(tiles + S::fetchers - 1)")),
    *_one("rows past the last tile copied", K2, FAULT,
        ("tiles = min(row_tiles - first_tile, S::row_tiles)", "tiles = S::row_tiles")),
    *_one("rows of the first group for all", K2, BITS,
        ("weight + (first_tile + tile) * row_bytes", "weight + tile * row_bytes")),
    *_one("rows of the first group in bundles for all", S2, BITS,
        ("weight + (first_tile + fetcher)", "weight + fetcher")),
    *_each("32-bit offsets of row tiles", {K2: FAR, S2: FAR},
        ("const int64_t row_bytes = (int64_t)blocks * kTileBytes;", "const int row_bytes = blocks * kTileBytes;")),
    *_one("weights over records", K2, BITS,
        ("stage * S::stage_bytes + S::records_bytes + tile", "stage * S::stage_bytes + tile")),
    *_each("records of a bundle as if all columns were the CTA's", {K2: BITS, S2: BITS},
        ("(int64_t)next.bundle * apart", "(int64_t)next.bundle * there")),
    *_one("records of the first columns for all", K2, BITS,
        ("activation + blockIdx.y * column_share * kRecordBytes", "activation")),
    *_one("records of neighbouring columns", S2, BITS,
        ("blockIdx.y * column_share * kRecordBytes", "blockIdx.y * kRecordBytes")),
    *_each("records of columns that are not there", {K2: FAULT, S4: TRAFFIC},
        ("(left + 7) / 8 * kRecordBytes", "S::records_bytes")),
    *_one("records of the last columns short", S2, BITS,
        ("(left + 7) / 8 * kRecordBytes", "max(left / 8, 1) * kRecordBytes")),
    *_one("records of the stage before", K2, BITS,
        ("qgen_copy_bulk(qgen_shared + at + stage * S::stage_bytes, records",
         "qgen_copy_bulk(qgen_shared + at, records")),
    *_one("blocks past the end of a row", S2, FAULT, (" && offset[i] < left)", ")")),
    *_one("blocks of a bundle side by side", S2, FACTOR,
        ("/ tile_pieces * (kSlices * kTileBytes)", "/ tile_pieces * kTileBytes")),
    *_one("bundles of neighbouring blocks", S4, BITS,
        ("bundle / kSlices * (kSlices * kBundle) + bundle % kSlices", "bundle * kBundle")),
    *_one("bundles of which no block is there", S2, TRAFFIC,
        ("min(blocks % (kSlices * kBundle), kSlices)", "min(blocks % (kSlices * kBundle) * kSlices, kSlices)")),
    *_one("bundles that end short left out", S4, BITS,
        ("kSlices + min(blocks % (kSlices * kBundle), kSlices)", "kSlices")),
    *_one("tiles of all that fetch in one place", S2, BITS,
        ("S::records_bytes + fetcher * S::slot_bytes", "S::records_bytes")),
    *_one("arrival without the copies", S2, BITS,
        ("qgen_copy_arrive(full + stage)", "qgen_barrier_arrive(full + stage)")),
]  # fmt: skip

MULTIPLYING = [
    *_each("no wait for a stage", {K2: BITS, S2: BITS}, (FULL, "")),
    *_each("stage released before it is used", {K2: ORDER, S2: ORDER, K1: ORDER}, (DONE, ""), (FROM, DONE + FROM)),
    *_one("stage never released", S4, FAULT, (DONE, "")),
    *_one("next stage not taken", K1, FAULT, (NEXT_STAGE, "")),
    *_one("rounds not counted", K2, FAULT, (NEXT_STAGE, NEXT_STAGE.replace(", ++round", ""))),
    *_one("stages of the first part for all", K2, BITS,
        ("first_stage = part * S::stages", "first_stage = 0 * S::stages")),
    *_one("barriers of all parts in one place", K2, FAULT, ("exchange + 1 + part * (2 * S::stages)", "exchange + 1")),
    *_one("waiting sums over the last stage", K1, BITS,
        ("pending_at = split * stages * stage_bytes, ", "pending_at = (split * stages - 1) * stage_bytes, ")),
    *_one("row tiles dealt to parts in turn", K2, TWICE,
        ("own_tile = warp % S::row_tiles", "own_tile = warp / S::split")),
    *_each("row tile in front of the records", {K2: BITS, S2: BITS},
        ("place_at = S::records_bytes + own_tile", "place_at = own_tile")),
    *_one("column tail stored", K2, FAULT, ("if (token < left && first + down < rows)", "if (first + down < rows)")),
    *_one("row tail stored", S2, FAULT, ("if (token < left && first + down < rows)", "if (token < left)")),
    *_one("tokens of all column tiles in one place", K2, LOST, (", to += 8 * y_stride)", ")")),
    *_one("32-bit offsets of tokens", K2, FAULT, ("j % 2 * y_stride", "j % 2 * (int)y_stride")),
    *_one("share of the columns rounded down", K2, LOST,
        ("(all_tiles + (int)gridDim.y - 1) / (int)gridDim.y", "all_tiles / (int)gridDim.y")),
    *_one("results by all parts", S4, BITS, ("if (S::split == 1 || part == 0) {", "{")),
    *_one("rows of the CTA's first group", K2, LOST,
        ("first = 16 * (group * S::row_tiles", "first = 16 * (share.begin * S::row_tiles")),
    *_one("scales of blocks that are not there", S2, BITS,
        ("inside <= 1 ? 0.0f : ", ""), ("inside <= 1 ? 0.0f : ", "")),
    *_one("one block more inside", S2, BITS,
        ("first_block(bundle) + kSlices - 1) / kSlices", "first_block(bundle) + kSlices - 1) / kSlices + 1")),
    *_each("instructions not waited for", {K2: BITS, S2: BITS, F2: BITS}, (WAITED, "")),
    *_one("younger instructions waited for alone", K1, BITS, ("qgen_wgmma_wait<1>", "qgen_wgmma_wait<2>")),
    *_one("codes of the sums before", K2, BITS,
        ("tiles, true>(d[0], q[0][2]", "tiles, false>(d[0], q[0][2]")),
    *_one("no starts", S2, BITS, ("tiles, false>(d[0]", "tiles, true>(d[0]")),
    *_one("starts of another block", S2, BITS, ("kRecordBytes + 1152 + 16 * t", "kRecordBytes + 1216 + 16 * t")),
    *_one("starts of the first column tile", S2, BITS, ("record + n * kRecordBytes + 1152", "record + 1152")),
    *_one("activation words of the block before", S2, BITS, ("matrices, 256)", "matrices, 0)")),
    *_one("activation words one on", K2, BITS, ("matrices, 256)", "matrices, 384)")),
    *_one("matrices as far apart as without scales", K2, BITS,
        ("qgen_matrices<kRecordBytes>", "qgen_matrices<2048>")),
    *_one("matrices of the stage's weights", S2, BITS, ("matrices(record)", "matrices(place)")),
    *_one("scale of another token", K2, BITS, ("+ t * (8 * kScales)", "+ (t ^ 1) * (8 * kScales)")),
    *_one("scale of the unit before", S2, BITS, ("kRecordBytes + 1032 + t", "kRecordBytes + 1024 + t")),
    *_one("scales of another row half", K2, BITS,
        ("qgen_unsigned_byte<0>(sc[1][0])", "qgen_unsigned_byte<0>(sc[0][0])")),
    *_one("scales of another thread", K2, BITS, ("(lane & 28) + i % 2", "(lane & 28) + (i + 1) % 2")),
    *_one("high sums are worth half", K2, BITS, ("128 * by_mn", "64 * by_mn")),
    *_one("sums from the scales' place", F2, BITS, ("matrices, 2080)", "matrices, 2064)")),
    *_one("codes times the next group's scale", F2, BITS,
        ("q[0][0] * (uint32_t)qgen_unsigned_byte<0>(sc[0][0])", "q[0][0] * (uint32_t)qgen_unsigned_byte<1>(sc[0][0])")),
]  # fmt: skip

QUANTISING = [
    *_one("words of a token together", KQ, CODES,
        ("record + token % 8 * 16 + places", "record + token % 8 * 64 + places")),
    *_one("records by column tile", KQ, CODES,
        ("(int64_t)bundle * (((int)gridDim.y + 7) / 8) + token / 8", "(int64_t)(token / 8) * bundles + bundle")),
    *_one("records of whole column tiles only", SQ, CODES,
        ("(((int)gridDim.y + 7) / 8)", "max((int)gridDim.y / 8, 1)")),
    *_one("blocks of a bundle as far apart as the ladder's", SQ, CODES, ("kSplit = 32;", "kSplit = 8;")),
    *_one("places of two words changed over", SQ, CODES, ("\n0, 4, 8", "\n4, 0, 8")),
    *_one("scales of absent blocks with a sign less", SQ, SCALES, ("scale[i] = -0.0f;", "scale[i] = 0.0f;")),
    *_one("starts of one token", SQ, STARTS, ("record + 1160 + g * 64", "record + 1156 + g * 64")),
    *_one("high sums right behind the low ones", KQ, SUMS, ("record + 2208 + token", "record + 2096 + token")),
    *_one("sums as the ladder has them", KQ, SUMS,
        ("record + 2080 + token % 8 * 16 + g", "record + 2080 + (token % 8 * 4 + g / 4) * 8 + g % 4")),
]  # fmt: skip

MUTANTS = SLICES + FETCHING + MULTIPLYING + QUANTISING

# No part of the result: how columns are dealt to CTAs, who begins early.
HARMLESS = [
    Mutant("columns dealt by capacity", K2,
        (("(all_tiles + (int)gridDim.y - 1) / (int)gridDim.y", "S::column_tiles"),), ""),
    Mutant("the next kernel may never begin early", S2, (("    qgen_let_next_begin();\n", ""),), ""),
]  # fmt: skip
