"""Damage to ksplit_mma kernels, their quantisers and their helpers, one slip at a time, as changes of the text."""

from __future__ import annotations

from dataclasses import dataclass

from judging import Edit

BITS, ORDER, READ, LOST, TRAFFIC, FACTOR, TWICE, WAY, OUTSIDE, FAR, FAULT = (
    "bits differ from the contract",
    "bits depend on the thread order",
    "bytes outside the packed ones are read",
    "y not written",
    "activation read",
    "read factor",
    "y written more than once",
    "way of copying",
    "writes outside y",
    "rows gigabytes apart",
    "fault",
)


@dataclass(frozen=True)
class Mutant:
    """One way to break a kernel.

    columns: capacity of the rung that is broken; 0: the format's quantiser
    edits:   (text, replacement) in turn, at the first place; the text must be there
    caught:  the check that must fail, or "fault" for the emulator's
    """

    name: str
    format: str
    columns: int
    edits: tuple[Edit, ...]
    caught: str


K, ONE, WIDE = ("Q4_K", 8), ("Q4_0", 8), ("Q4_0", 32)
# Q4_K: few large blocks with scales, one a stage and warp, always by bulk copies. Q4_0: bundles of four small blocks
# without scales, in either way; one row tile a warp, or two and four column tiles.


def _each(name: str, caught: dict[tuple[str, int], str], *edits: Edit) -> list[Mutant]:
    return [Mutant(name, format, columns, edits, check) for (format, columns), check in caught.items()]


def _one(name: str, target: tuple[str, int], caught: str, *edits: Edit) -> list[Mutant]:
    return _each(name, {target: caught}, *edits)


FULL = "            qgen_barrier_wait(full + slot, round & 1);\n"
EMPTY = "            if (ahead_round > 0) qgen_barrier_wait(empty + ahead_slot, (ahead_round + 1) & 1);\n"
RELEASE = "            if (lane == 0) qgen_barrier_arrive(empty + slot);\n"
COUNT = "min(rows, tile_rows) * bytes);"
COPIED = "            qgen_copy_wait<ahead - 1>();\n"
MET = "            __syncthreads();\n        }\n        return"
TAKEN = "        if (++slot == stages) slot = 0, ++round;\n"
ASKED = "        if (++ahead_slot == stages) ahead_slot = 0, ++ahead_round;\n"
ADDED = "        else if (number > 0) qgen_barrier_wait(added, (number + 1) & 1);\n"
WRITTEN = "        if (bulk) qgen_barrier_wait(written, number & 1);\n"
INPUTS = "    qgen_wait_for_inputs();\n"
NEXT = "            const int slot = ring.wait() + row * slot_bytes;\n            request();\n"

RING = [
    *_each("no wait for a stage", {K: BITS, WIDE: BITS}, (FULL, "")),
    *_each("stage awaited a round early", {K: FAULT, WIDE: FAULT},
        (FULL, FULL.replace("round & 1", "(round + 1) & 1"))),
    *_each("slot filled before it is free", {K: FAULT, ONE: FAULT, WIDE: FAULT}, (EMPTY, "")),
    *_each("slot awaited in the wrong phase", {K: FAULT, WIDE: FAULT},
        (EMPTY, EMPTY.replace("_round + 1) & 1", "_round) & 1"))),
    *_each("slot never released", {K: FAULT, WIDE: FAULT}, (RELEASE, "")),
    *_each("slot released by every thread", {K: FAULT, WIDE: FAULT}, (RELEASE, RELEASE.replace("if (lane == 0) ", ""))),
    *_each("slot released by one warp", {K: FAULT}, (RELEASE, RELEASE.replace("lane == 0", "lane == 0 && warp == 0"))),
    *_each("barrier for one warp fewer", {K: FAULT, WIDE: FAULT},
        ("(empty + lane, warps)", "(empty + lane, warps - 1)")),
    *_each("slot released before it is used", {K: BITS, WIDE: BITS},
        (NEXT, NEXT + "            ring.release();\n"),
        ("            ring.release();\n            qgen_turn", "            qgen_turn")),
    *_each("bytes of a whole tile announced", {K: FAULT, WIDE: FAULT}, (COUNT, "tile_rows * bytes);")),
    *_each("bytes of one row announced", {K: BITS, WIDE: BITS}, (COUNT, "bytes);")),
    *_each("every warp makes every request", {K: FAULT, WIDE: FAULT}, ("rows > 0 && turn == warp", "rows > 0")),
    *_each("turns not taken round", {K: FAULT, WIDE: FAULT},
        ("        if (++turn == warps) turn = 0;\n", "        ++turn;\n")),
    *_each("rows of a bulk copy past the tile", {WIDE: FAULT, K: FAULT},
        ("lane < rows && lane < tile_rows", "lane < tile_rows")),
    *_each("no wait for copies", {ONE: BITS, WIDE: BITS}, (COPIED, "")),
    *_each("wait for one group fewer", {ONE: BITS, WIDE: BITS}, (COPIED, COPIED.replace(" - 1", ""))),
    *_each("no commit", {ONE: BITS, WIDE: BITS}, ("            qgen_copy_commit();\n", "")),
    *_each("no barrier after the copies", {ONE: ORDER, WIDE: ORDER},
        (MET, MET.replace("            __syncthreads();\n", ""))),
    *_each("read slot does not advance", {K: BITS, WIDE: BITS}, (TAKEN, "")),
    *_each("rounds of reading not counted", {K: FAULT, WIDE: FAULT}, (TAKEN, TAKEN.replace(", ++round", ""))),
    *_each("write slot does not advance", {K: FAULT, WIDE: BITS}, (ASKED, "")),
    *_each("rounds of writing not counted", {K: FAULT, WIDE: FAULT}, (ASKED, ASKED.replace(", ++ahead_round", ""))),
    *_each("ring one slot short", {K: BITS, WIDE: BITS},
        ("bytes = stages * tile_rows", "bytes = (stages - 1) * tile_rows")),
    *_each("one stage too many ahead", {ONE: BITS, WIDE: BITS}, ("stages - 2 : 1", "stages : stages")),
    *_each("bulk copies of rows that end anywhere", {ONE: FAULT, WIDE: FAULT}, (" | last_bytes) & 15u", ") & 15u")),
    *_each("bulk copies of rows that start anywhere", {ONE: FAULT, WIDE: FAULT},
        ("(uint32_t)(uint64_t)weight | (uint32_t)row_stride", "(uint32_t)(uint64_t)weight")),
    *_each("bulk copies of a misaligned weight", {ONE: FAULT, WIDE: FAULT}, ("(((uint32_t)(uint64_t)weight | ", "((")),
    *_each("never by bulk copies", {K: WAY, WIDE: WAY}, ("bulk(qgen_bulk_copies && aligned)", "bulk(false)")),
]  # fmt: skip

HANDOVER = [
    *_each("added before all is written", {K: BITS, WIDE: BITS}, (WRITTEN, "")),
    *_each("written before all is added", {K: BITS, WIDE: BITS}, (ADDED, "")),
    *_each("written a result early", {K: FAULT, WIDE: FAULT}, (ADDED, ADDED.replace("number + 1", "number"))),
    *_each("added a result early", {K: FAULT, WIDE: FAULT},
        (WRITTEN, WRITTEN.replace("number & 1", "(number + 1) & 1"))),
    *_each("writing not reported", {K: FAULT, WIDE: FAULT},
        ("        if (bulk) qgen_barrier_arrive(written);\n", "")),
    *_each("adding not reported", {K: FAULT, WIDE: FAULT},
        ("        if (bulk) qgen_barrier_arrive(added);\n", "")),
    *_each("adding reported by warps without a unit", {K: FAULT}, ("units < kSplit ? units : kSplit", "kSplit")),
    *_each("no barrier before partial sums are written again", {ONE: BITS, WIDE: FAR},
        ("        if (!bulk) __syncthreads();\n        else if", "        if (bulk) if")),
    *_each("no barrier after the last partial sums", {ONE: BITS, WIDE: BITS},
        ("    if (!ring.bulk) __syncthreads();\n", "")),
    *_each("last result left out", {K: LOST, WIDE: LOST},
        ("    if (number > 0) finish(", "    if (number > 1) finish(")),
    *_each("results but the last left out", {K: FAULT, WIDE: LOST},
        ("if (stage == 0 && number > 0) finish", "if (false) finish")),
    *_each("result added up with the rows of the next", {K: LOST, WIDE: LOST},
        ("finish(number - 1, tile - cta_rows)", "finish(number - 1, tile)")),
]  # fmt: skip

TAILS = [
    *_each("row tail copied", {ONE: FAULT, WIDE: FAULT}, ("row < min(rows, tile_rows)", "row < tile_rows")),
    *_each("row tail stored", {K: FAULT, WIDE: FAULT}, ("tile + row + i < row_end && ", "")),
    *_each("column tail stored", {K: FAULT, WIDE: FAULT}, (" && at < left)", ")")),
    *_each("column tiles past the end", {WIDE: FAULT}, ("        if (n && 8 * n >= left) break;\n", "")),
    *_each("all copies from the first stage", {K: BITS, WIDE: BITS},
        ("(int64_t)ahead_stage * (stage", "(int64_t)0 * (stage")),
    *_each("last row tile left out", {K: LOST, WIDE: LOST}, ("(rows + 15) / 16", "rows / 16")),
    *_each("block tail added", {K: BITS, WIDE: TRAFFIC}, ("                if (block < blocks)\n", "")),
    *_each("records asked for past the last block", {K: FAULT}, ("if (early && any)", "if (early)")),
    *_each("stage tail read whole", {K: FAULT, WIDE: FAULT},
        ("min(blocks - ahead_stage * stage_blocks, stage_blocks)", "stage_blocks")),
    *_each("32-bit offsets of copied rows", {ONE: FAULT, WIDE: FAULT},
        ("start + row * row_stride", "start + (int)(row * row_stride)")),
    *_each("32-bit offsets of rows copied in bulk", {K: FAULT, WIDE: FAULT},
        ("start + lane * row_stride", "start + (int)(lane * row_stride)")),
    *_each("32-bit offsets of row tiles", {K: FAR, WIDE: FAR},
        ("weight + ahead_row * row_stride", "weight + (int)(ahead_row * row_stride)")),
    *_each("start of a piece forgotten", {WIDE: BITS, ("MXFP4", 8): BITS}, ("& 15u) + warp", "& 0u) + warp")),
    *_each("row padding forgotten", {WIDE: BITS, ("MXFP4", 8): BITS},
        ("* (uint32_t)row_stride;", "* (uint32_t)(blocks * kBlockBytes);")),
    *_each("row g's place in its piece for row g + 8", {("MXFP4", 8): BITS}, ("8u * m * (uint32_t)row_stride", "0u")),
    *_each("stage's start forgotten", {("MXFP4", 8): BITS},
        (" + (uint32_t)(stage * (stage_blocks * kBlockBytes)) +", " + 1u * (uint32_t)stage +")),
    *_each("y of the first column tile", {K: LOST, WIDE: LOST}, ("(column + at) * y_stride", "at * y_stride")),
    *_each("y rows back to back", {K: OUTSIDE, WIDE: OUTSIDE}, ("* y_stride + tile", "* row_end + tile")),
    *_each("copies stay in the first row tile", {K: FACTOR, WIDE: FACTOR},
        ("            ahead_row += cta_rows;\n", "")),
    *_each("every CTA begins at the first row", {K: FACTOR, WIDE: FACTOR},
        ("row_begin = (int)((int64_t)blockIdx.x * fragments / gridDim.x) * 16", "row_begin = 0")),
    *_each("every CTA ends with the last row", {K: FACTOR, WIDE: FACTOR},
        ("min(rows, (int)((int64_t)(blockIdx.x + 1) * fragments / gridDim.x) * 16)", "rows")),
    *_each("accumulators kept between row tiles", {K: BITS, WIDE: BITS},
        ("    for (int tile = row_begin;",
         "    float sum[substeps][column_tiles][row_tiles][4] = {};\n    for (int tile = row_begin;"),
        ("        float sum[substeps][column_tiles][row_tiles][4] = {};\n#pragma", "#pragma")),
    *_each("second row tile of a warp left out", {WIDE: BITS}, ("row_end - tile > 16", "false")),
    *_each("second row tile only where it is whole", {WIDE: BITS}, ("row_end - tile > 16", "row_end - tile > 24")),
    *_each("halves of row tiles swapped", {WIDE: BITS}, ("row + 16 * m +", "row + 16 * (row_tiles - 1 - m) +")),
    *_each("both row tiles of the first one's rows", {WIDE: BITS},
        ("slot + 8 * m * slot_bytes", "slot + 8 * (m % 2) * slot_bytes")),
    *_each("share of the columns as if none were left", {WIDE: LOST},
        ("left = min(tokens - column, share)", "left = min(tokens - column, 8)")),
]  # fmt: skip

RECORDS = [
    *_each("no wait for inputs", {K: FAULT, WIDE: FAULT}, (INPUTS, "")),
    *_one("inputs awaited by one warp", K, FAULT, (INPUTS, INPUTS.replace("qgen", "if (warp == 0) qgen"))),
    *_each("all tokens from the first tile", {K: BITS, WIDE: BITS}, ("column / 8 * tile_bytes", "0 * tile_bytes")),
    *_each("records of the first column tile", {WIDE: BITS}, ("skip + n * tile_bytes", "skip")),
    *_each("records of the first stage", {K: BITS, WIDE: BITS}, ("skip = (int64_t)(stage *", "skip = (int64_t)(0 *")),
    *_each("records of the first warp", {K: BITS, WIDE: BITS}, (" + warp * kRecordBytes;", ";")),
    *_one("records of a warp's first bundle", ("PQ2_0", 32), BITS, ("skip + i * (kSplit * kRecordBytes)", "skip")),
    *_one("early record for every bundle", ("PQ2_0", 8), BITS, ("early && i == 0", "early")),
    *_one("tiles of whole rounds of blocks", WIDE, BITS,
        ("(blocks + kSplit * kBundle - 1) / (kSplit * kBundle) * kSplit;", "(blocks + kBundle - 1) / kBundle;")),
    *_each("chunks of the wrong stride", {K: BITS, WIDE: TRAFFIC}, ("p + 512 * c", "p + 16 * c")),
    *_each("codes of another thread", {K: BITS, WIDE: BITS}, ("records + lane * 16", "records + (lane ^ 4) * 16")),
    *_each("scales of another thread", {K: BITS, WIDE: BITS},
        ("records + t * (8 * kScales)", "records + (t ^ 1) * (8 * kScales)")),
    *_each("scale of the neighbouring column", {K: BITS, WIDE: BITS}, ("r.dx[0 + i % 2]", "r.dx[0]")),
    *_one("starts of another thread", WIDE, BITS, ("records + t * 16 +", "records + (t ^ 2) * 16 +")),
    *_one("starts of another unit", WIDE, BITS, ("from.starts + skip + 64 * u", "from.starts + skip + 64 * (u ^ 1)")),
    *_one("starts of one unit for all", ("Q4_0", 8), BITS, ("start = r.start[1]", "start = r.start[0]")),
    *_one("start of the neighbouring column", ("Q1_0", 8), BITS,
        ("total[1] + (int)start.y", "total[1] + (int)start.x")),
    *_one("start of row g + 8 twice added", ("Q1_0", 8), BITS,
        ("2 * total[2] + (int)start.z", "2 * total[2] + 2 * (int)start.z")),
    *_one("sums of another unit", ("Q5_1", 16), BITS, ("r.sums[2 + i % 2]", "r.sums[0 + i % 2]")),
    *_one("sums of the neighbouring column", ("Q5_1", 16), BITS, ("r.sums[0 + i % 2]", "r.sums[0]")),
    *_one("packed sums of another thread", K, BITS, ("records + lane * 8", "records + (lane ^ 1) * 8")),
    *_one("scale of x of another unit", ("Q4_0", 8), BITS, ("r.dx[2 + i % 2]", "r.dx[0 + i % 2]")),
    *_each("blocks of a bundle side by side", {WIDE: BITS, ("NVFP4", 16): BITS},
        ("j * (kSplit * kBlockBytes)", "j * kBlockBytes")),
    *_each("bundles of a warp too close", {("PQ2_0", 8): BITS, ("NVFP4", 16): BITS},
        ("place[m] += kSplit * kBundle * kBlockBytes", "place[m] += kBundle * kBlockBytes")),
    *_each("scale of the bundle's first block", {WIDE: BITS, ("Q5_1", 16): BITS},
        ("at = place[m] + 1 * (kSplit * kBlockBytes)", "at = place[m]")),
    *_each("scale of a block that is not there", {WIDE: BITS, ("Q5_1", 16): BITS}, ("inside <= 1 ? 0.0f : ", "")),
    *_each("scale of the last block taken for none", {WIDE: BITS, ("Q5_1", 16): BITS},
        ("inside <= 1 ? 0.0f : ", "inside <= 2 ? 0.0f : ")),
]  # fmt: skip

TOTAL = "const float total = qgen_halving_sum<split>(v[i]);"
NEIGHBOURS = (
    "for (int h = 1; h < split; h *= 2)\n"
    "                    for (int w = 0; w + h < split; w += 2 * h) v[i][w] = __fadd_rn(v[i][w], v[i][w + h]);\n"
    "                const float total = v[i][0];"
)
IN_A_ROW = "float total = v[i][0];\n                for (int w = 1; w < split; ++w) total = __fadd_rn(total, v[i][w]);"
TURN = "            qgen_turn_slices<warp_blocks>(sum);\n"
APART = "__device__ float apart(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }\n"

SUMS = [
    *_each("warps added by neighbours", {K: BITS, WIDE: BITS}, (TOTAL, NEIGHBOURS)),
    *_each("warps added in a row", {K: BITS, WIDE: BITS}, (TOTAL, IN_A_ROW)),
    *_each("half of the slices", {K: BITS, WIDE: BITS},
        ("qgen_halving_sum<slices>(own)", "qgen_halving_sum<slices / 2>(own)")),
    *_one("one sum for all bundles", ("PQ2_0", 8), BITS, ("sum + i * kBundle)", "sum)")),
    *_one("sum of the bundle's first block", WIDE, BITS, ("float v = sum[1]", "float v = sum[0]")),
    *_one("one sum for all slices", K, BITS, (TURN, "")),
    *_one("one sum for all slices", ("Q5_K", 32), BITS, (TURN, "")),
    *_one("a slice lost in turning", K, BITS, ("v[(s + warp_blocks) % slices]", "v[warp_blocks % slices]")),
    *_one("slices turned past a stage's", K, BITS, ("v[(s + warp_blocks) % slices]", "v[(s + slices) % slices]")),
    *_each("multiply and add apart", {K: BITS, WIDE: BITS},
        ("v = __fmaf_rn(", "v = apart("), ("namespace {", APART + "namespace {")),
    *_each("rows g and g + 8 swapped", {K: BITS, WIDE: BITS}, ("i % 4 / 2 * 8] =", "8 - i % 4 / 2 * 8] =")),
    *_each("columns 2t and 2t + 1 swapped", {K: BITS, WIDE: BITS}, ("+ 2 * t + i % 2)", "+ 2 * t + 1 - i % 2)")),
    *_each("factor of row g for row g + 8", {K: BITS, WIDE: BITS}, ("f0_0[m][i / 2]", "f0_0[m][0]")),
    *_one("factor of the first row tile", WIDE, BITS, ("f0_0[m][i / 2]", "f0_0[0][i / 2]")),
    *_one("codes of the first row tile", WIDE, BITS, ("(total, q[m][0][0]", "(total, q[0][0][0]")),
    *_each("second row tile added up from the first", {WIDE: TWICE}, ("unit % row_tiles * 16 + lane", "0 * 16 + lane")),
]  # fmt: skip

INTEGERS = [
    *_one("wrong fragment order", K, BITS, ("r.x[0], r.x[1]);", "r.x[1], r.x[0]);")),
    *_one("halves of an instruction of unlike rows", K, BITS,
        ("q[m][0][0], q[m][1][0], q[m][0][1], q[m][1][1]", "q[m][0][0], q[m][0][1], q[m][1][0], q[m][1][1]")),
    *_one("wrong scale byte", K, BITS, ("s0 = qgen_unsigned_byte<1>", "s0 = qgen_unsigned_byte<0>")),
    *_one("wrong scale byte of row g + 8", ("Q6_K", 16), BITS,
        ("s1 = qgen_signed_byte<1>", "s1 = qgen_signed_byte<0>")),
    *_one("scales of row g for row g + 8", ("Q3_K", 8), BITS, ("total[2] += s1 * d[2]", "total[2] += s0 * d[2]")),
    *_one("scales of the first row tile", ("Q3_K", 16), BITS,
        ("s0 = qgen_signed_byte<0>(sc[m]", "s0 = qgen_signed_byte<0>(sc[0]")),
    *_one("unsigned scales", ("Q6_K", 16), BITS, ("s0 = qgen_signed_byte<3>", "s0 = qgen_unsigned_byte<3>")),
    *_one("scales of another quad", K, BITS, ("(lane & 28) + i", "(lane & 12) + i")),
    *_one("high part of the sums dropped", K, BITS, (" + 128 * high_mn[i]", "")),
    *_one("low part of the sums dropped", K, BITS, ("low_mn[i] + 128", "0 + 128")),
    *_one("high part of the sums dropped", ("Q6_K", 16), BITS, (" + 128 * high_sc[i]", "")),
    *_one("code offset forgotten", ("Q6_K", 16), BITS, ("total[i] += -32 *", "total[i] += 0 *")),
    *_one("code offset forgotten", WIDE, BITS,
        ("{(int)start.x, (int)start.y, (int)start.z, (int)start.w}", "{0, 0, 0, 0}")),
    *_one("codes not doubled", ("Q1_0", 8), BITS, ("2 * total[0]", "1 * total[0]")),
    *_one("minimums of row g for row g + 8", ("Q2_K", 8), BITS,
        ("(low_mn, own_mn[m][0], own_mn[m][1]", "(low_mn, own_mn[m][0], own_mn[m][0]")),
    *_one("scale of another unit", ("NVFP4", 16), BITS, ("__fmul_rn(f2_0[m]", "__fmul_rn(f1_0[m]")),
    *_one("minus for a plus", K, BITS, ("__fmaf_rn(-__fmul_rn", "__fmaf_rn(__fmul_rn")),
    *_one("digits in base 2", ("TQ1_0", 8), BITS, (" - 3u * p1", " - 2u * p1")),
    *_one("single byte of every thread", ("TQ1_0", 8), BITS, ("qgen_shared[from0 + 48]", "qgen_shared[b + 48]")),
    *_one("words of the first thread", K, BITS, ("from0 + 16)", "b + 16)")),
    *_one("k32 with its second half twice", ("TQ2_0", 8), BITS,
        ("q[m][0][1], q[m][1][1], r.x[0]", "q[m][0][0], q[m][1][0], r.x[0]")),
    *_one("wrong codebook entry", ("IQ4_XS", 16), BITS, ("kTable2 = 0x26190d01u", "kTable2 = 0x26190c01u")),
    *_one("wrong entry of a codebook's half", ("IQ4_XS", 8), BITS, ("kHalf1 = 0xf6eaddcfu", "kHalf1 = 0xf6ebddcfu")),
    *_one("high half of a codebook left out", ("IQ4_NL", 8), BITS,
        ("if constexpr (halved) qgen_mma_k32(", "if constexpr (false) qgen_mma_k32(")),
    *_one("scales' offset without the borrow's guard", ("IQ4_XS", 8), BITS, ("| 0x80808080u) -", ") -")),
    *_one("fifth bit of the next code", ("Q5_1", 16), BITS,
        ("qgen_spread<1>(w[0] >> lane0)", "qgen_spread<1>(w[0] >> lane0 + 1)")),
]  # fmt: skip

HELPERS = [
    *_one("ragged first piece copied whole", ("MXFP4", 8), FAULT,
        (" && (lane > 0 || lead == 0)) qgen_copy16", ") qgen_copy16")),
    *_one("last word of a ragged piece copied whole", ("MXFP4", 8), FAULT,
        ("i % 4 == 0 && i + 4 <= stop", "i % 4 == 0")),
    *_one("ragged last piece copied whole", ("MXFP4", 8), FAULT, ("min(16, end) : end", "min(16, end) : last + 16")),
    *_one("ragged last piece left out", ("MXFP4", 8), BITS, ("!= 0 && lane < 2", "!= 0 && lane < 1")),
    *_one("pieces past the first 32", ("Q8_0", 8), BITS,
        ("piece = threads; piece < pieces", "piece = threads; piece < 0")),
    *_one("sign of a scale byte", ("Q6_K", 16), BITS, ("(8u | k) * 0x1110u", "(k) * 0x1110u")),
    *_one("high half of a codebook", ("MXFP4", 16), BITS, ("(w & 0x8888u)", "(w & 0x0888u)")),
    *_one("selectors of the high half", ("MXFP4", 8), BITS, ("w ^ 0x8888u", "w")),
    *_one("spread of single bits", ("Q5_1", 16), BITS, ("(v | v << (8 - apart))", "(v | v << (7 - apart))")),
    *_one("halving to the wrong side", WIDE, BITS,
        ("v[s] = __fadd_rn(v[s], v[s + n / 2])", "v[s] = __fadd_rn(v[s], v[n - 1 - s])")),
    *_one("floats of a record shifted", WIDE, BITS,
        ("v[4 * i + 1] = __uint_as_float(u.y)", "v[4 * i + 1] = __uint_as_float(u.x)")),
    *_one("pairs of floats swapped", K, BITS, ("v[2 * i] = __uint_as_float(u.x)", "v[2 * i] = __uint_as_float(u.y)")),
]  # fmt: skip

CODES, SCALES, STARTS, PAIRS = ("codes of a record", "scales of a record", "starts of a record", "sums of a record")
ABSENT = "tokens that are not there"


def _quantiser(name: str, format: str, caught: str, *edits: Edit) -> Mutant:
    return Mutant(name, format, 0, edits, caught)


QUANTISERS = [
    _quantiser("no wait for inputs", "Q4_K", FAULT, (INPUTS, "")),
    _quantiser("padding blocks read from x", "Q4_0", FAULT, ("column < there ?", "column < there + 32 * 1024 ?")),
    _quantiser("padding bundles left out", "Q4_0", CODES,
        ("    if (bundle >= bundles) return;", "    if (bundle >= bundles || first_block >= blocks) return;")),
    _quantiser("padding blocks of scale 0", "Q4_0", SCALES, ("scale[i] = -0.0f;", "scale[i] = 0.0f;")),
    _quantiser("padding scales of one block too many", "NVFP4", SCALES,
        ("column_of(slot, 0) >= there", "column_of(slot, 0) + kBlock >= there")),
    _quantiser("bundles one after the other", "Q4_0", CODES,
        ("bundle / kSplit * (kSplit * kBundle) + bundle % kSplit;", "bundle;")),
    _quantiser("tiles as long as blocks", "Q4_0", CODES, ("(token / 8) * bundles +", "(token / 8) * blocks +")),
    _quantiser("x of one stride", "Q4_K", CODES, ("token * x_stride", "token * (int64_t)(blocks * kBlock)")),
    _quantiser("tokens of a tile swapped", "Q4_K", ABSENT,
        ("token % 8 * 64 + places", "(7 - token % 8) * 64 + places")),
    _quantiser("empty places not zero", "PTQ1_0", CODES, ("(x + column) : 0.0f", "(x + column) : 1.0f")),
    _quantiser("words that are not there", "PTQ1_0", FAULT, ("if (places[i] != kNone) ", "")),
    _quantiser("scales of tokens 2t and 2t + 1 swapped", "Q4_0", ABSENT,
        ("2 * s + token % 2)", "2 * s + 1 - token % 2)")),
    _quantiser("scales of the wrong thread", "Q4_0", SCALES,
        ("(token % 8 / 2 * (2 * kScales)", "(token % 4 / 2 * (2 * kScales)")),
    _quantiser("scales of the wrong slots", "Q2_0", SCALES, ("s = slot / kScaleSlots", "s = 1 - slot / kScaleSlots")),
    _quantiser("starts of rows g only", "Q4_0", STARTS,
        ("qgen_store_u32(record + 1160 +", "if (0) qgen_store_u32(record +")),
    _quantiser("starts of another offset", "Q4_0", STARTS, ("(uint32_t)(-8 * sums[i])", "(uint32_t)(-7 * sums[i])")),
    _quantiser("starts of the next unit", "Q4_0", STARTS, ("g * 64 + token", "(g ^ 1) * 64 + token")),
    _quantiser("high part as one of 256", "Q4_K", PAIRS,
        ("(sums[i] + 64) >> 7, low = sums[i] - 128 * high", "(sums[i] + 128) >> 8, low = sums[i] - 256 * high")),
    _quantiser("words of four sums shifted", "Q6_K", PAIRS, (" * 8 + g % 4", " * 8 + (g + 1) % 4")),
    _quantiser("sums of groups that are not there", "Q4_K", PAIRS, ("if (lane >= 8 && lane < 16)", "if (0)")),
    _quantiser("sums of the next unit", "Q5_1", PAIRS, ("2 * g + token % 2", "2 * (g ^ 1) + token % 2")),
    _quantiser("sums of one thread in four", "Q4_0", STARTS, ("v += __shfl_xor_sync(0xffffffffu, v, h)", "v += 0")),
    _quantiser("sums of one thread in a warp", "TQ1_0", STARTS, ("__reduce_add_sync(0xffffffffu, v)", "v")),
    _quantiser("sums of half the words", "TQ1_0", STARTS,
        ("total = __dp4a((int)words[i],", "total = __dp4a((int)words[first],")),
    _quantiser("columns of the first words", "TQ1_0", CODES, ("column_of(i / 4 * 32 + lane", "column_of(lane")),
    _quantiser("columns of another run", "TQ1_0", CODES, ("if (slot < 60)", "if (slot < 61)")),
    _quantiser("places of the first words", "TQ1_0", CODES, ("kWordPlaces[32 * i + lane]", "kWordPlaces[lane]")),
    _quantiser("largest of one thread", "Q4_0", CODES, ("v = max(v, __shfl_xor_sync(0xffffffffu, v, h))", "v = v")),
    _quantiser("largest of half the words", "Q4_K", CODES,
        ("__float_as_uint(v[i][e]) & 0x7fffffffu", "__float_as_uint(v[first][e]) & 0x7fffffffu")),
    _quantiser("sign kept in the largest", "Q4_0", CODES,
        ("__float_as_uint(v[i][e]) & 0x7fffffffu", "__float_as_uint(v[i][e])")),
    _quantiser("codes of a word swapped", "Q4_0", CODES, ("code[0], code[1], 0x0040u", "code[1], code[0], 0x0040u")),
    _quantiser("halves of a word swapped", "Q4_0", CODES, ("0x5410u", "0x1054u")),
    _quantiser("rounded towards zero", "Q4_0", CODES, ("(uint32_t)__float2int_rn(", "(uint32_t)(int)(")),
    _quantiser("scale by a reciprocal", "Q4_0", SCALES,
        ("scale[i] = __fdiv_rn(largest, 127.0f)", "scale[i] = __fmul_rn(largest, 1.0f / 127.0f)")),
]  # fmt: skip

MUTANTS = RING + HANDOVER + TAILS + RECORDS + SUMS + INTEGERS + HELPERS + QUANTISERS
