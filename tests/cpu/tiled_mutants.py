"""Damage to ksplit_mma kernels over tiles, one slip at a time: what their text does not share with native storage's."""

from __future__ import annotations

from judging import Edit
from ksplit_mutants import BITS, FACTOR, FAR, FAULT, INPUTS, LOST, ORDER, READ, TRAFFIC, Mutant

K, ONE, WIDE, WIDE_K = ("Q4_K", 8), ("Q4_0", 8), ("Q4_0", 32), ("Q4_K", 32)
# Q4_K: a block a bundle, scales. Q4_0: bundles of four blocks, starts. The wide ones have two row tiles a warp and four
# column tiles.
DIGITS, SIX, TABLE, DENSE = ("TQ1_0", 16), ("Q6_K", 8), ("MXFP4", 8), ("PQ2_0", 8)


def _each(name: str, caught: dict[tuple[str, int], str], *edits: Edit) -> list[Mutant]:
    return [Mutant(name, format, columns, edits, check) for (format, columns), check in caught.items()]


def _one(name: str, target: tuple[str, int], caught: str, *edits: Edit) -> list[Mutant]:
    return _each(name, {target: caught}, *edits)


FULL = "        qgen_barrier_wait(full + slot, round & 1);\n"
EMPTY = "        if (ahead_round > 0) qgen_barrier_wait(empty + ahead_slot, (ahead_round + 1) & 1);\n"
RELEASE = "        qgen_barrier_arrive(empty + slot);\n"
TAKEN = "        if (++slot == stages) slot = 0, ++round;\n"
ASKED = "        if (++ahead_slot == stages) ahead_slot = 0, ++ahead_round;\n"
NEXT = "            const int slot = ring.wait() + warp * kTileBytes;\n            request();\n"
DONE = "            ring.release();\n"

RING = [
    *_each("no wait for a stage", {K: BITS, WIDE: BITS}, (FULL, "")),
    *_each("stage awaited a round early", {K: FAULT, WIDE: FAULT},
        (FULL, FULL.replace("round & 1", "(round + 1) & 1"))),
    *_each("slot filled before it is free", {K: FAULT, WIDE: FAULT}, (EMPTY, "")),
    *_one("slot awaited in the wrong phase", K, FAULT, (EMPTY, EMPTY.replace("_round + 1) & 1", "_round) & 1"))),
    *_one("slot never released", K, FAULT, (RELEASE, "")),
    *_one("slot released by one thread a warp", K, FAULT,
        (RELEASE, RELEASE.replace("qgen", "if (threadIdx.x % 32 == 0) qgen"))),
    *_one("slot released by one warp", K, FAULT, (RELEASE, RELEASE.replace("qgen", "if (threadIdx.x < 32) qgen"))),
    *_one("barrier for one warp fewer", WIDE, FAULT,
        ("(empty + thread, 32 * warps)", "(empty + thread, 32 * (warps - 1))")),
    *_each("slot released before it is used", {K: BITS, WIDE: BITS}, (DONE, ""), (NEXT, NEXT + DONE)),
    *_one("bytes of all row tiles announced", WIDE, FAULT, ("copies * bytes);", "most * bytes);")),
    *_one("bytes of one row tile announced", WIDE, FAULT, ("copies * bytes);", "bytes);")),
    *_one("every warp asks", K, FAULT, ("turn == warp && ahead_tile", "ahead_tile")),
    *_one("turns not taken round", K, FAULT, ("        if (++turn == kSplit) turn = 0;\n", "        ++turn;\n")),
    *_one("slot asked for by its warp alone", K, FAULT,
        ("        ring.ask();\n", "        if (turn == warp) ring.ask();\n")),
    *_each("read slot does not advance", {K: BITS, WIDE: FAULT}, (TAKEN, "")),
    *_one("rounds of reading not counted", K, FAULT, (TAKEN, TAKEN.replace(", ++round", ""))),
    *_one("write slot does not advance", K, FAULT, (ASKED, "")),
    *_one("rounds of writing not counted", K, FAULT, (ASKED, ASKED.replace(", ++ahead_round", ""))),
    *_each("ring one slot short", {K: BITS, WIDE: BITS}, ("bytes = stages * stage", "bytes = (stages - 1) * stage")),
    *_each("as many stages ahead as there are", {K: FAULT, WIDE: FAULT}, ("stages - 1 - kept : 1", "stages : stages")),
    *_each("stage tail copied whole", {K: FAULT, WIDE: FAULT},
        ("min(blocks - ahead_stage * stage_blocks, stage_blocks)", "stage_blocks")),
    *_one("all copies from the first stage", K, BITS, ("(int64_t)ahead_stage * slot", "(int64_t)0 * slot")),
    *_one("all copies from the first row tile", WIDE, BITS, ("weight + ahead_tile * row_bytes", "weight")),
    *_one("row tiles as long as whole stages", K, FAULT,
        ("row_bytes = (int64_t)blocks", "row_bytes = (int64_t)stage_count * stage_blocks")),
    *_one("copies of the next CTA's tile", WIDE, FAULT, ("min(share.end - ahead_tile, row_tiles)", "row_tiles")),
    *_one("copies past the CTA's share", K, FAULT,
        (" && ahead_tile < share.end)", ")"), ("min(share.end - ahead_tile, row_tiles)", "row_tiles")),
    *_one("copies go on by one row tile", WIDE, BITS, ("ahead_tile += row_tiles", "++ahead_tile")),
    *_one("second row tile copied from the first", WIDE, BITS, ("from + lane * apart", "from")),
    *_one("second row tile copied over the first", WIDE, BITS, (" + lane * (stage_bytes / most)", "")),
]  # fmt: skip

SHARE = [
    *_each("remainder forgotten", {K: LOST, WIDE: LOST}, ("begin + each + (cta < more ? 1 : 0)", "begin + each")),
    *_each("remainder taken by every CTA", {K: FAULT, WIDE: FAULT}, ("(cta < more ? 1 : 0)", "1")),
    *_one("remainder not passed over", K, LOST, ("cta * each + min(cta, more)", "cta * each")),
    *_one("every CTA begins at the first tile", K, LOST, ("begin = cta * each + min(cta, more)", "begin = 0")),
    *_one("every CTA ends with the last tile", K, FACTOR, ("begin + each + (cta < more ? 1 : 0)", "items")),
    *_one("last row tile left out", WIDE, LOST, ("share((rows + 15) / 16)", "share(rows / 16)")),
    *_one("rows of the first CTA's share", K, FAULT, ("tile = share.begin * 16;", "tile = 0;")),
    *_one("row tail stored", K, FAULT, ("min(rows, share.end * 16)", "share.end * 16")),
]  # fmt: skip

OFFSETS = [
    *_each("32-bit offsets of row tiles", {K: FAR, WIDE: FAR},
        ("const int64_t row_bytes = (int64_t)blocks * kTileBytes;", "const int row_bytes = blocks * kTileBytes;")),
    *_each("32-bit offsets of row tiles of one token", {("Q4_0", 1): FAR, ("Q4_K", 1): FAR},
        ("const int64_t row_bytes = (int64_t)blocks * tile_bytes;", "const int row_bytes = blocks * tile_bytes;")),
    *_each("32-bit offsets of tokens", {K: FAULT, WIDE: FAULT},
        ("y + (column + at) * y_stride + tile", "y + (int)((column + at) * y_stride) + tile")),
    *_one("32-bit offsets of one token", ("Q4_0", 1), FAULT, ("y + token * y_stride", "y + (int)(token * y_stride)")),
]  # fmt: skip

TILES = [
    *_each("codes of row g for row g + 8", {K: BITS, WIDE: BITS, DIGITS: BITS}, ("+ 0 + half * ", "+ 0 + 0 * ")),
    *_one("scales of row g for row g + 8", SIX, BITS, ("from2 + 0 + half * 128", "from2 + 0")),
    *_each("factor of row g for row g + 8", {SIX: BITS, TABLE: BITS},
        ("m % 2 ? factor_0_0<1>(at", "m % 2 ? factor_0_0<0>(at")),
    *_one("factor's place of row g for row g + 8", TABLE, BITS, ("from1 + 256 + half * 8", "from1 + 256")),
    *_one("second piece from the first one's start", K, BITS, ("from0 + 1280 + half", "from0 + 256 + half")),
    *_one("piece of single bytes from another start", DIGITS, BITS, ("from0 + 768 + half", "from0 + 832 + half")),
    *_one("minimums from the scales' place", K, BITS, ("from3 + 8 + half", "from3 + 4 + half")),
    *_one("words of the first thread", K, BITS, ("b + 64 * row + 16 * t", "b + 64 * row")),
    *_one("rows of another stride", DIGITS, BITS, ("b + 32 * row + 8 * t", "b + 16 * row + 8 * t")),
    *_one("warp's tile forgotten", K, BITS, ("ring.wait() + warp * kTileBytes", "ring.wait()")),
    *_one("warp's tile by the bytes of a block", K, BITS,
        ("ring.wait() + warp * kTileBytes", "ring.wait() + warp * (kTileBytes / 16)")),
    *_one("second row tile from the first one's place", WIDE, BITS, ("slot + m * slot_bytes", "slot")),
    *_one("second row tile right behind a block of the first", WIDE_K, BITS, ("m * slot_bytes;", "m * kTileBytes;")),
    *_one("codes of the first row tile", WIDE_K, BITS, ("block_codes<1>(place[m]", "block_codes<1>(place[0]")),
    *_one("scales of the first row tile", WIDE_K, BITS,
        ("scale_word_sc<0>(place[m / 2]", "scale_word_sc<0>(place[0]")),
    *_one("minimums of row g for row g + 8", K, BITS, ("m % 2 ? scale_word_mn<1>", "m % 2 ? scale_word_mn<0>")),
    *_one("factor of the first row tile", WIDE_K, BITS, ("int at = place[m / 2];", "int at = place[0];")),
    *_one("blocks of a bundle side by side", WIDE, BITS, ("j * (kSplit * kTileBytes)", "j * kTileBytes")),
    *_one("factor of the bundle's first block", WIDE, BITS,
        ("at = place[m / 2] + 1 * (kSplit * kTileBytes)", "at = place[m / 2]")),
    *_each("bundles of a warp too close", {ONE: BITS, DENSE: BITS, DIGITS: BITS},
        ("place[m] += kSplit * kBundle * kTileBytes", "place[m] += kBundle * kTileBytes")),
    *_one("high half of a codebook left out", TABLE, BITS,
        ("if constexpr (halved) qgen_mma_k32(", "if constexpr (false) qgen_mma_k32(")),
    *_one("high half of a codebook with row g's codes twice", ("MXFP4", 1), BITS,
        ("h[0][0], h[1][0], h[0][1], h[1][1]", "h[0][0], h[0][0], h[0][1], h[0][1]")),
    *_one("second row tile where there is none", WIDE, BITS, ("row_end - tile > 16", "row_end - tile > 24")),
    *_one("slices of the first bundle", DENSE, BITS, ("sum + i * kBundle % (kSlices / kSplit)", "sum")),
]  # fmt: skip

TOKENS = [
    *_each("codes of absent tokens read", {K: TRAFFIC, ONE: TRAFFIC}, ("? min(row, left - 1) : row;", "? row : row;")),
    *_each("last token taken for the one before", {K: FAULT, ONE: FAULT}, ("min(row, left - 1)", "min(row, left - 2)")),
    *_one("absent tokens of one column tile among several", WIDE, TRAFFIC,
        ("column_tiles == 1 ? min(row, left - 1) : row", "min(row, left - 1)")),
    *_one("codes of another thread", K, BITS,
        ("records + (token * 4 + t) * 16", "records + (token * 4 + (t ^ 1)) * 16")),
    *_one("sums of absent tokens read", K, TRAFFIC, ("records + (token * 4 + t) * 8", "records + lane * 8")),
]  # fmt: skip

WAITS = [
    *_each("no wait for inputs", {K: FAULT, SIX: FAULT, WIDE: FAULT}, (INPUTS, "")),
    *_one("one warp waits for inputs", K, FAULT, (INPUTS, INPUTS.replace("qgen", "if (warp == 0) qgen"))),
    *_each("inputs awaited after the first stage", {K: FAULT, SIX: FAULT},
        (INPUTS, ""), (DONE, DONE + "        " + INPUTS)),
]  # fmt: skip

# One token: Q4_0 has starts, Q2_0 codes in two places, Q5_1 sums, Q1_0 codes in four places and to be doubled, PQ2_0
# two pieces, NVFP4 four float steps a block.
S4, S2, S5, S1, SP, SN = ("Q4_0", 1), ("Q2_0", 1), ("Q5_1", 1), ("Q1_0", 1), ("PQ2_0", 1), ("NVFP4", 1)

SINGLE = [
    *_one("no wait for a stage of one token", S4, BITS, (FULL, "")),
    *_one("every warp asks for one token", S4, FAULT, ("turn == warp && ahead_tile", "ahead_tile")),
    *_one("turns of more warps than there are", S4, FAULT,
        ("if (++turn == warps) turn", "if (++turn == 2 * warps) turn")),
    *_one("no columns kept apart", S4, BITS, ("x[0] & mine[c]", "x[0]")),
    *_each("columns of other threads", {S4: BITS, S2: BITS}, ("row == c ? -1 : 0", "(row ^ 1) == c ? -1 : 0")),
    *_each("blocks of a warp side by side", {S4: BITS, S2: BITS},
        ("<0, c * kRows * kTileBytes>", "<0, c * kTileBytes>")),
    *_one("rows g for rows g + 8", S4, BITS, ("block_codes<1, c *", "block_codes<0, c *")),
    *_one("codes of one block for all columns", S4, BITS,
        ("own(records_of(activation, blocks, token), first[0]", "own(records_of(activation, blocks, token), first[1]")),
    *_one("codes of another thread of the quad", S4, BITS,
        ("token % 8 * 64 + t * 16", "token % 8 * 64 + (t ^ 1) * 16")),
    *_one("codes of the tile's first token", S4, BITS, ("token % 8 * 64 + t * 16", "t * 16")),
    *_one("codes of the bundle's first block", S4, BITS, (" + j * kCodeWords / 4 * 512", " + 0")),
    *_one("second piece of codes where the first is", SP, BITS, ("p + apart * i", "p + 0 * i")),
    *_one("records of the first column tile", S4, BITS, ("token / 8 * ((int64_t)bundles", "0 * ((int64_t)bundles")),
    *_one("records of the first stage", S4, BITS, ("skip = (int64_t)(stage *", "skip = (int64_t)(0 *")),
    *_one("records of the bundles in a row", S4, BITS,
        ("block / (kSplit * kBundle) * kSplit + block % kSplit", "block / kBundle")),
    *_one("scale of the pair's other token", S4, BITS,
        ("* kScales / kUnits) * 8 + token % 2 * 4", "* kScales / kUnits) * 8 + (token + 1) % 2 * 4")),
    *_one("start of the pair's other token", S4, BITS, ("* 16 + token % 2 * 4", "* 16 + (token + 1) % 2 * 4")),
    *_one("sum of the pair's other token", S5, BITS, ("kUnits + unit) * 8 + token % 2 * 4", "kUnits + unit) * 8")),
    *_one("scale of another pair of tokens", S4, BITS, ("pair = token % 8 / 2", "pair = 0")),
    *_one("units of the bundle's first block", S4, BITS, ("unit = j * kBlockUnits", "unit = 0")),
    *_one("scale of the first unit for all of a block", SN, TRAFFIC, ("skip + u * kScales", "skip + 0 * kScales")),
    *_one("codes in place not shifted back", S1, BITS, ("(plane[u][1][i] >> 2)", "plane[u][1][i]")),
    *_each("sums of one place among another's", {S1: BITS, S2: BITS}, ("(plane[0][1], q[0]", "(plane[0][0], q[0]")),
    *_one("codes in place left out", S2, BITS, (" + (plane[u][1][i] >> 4)", "")),
    *_one("starts of the other block", S4, BITS,
        ("total[u][i] = start[u][i % 2]", "total[u][i] = start[u][1 - i % 2]")),
    *_one("codes not doubled for one token", S1, BITS, ("2 * total[u][i]", "1 * total[u][i]")),
    *_one("sums of the other block", S5, BITS, ("sums[0][side]", "sums[0][1 - side]")),
    *_one("factor of the other block", S4, BITS, ("place = slot + first[1 + side]", "place = slot + first[2 - side]")),
    *_one("factor of the other row", S4, BITS, ("h ? factor_0_0<1>", "h ? factor_0_0<0>")),
    *_one("integers of the other block", S4, BITS, ("total[0][2 * h + side]", "total[0][2 * h + 1 - side]")),
    *_one("codes of absent blocks asked for", S4, TRAFFIC, ("if (first[0] < left) qgen_load", "qgen_load")),
    *_one("absent blocks added", S4, BITS, ("if (first[1 + side] >= left) continue;", "")),
    *_one("columns added by neighbours first", S4, BITS,
        ("sum[side][h], 2));", "sum[side][h], 1));"),
        ("sum[side][h], 1));\n            }", "sum[side][h], 2));\n            }")),
    *_one("two of the four quarters", S4, BITS,
        ("__shfl_xor_sync(0xffffffffu, sum[side][h], 2)", "0.0f")),
    *_one("warps added in a row", S4, BITS,
        ("const float total = qgen_halving_sum<warps>(v);",
         "float total = v[0]; for (int w = 1; w < warps; ++w) total = __fadd_rn(total, v[w]);")),
    *_one("sums kept between row tiles", S4, BITS,
        ("        work.begin();\n", "        if (number == 0) work.begin();\n")),
    *_one("row tail of one token stored", S4, FAULT, ("lane < 16 && tile + lane < row_end", "lane < 16")),
    *_one("last result of one token left out", S4, LOST,
        ("    if (number > 0) finish(", "    if (number > 1) finish(")),
    *_one("y of the first token", S4, LOST, ("y + token * y_stride", "y + 0 * y_stride")),
    *_one("no wait for inputs of one token", S4, FAULT, (INPUTS, "")),
]  # fmt: skip

# One token in all columns: Q4_K has scales and sums, and a stage a block of each warp; TQ1_0 four, starts and digits;
# Q3_K two, and signed scales.
T4, TT, T3 = ("Q4_K", 1), ("TQ1_0", 1), ("Q3_K", 1)

TOKEN = [
    *_each("no wait for a stage of one token", {T4: BITS, TT: BITS}, (FULL, "")),
    *_each("warp's tile of one token forgotten", {T4: BITS, TT: BITS}, ("        slot += warp * kTileBytes;\n", "")),
    *_one("blocks of a stage side by side", TT, BITS, ("i * warps * kTileBytes>(", "i * kTileBytes>(")),
    *_one("blocks of a stage's tail side by side", TT, BITS,
        ("slot + i * (warps * kTileBytes)", "slot + i * kTileBytes")),
    *_one("records of the warp's first block", T4, BITS, ("token / 8) * blocks + warp)", "token / 8) * blocks)")),
    *_one("records of the first column tile for all", T4, BITS, ("(token / 8) * blocks", "0 * blocks")),
    *_one("record of the block before", TT, BITS, ("at + (i + 1) * (warps", "at + i * (warps")),
    *_one("record of the tail's first block", TT, BITS, ("at + i * (warps * kRecordBytes)", "at")),
    *_one("records of one token's first stage", T4, BITS, ("at = (int64_t)(stage * stage_blocks)", "at = (int64_t)0")),
    *_one("codes of one token from another thread", T4, BITS,
        ("record + (token * 4 + t) * 16", "record + (token * 4 + (t ^ 1)) * 16")),
    *_one("scale of the tile's first tokens", T4, BITS,
        ("record + token / 2 * (8 * kScales)", "record + 0 * (8 * kScales)")),
    *_one("scale of the other token", T4, BITS,
        ("(8 * kScales) + token % 2 * 4", "(8 * kScales) + (token + 1) % 2 * 4")),
    *_one("start of the other token", TT, BITS, ("token / 2 * 16 + token % 2 * 4", "token / 2 * 16")),
    *_one("sums of one token from another thread", T4, BITS,
        ("record + (token * 4 + t) * 8", "record + (token * 4 + (t ^ 1)) * 8")),
    *_each("all blocks in one slice", {TT: BITS, T3: BITS}, ("sum + i % slices", "sum")),
    *_one("slices not turned after a stage", T3, BITS, ("            qgen_turn_slices<warp_blocks>(sum);\n", "")),
    *_one("slices not turned in a tail", TT, BITS, ("            qgen_turn_slices<1>(sum);\n", "")),
    *_one("slices of the lower half alone", T4, BITS,
        ("const float total = qgen_halving_sum<slices>(own);", "const float total = own[0];")),
    *_one("row g for row g + 8", T4, BITS, ("own[s] = sum[s][0][0][2 * h]", "own[s] = sum[s][0][0][0]")),
    *_one("sums of one token kept between row tiles", T4, BITS,
        ("        work.begin();\n", "        if (number == 0) work.begin();\n")),
    *_one("absent blocks of one token added", TT, FAULT,
        ("            if (warp + i * warps < left) {\n", "            {\n")),
    *_one("tail taken for a whole stage", TT, FAULT, ("if (left >= stage_blocks ||", "if (left >= 1 ||")),
    *_one("no wait for inputs of one token in all columns", T4, FAULT, (INPUTS, "")),
]  # fmt: skip

MUTANTS = RING + SHARE + OFFSETS + TILES + TOKENS + WAITS + SINGLE + TOKEN

# The ring of architectures without bulk copies. Two row tiles a warp, so that a stage takes two runs of copies.
ROOMY = ("kRoomy = __CUDA_ARCH__ == 900;", "kRoomy = true;")
ARRIVAL = "            qgen_copy_arrive(full + ahead_slot);\n"
RUNS = "            for (int copy = 0; copy < copies; ++copy)\n"


def _without_bulk(name: str, caught: dict[tuple[str, int], str], *edits: Edit) -> list[Mutant]:
    return _each(name, caught, ROOMY, *edits)


COPIES = [
    *_without_bulk("no wait for copies", {K: BITS, WIDE: BITS, S4: BITS}, (FULL, "")),
    *_without_bulk("copies awaited a round early", {K: FAULT, WIDE: FAULT},
        (FULL, FULL.replace("round & 1", "(round + 1) & 1"))),
    *_without_bulk("copies to a slot that is not free", {K: FAULT, WIDE: FAULT, S4: FAULT}, (EMPTY, "")),
    *_without_bulk("slot of copies never released", {K: FAULT}, (RELEASE, "")),
    *_without_bulk("slot of copies released before it is used", {K: BITS, WIDE: BITS}, (DONE, ""), (NEXT, NEXT + DONE)),
    *_without_bulk("as many stages of copies ahead as there are", {K: FAULT},
        ("stages - 1 - kept : 1", "stages : stages")),
    *_without_bulk("every warp copies", {K: FAULT}, ("turn == warp && ahead_tile", "ahead_tile")),
    *_without_bulk("one arrival awaited", {K: FAULT, WIDE: FAULT}, ("_copies ? 1 : 32", "_copies ? 1 : 1")),
    *_without_bulk("one arrival fewer awaited", {K: ORDER}, ("_copies ? 1 : 32", "_copies ? 1 : 31")),
    *_without_bulk("one arrival more awaited", {K: FAULT}, ("_copies ? 1 : 32", "_copies ? 1 : 33")),
    *_without_bulk("one thread arrives", {K: FAULT}, (ARRIVAL, ARRIVAL.replace("qgen", "if (lane == 0) qgen"))),
    *_without_bulk("arrival that brings no copies", {K: BITS, WIDE: BITS, S4: BITS},
        (ARRIVAL, ARRIVAL.replace("copy_arrive", "barrier_arrive"))),
    *_without_bulk("arrival in front of the copies", {K: BITS, WIDE: BITS}, (ARRIVAL, ""), (RUNS, ARRIVAL + RUNS)),
    *_without_bulk("arrival at another slot", {K: FAULT}, (ARRIVAL, ARRIVAL.replace("full + ahead", "full + "))),
    *_without_bulk("every other piece", {K: READ}, ("bytes; at += 512", "bytes; at += 1024")),
    *_without_bulk("pieces of one thread fewer", {K: BITS}, ("at = 16 * lane; at", "at = 16 * max(lane, 1); at")),
    *_without_bulk("last piece left out", {K: READ, WIDE: READ}, ("; at < bytes; at", "; at < bytes - 16; at")),
    *_without_bulk("one piece too many", {K: FAULT}, ("; at < bytes; at", "; at <= bytes; at")),
    *_without_bulk("pieces in one place", {K: BITS}, (" + at, from + copy", " + at % 512, from + copy")),
    *_without_bulk("second row tile's copies left out", {WIDE: BITS}, ("copy < copies", "copy < 1")),
    *_without_bulk("second row tile's copies from the first", {WIDE: BITS}, ("from + copy * apart", "from")),
    *_without_bulk("second row tile's copies over the first's", {WIDE: BITS},
        (" + copy * (stage_bytes / most)", "")),
]  # fmt: skip

# When the next kernel may begin is no part of the result.
HARMLESS = [
    Mutant("the next kernel always begins late", *WIDE, (("late = share.end", "late = true || share.end"),), ""),
    Mutant("the next kernel never begins late", *WIDE, (("late = share.end", "late = false && share.end"),), ""),
    Mutant(
        "the next kernel may never begin early",
        *K,
        (("    if (!late) qgen_let_next_begin();\n", ""), ("        if (late) qgen_let_next_begin();\n", "")),
        "",
    ),
]
