"""Damage to kernels with f16 or bf16 activations, one slip at a time, as changes of the text."""

from __future__ import annotations

from dataclasses import dataclass

BITS, ORDER, READ, TRAFFIC, FACTOR, FAULT = (
    "bits differ from the contract",
    "bits depend on the thread order",
    "bytes outside the packed ones are read",
    "activation read",
    "read factor",
    "fault",
)
VALUES, UNUSED, SUMS, ONCE = "values plane", "values of no token written", "sums plane", "planes not written once"


@dataclass(frozen=True)
class Mutant:
    """One way to break a kernel.

    columns: capacity of the routed rung that is broken; 0: what arranges x
    edits:   (text, replacement) in turn, at the first place; the text must be there, in the file or in its headers for
             floats
    caught:  the checks of which one must fail, or "fault" for the emulator's
    """

    name: str
    format: str
    activation: str
    columns: int
    edits: tuple[tuple[str, str], ...]
    caught: tuple[str, ...]


def _one(name: str, target: tuple[str, str, int], old: str, new: str, *caught: str) -> Mutant:
    return Mutant(name, *target, ((old, new),), caught)


PLANES, SCALED, BYTES, DIGITS = (
    ("Q5G64_F16S", "bf16", 8), ("Q4_K", "bf16", 8), ("Q8_0", "bf16", 16), ("TQ1_0", "f16", 8),
)  # fmt: skip
# Folded: minimums of one run of groups; of two; signed scales, codes converted before they are multiplied.
FOLDED, RUNS, SIGNED = ("Q4_K", "f16", 8), ("Q2_K", "bf16", 8), ("Q3_K", "f16", 8)
WAIT = "            qgen_copy_wait<R::stages - 2>();\n"
FOLD = "template <int row_tiles, int column_tiles>\n__device__ __forceinline__ void fold("
APART = "__device__ float apart(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }\n"
RESTART = "        d[0][0][0] = 0.0f;\n        multiply<0, row_tiles, column_tiles>(d, q, 8,"
BARRIER = "            __syncthreads();\n            request();\n"

MUTANTS = (
    # the pipeline
    _one("no wait for copies", PLANES, WAIT, "", BITS),
    _one("no wait for inputs", PLANES, "    qgen_wait_for_inputs();", "", FAULT),
    _one("no barrier before a stage", PLANES, BARRIER, "            request();\n", BITS, ORDER),
    _one(
        "request before the barrier",
        PLANES,
        BARRIER,
        "            request();\n            __syncthreads();\n",
        BITS,
        ORDER,
    ),
    _one("slot stands still", PLANES, "slot = slot + 1 == R::stages ? 0 : slot + 1;\n        }", "}", BITS),
    _one(
        "no barrier before the sum",
        PLANES,
        "    __syncthreads();\n    for (int i = threadIdx",
        "    for (int i = threadIdx",
        BITS,
        ORDER,
    ),
    _one(
        "slices in another order",
        PLANES,
        "qgen_halving_sum<warps>(v)",
        "v[0] + v[1] + v[2] + v[3] + v[4] + v[5] + v[6] + v[7]",
        BITS,
    ),
    _one(
        "warps overlap in the sum",
        PLANES,
        "(warp * columns + column) * stride",
        "(warp * columns / 2 + column) * stride",
        BITS,
        ORDER,
    ),
    # rows, tokens and blocks at the end
    _one(
        "rows past the end copied", PLANES, "slot < tile_rows && first + slot < rows", "slot < tile_rows", FAULT, READ
    ),
    _one("rows past the end stored", PLANES, "if (row < rows_left && column", "if (column", FAULT),
    _one("tokens past the end stored", PLANES, "row < rows_left && column < tokens_left", "row < rows_left", FAULT),
    _one("x of no token read", PLANES, "8 * n + g < left", "8 * n < left", TRAFFIC, BITS),
    _one(
        "sums of no tile read",
        ("Q4_1", "bf16", 16),
        "8 * n < left ? qgen_load_u32x2",
        "true ? qgen_load_u32x2",
        FAULT,
        TRAFFIC,
    ),
    _one(
        "blocks past the end added",
        PLANES,
        "if (stage * stage_blocks + in_stage < blocks)",
        "if (true)",
        FAULT,
        BITS,
        TRAFFIC,
    ),
    _one("second tile of tokens reads the first", PLANES, "(int64_t)(column / 8) * blocks", "0", BITS),
    # planes, and where rows begin in their pieces
    _one("high plane a row off", PLANES, "R::weight_high_at + (g", "R::weight_high_at + 8 + (g", BITS),
    _one(
        "scale plane without its lead",
        PLANES,
        "(uint32_t)weight_scale_stride) & 15u",
        "(uint32_t)weight_scale_stride) & 0u",
        BITS,
    ),
    _one("planes share a place", PLANES, "weight_high_at = ", "weight_high_at = 16 + 0 * ", BITS, ORDER),
    # codes, scales, terms
    _one("an offset too many", PLANES, "0xc310c310u", "0xc311c311u", BITS),
    _one(
        "codes of two rows swapped",
        PLANES,
        "operand(q[2 * r + 1][word], a[1], a[3])",
        "operand(q[2 * r + 1][word], a[3], a[1])",
        BITS,
    ),
    _one("halves of a piece swapped", PLANES, "half == 0 ? x[n].x : x[n].z", "half == 1 ? x[n].x : x[n].z", BITS),
    _one("sign bit lost", BYTES, "widened & 0xff80ff80u", "0x43004300u", BITS),
    _one("low bits lost", BYTES, "widened & 0xff7fff7fu", "widened & 0xff7eff7fu", BITS),
    _one("minimum added", SCALED, "c[h] = -__fmul_rn", "c[h] = __fmul_rn", BITS),
    _one("scale of a neighbour", SCALED, "qgen_unsigned_byte<1>(sc[h][0])", "qgen_unsigned_byte<2>(sc[h][0])", BITS),
    _one(
        "scales of another row",
        SCALED,
        "scale_word_mn(weight[h], t)",
        "scale_word_mn(weight[0], t)",
        BITS,
    ),
    Mutant(
        "fused step in two",
        *SCALED,
        (
            (FOLD, APART + FOLD),
            (
                "sum[i] = __fmaf_rn(c[i / (4 * column_tiles) * 2 + i % 4 / 2], d",
                "sum[i] = apart(c[i / (4 * column_tiles) * 2 + i % 4 / 2], d",
            ),
        ),
        (BITS,),
    ),
    _one("digits of the wrong base", DIGITS, "0xe401e401u", "0xe400e400u", BITS),
    # folded scales
    _one("scale of the next group", FOLDED, "code_scale<1>(sc[h][0])", "code_scale<2>(sc[h][0])", BITS),
    _one("summand without its scale", FOLDED, "Class::fma(scale, 0xe400e400u, 0u)", "0xe400e400u", BITS),
    _one("low pieces of sums dropped", FOLDED, "d[r][n], a, x.x, x.y)", "d[r][n], a, x.x, 0u)", BITS),
    _one("high pieces of sums twice", FOLDED, "d[r][n], a, x.x, x.y)", "d[r][n], a, x.x, x.x)", BITS),
    _one("minimums of other groups", FOLDED, "+ 2 * i + t / 2), t % 2)", "+ 2 * i + t / 2), 0)", BITS),
    _one("minimums of another word", FOLDED, "+ 2 * i + t / 2), t % 2)", "+ 2 * i), t % 2)", BITS),
    _one("folded minimum added", FOLDED, "c[h] = -f1[h]", "c[h] = f1[h]", BITS),
    _one("sums of the first run", RUNS, "sums + i * 256", "sums", BITS, TRAFFIC),
    _one("minimums of the first run", RUNS, "(m, pairs[i], sums", "(m, pairs[0], sums", BITS),
    _one("a sum begun anew", RUNS, "        multiply<0, row_tiles, column_tiles>(d, q, 8,", RESTART, BITS),
    _one("signed scale taken as it is", SIGNED, "(scales ^ 0x80808080u)", "(scales)", BITS),
    # arranging x
    _one("no wait for inputs", ("Q5G64_F16S", "bf16", 0), "    qgen_wait_for_inputs();\n", "", FAULT),
    _one(
        "tie away from even",
        ("Q5G64_F16S", "bf16", 0),
        "Class::rounded(qgen_load_f32((const float*)x + first + 32 * i))",
        "(uint16_t)(__float_as_uint(qgen_load_f32((const float*)x + first + 32 * i)) + 0x8000u >> 16)",
        VALUES,
    ),
    _one(
        "pair swapped",
        ("Q5G64_F16S", "bf16", 0),
        "a = values[pair & 0xffffu], b = values[pair >> 16]",
        "a = values[pair >> 16], b = values[pair & 0xffffu]",
        VALUES,
    ),
    _one("padding tokens written", ("Q5G64_F16S", "bf16", 0), "    if (token < tokens) {", "    if (true) {", UNUSED),
    _one("no barrier in the warp", ("Q5G64_F16S", "bf16", 0), "    __syncwarp();\n", "", VALUES),
    _one("sum before rounding", ("Q4_K", "bf16", 0), "Class::wide(v[0])", "Class::wide(v[0]) * 1.0001f", SUMS),
    _one("one step of the sum left out", ("Q4_K", "bf16", 0), "h > 0; h /= 2", "h > 1; h /= 2", SUMS),
    _one(
        "sums of one group in all places",
        ("Q4_K", "bf16", 0),
        "sums + (1 + lane / 32) * 8",
        "sums + (lane / 32) * 8",
        SUMS,
        ONCE,
    ),
    _one("no low pieces", ("Q4_K", "f16", 0), "c | (uint32_t)d << 16", "0u", SUMS),
    _one("pieces of the pair swapped", ("Q4_K", "f16", 0), "a | (uint32_t)b << 16", "b | (uint32_t)a << 16", SUMS),
    _one("pieces of the next thread", ("Q4_K", "f16", 0), "i % 4 * 8", "(i ^ 1) % 4 * 8", SUMS),
    _one("every other sum lost", ("Q2_K", "bf16", 0), "__shfl_xor_sync(0xffffffffu, held[i], 16)", "0.0f", SUMS),
)
