"""Damage to kernels with f16 or bf16 activations over tiles, one slip at a time: what their text does not share with
native storage's, nor with the other kernels over tiles."""

from __future__ import annotations

from float_mutants import BITS, FAULT, ORDER, TRAFFIC, Mutant
from judging import Edit

LOST = "y not written"

# Three planes, rows of two blocks at least; two planes, rows of four, and two column tiles; scales and sums; digits;
# scales and sums that are folded.
PLANES, FILLED, SCALED, DIGITS, FOLDED = (
    ("Q5G64_F16S", "bf16", 8), ("W8G32_F16S", "bf16", 16), ("Q4_K", "bf16", 8), ("TQ1_0", "f16", 8), ("Q4_K", "f16", 8),
)  # fmt: skip


def _one(name: str, target: tuple[str, str, int], caught: str | tuple[str, ...], *edits: Edit) -> list[Mutant]:
    return [Mutant(name, *target, edits, (caught,) if isinstance(caught, str) else caught)]


def _each(name: str, targets: tuple[tuple[str, str, int], ...], caught: str, *edits: Edit) -> list[Mutant]:
    return [mutant for target in targets for mutant in _one(name, target, caught, *edits)]


FULL = "        qgen_barrier_wait(full + slot, round & 1);\n"
DONE = "            ring.release();\n"
NEXT = "            request();\n            const int64_t first_block"
INPUTS = "    qgen_wait_for_inputs();\n"
SUM = "        float sum[4 * column_tiles] = {};  // the warp's slice\n"
WAIT = "if (bulk) qgen_barrier_wait(written, number & 1);"

RING = [
    *_each("no wait for a stage", (FILLED, SCALED), BITS, (FULL, "")),
    *_one("every warp asks", PLANES, FAULT, ("turn == warp && ahead_tile", "ahead_tile")),
    *_one("slot asked for by its warp alone", PLANES, FAULT,
        ("        ring.ask();\n", "        if (turn == warp) ring.ask();\n")),
    *_one("turns not taken round", PLANES, FAULT, ("        if (++turn == kSplit) turn = 0;\n", "        ++turn;\n")),
    *_one("slot never released", SCALED, (BITS, FAULT), (DONE, "")),
    *_each("slot released before it is used", (PLANES, SCALED), BITS,
        (DONE, ""), (NEXT, NEXT.replace("            const", DONE + "            const"))),
    *_one("stage tail copied whole", PLANES, FAULT,
        ("min(blocks - ahead_stage * stage_blocks, stage_blocks) * kTileBytes", "stage_blocks * kTileBytes")),
    *_one("all copies from the first stage", PLANES, BITS, ("(int64_t)ahead_stage * slot", "(int64_t)0 * slot")),
    *_one("all copies from the first row tile", PLANES, BITS, ("weight + ahead_tile * row_bytes", "weight")),
    *_one("row tiles as long as whole stages", DIGITS, FAULT,
        ("row_bytes = (int64_t)blocks", "row_bytes = (int64_t)stage_count * stage_blocks")),
    *_each("what fills up a row forgotten", (PLANES, FILLED), BITS,
        ("((blocks + kRowBlocks - 1) / kRowBlocks * kRowBlocks)", "blocks")),
    *_one("full rows filled up", FILLED, (BITS, FAULT), ("(blocks + kRowBlocks - 1) /", "(blocks + kRowBlocks) /")),
    *_one("rows filled up to fewer blocks", FILLED, BITS, ("kRowBlocks = 4", "kRowBlocks = 2")),
]  # fmt: skip

SUMS = [
    *_one("sums written over those not yet added", PLANES, (BITS, ORDER),
        ("        handover.before_write(number);\n", "")),
    *_one("sums added before they are written", PLANES, BITS, (WAIT, "")),
    *_one("writing not announced", PLANES, FAULT, ("        handover.after_write();\n", "")),
    *_one("sums in the ring's way", SCALED, (BITS, FAULT, ORDER),
        ("(float*)(qgen_shared + Ring::bytes)", "(float*)(qgen_shared + Ring::bytes - slot_bytes)")),
    *_one("adders of more column tiles than there are", FILLED, FAULT,
        ("handover<kSplit, column_tiles> handover", "handover<kSplit, column_tiles + 1> handover")),
    *_one("last result left out", PLANES, LOST, ("    if (number > 0) finish(", "    if (number > 1) finish(")),
    *_one("result at the next tile's rows", PLANES, (BITS, LOST, FAULT),
        ("finish(number - 1, tile - 16)", "finish(number - 1, tile)")),
    *_one("row tail stored", PLANES, FAULT, ("min(rows, share.end * 16)", "share.end * 16")),
    *_one("every CTA from the first row on", PLANES, (BITS, FAULT), ("int tile = share.begin * 16;", "int tile = 0;")),
    *_one("sums kept between row tiles", PLANES, BITS,
        (SUM, ""), ("    int number = 0;\n", "    int number = 0;\n" + SUM)),
    *_one("rows of another thread", PLANES, BITS, ("qgen_write_partial(partial, own, warp, g, t)",
        "qgen_write_partial(partial, own, warp, g ^ 1, t)")),
    *_one("one column tile for all", FILLED, BITS, ("[i % 4] = sum[i];", "[i % 4] = sum[i % 4];")),
    *_one("tokens left of all", FILLED, FAULT, ("left = tokens - column;", "left = tokens;")),
]  # fmt: skip

TILES = [
    *_each("rows g for rows g + 8", (PLANES, SCALED), BITS, ("block_codes<1>(place", "block_codes<0>(place")),
    *_one("factor of the other row", SCALED, BITS, ("factor_f0<1>(place", "factor_f0<0>(place")),
    *_one("scales of the other row", SCALED, BITS, ("h ? scale_word_mn<1>", "h ? scale_word_mn<0>")),
    *_one("folded minimums of the other row", FOLDED, BITS, ("h ? scale_word_mn<1>", "h ? scale_word_mn<0>")),
    *_one("folded sums of other tokens", FOLDED, BITS, ("kSumBytes + lane * 8)", "kSumBytes + (lane ^ 4) * 8)")),
    *_one("scales of another quad", SCALED, BITS, ("own, (lane & 28) + i", "own, (lane & 24) + i")),
    *_one("every warp the first tile", PLANES, BITS, ("ring.wait() + warp * kTileBytes", "ring.wait()")),
    *_each("blocks of a warp side by side", (PLANES, DIGITS), BITS,
        ("place + i * (kSplit * kTileBytes)", "place + i * kTileBytes")),
    *_one("absent blocks added", PLANES, (FAULT, BITS, TRAFFIC),
        ("if (stage * stage_blocks + i * kSplit + warp < blocks)", "if (true)")),
    *_one("last block left out", PLANES, (BITS, TRAFFIC),
        ("i * kSplit + warp < blocks)", "i * kSplit + warp < blocks - 1)")),
    *_one("x of the first warp", SCALED, BITS, ("* blocks + warp;", "* blocks;")),
    *_one("x of the first stage", PLANES, BITS, ("values + first_block * kValueBytes", "values")),
    *_one("x of neighbouring blocks", PLANES, BITS, ("i * (kSplit * kValueBytes)", "i * kValueBytes")),
    *_one("x of the first column tile", PLANES, BITS, ("(int64_t)(column / 8) * blocks", "(int64_t)0 * blocks")),
    *_one("sums of x of the first stage", SCALED, BITS, ("sums + first_block * kSumBytes", "sums")),
    *_one("sums of other tokens", SCALED, BITS, ("kSumBytes + t * 8)", "kSumBytes + (t ^ 1) * 8)")),
    *_one("scale plane where the codes are", PLANES, BITS, ("from2 + 640 + half * 16", "from2 + 0 + half * 16")),
    *_one("high bits of the row before", PLANES, BITS, ("from1 + 512 + half * 64", "from1 + 504 + half * 64")),
]  # fmt: skip

WAITS = [
    *_one("no wait for inputs", PLANES, FAULT, (INPUTS, "")),
    *_one("one warp waits for inputs", PLANES, FAULT, (INPUTS, INPUTS.replace("qgen", "if (warp == 0) qgen"))),
    *_one("inputs awaited after the first stage", PLANES, FAULT, (INPUTS, ""), (DONE, DONE + "        " + INPUTS)),
]

MUTANTS = RING + SUMS + TILES + WAITS

# When the next kernel may begin is no part of the result.
HARMLESS = [
    *_one("the next kernel always begins late", PLANES, "", ("late = share.end", "late = true || share.end")),
    *_one("the next kernel never begins late", PLANES, "", ("late = share.end", "late = false && share.end")),
]
