"""Damage to generated kernels, one slip of a template, planner or helper at a time, as changes of the text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from judging import Edit


@dataclass(frozen=True)
class Mutant:
    """One way to break a kernel.

    target: format, and which kernel: "wide" (a whole warp to a row, the most rows), "slim" (the same, the fewest
            rows), "narrow" (several teams to a warp and steps to a slice) or "quantise"
    edits:  (text, replacement) in turn, at the first place; the text must be there
    caught: the check that must fail (see kernel_checks), or "fault" for the emulator's
    """

    name: str
    target: tuple[str, str]
    edits: tuple[Edit, ...]
    caught: str
    header: bool = False  # the damage is to qgen_parts.cuh


TQ1, TQ1_WIDE = ("TQ1_0", "narrow"), ("TQ1_0", "wide")
SMALL, SLIM = ("BITS1_SMALL", "narrow"), ("BITS1_SMALL", "slim")
Q51, Q51_WIDE = ("Q5_1", "narrow"), ("Q5_1", "wide")
BITS, ORDER, READ, FACTOR, FAULT = (
    "bits differ from the contract",
    "bits depend on the thread order",
    "bytes outside the packed ones are read",
    "read factor",
    "fault",
)


def _each(name: str, targets: tuple[tuple[str, str], ...], edits: tuple[Edit, ...], caught: str) -> list[Mutant]:
    return [Mutant(name=name, target=target, edits=edits, caught=caught) for target in targets]


WAIT = "                qgen_copy_wait<stages - 1>();\n"
BARRIER = "                __syncwarp();\n"
REQUEST = "                request();\n"
SUMS = "#pragma unroll\n                for (int r = 0;"
OFFSET = " (int)(row * row_stride) + first, bytes"
INPUTS = "    qgen_wait_for_inputs();\n"
ADVANCE = "                slot = slot + 1 == stages ? 0 : slot + 1;\n"

SYNCHRONISATION = [
    *_each("no barrier before the sums", (TQ1, TQ1_WIDE, Q51_WIDE), ((BARRIER + SUMS, SUMS),), BITS),
    *_each("no barrier after the sums", (TQ1, TQ1_WIDE, Q51_WIDE), ((BARRIER + REQUEST, REQUEST),), BITS),
    *_each("request before the barrier", (TQ1, Q51_WIDE), ((BARRIER + REQUEST, REQUEST + BARRIER),), BITS),
    *_each("request before the barrier", (Q51,), ((BARRIER + REQUEST, REQUEST + BARRIER),), ORDER),
    *_each("no wait for copies", (TQ1, Q51_WIDE), ((WAIT, ""),), BITS),
    *_each("wait for one group fewer", (TQ1, Q51_WIDE), ((WAIT, WAIT.replace(" - 1", "")),), BITS),
    *_each(
        "one group fewer under way", (TQ1, Q51), (("i < stages; ++i) request", "i < stages - 1; ++i) request"),), BITS
    ),
    *_each("no wait for inputs", (TQ1, Q51, ("Q4_K", "quantise")), ((INPUTS, ""),), FAULT),
    *_each("no commit", (TQ1, Q51), (("        qgen_copy_commit();\n", ""),), BITS),
    *_each("read slot does not advance", (TQ1, Q51), ((ADVANCE, ""),), BITS),
    *_each(
        "write slot does not advance",
        (TQ1, Q51),
        (("        ahead_slot = ahead_slot + 1 == stages ? 0 : ahead_slot + 1;\n", ""),),
        BITS,
    ),
    *_each("warps share one ring", (TQ1, Q51), (("qgen_shared + warp * (stages", "qgen_shared + 0 * (stages"),), ORDER),
    *_each("rows share one slot", (TQ1, Q51), (("(slot * warp_rows + warp_row)", "(slot * warp_rows)"),), BITS),
]

TAILS = [
    *_each("row tail not dropped when copying", (TQ1, Q51), ((" && row < rows)\n", ")\n"),), FAULT),
    *_each("row tail not dropped when copying", (Q51_WIDE,), (("            if (row < rows)\n", ""),), FAULT),
    *_each("row tail not dropped when storing", (TQ1, Q51), ((" && row < rows) qgen_store", ") qgen_store"),), FAULT),
    *_each("block tail not dropped", (TQ1, Q51), (("if (block < blocks) {", "{"),), BITS),
    *_each("step tail read whole", (TQ1, Q51), (("(left < team_blocks ? left : team_blocks)", "team_blocks"),), FAULT),
    *_each("one piece too few", (TQ1,), (("8>(weight", "7>(weight"),), BITS),
    *_each("one piece too few", (Q51,), (("13>(weight", "12>(weight"),), BITS),
    *_each("one piece too many", (TQ1,), (("8>(weight", "9>(weight"),), FAULT),
    # A pass may cover more rows than the warp has: then the next tile's would be read too.
    *_each("row of another tile", (SLIM,), (("slot < warp_rows && ", ""),), FACTOR),
    *_each("last step left out", (TQ1, Q51), (("(blocks + team_blocks - 1) /", "blocks /"),), BITS),
    *_each("last row tile left out", (TQ1, Q51), (("(rows + warp_rows - 1) /", "rows /"),), "y not written"),
    *_each("steps past the end", (TQ1,), (("if (step >= steps) break;", ""),), FAULT),
    *_each("steps past the end", (Q51,), (("if (step >= steps) break;", ""),), BITS),
    *_each("sums kept between row tiles", (TQ1, Q51), (
        ("    for (int tile = ", "    float sum[rows_a_team][substeps] = {};\n    for (int tile = "),
        ("        float sum[rows_a_team][substeps] = {};\n        for", "        for"),
    ), BITS),
    *_each("row tiles done twice", (TQ1, Q51), (("gridDim.x * kWarps", "gridDim.x"),), FACTOR),
    *_each("copies stay in the first row tile", (TQ1, Q51), (("ahead_tile += tile_stride;", ""),), FACTOR),
    *_each("32-bit row offsets", (TQ1, Q51), ((" row * row_stride + first, bytes,\n", OFFSET + ",\n"),), FAULT),
    *_each("32-bit row offsets", (Q51_WIDE,), ((" row * row_stride + first, bytes, l", OFFSET + ", l"),), FAULT),
    *_each("threads of two rows mixed", (TQ1, Q51), (("lane % share)", "lane)"),), BITS),
    *_each("start of a piece forgotten", (TQ1, Q51), (("(start & 15u) +", "0 +"),), BITS),
    *_each("row padding forgotten", (TQ1, Q51), (("(uint32_t)row_stride", "(uint32_t)(blocks * kBlockBytes)"),), BITS),
    *_each("activation of block 0", (TQ1, Q51), (("block % kTileBlocks * kLanes", "0 * kLanes"),), BITS),
    *_each("activation of tile 0", (TQ1, Q51), (("(int64_t)(block / kTileBlocks)", "(int64_t)(0)"),), BITS),
    *_each("scales of block 0", (TQ1, Q51), (("(int64_t)block * (kScales", "(int64_t)0 * (kScales"),), BITS),
    *_each("sums of block 0", (TQ1, Q51), (("((int64_t)block * kLanes + t)", "(t)"),), BITS),
]  # fmt: skip

HALVING = "for (int h = substeps / 2; h > 0; h /= 2)"
TREE = "for (int h = team_blocks / 2 * kLanes; h >= kLanes; h /= 2)"
FUSED = (
    "template <int rows_a_team, int team_blocks",
    "__device__ float apart(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }\n"
    "template <int rows_a_team, int team_blocks",
)

REDUCTION = [
    *_each("slices added by neighbours", (TQ1, Q51), (
        (HALVING, "for (int h = 1; h < substeps; h *= 2)"),
        ("sub < h; ++sub) sum", "sub + h < substeps; sub += 2 * h) sum"),
    ), BITS),
    *_each("slices added in a row", (TQ1, Q51), (
        (HALVING, "for (int h = 1; h < substeps; ++h)"),
        ("sub < h; ++sub) sum[r][sub] = __fadd_rn(sum[r][sub]", "sub < 1; ++sub) sum[r][sub] = __fadd_rn(sum[r][sub]"),
    ), BITS),
    *_each("half of the slices", (TQ1, Q51), ((HALVING, "for (int h = substeps / 4; h > 0; h /= 2)"),), BITS),
    *_each("lanes added by neighbours", (TQ1_WIDE, Q51_WIDE), (
        (TREE, "for (int h = kLanes; h < team_blocks * kLanes; h *= 2)"),
    ), BITS),
    *_each("half of the lanes", (TQ1_WIDE, Q51_WIDE), ((TREE, TREE.replace("/ 2 *", "/ 4 *")),), BITS),
    *_each("blocks of two teams mixed", (TQ1, Q51), (
        (TREE, "for (int h = team_blocks * kLanes; h >= kLanes; h /= 2)"),
    ), BITS),
    *_each("no sum over the team", (TQ1,), (("s[i] += __shfl_xor_sync(0xffffffffu, s[i], h)", "s[i] += 0"),), BITS),
    *_each("sum over half the team", (TQ1,), (("h < kLanes; h *= 2", "h < kLanes / 2; h *= 2"),), BITS),
    *_each("multiply and add apart", (TQ1, Q51), (FUSED, ("total = __fmaf_rn(", "total = apart(")), BITS),
    *_each("one block's sums for all slices", (TQ1, Q51), (("sum[r][sub] = total;", "sum[r][0] = total;"),), BITS),
]  # fmt: skip

DECODING = [
    Mutant("wrong digit power", TQ1, (("81u)", "80u)"),), BITS),
    Mutant("wrong digit power of a single byte", TQ1, (("5308443u", "5308442u"),), BITS),
    Mutant("wrong digit stride", TQ1, (("x[1]", "x[@]"), ("x[2]", "x[1]"), ("x[@]", "x[2]")), BITS),
    Mutant("digits in base 2", TQ1, ((" - 3u * p1", " - 2u * p1"),), BITS),
    Mutant("odd byte from the even ones", TQ1, (
        ("odd = qgen_prmt(w[0], 0u, 0x4341u)", "odd = qgen_prmt(w[0], 0u, 0x4241u)"),
    ), BITS),
    Mutant("code offset forgotten", TQ1, (("int g0 = -1 * a[0]", "int g0 = 0 * a[0]"),), BITS),
    Mutant("scale at the wrong byte", TQ1, (("stage + b + 52", "stage + b + 50"),), BITS),
    Mutant("wrong digit stride", ("PTQ1_0", "narrow"), (("x[8]", "x[@]"), ("x[9]", "x[8]"), ("x[@]", "x[9]")), BITS),
    Mutant("one scale of x for all units", ("NVFP4", "wide"), (("dx[1]", "dx[0]"),), BITS),
    Mutant("high bit one too low", ("Q3_K", "narrow"), (("& 0x01010101u) << 2", "& 0x01010101u) << 1"),), BITS),
    Mutant("shift of another code", ("Q3_K", "wide"), ((">> lane1 & 0x01010101u", ">> lane0 & 0x01010101u"),), BITS),
    Mutant("words of the first thread", ("Q3_K", "narrow"), (("stage, from1 + 32)", "stage, b + 32)"),), BITS),
    Mutant("words of half the stride", ("Q3_K", "wide"), (("qgen_keep(b + 16 * t)", "qgen_keep(b + 8 * t)"),), BITS),
    Mutant("scale byte of another origin", ("Q3_K", "narrow"), (("stage[from2 +", "stage[from0 +"),), BITS),
    Mutant("scale of another group", ("Q3_K", "narrow"), (
        (") * g1 ", ") * @ "), (") * g2 ", ") * g1 "), (") * @ ", ") * g2 "),
    ), BITS),
    Mutant("wrong shift of packed bits", ("Q5_0", "wide"), (("(w[0] >> 16)", "(w[0] >> 17)"),), BITS),
    Mutant("packed bits land too low", ("Q5_0", "narrow"), (("<1>(w[0]) << 4", "<1>(w[0]) << 3"),), BITS),
    Mutant("bits moved to the wrong place", ("Q3_K", "narrow"), (("& 0x04040404u)", "& 0x08080808u)"),), BITS),
    Mutant("wrong sign of a term", ("Q4_K", "narrow"), (("__fmaf_rn(-__fmul_rn(", "__fmaf_rn(__fmul_rn("),), BITS),
    Mutant("sums of the terms swapped", ("Q4_K", "wide"), (
        ("s[0]), total", "s[@]), total"), ("s[1]), total", "s[0]), total"), ("s[@]), total", "s[1]), total"),
    ), BITS),
    Mutant("high bits of a scale", ("Q4_K", "narrow"), (("& 3) << 4", "& 1) << 4"),), BITS),
    Mutant("scale of the mins for the codes", ("Q4_K", "narrow"), (("stage + b + 2)", "stage + b + 0)"),), BITS),
    Mutant("block base not scaled by 144", ("Q4_K", "wide"), (("kBlockBytes = 144", "kBlockBytes = 128"),), BITS),
    Mutant("unsigned scales", ("Q6_K", "narrow"), (("(int)(int8_t)stage", "(int)(uint8_t)stage"),), BITS),
    Mutant("minimum forgotten", Q51, (("s[1] = a[0]", "s[1] = 0"),), BITS),
    Mutant("narrow mask", ("Q2_0", "narrow"), (("0x03030303u", "0x03010303u"),), BITS),
    Mutant("wrong shift", ("Q2_K", "narrow"), (("w[3] >> 6 &", "w[3] >> 5 &"),), BITS),
    Mutant("codes doubled once too few", ("Q1_0", "narrow"), (("g0 = 2 * g0", "g0 = 1 * g0"),), BITS),
    Mutant("high nibbles looked up twice", ("IQ4_NL", "narrow"), (("w[3] >> 16", "w[3]"),), BITS),
    Mutant("wrong codebook entry", ("IQ4_XS", "narrow"), (("kHalf2 = 0x271a0e02u", "kHalf2 = 0x271a0d02u"),), BITS),
    Mutant("high half of the codebook left out", ("MXFP4", "narrow"), (
        ("    g0 = qgen_dot4(qgen_table_high(w[3], table.y, kHalf3), x[6], g0);\n", ""),
    ), BITS),
    Mutant("halves of the codebook swapped", ("NVFP4", "narrow"), (
        ("qgen_table_starts(kHalf0, kHalf2)", "qgen_table_starts(kHalf2, kHalf0)"),
    ), BITS),
    Mutant("scale offset forgotten", ("IQ4_XS", "narrow"), ((" - 32)", " - 0)"),), BITS),
    Mutant("scale of another unit", ("NVFP4", "narrow"), (("stage + b + 3)", "stage + b + 2)"),), BITS),
    Mutant("codes read one byte early", ("MXFP4", "narrow"), (("stage, b + 1)", "stage, b + 0)"),), BITS),
    Mutant("sign flip forgotten", ("TWOS4", "narrow"), ((" ^ 0x08080808u", ""),), BITS),
    Mutant("scale offset inside the or", ("TABLE_SCALED", "narrow"), (
        ("(((stage", "((stage"), ("<< 4)) - 5)", "<< 4) - 5)"),
    ), BITS),
    Mutant("codes read one byte early", ("Q8_0", "wide"), (("stage, b + 2)", "stage, b + 1)"),), BITS),
]  # fmt: skip


def _header(name: str, target: tuple[str, str], edit: Edit, caught: str) -> list[Mutant]:
    return [Mutant(name=name, target=target, edits=(edit,), caught=caught, header=True)]


HELPERS = [
    *_header("first piece copied whole", TQ1, (" && (lane > 0 || lead == 0)", ""), FAULT),
    *_header("last piece copied whole", TQ1, ("if (left >= 16 &&", "if (left > 0 &&"), FAULT),
    *_header("last of many pieces copied whole", Q51_WIDE, (">= 16 * piece + 16", "> 16 * piece"), FAULT),
    *_header("every other piece of a thread", ("Q8_0", "wide"), ("piece += threads", "piece += 2 * threads"), BITS),
    *_header("pieces beyond a thread's first left out", Q51_WIDE, ("piece < pieces", "piece < 0 * pieces"), BITS),
    *_header("ragged ends left out", TQ1, ("if (((lead | end) & 15) != 0", "if (false"), BITS),
    *_header("ragged start from its piece's start", TQ1, ("lane == 0 ? lead : last", "lane == 0 ? 0 : last"), FAULT),
    *_header("ragged end to its piece's end", TQ1, ("min(16, end) : end", "min(16, end) : last + 16"), FAULT),
    *_header("word past the ragged end", TQ1, ("i + 4 <= stop", "i < stop"), FAULT),
    # Only blocks shorter than a piece can begin and end in one: no shipped format has them.
    *_header("short block copied to its piece's end", SMALL, ("min(16, end) : end", "16 : end"), READ),
    *_header("both ends of one piece copied twice", SMALL, ("(last != 0 || lead == 0)", "true"), FAULT),
    *_header("spread of packed bits", ("Q5_0", "narrow"), ("v << (8 - apart)", "v << (9 - apart)"), BITS),
    *_header("spread of packed pairs", ("PACKED_PAIRS", "narrow"), ("pair | pair << 16", "pair | pair << 15"), BITS),
    *_header("words not shifted", TQ1, ("shift = (at & 3) * 8", "shift = (at & 2) * 4"), BITS),
    *_header("word shifted into itself", TQ1, ("high = p[i + 1]", "high = p[i]"), BITS),
    *_header("high half of the codebook", ("IQ4_NL", "narrow"), ("w ^ 0x8888u", "w ^ 0x0888u"), BITS),
    *_header("order of the digits' bytes", TQ1, ("0x7351u", "0x7531u"), BITS),
    *_header("least scales", ("MXFP4", "narrow"), ("e < 2 ?", "e < 1 ?"), BITS),
    *_header("bit 7 of a scale", ("NVFP4", "narrow"), ("v == 0x7fu", "(v & 0x7fu) == 0x7fu"), BITS),
    *_header("NaN scales", ("E8M0", "narrow"), ("e == 255 ? 0x7fc00000u : ", ""), BITS),
    *_header("subnormal scales", ("NVFP4", "narrow"), ("0.001953125f", "0.00390625f"), BITS),
]  # fmt: skip

SYNC = "    __syncwarp();\n"
CODES = "codes plane"


def _quantiser(name: str, edits: tuple[Edit, ...], caught: str, format: str = "TQ1_0") -> Mutant:
    return Mutant(name=name, target=(format, "quantise"), edits=edits, caught=caught)


QUANTISERS = [
    _quantiser("no barrier before the words", ((SYNC + "\n    // Word i", "\n    // Word i"),), CODES),
    _quantiser("no barrier before the sums", ((SYNC + "\n    // Sums", "\n    // Sums"),), "sums plane"),
    _quantiser("sign kept in the largest", ((" & 0x7fffffffu", ""),), CODES),
    _quantiser("largest of two threads", (
        ("__reduce_max_sync(0xffffffffu, v)", "max(v, __shfl_xor_sync(0xffffffffu, v, 8))"),
    ), CODES),
    _quantiser("reciprocal of a tiny number", (("inverse <= 3.402823466e+38f ? inverse : 0.0f", "inverse"),), CODES),
    _quantiser("rounded towards zero", (("(uint8_t)__float2int_rn(", "(uint8_t)(int)("),), CODES),
    _quantiser("ties away from zero", (
        ("(uint8_t)__float2int_rn(__fmul_rn(v[i], inverse))",
         "(uint8_t)(int)(__fmul_rn(v[i], inverse) + (v[i] < 0 ? -0.5f : 0.5f))"),
    ), CODES),
    _quantiser("scale by a reciprocal", (
        ("__fdiv_rn(largest, 127.0f)", "__fmul_rn(largest, 1.0f / 127.0f)"),
    ), "scale plane"),
    _quantiser("codes by division", (
        ("__fmul_rn(v[i], inverse)", "__fdiv_rn(v[i], __fdiv_rn(largest, 127.0f))"),
    ), CODES),
    _quantiser("padding left out", (("(block >= tiles * kTileBlocks) return", "(block >= blocks) return"),), CODES),
    _quantiser("x read past its end", (("v[i] = block < blocks ? ", "v[i] = true ? "),), FAULT),
    _quantiser("two words swapped", (
        ("{65536, 196610}, {2162720, 2293794}", "{2162720, 2293794}, {65536, 196610}"),
    ), CODES),
    _quantiser("words of the wrong chunk", (("tile + chunk * (32 * 16)", "tile + chunk * (16 * 16)"),), CODES),
    _quantiser("empty places not zero", (("if (lane == 0) codes[kBlock] = 0;", ""),), CODES, "BASE3_GAPS"),
    _quantiser("one scale for all groups", (("* kScales + s)", "* kScales)"),), "scale plane", "NVFP4"),
    _quantiser("sums of the wrong thread", (("thread * 4 + j % 4", "j % 4"),), "sums plane"),
    _quantiser("a word short in each sum", (("j < 8 + 8 * group", "j < 7 + 8 * group"),), "sums plane", "Q4_K"),
    _quantiser("every token's x is the first's", (("token * x_stride", "0 * x_stride"),), "codes plane"),
    _quantiser("rows of x back to back", (("token * x_stride", "token * (int64_t)(blocks * kBlock)"),), "codes plane"),
    _quantiser("every token in the place of the first", (("activation += token", "activation += 0"),), "codes plane"),
    _quantiser("tokens apart without their sums", (("(32 * kSumSlots * 4)", "(0 * kSumSlots * 4)"),), "sums plane"),
    _quantiser("a word short in an uneven sum", (
        ("kGroupWords[group + 1]", "kGroupWords[group + 1] - 1"),
    ), "sums plane", "BASE3_UNEVEN"),
]  # fmt: skip

MUTANTS = SYNCHRONISATION + TAILS + REDUCTION + DECODING + HELPERS + QUANTISERS


# ---- slips in decoding -----------------------------------------------------------------------------------------------

_PLACES = re.compile(
    r"(?<=x\[)\d+(?=\])|(?<=w\[)\d+(?=\])|(?<=>> )\d+(?= &)|(?<=& 0x)[0-9a-f]{8}(?=u)|(?<=odd, )\d+(?=u)"
)


def slips(text: str) -> list[Edit]:
    """Every single slip in the decoding of a matvec file, as (what, text after it).

    Another activation word, another packed word, a shift or a power off by one, a mask short of its lowest bit.
    """
    begin = text.index("void block_sums(")
    end = text.index("\n}\n", begin)
    chunks = re.search(r"kChunks = (\d+);", text)
    words = re.search(r"uint32_t w\[(\d+)\];", text)
    assert chunks and words
    counts = {"x[": 4 * int(chunks[1]), "w[": int(words[1])}
    found = []
    for place in _PLACES.finditer(text, words.end(), end):
        before, old = text[place.start() - 2 : place.start()], place[0]
        if before in counts:
            new = str((int(old) + 1) % counts[before])
        elif before == "0x":
            new = f"{int(old, 16) & (int(old, 16) - 1):08x}"
        else:
            new = str(int(old) + 1)
        if new != old:
            line = text.count("\n", 0, place.start()) + 1
            found.append((f"line {line}: {before}{old} -> {new}", text[: place.start()] + new + text[place.end() :]))
    return found
