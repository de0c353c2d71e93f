"""Damage to ksplit_mma kernels, their quantisers and their helpers, one slip at a time, as changes of the text."""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str]
BITS, ORDER, READ, LOST, TRAFFIC, FACTOR, TWICE, FAULT = (
    "bits differ from the contract",
    "bits depend on the thread order",
    "bytes outside the packed ones are read",
    "y not written",
    "activation read",
    "read factor",
    "y written more than once",
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


def _each(name: str, targets: tuple[tuple[str, int], ...], edits: tuple[Edit, ...], caught: str) -> list[Mutant]:
    return [Mutant(name, format, columns, edits, caught) for format, columns in targets]


MANY = (("Q4_K", 8), ("Q4_0", 32))  # few large blocks with scales, one a stage; many small ones
WAIT = "            qgen_copy_wait<stages - 2>();\n"
ARRIVED = "            __syncthreads();\n            request();\n"
APART = "__device__ float apart(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }\n"
PARTIAL = "        __syncthreads();\n        for (int i = threadIdx.x"

SYNCHRONISATION = [
    *_each("no barrier before a stage", MANY[:1], ((ARRIVED, "            request();\n"),), BITS),
    *_each("no barrier before a stage", MANY[1:], ((ARRIVED, "            request();\n"),), ORDER),
    *_each(
        "request before the barrier",
        MANY,
        ((ARRIVED, "            request();\n            __syncthreads();\n"),),
        BITS,
    ),
    *_each("no barrier before the partial sums", MANY, ((PARTIAL, PARTIAL.replace("__syncthreads();", "")),), BITS),
    *_each("no wait for copies", MANY, ((WAIT, ""),), BITS),
    *_each("wait for one group fewer", MANY, ((WAIT, WAIT.replace("- 2", "- 1")),), BITS),
    *_each("no commit", MANY, (("        qgen_copy_commit();\n", ""),), BITS),
    *_each(
        "read slot does not advance", MANY, (("            slot = slot + 1 == stages ? 0 : slot + 1;\n", ""),), BITS
    ),
    *_each(
        "write slot does not advance",
        MANY,
        (("        ahead_slot = ahead_slot + 1 == stages ? 0 : ahead_slot + 1;\n", ""),),
        BITS,
    ),
    *_each(
        "ring one slot short", MANY[:1], (("ring_bytes = stages * kRows", "ring_bytes = (stages - 1) * kRows"),), ORDER
    ),
    *_each(
        "ring one slot short", MANY[1:], (("ring_bytes = stages * kRows", "ring_bytes = (stages - 1) * kRows"),), BITS
    ),
]

TAILS = [
    *_each("row tail copied", MANY, (("        if (row < rows) qgen_stage", "        qgen_stage"),), FAULT),
    *_each("row tail stored", MANY, (("if (tile * kRows + row < rows && column", "if (column"),), FAULT),
    *_each("column tail stored", MANY, ((" && column + at < tokens)", ")"),), FAULT),
    *_each(
        "column tail's codes read",
        MANY,
        (("const bool wanted = 8 * n + g < left", "const bool wanted = true"),),
        TRAFFIC,
    ),
    *_each("column tiles past the end", (("Q4_0", 32),), (("        if (8 * n >= left) break;\n", ""),), FAULT),
    *_each("all copies from the first stage", MANY, (("(int64_t)ahead_stage * (stage", "(int64_t)0 * (stage"),), BITS),
    *_each("last stage left out", MANY, (("(blocks + stage_blocks - 1) /", "blocks /"),), BITS),
    *_each("last row tile left out", MANY, (("(rows + kRows - 1) /", "rows /"),), LOST),
    *_each("block tail added", MANY, (("if (stage * stage_blocks + in_stage < blocks)", ""),), FAULT),
    *_each(
        "stage tail read whole",
        MANY,
        (("min(blocks - ahead_stage * stage_blocks, stage_blocks)", "stage_blocks"),),
        FAULT,
    ),
    *_each("32-bit row offsets", MANY, (("start + row * row_stride", "start + (int)(row * row_stride)"),), FAULT),
    *_each("start of a piece forgotten", (("Q4_0", 32), ("MXFP4", 8)), (("lead0 = start & 15u", "lead0 = 0"),), BITS),
    *_each(
        "row padding forgotten",
        (("Q4_0", 32), ("MXFP4", 8)),
        (("* (uint32_t)row_stride;", "* (uint32_t)(blocks * kBlockBytes);"),),
        BITS,
    ),
    *_each("all tokens from the first tile", MANY, (("(int64_t)(column / 8) * blocks", "0"),), BITS),
    *_each("y of the first column tile", MANY, (("(column + at) * y_stride", "at * y_stride"),), LOST),
    *_each("y rows back to back", MANY, (("* y_stride + tile", "* rows + tile"),), "writes outside y"),
    *_each(
        "accumulators kept between row tiles",
        MANY,
        (
            (
                "    for (int tile = blockIdx.x;",
                "    float sum[substeps][column_tiles][4] = {};\n    for (int tile = blockIdx.x;",
            ),
            ("        float sum[substeps][column_tiles][4] = {};\n        constexpr", "        constexpr"),
        ),
        BITS,
    ),
    *_each("copies stay in the first row tile", MANY, (("ahead_tile += gridDim.x;", ""),), FACTOR),
    *_each("row tiles done by every CTA", MANY, (("tile += gridDim.x", "tile += 1"),), FACTOR),
]

SUMS = [
    *_each(
        "warps added by neighbours",
        MANY,
        (
            (
                "const float total = qgen_halving_sum<warps>(v);",
                "for (int h = 1; h < warps; h *= 2)\n"
                "                for (int w = 0; w + h < warps; w += 2 * h) v[w] = __fadd_rn(v[w], v[w + h]);\n"
                "            const float total = v[0];",
            ),
        ),
        BITS,
    ),
    *_each(
        "warps added in a row",
        MANY,
        (
            (
                "const float total = qgen_halving_sum<warps>(v);",
                "float total = v[0];\n            for (int w = 1; w < warps; ++w) total = __fadd_rn(total, v[w]);",
            ),
        ),
        BITS,
    ),
    *_each(
        "half of the slices", MANY, (("qgen_halving_sum<substeps>(own)", "qgen_halving_sum<substeps / 2>(own)"),), BITS
    ),
    *_each("one sum for all slices", (("Q4_0", 32),), ((" sum[j]);", " sum[0]);"),), BITS),
    *_each("one sum for all slices", (("Q5_K", 8),), (("            turn();\n        }", "        }"),), BITS),
    *_each("a slice lost in turning", (("Q5_K", 8),), (("[i % 4] = first;", "[i % 4] = 0;"),), BITS),
    *_each(
        "multiply and add apart",
        MANY,
        (("v = __fmaf_rn(", "v = apart("), ("namespace {", APART + "namespace {")),
        BITS,
    ),
    *_each("rows g and g + 8 swapped", MANY, (("g + i % 4 / 2 * 8", "g + 8 - i % 4 / 2 * 8"),), BITS),
    *_each("columns 2t and 2t + 1 swapped", MANY, (("+ 2 * t + i % 2)", "+ 2 * t + 1 - i % 2)"),), BITS),
    *_each("scale of the neighbouring column", MANY, (("dx[0][i % 2]", "dx[0][0]"),), BITS),
    *_each("factor of row g for row g + 8", MANY, (("i < 2 ? f0_00 : f0_01", "f0_00"),), BITS),
]

INTEGERS = [
    Mutant("wrong fragment order", "Q4_K", 8, (("x[0], x[1]);", "x[1], x[0]);"),), BITS),
    Mutant(
        "halves of an instruction of unlike rows",
        "Q4_K",
        8,
        (("q0[0], q1[0], q0[1], q1[1]", "q0[0], q0[1], q1[0], q1[1]"),),
        BITS,
    ),
    Mutant("chunks of the wrong stride", "Q4_K", 8, (("c * (128 * kPieceWords)", "c * (4 * kPieceWords)"),), BITS),
    Mutant("wrong scale byte", "Q4_K", 8, (("qgen_unsigned_byte<1>", "qgen_unsigned_byte<0>"),), BITS),
    Mutant(
        "wrong scale byte of row g + 8", "Q6_K", 16, (("s1 = qgen_signed_byte<1>", "s1 = qgen_signed_byte<0>"),), BITS
    ),
    Mutant("scales of row g for row g + 8", "Q3_K", 8, (("total[2] += s1 * d[2]", "total[2] += s0 * d[2]"),), BITS),
    Mutant("unsigned scales", "Q6_K", 16, (("qgen_signed_byte<3>", "qgen_unsigned_byte<3>"),), BITS),
    Mutant("scales of another quad", "Q4_K", 8, (("(lane & 28) + i", "(lane & 12) + i"),), BITS),
    Mutant("high part of the sums dropped", "Q4_K", 8, ((" + 128 * high_mn[i]", ""),), BITS),
    Mutant("low part of the sums dropped", "Q4_K", 8, (("low_mn[i] + 128", "0 + 128"),), BITS),
    Mutant("high part of the sums dropped", "Q6_K", 16, ((" + 128 * high_sc[i]", ""),), BITS),
    Mutant("code offset forgotten", "Q6_K", 16, (("total[i] += -32 *", "total[i] += 0 *"),), BITS),
    Mutant("code offset forgotten", "Q4_0", 32, (("+ -8 * (int)", "+ 0 * (int)"),), BITS),
    Mutant("codes not doubled", "Q1_0", 8, (("2 * total[i]", "1 * total[i]"),), BITS),
    Mutant(
        "minimums of row g for row g + 8",
        "Q2_K",
        8,
        (("(low_mn, own_mn0, own_mn1", "(low_mn, own_mn0, own_mn0"),),
        BITS,
    ),
    Mutant("sums of another unit", "PQ2_0", 8, (("kSumBytes + 1 * 32", "kSumBytes + 0 * 32"),), BITS),
    Mutant("scale of x of another unit", "PQ2_0", 8, (("dx[1][i % 2]", "dx[0][i % 2]"),), BITS),
    Mutant("scale of another unit", "NVFP4", 16, (("f2_00 : f2_01", "f1_00 : f1_01"),), BITS),
    Mutant("minus for a plus", "Q4_K", 8, (("__fmaf_rn(-__fmul_rn", "__fmaf_rn(__fmul_rn"),), BITS),
    Mutant("digits in base 2", "TQ1_0", 8, ((" - 3u * p1", " - 2u * p1"),), BITS),
    Mutant("single byte of every thread", "TQ1_0", 8, (("stage[b + at0]", "stage[b + 48]"),), BITS),
    Mutant("k32 with its second half twice", "TQ2_0", 8, (("q0[1], q1[1], x[0]", "q0[0], q1[0], x[0]"),), BITS),
    Mutant("wrong codebook entry", "IQ4_XS", 8, (("kTable2 = 0x26190d01u", "kTable2 = 0x26190c01u"),), BITS),
    Mutant("scales' offset without the borrow's guard", "IQ4_XS", 8, (("| 0x80808080u) -", ") -"),), BITS),
    Mutant(
        "fifth bit of the next code",
        "Q5_1",
        16,
        (("qgen_spread<1>(w[0] >> at0)", "qgen_spread<1>(w[0] >> at0 + 1)"),),
        BITS,
    ),
]

HELPERS = [
    Mutant(
        "ragged first piece copied whole",
        "MXFP4",
        8,
        ((" && (lane > 0 || lead == 0)) qgen_copy16", ") qgen_copy16"),),
        FAULT,
    ),
    Mutant(
        "last word of a ragged piece copied whole", "MXFP4", 8, (("i % 4 == 0 && i + 4 <= stop", "i % 4 == 0"),), FAULT
    ),
    Mutant("ragged last piece copied whole", "MXFP4", 8, (("min(16, end) : end", "min(16, end) : last + 16"),), FAULT),
    Mutant("ragged last piece left out", "MXFP4", 8, (("!= 0 && lane < 2", "!= 0 && lane < 1"),), BITS),
    Mutant(
        "pieces past the first 32",
        "Q8_0",
        8,
        (("piece = threads; piece < pieces", "piece = threads; piece < 0"),),
        BITS,
    ),
    Mutant("sign of a scale byte", "Q6_K", 16, (("(8u | k) * 0x1110u", "(k) * 0x1110u"),), BITS),
    Mutant("spread of single bits", "Q5_1", 16, (("(v | v << (8 - width))", "(v | v << (7 - width))"),), BITS),
    Mutant(
        "halving to the wrong side",
        "Q4_0",
        32,
        (("v[s] = __fadd_rn(v[s], v[s + n / 2])", "v[s] = __fadd_rn(v[s], v[n - 1 - s])"),),
        BITS,
    ),
]


def _quantiser(name: str, format: str, edits: tuple[Edit, ...], caught: str) -> Mutant:
    return Mutant(name, format, 0, edits, caught)


QUANTISERS = [
    _quantiser("no barrier before the words", "Q4_K", (("    __syncwarp();\n", ""),), "codes plane"),
    _quantiser(
        "padding tokens left out",
        "Q4_K",
        (("if (block >= blocks) return;", "if (block >= blocks || token >= tokens) return;"),),
        "scale plane",
    ),
    _quantiser("padding tokens read from x", "Q4_K", (("v[i] = token < tokens ?", "v[i] = true ?"),), FAULT),
    _quantiser(
        "codes for padding tokens", "Q4_K", (("    if (token < tokens) {", "    {"),), "codes of no token written"
    ),
    _quantiser("x of one stride", "Q4_K", (("token * x_stride", "token * (int64_t)(blocks * kBlock)"),), "codes plane"),
    _quantiser(
        "tokens of a tile swapped",
        "Q4_K",
        (("token % 8 * (16 * kPieceWords)", "(7 - token % 8) * (16 * kPieceWords)"),),
        "codes plane",
    ),
    _quantiser(
        "high part as one of 256",
        "Q4_K",
        (("(sum + 64) >> 7, low = sum - 128 * high", "(sum + 128) >> 8, low = sum - 256 * high"),),
        "sums plane",
    ),
    _quantiser(
        "words of four sums shifted",
        "Q6_K",
        (("low, (4 * lane + i) % 32", "low, (4 * lane + i + 1) % 32"),),
        "sums plane",
    ),
    _quantiser("sums of half a group", "Q4_0", (("i < 32 / 4", "i < 16 / 4"),), "sums plane"),
    _quantiser("scales of the next place", "PQ2_0", (("(place * kScales + s) * 8", "(place + s) * 8"),), "scale plane"),
    _quantiser(
        "sums of the next unit", "PQ2_0", (("(place * 4 + lane) * 8", "(place * 4 + lane % 3) * 8"),), "sums plane"
    ),
]

MUTANTS = SYNCHRONISATION + TAILS + SUMS + INTEGERS + HELPERS + QUANTISERS
