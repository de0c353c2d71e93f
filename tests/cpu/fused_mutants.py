"""Damage to kernels of the family fused, one slip at a time, as changes of the text and of the headers it includes."""

from __future__ import annotations

from dataclasses import dataclass

from judging import Edit
from ksplit_mutants import BITS, FACTOR, FAR, FAULT, LOST, ORDER, TWICE

X_TWICE = "x not read once by every CTA"
Target = tuple[str, int]  # a format, and the warps of a team


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


# Eight blocks an instruction: Q4_0 has bundles of four blocks and starts, Q5_1 float sums, NVFP4 four float steps a
# block, PQ2_0 two pieces of codes, PTQ1_0 words without a code. One block: Q4_K has packed sums and one block a warp
# and stage, TQ1_0 starts and two.
S4, S5, SN, SP, ST = ("Q4_0", 4), ("Q5_1", 4), ("NVFP4", 4), ("PQ2_0", 4), ("PTQ1_0", 4)
K4, K8, T4, T8 = ("Q4_K", 4), ("Q4_K", 8), ("TQ1_0", 4), ("TQ1_0", 8)


def _each(name: str, caught: dict[Target, str], *edits: Edit) -> list[Mutant]:
    return [Mutant(name, target, edits, check) for target, check in caught.items()]


def _one(name: str, target: Target, caught: str, *edits: Edit) -> list[Mutant]:
    return _each(name, {target: caught}, *edits)


INPUTS = "        qgen_wait_for_inputs();\n        load(next, lane, warp);\n"
ASK = "        load(next, lane, warp);\n"
MET = "        }\n        __syncthreads();\n    }\n\nprivate:"
FIRST = "    if (first) request();\n"
MORE = "for (int i = first; i < Ring::ahead; ++i) request();"
FULL = "        qgen_barrier_wait(full + slot, round & 1);\n"
EMPTY = "        if (ahead_round > 0) qgen_barrier_wait(empty + ahead_slot, (ahead_round + 1) & 1);\n"
DONE = "            ring.release();\n"
NEXT = "            const int slot = ring.wait();\n            request();\n"
WRITTEN = "        handover.before_write(number);\n"
ADDED = "        handover.before_add(number);\n"
MEET = "    __syncthreads();\n\n    const qgen_share share"

QUANTISING = [
    *_each("no wait for inputs", {S4: FAULT, K4: FAULT}, (INPUTS, ASK)),
    *_one("inputs awaited after x is asked for", S4, FAULT, (INPUTS, ASK + "        qgen_wait_for_inputs();\n")),
    *_one("one warp waits for inputs", K4, FAULT, (INPUTS, INPUTS.replace("qgen", "if (warp == 0) qgen"))),
    *_each("records read before all are written", {S4: BITS, K4: BITS, T8: BITS},
        (MET, MET.replace("__syncthreads();", ""))),
    *_one("warps meet before they quantise", K4, BITS, (INPUTS, INPUTS + "        __syncthreads();\n"),
        (MET, MET.replace("__syncthreads();", ""))),
    *_each("every other bundle of a warp", {S4: BITS, K4: BITS}, ("bundle += kWarps)", "bundle += 2 * kWarps)")),
    *_one("bundles quantised twice", K4, X_TWICE,
        ("bundle += kWarps)", "bundle += kWarps / 2)"), ("bundle + kWarps)", "bundle + kWarps / 2)")),
    *_one("columns of another bundle", K4, X_TWICE, ("bundle + kWarps)", "bundle + kWarps - 1)")),
    *_one("columns of the first bundle", S4, X_TWICE, ("load(next, lane, warp)", "load(next, lane, 0)")),
    *_one("columns of the next bundle", K4, BITS, ("write(v,", "write(next,")),
    *_one("bundles that are short left out", S4, BITS, ("(blocks + kSplit * kBundle - 1) /", "blocks /")),
    *_one("bundles of a round that is short left out", S4, BITS,
        ("(blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;", "blocks / kBundle;")),
    *_one("last bundle left out", K4, BITS, ("const int bundles = blocks;", "const int bundles = blocks - 1;")),
    *_one("bundles of neighbouring blocks", S4, BITS,
        ("return bundle / kSplit * (kSplit * kBundle) + bundle % kSplit;", "return bundle * kBundle;")),
    *_one("blocks of a bundle side by side", S4, BITS, ("256 * (slot >> 3)", "32 * (slot >> 3)")),
    *_each("columns of blocks that are not there", {S4: FAULT},
        ("lane, min((blocks - first) * kBlock, kNone)", "lane, kNone")),
    *_one("columns of bundles that are not there", K4, FAULT, ("if (first < blocks) load_columns", "load_columns")),
    *_one("no column read for words without one", ST, BITS, ("column < kNone ? qgen", "column < 80 ? qgen")),
    *_one("columns that are none read", ST, FAULT,
        ("column < kNone ? qgen_load_f32(x + column) : 0.0f", "qgen_load_f32(x + column)")),
    *_one("places of two words changed over", S4, BITS, ("\n0, 16, 32", "\n16, 0, 32")),
    *_each("places of a thread's first word for all", {K4: BITS, ST: BITS},
        ("kWordPlaces[32 * i + lane]", "kWordPlaces[lane]")),
    *_one("records closer than they are long", S4, BITS,
        ("records + bundle * kRecordBytes", "records + bundle * (kRecordBytes - 16)")),
    *_one("scales of a record a place on", S4, BITS, ("record + 128 + s * 4, __f", "record + 132 + s * 4, __f")),
    *_one("starts where scales lie", S4, BITS,
        ("record + 144 + g * 4, (uint32_t)", "record + 128 + g * 4, (uint32_t)")),
    *_one("starts of one sign", S4, BITS, ("(uint32_t)(-8 * sums[i])", "(uint32_t)(8 * sums[i])")),
    *_one("sums written as integers", S5, BITS, ("__float_as_uint(__int2float_rn(sums[i]))", "(uint32_t)sums[i]")),
    *_one("sums a place on", S5, BITS, ("record + 144 + g * 4, __f", "record + 148 + g * 4, __f")),
    *_one("packed sums not in pairs of words", K4, BITS, ("record + 264 + (g / 4) * 8", "record + 264 + (g / 4) * 4")),
    *_one("high parts over the low ones", K4, BITS, ("record + 268 + (g", "record + 264 + (g")),
    *_one("high parts of another unit", K4, BITS, ("(sums[i] + 64) >> 7", "(sums[i] + 64) >> 8")),
]  # fmt: skip

# Barriers under records or sums are not here: the emulator keeps what a barrier counts beside shared memory, so that
# nothing written over one is noticed. test_fused.py holds the offsets against their sum.
HELD = [
    *_one("records read from another place", S4, BITS,
        ("HeldInputs{x, blocks, 111872}", "HeldInputs{x, blocks, 111888}")),
    *_one("records over the sums", K4, ORDER,
        ("blocks, 111872, y", "blocks, 110592, y"), ("{x, blocks, 111872}", "{x, blocks, 110592}")),
    *_one("records over the last stage", K4, BITS,
        ("blocks, 111872, y", "blocks, 101376, y"), ("{x, blocks, 111872}", "{x, blocks, 101376}")),
    *_one("records past the end", K4, FAULT,
        ("blocks, 111872, y", "blocks, 111888, y"), ("{x, blocks, 111872}", "{x, blocks, 111888}")),
    *_one("records of the warp's first block", K4, BITS, ("records + warp * kRecordBytes, t", "records, t")),
    *_one("records of the first stage", K4, BITS, ("at = stage * stage_blocks", "at = 0 * stage_blocks")),
    *_one("records of the first stage of short blocks", S4, BITS, ("int skip = stage *", "int skip = 0 *")),
    *_one("record of the block before", T4, BITS, ("at + (i + 1) * (warps", "at + i * (warps")),
    *_one("record of the tail's first block", T8, BITS, ("at + i * (warps * kRecordBytes)", "at")),
    *_one("records of the bundles in a row", S4, BITS,
        ("block / (kSplit * kBundle) * kSplit + block % kSplit", "block / kBundle")),
    *_one("pieces of a block as far apart as in global memory", SP, BITS,
        ("qgen_load_codes<kCodeWords, 64>", "qgen_load_codes<kCodeWords, 512>")),
    *_one("pieces of a bundle as far apart as in global memory", K4, BITS, ("skip + 64 * c", "skip + 512 * c")),
    *_one("codes of another thread of the quad", K4, BITS,
        ("qgen_keep(record + t * 16)", "qgen_keep(record + (t ^ 1) * 16)")),
    *_one("codes of the bundle's first block", S4, BITS, ("j * kCodeWords / 4 * 64", "0")),
    *_one("codes of the pair's first block", S4, BITS, (" + j * kCodeWords % 4 * 4", "")),
    *_one("scale of the bundle's first block", S4, BITS,
        ("record + 128 + unit * kScales", "record + 128 + 0 * kScales")),
    *_one("scale of the block's first unit", SN, BITS, ("skip + u * kScales", "skip + 0 * kScales")),
    *_one("scales as far apart as in global memory", SN, BITS,
        ("u * kScales / kUnits * 4)", "u * kScales / kUnits * 8)")),
    *_one("starts from the scales' place", T4, BITS, ("qgen_keep(record + 260)", "qgen_keep(record + 256)")),
    *_one("start of the bundle's first block", S4, BITS, ("record + 144 + unit * 4", "record + 144")),
    *_one("sum of the bundle's first block", S5, BITS, ("record + 144 + unit * 4", "record + 144")),
    *_one("packed sums of another thread", K4, BITS, ("record + t * 8 + 264", "record + (t ^ 1) * 8 + 264")),
]  # fmt: skip

TEAMS = [
    *_each("one ring for all teams", {S4: ORDER, K8: ORDER},
        ("ring(barriers, team * Ring::bytes,", "ring(barriers, 0,")),
    *_each("rings of all teams a slot apart", {K8: ORDER},
        ("barriers, team * Ring::bytes", "barriers, team * slot_bytes")),
    *_each("sums of all teams in one place", {S4: ORDER, K8: ORDER}, ("partials + team * (warps * 16);", "partials;")),
    *_one("sums over the last stage of the last ring", K4, ORDER,
        ("qgen_shared + teams * Ring::bytes", "qgen_shared + teams * Ring::bytes - slot_bytes")),
    *_each("barriers of all teams in one place", {S4: FAULT, K8: FAULT}, (" + team * (2 * stages + 2);", ";")),
    *_one("barriers of teams overlap", K4, BITS, (" + team * (2 * stages + 2);", " + team * (2 * stages);")),
    *_one("barriers of the first team alone", S4, FAULT,
        ("(int)threadIdx.x - team * (32 * warps)", "(int)threadIdx.x")),
    *_one("barriers of a team's ring in the handover", S4, FAULT,
        ("handover(barriers + 2 * stages", "handover(barriers")),
    *_one("warps of a team not met", K4, FAULT, (MEET, MEET.replace("__syncthreads();", ""))),
    *_each("every row tile by every team", {S4: FACTOR, K8: FACTOR},
        ("tile += 16 * teams", "tile += 16"), ("ahead_tile += teams", "ahead_tile += 1"),
        ("(share.begin + team) * 16", "share.begin * 16"), ("share.begin + team,", "share.begin,")),
    *_one("next row tile of a neighbour", S4, FAULT, ("tile += 16 * teams", "tile += 16")),
    *_one("requests go on by one row tile", S4, FACTOR, ("ahead_tile += teams", "++ahead_tile")),
    *_one("requests of the first team's tile", S4, FACTOR,
        ("ahead_tile = share.begin + team", "ahead_tile = share.begin")),
    *_one("rows of the first team's tile", S4, FAULT,
        ("begin = (share.begin + team) * 16", "begin = share.begin * 16")),
    *_one("row tiles from the CTA's first", S4, FAULT, ("begin = (share.begin + team) * 16", "begin = team * 16")),
    *_each("rows of a neighbour's tile", {S4: LOST, K8: LOST}, ("tile - 16 * teams)", "tile - 16)")),
    *_one("rows of a neighbour's last tile", K8, LOST, ("(number - 1) * (16 * teams)", "(number - 1) * 16")),
    *_one("last result left out", S4, LOST, ("    if (number > 0) finish(", "    if (number > 1) finish(")),
    *_one("all warps add", K8, TWICE, ("        if (warp != number % warps) return;\n", "")),
    *_one("row tail stored", S4, FAULT, ("min(rows, share.end * 16)", "share.end * 16")),
    *_one("32-bit offsets of row tiles", K4, FAR,
        ("const int64_t row_bytes = (int64_t)blocks * tile_bytes;", "const int row_bytes = blocks * tile_bytes;")),
]  # fmt: skip

RING = [
    *_each("first request counted twice", {S4: FAULT, K4: FAULT}, (MORE, MORE.replace("i = first", "i = 0"))),
    *_one("stage by every warp", K4, FAULT, ("turn == warp && ahead_tile", "ahead_tile")),
    *_one("turns of the CTA's warps", K4, FAULT, ("turn == warp && ahead_tile", "turn == cta_warp && ahead_tile")),
    *_one("as many stages ahead as there are", K4, FAULT, ("Inputs::held ? 0 : 1>", "Inputs::held ? -1 : 1>")),
    *_each("no wait for a stage", {S4: BITS, K4: BITS}, (FULL, "")),
    *_each("slot filled before it is free", {S4: FAULT, K4: FAULT}, (EMPTY, "")),
    *_each("slot released before it is used", {S4: ORDER, K4: ORDER}, (DONE, ""), (NEXT, NEXT + DONE)),
    *_one("all stages from the first", K4, BITS, ("(int64_t)ahead_stage * slot_bytes", "(int64_t)0 * slot_bytes")),
    *_one("stages copied whole", K4, FAULT, ("min(blocks - ahead_stage * stage_blocks, stage_blocks)", "stage_blocks")),
    *_each("sums read before all are written", {S4: BITS, K8: BITS}, (ADDED, "")),
    *_each("sums written before all are added", {S4: BITS, K8: BITS}, (WRITTEN, "")),
    *_one("sums of warps over each other", K4, BITS, ("partial + warp * 16", "partial")),
    *_one("half of the warps added", K8, BITS, ("qgen_halving_sum<warps>(v)", "qgen_halving_sum<warps / 2>(v)")),
]  # fmt: skip

MUTANTS = QUANTISING + HELD + TEAMS + RING

# No part of the result: when weights are asked for and how far ahead.
HARMLESS = [
    Mutant("all weights asked for behind x", S4, ((FIRST, ""), (MORE, MORE.replace("i = first", "i = 0"))), ""),
    Mutant("all weights asked for in front of x", K4,
        (("        more();\n#pragma", "#pragma"), (INPUTS, "        more();\n" + INPUTS)), ""),
    Mutant("one stage fewer asked for ahead", S4, ((FIRST, ""),), ""),
    Mutant("a slot of the ring kept", T4, (("Inputs::held ? 0 : 1>", "1>"),), ""),
    Mutant("the next kernel may never begin early", K8, (("    if (!late) qgen_let_next_begin();\n", ""),), ""),
]  # fmt: skip
