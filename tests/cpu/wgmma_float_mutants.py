"""Damage to kernels of the family wgmma with f16 or bf16 activations and to what arranges x for them, one slip at a
time: what their text does not share with the int8 ones', which wgmma_mutants damages."""

from __future__ import annotations

from dataclasses import dataclass

from float_mutants import BITS, FAULT, ORDER
from judging import Edit

VALUES, SUMS = "values of a record", "sums of a record"
Target = tuple[str, str, str]  # a format, a class, and how the rung's name ends; "" for what arranges x


@dataclass(frozen=True)
class Mutant:
    """One way to break a kernel.

    edits:  (text, replacement) in turn, at the first place; the text must be there
    caught: the checks of which one must fail, or "fault" for the emulator's
    """

    name: str
    target: Target
    edits: tuple[Edit, ...]
    caught: tuple[str, ...]


# Q4_K: folded, minimums in pieces, blocks alone. Q4_1: bundles of four blocks in two batches, sums of x as they are.
# Both in one part and in two.
K1, K2, S1, S2 = (
    ("Q4_K", "f16", "t48__wgmma_tiled_g2s1"),
    ("Q4_K", "f16", "t16__wgmma_tiled_g2s2"),
    ("Q4_1", "bf16", "t48__wgmma_tiled_g2s1"),
    ("Q4_1", "bf16", "t16__wgmma_tiled_g2s2"),
)
KQ, SQ = ("Q4_K", "f16", ""), ("Q4_1", "bf16", "")


def _each(name: str, targets: tuple[Target, ...], caught: str | tuple[str, ...], *edits: Edit) -> list[Mutant]:
    checks = (caught,) if isinstance(caught, str) else caught
    return [Mutant(name, target, edits, checks) for target in targets]


def _one(name: str, target: Target, caught: str | tuple[str, ...], *edits: Edit) -> list[Mutant]:
    return _each(name, (target,), caught, *edits)


WAITED = "    qgen_wgmma_wait<0>();\n"
LAST = "        qgen_wgmma_wait<0>();\n        if (!first) {\n            way.add_to(sum);\n"
RELEASED = "            qgen_barrier_arrive(empty + before);\n"
TAKEN = "        way.add_to(sum);\n        done();\n"
DONE = "                    qgen_barrier_arrive(empty + before);\n"
NEXT_BATCH = "    way.add_to(sum);\n    qgen_wgmma_begin();\n"
CODES = "                    sum[i] = __fmaf_rn(c0[w][i % 4 / 2], d[w][i], sum[i]);\n"
MINIMUMS = "                    sum[i] = __fmaf_rn(c1[w][i % 4 / 2], m[w][i], sum[i]);\n"
PAIR = "{pairs[0][0], pairs[0][1], pairs[0][0], pairs[0][1]}"
STORED = "qgen_store_u32(to, pieces.x), qgen_store_u32(to + 128, pieces.y)"
ZERO = "                for (int j = 0; j < 4 * S::column_tiles; ++j) sum[j] = 0.0f;\n"

ON_THEIR_WAY = [
    *_each("sums taken before they are there", (K1, S1, K2, S2), BITS, (WAITED, "")),
    *_each("last sums of a group taken before they are there", (K1, S2), (BITS, FAULT),
        (LAST, LAST[LAST.index("\n") + 1 :])),
    *_each("last sums of a group left out", (K1, S1), BITS, (LAST, LAST.replace("            way.add_to(sum);\n", ""))),
    *_one("sums of a batch left out", S1, BITS, (NEXT_BATCH, "    qgen_wgmma_begin();\n")),
    *_each("nothing done behind a bundle", (K1, S1), (BITS, FAULT), ("        done();\n", "")),
    *_each("done before the bundle is added", (K1, S2), BITS, (TAKEN, "        done();\n        way.add_to(sum);\n")),
    *_each("nothing known of what is on its way", (K1, S1), (BITS, FAULT, ORDER),
        ("    if (!first) {\n        way", "    {\n        way"), ("width> way;", "width> way = {};")),
    *_one("always the first bundle", K1, (BITS, FAULT), ("first = false, before", "before")),
    *_each("slices closed too early", (K1, S1), BITS, ("close_slices(i);", "close_slices(i + 1);")),
    *_each("slices closed too late", (K1, S1), BITS, ("close_slices(i);", "close_slices(i - 1);")),
    *_one("last slices not closed", S1, BITS, ("        close_slices(S::Walk::parts);\n", "")),
    *_one("a slice's sum not begun anew", K1, BITS, (ZERO, "                ;\n")),
    *_one("the last slice begun anew", S1, BITS, ("if (++slice == S::Walk::parts) break;", "++slice;")),
    *_each("stage released that is about to be read", (K1, S2), (BITS, FAULT, ORDER),
        (DONE, DONE.replace("before", "stage"))),
    *_one("stage of a group before released", S1, (BITS, FAULT, ORDER),
        ("first = false, before = stage;", "first = false;")),
    *_each("last stage of a group never released", (K1, S1), FAULT, (RELEASED + "        }", "        }")),
]  # fmt: skip

SUMMED = [
    *_each("sums not begun anew", (K1, S1), (BITS, ORDER), ("true>(way.d[0], a0", "false>(way.d[0], a0")),
    *_each("sums begun anew with every word", (K1, S1), BITS, ("false>(way.d[0], a1", "true>(way.d[0], a1")),
    *_one("a word's products in a neighbour's sums", S1, BITS, ("false>(way.d[1], a3", "false>(way.d[0], a3")),
    *_each("x of the word before", (K1, S1), BITS, ("a1, matrices, 256)", "a1, matrices, 0)")),
    *_each("halves of a word changed over", (K1, S1), BITS, ("a0[1], a0[3]", "a0[3], a0[1]")),
    *_each("codes of another row", (K1, S1), BITS, ("operand(q[1][0], ", "operand(q[0][0], ")),
    *_one("scales of another row", K1, BITS, ("code_scale<0>(sc[1][0])", "code_scale<0>(sc[0][0])")),
    *_one("scales of the group before", K1, BITS, ("code_scale<1>(sc[0][0])", "code_scale<0>(sc[0][0])")),
    *_each("coefficient of the wrong half", (K1, S1), BITS, ("way.c0[0][1] = f0_0[1]", "way.c0[0][1] = f0_0[0]")),
    *_one("coefficient of the block before", S1, BITS, ("-0.0f : f1_1[0]", "-0.0f : f1_0[0]")),
    *_each("coefficients by token", (K1, S1), BITS, ("c0[w][i % 4 / 2]", "c0[w][i % 2]")),
    *_one("minimums before codes", K1, BITS, (CODES + MINIMUMS, MINIMUMS + CODES)),
    *_one("last group's sum first", S1, BITS,
        ("for (int w = 0; w < width; ++w)", "for (int w = width - 1; w >= 0; --w)")),
    *_one("factors of blocks that are not there", S1, BITS,
        ("c0[1][0] = inside <= 1 ? -0.0f : ", "c0[1][0] = "), ("c0[1][1] = inside <= 1 ? -0.0f : ", "c0[1][1] = ")),
    *_one("one block more inside", S1, BITS,
        ("first_block(bundle) + kSlices - 1) / kSlices", "first_block(bundle) + kSlices - 1) / kSlices + 1")),
]  # fmt: skip

MINIMA = [
    *_one("minimums not begun anew", K1, (BITS, ORDER), ("true>(way.m[0]", "false>(way.m[0]")),
    *_one("no low pieces", K1, BITS, (PAIR, "{pairs[0][0], pairs[0][1], 0, 0}")),
    *_one("pieces by row", K1, BITS, (PAIR, "{pairs[0][0], pairs[0][0], pairs[0][1], pairs[0][1]}")),
    *_one("minimums times values", K1, BITS, ("matrices, 4096)", "matrices, 3840)")),
    *_one("minimums of another thread", K1, BITS, ("+ 2 * i + t / 2)", "+ 2 * i + t % 2)")),
    *_one("sums of x of the group behind", S1, BITS, ("record + 2048 + 8 * t", "record + 2080 + 8 * t")),
    *_one("sums of x of the batch before", S1, BITS, ("record + 2112 + 8 * t", "record + 2048 + 8 * t")),
    *_one("sums of x of one group for all", S1, BITS, ("kRecordBytes + 32 * w)", "kRecordBytes)")),
    *_one("sums of x of the first column tile", S1, BITS, ("sums + n * kRecordBytes", "sums")),
    *_one("sums of x of other tokens", S1, BITS, ("record + 2048 + 8 * t", "record + 2048 + 8 * (t ^ 1)")),
    *_one("sums of x of one token", S1, BITS, ("x[i % 2]", "x[i / 2 % 2]")),
]  # fmt: skip

ARRANGED = [
    *_each("words of a token together", (KQ, SQ), VALUES,
        ("record + i / 4 * 128 + token % 8 * 16", "record + i / 4 * 16 + token % 8 * 512")),
    *_each("halves of a word changed over", (KQ, SQ), VALUES, ("a | (uint32_t)b << 16", "b | (uint32_t)a << 16")),
    *_one("records by column tile", KQ, VALUES,
        ("(int64_t)block * ((tokens + 7) / 8) + token / 8", "(int64_t)(token / 8) * blocks + block")),
    *_one("records of whole column tiles only", SQ, (VALUES, FAULT), ("((tokens + 7) / 8)", "max(tokens / 8, 1)")),
    *_one("blocks of a bundle side by side", SQ, (VALUES, FAULT), ("32 * i / kBlock * kApart", "32 * i / kBlock")),
    *_one("x behind the last block", SQ, (FAULT, VALUES),
        ("token >= tokens || block + inside >= blocks", "token >= tokens")),
    *_one("pieces changed over", KQ, SUMS,
        (STORED, "qgen_store_u32(to, pieces.y), qgen_store_u32(to + 128, pieces.x)")),
    *_one("pieces as the ladder has them", KQ, SUMS, ("i % 4 * 4;", "i % 4 * 8;"), ("to + 128", "to + 4")),
    *_one("sums of neighbours changed over", KQ, SUMS,
        ("held[2 * i], held[2 * i + 1]", "held[2 * i + 1], held[2 * i]")),
    *_one("sums of one token", SQ, SUMS, ("(record + 2048) + token % 8", "(record + 2048) + token % 8 / 2 * 2")),
    *_one("sums a line late", SQ, (SUMS, FAULT), ("(record + 2048)", "(record + 2080)")),
    *_one("sums of a filled-up tile's tokens left out", SQ, SUMS,
        ("        float sum = qgen_halving", "        if (token >= tokens) return;\n        float sum = qgen_halving")),
]  # fmt: skip

MUTANTS = ON_THEIR_WAY + SUMMED + MINIMA + ARRANGED

# No part of the result: when stages become free as long as they are, and when the next kernel may begin.
HARMLESS = [
    *_one("a stage is free once its slices are closed", S1, "",
        (DONE + "                    close_slices(i);\n", "                    close_slices(i);\n" + DONE)),
    *_one("the next kernel may never begin early", K1, "", ("    qgen_let_next_begin();\n", "")),
]  # fmt: skip
