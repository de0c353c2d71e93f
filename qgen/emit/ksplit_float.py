"""What the templates ksplit_float, ksplit_float_tiled and arrange receive: the plan, regrouped as it is printed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qgen.emit import ksplit
from qgen.emit.ksplit import ByteUse
from qgen.plan.arrange import ArrangePlan
from qgen.plan.ksplit_float import PIECE_WORDS, FloatKsplitPlan
from qgen.plan.planes import plane_of
from qgen.plan.records import FloatScale
from qgen.plan.scales import ScaleWord


@dataclass(frozen=True)
class Factor:
    """A float factor in the block of a row: its plane's name, and the byte in that plane's part of the block."""

    reader: str
    stored: str
    plane: str
    at: int


@dataclass(frozen=True)
class Product:
    """Float factors multiplied left to right, once a block and row, under a name."""

    name: str
    floats: tuple[Factor, ...]


@dataclass(frozen=True)
class Term:
    """One fused multiply-add: coefficient = product * scale, each "" or None where there is none."""

    negative: bool
    product: str
    scale: ByteUse | None
    codes: bool


@dataclass(frozen=True)
class Word:
    """One step of the contract: the code word, and the half of the piece that has its x."""

    index: int
    piece: int
    half: int


@dataclass(frozen=True)
class Group:
    """One group of a block; new_pieces: those that no group before it needed.

    terms: what is added behind it; nothing where folded
    scale: of its codes, where folded
    """

    index: int
    new_pieces: tuple[int, ...]
    words: tuple[Word, ...]
    terms: tuple[Term, ...]
    scale: ByteUse | None


@dataclass(frozen=True)
class FloatKernel:
    """The `k` of ksplit_float.cu.j2 and ksplit_float_tiled.cu.j2: of the latter the factors, of the former products.

    spread:   scale words of which every thread of a quad gets all
    minimums: where folded, the scale word of the sums of x, of which every thread gets the pairs that it multiplies
    terms:    what is added behind a block, where folded
    """

    header: tuple[str, ...]
    plan: FloatKsplitPlan
    rung_names: tuple[str, ...]
    scale_words: tuple[ScaleWord, ...]
    spread: tuple[ScaleWord, ...]
    minimums: ScaleWord | None
    products: tuple[Product, ...]
    factors: tuple[ksplit.Factor, ...]
    groups: tuple[Group, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class GroupSum:
    """The sums of one or two groups: the registers of a thread they have, and how many threads share a group."""

    first: int
    registers: tuple[int, ...]
    lanes: int


@dataclass(frozen=True)
class ArrangeKernel:
    """The `k` of arrange.cu.j2."""

    header: tuple[str, ...]
    plan: ArrangePlan
    order_rows: tuple[tuple[int, ...], ...]
    sums: tuple[GroupSum, ...]


def float_facts(plan: FloatKsplitPlan) -> list[str]:
    """The header's lines about a plan, the contract in full."""
    c, last = plan.contract, plan.contract.slices // 2
    each, size = ("for the tokens of a CTA", "m64nNk16") if plan.layout.matrices else ("a column tile", "m16n8k16")
    where = ", ".join(f"{p.bytes} in {p.name}" for p in plan.planes)
    storage = "as in the file; rows NAME_stride bytes apart"
    if plan.tile:
        storage = "tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back"
    return [
        f"format      {plan.format}: {plan.block} elements in {plan.block_bytes} bytes ({where})",
        f"storage     {plan.storage}: {storage}",
        f"activation  {c.activation} in the layout {plan.layout.name}, from quantize_activation",
        f"traffic     every packed byte is requested once {each} (read factor {plan.read_factor:.2f})",
        *(_folded(plan, size) if c.folded else _unfolded(plan, size)),
        f"            slices are added by halving: slice s < h takes s + h, h = {last} .. 1",
        "rounding    inside an instruction it is the hardware's; no column depends on another or on T",
        "",
    ]


def _unfolded(plan: FloatKsplitPlan, size: str) -> list[str]:
    c = plan.contract
    return [
        f"contract    {c.name}: x is rounded to {c.activation}; codes are exact in it. S of {c.group} weights that",
        f"            share all scales starts at +0 and takes steps of 16 products, an {size} each, as the layout",
        "            orders them; X, the sum of their x, is added by halving. Block b of a row belongs to slice b mod",
        f"            {c.slices}; a slice takes blocks, groups and terms in order, each as",
        "            fma(factors * integer scale, S or X, slice), terms " + ", ".join(c.terms) + ";",
    ]


def _folded(plan: FloatKsplitPlan, size: str) -> list[str]:
    c = plan.contract
    lines = [
        f"contract    {c.name}: x is rounded to {c.activation}; codes times integer scales are exact in it. S of a",
        f"            block starts at +0 and takes steps of 16 products (code * scale) * x, an {size} each, as the",
        f"            layout orders them, groups of {c.group} weights in order.",
    ]
    if plan.layout.pieced:
        lines += [
            f"            X, the sum of {c.group} x, is added by halving; high = bf16(X), low = bf16(X - high). M",
            f"            starts at +0 and takes an {size} in bf16 for each eight groups in turn: integer scales",
            "            times high, then times low.",
        ]
    of = "S or M" if plan.layout.pieced else "S"
    return [
        *lines,
        f"            Block b of a row belongs to slice b mod {c.slices}; a slice takes blocks and terms in order,",
        f"            each as fma(float factors, {of}, slice), terms " + ", ".join(c.terms) + ";",
    ]


def float_kernel(plan: FloatKsplitPlan, header: tuple[str, ...]) -> FloatKernel:
    """Regroup a plan for printing."""
    names: dict[tuple[FloatScale, ...], str] = {}
    groups = []
    seen: set[int] = set()
    folded = plan.contract.folded
    for g in range(plan.layout.groups):
        words = tuple(
            Word(index=j, piece=j // PIECE_WORDS, half=j % PIECE_WORDS)
            for j in range(plan.group_words[g], plan.group_words[g + 1])
        )
        terms = [_term(plan, i, g, names) for i in range(len(plan.terms))]
        pieces = {word.piece for word in words}
        groups.append(
            Group(
                index=g,
                new_pieces=tuple(sorted(pieces - seen)),
                words=words,
                terms=() if folded else tuple(terms),
                scale=next(term.scale for term in terms if term.codes) if folded else None,
            )
        )
        seen |= pieces
    own = dict(zip((term.codes for term in plan.terms), plan.scale_words, strict=True)) if folded else {}
    words_of = tuple(dict.fromkeys(w for w in plan.scale_words if w is not None))
    return FloatKernel(
        header=header,
        plan=plan,
        rung_names=tuple(f"T{rung.columns}R{rung.row_tiles}" for rung in plan.rungs),
        scale_words=words_of,
        spread=tuple(w for w in words_of if not folded or w == own[True]),
        minimums=own.get(False),
        products=tuple(
            Product(name, tuple(_factor(plan, f) for f in floats))
            for floats, name in (() if plan.tile else names.items())
        ),
        factors=tuple(
            ksplit.Factor(name=name, reader=f"factor_{name}", block=0, floats=floats)
            for floats, name in (names.items() if plan.tile else ())
        ),
        groups=tuple(groups),
        terms=tuple(replace(_term(plan, i, 0, names), scale=None) for i in range(len(plan.terms))) if folded else (),
    )


def _term(plan: FloatKsplitPlan, number: int, group: int, names: dict[tuple[FloatScale, ...], str]) -> Term:
    """Of a group; the names of its product and of those before it are kept in `names`."""
    term, scale = plan.terms[number], plan.scale_words[number]
    floats = term.floats[group]
    name = names.setdefault(floats, f"f{len(names)}") if floats else ""
    entry = group // plan.scale_spans[number]
    use = None
    if scale is not None:
        use = ByteUse(scale.name, entry // 4, entry % 4, "signed" if scale.signed else "unsigned")
    return Term(negative=term.negative, product=name, scale=use, codes=term.codes)


def _factor(plan: FloatKsplitPlan, scale: FloatScale) -> Factor:
    plane = plan.planes[plane_of(int(scale.at))]
    return Factor(reader=scale.reader, stored=scale.stored, plane=plane.name, at=int(scale.at) - plane.first)


def arrange_kernel(plan: ArrangePlan, header: tuple[str, ...]) -> ArrangeKernel:
    """Regroup a plan for printing."""
    registers = max(1, plan.group // 32)
    sums = tuple(
        GroupSum(first=i * 32 // plan.group, registers=tuple(range(i, i + registers)), lanes=min(32, plan.group))
        for i in range(0, plan.values, registers)
    )
    return ArrangeKernel(
        header=header,
        plan=plan,
        order_rows=tuple(plan.order[i : i + 8] for i in range(0, len(plan.order), 8)),
        sums=sums if plan.layout.sums else (),
    )
