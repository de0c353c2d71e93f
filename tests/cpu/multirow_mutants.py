"""Damage to multirow kernels and their helpers, one slip at a time, as changes of the text."""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str]
BITS, ORDER, LOST, READS, FACTOR, FAULT = (
    "bits differ from the contract",
    "bits depend on the thread order",
    "y not written",
    "activation read",
    "read factor",
    "fault",
)


@dataclass(frozen=True)
class Mutant:
    """One way to break a kernel.

    rows, columns: the variant that is broken
    edits:         (text, replacement) in turn, at the first place; the text must be there
    caught:        the check that must fail, or "fault" for the emulator's
    """

    name: str
    format: str
    rows: int
    columns: int
    edits: tuple[Edit, ...]
    caught: str


Target = tuple[str, int, int]
HELD, WALKED, LONE, PARTS = ("Q4_K", 2, 4), ("Q4_K", 4, 2), ("Q4_0", 2, 2), ("NVFP4", 2, 4)


def _each(name: str, targets: tuple[Target, ...], old: str, new: str, caught: str) -> list[Mutant]:
    return [Mutant(name, format, rows, columns, ((old, new),), caught) for format, rows, columns in targets]


BARRIER = "                __syncwarp();\n"
WAIT = "                qgen_copy_wait<stages - 1>();\n"

SYNCHRONISATION = [
    *_each("no barrier before the sums", (HELD, LONE), WAIT + BARRIER, WAIT, BITS),
    *_each("no wait for copies", (HELD, LONE), WAIT, "", BITS),
    *_each("wait for one group fewer", (HELD,), WAIT, WAIT.replace(" - 1", ""), BITS),
    *_each("no barrier after the sums", (LONE,), BARRIER + "                request", "                request", BITS),
    *_each("no wait for inputs", (HELD,), "    qgen_wait_for_inputs();\n", "", FAULT),
    *_each("no commit", (HELD,), "        qgen_copy_commit();\n", "", BITS),
    *_each(
        "read slot does not advance",
        (LONE,),
        "                slot = slot + 1 == stages ? 0 : slot + 1;\n",
        "",
        BITS,
    ),
    *_each("warps share one ring", (HELD,), "qgen_shared + warp * (stages", "qgen_shared + 0 * (stages", ORDER),
]

TAILS = [
    *_each("row tail stored", (HELD, WALKED, LONE), "row < rows && c < left)", "c < left)", FAULT),
    *_each("token tail stored", (HELD, WALKED, LONE), "row < rows && c < left)", "row < rows)", FAULT),
    *_each("token tail read", (HELD, WALKED), "if (c + 1 < left) token", "token", FAULT),
    *_each("tokens walked past the end", (HELD, LONE), "(rows_held ? c >= left", "(rows_held ? false", READS),
    *_each("stops before the sums are dealt", (HELD,), "e % held == 0 && e % dealt == 0", "e % held == 0", BITS),
    *_each("block tail added", (HELD, LONE), "if (block < blocks) sum", "sum", BITS),
    *_each("last step left out", (HELD,), "(blocks + team_blocks - 1) /", "blocks /", BITS),
    *_each("last row tile left out", (LONE,), "(rows + warp_rows - 1) /", "rows /", LOST),
    *_each("y of the first tokens", (HELD,), "(first + c) * y_stride", "c * y_stride", LOST),
    *_each("y rows back to back", (LONE,), "* y_stride + row", "* rows + row", "writes outside y"),
    *_each("activation of the first tokens", (HELD,), "activation += first *", "activation += 0 *", BITS),
    *_each("tokens apart by their scales", (LONE,), "token_bytes = sum_plane +", "token_bytes = scale_plane +", BITS),
    *_each("copies stay in the first row tile", (LONE,), "ahead_tile += tile_stride;", "", FACTOR),
    *_each(
        "32-bit row offsets",
        (HELD,),
        "weight + row * row_stride + first",
        "weight + (int)(row * row_stride) + first",
        FAULT,
    ),
    *_each("start of a piece forgotten", (LONE,), "(int)(start & 15u)", "0", BITS),
]

SUMS = [
    *_each("rows walked in the same order by all", (HELD, WALKED), "stage(r ^ deal_row)", "stage(r)", BITS),
    *_each("sums of another token", (HELD,), "[c % deal_columns]", "[deal_columns - 1 - c % deal_columns]", BITS),
    *_each("sums sent across the wrong bit", (HELD, WALKED), "sent, high)", "sent, 2 * high)", BITS),
    *_each("rows stored in one place", (HELD, WALKED), "+ deal_row;\n", "+ 0;\n", BITS),
    *_each("factors of another row", (WALKED,), "factors0(stage(own_row(deal))", "factors0(stage(r)", BITS),
    *_each("scale of another token", (HELD, WALKED), "if (deal_column == i) dx", "if (false) dx", BITS),
    *_each("tokens stored in one place", (HELD,), "+ deal_column;\n", "+ 0;\n", "y written more than once"),
    *_each("one sum for all slices", (HELD,), "sum[sub][deal] = add0", "sum[0][deal] = add0", BITS),
    *_each(
        "halving by neighbours",
        (LONE,),
        "qgen_deal_sums<owned, team_blocks / 2 * kLanes, kLanes>(sum[0], lane)",
        "for (int i = 0; i < owned; ++i) for (int h = 1; h < 32; h *= 2) "
        "sum[0][i] = __fadd_rn(sum[0][i], __shfl_xor_sync(0xffffffffu, sum[0][i], h))",
        BITS,
    ),
    *_each("every thread stores", (HELD, LONE), "if (stores && row", "if (row", "y written more than once"),
    *_each(
        "sums kept between row tiles",
        (LONE,),
        "        float sum[substeps][owned] = {};",
        "        static thread_local float sum[substeps][owned] = {};",
        BITS,
    ),
    *_each(
        "multiply and add apart",
        (HELD, LONE),
        "total = __fmaf_rn(__fmul_rn(f[0], dx[0]), __int2float_rn(s[0]), total);",
        "total = __fadd_rn(__fmul_rn(__fmul_rn(f[0], dx[0]), __int2float_rn(s[0])), total);",
        BITS,
    ),
]

INTEGERS = [
    *_each("a code word left out", (HELD,), "for (int j = 0; j < 8; ++j) g0", "for (int j = 1; j < 8; ++j) g0", BITS),
    *_each(
        "scales of the other group", (HELD,), "row.k[0] * g0 + row.k[1] * g1", "row.k[1] * g0 + row.k[0] * g1", BITS
    ),
    *_each("minimums of the other group", (WALKED,), "row.k[2] * a[0]", "row.k[3] * a[0]", BITS),
    *_each("code offset forgotten", (LONE,), "int g0 = -8 * a[0]", "int g0 = 0 * a[0]", BITS),
    *_each(
        "part loaded from the first pieces",
        (PARTS,),
        "codes + (2 + c) * (32 * 16)",
        "codes + (0 + c) * (32 * 16)",
        BITS,
    ),
    *_each("activation scale of the first part", (PARTS,), "scales + 4 * 1)", "scales + 4 * 0)", BITS),
    *_each("scale of another unit", (PARTS,), "__fmul_rn(f[1], dx[0])", "__fmul_rn(f[0], dx[0])", BITS),
    Mutant("codes not doubled", "Q1_0", 2, 2, (("g0 = 2 * g0", "g0 = 1 * g0"),), BITS),
    Mutant("digits of the next part", "PTQ1_0", 2, 2, (("q[0] = p1;", "q[0] = p2 - 3u * p1;"),), BITS),
    *_each(
        "sent where it should be kept",
        (HELD,),
        "kept = upper ? v[2 * i + 1] : v[2 * i]",
        "kept = upper ? v[2 * i] : v[2 * i + 1]",
        BITS,
    ),
    *_each(
        "lowest bit dealt first",
        (LONE,),
        "qgen_deal_sums<n / 2, high / 2, low>(v, lane);",
        "qgen_deal_sums<n / 2, high / 4, low>(v, lane);",
        BITS,
    ),
]

MUTANTS = SYNCHRONISATION + TAILS + SUMS + INTEGERS
