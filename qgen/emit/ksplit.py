"""What the templates of the family ksplit_mma receive: the finished plan, regrouped in the order it is printed."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan.in_place import Pair
from qgen.plan.ksplit import KsplitPlan
from qgen.plan.quantize import NONE, FragmentQuantizePlan
from qgen.plan.records import FloatScale
from qgen.plan.scales import ScaleWord


@dataclass(frozen=True)
class Factor:
    """The float factors of one term and unit, multiplied left to right; one per row of the fragment."""

    name: str
    reader: str  # name of the same factor of the bundle's first block
    block: int  # of the bundle
    floats: tuple[FloatScale, ...]


@dataclass(frozen=True)
class ByteUse:
    """One integer scale: a byte of a gathered scale word."""

    name: str
    word: int
    byte: int
    kind: str  # "signed" or "unsigned"


@dataclass(frozen=True)
class Group:
    """One group's instructions, and the integer scale its sum is multiplied by (None without)."""

    pairs: tuple[Pair, ...]
    scale: ByteUse | None


@dataclass(frozen=True)
class SumProduct:
    """sum over groups of scale * activation sum, by two instructions; `into_total` adds it to the codes' sum."""

    name: str
    unsigned: bool
    into_total: bool


@dataclass(frozen=True)
class Step:
    """One fused multiply-add: the factor's name ("" for none) times "total", "sums" or the SumProduct named."""

    negative: bool
    factor: str
    reader: str  # of the factor, see Factor
    scale: int
    integer: str


@dataclass(frozen=True)
class Unit:
    """One float step of a block."""

    index: int  # over the bundle
    block: int  # of the bundle
    groups: tuple[Group, ...]
    scaled: bool
    sum_products: tuple[SumProduct, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class KsplitKernel:
    """The `k` of ksplit.cu.j2."""

    header: tuple[str, ...]
    plan: KsplitPlan
    scale_words: tuple[ScaleWord, ...]
    multipliers: tuple[str, ...]
    factors: tuple[Factor, ...]
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class FragmentQuantizeKernel:
    """The `k` of quantize_fragments.cu.j2."""

    header: tuple[str, ...]
    plan: FragmentQuantizePlan
    absent: int  # what stands for no column and no word
    token_bytes: int  # from one token's codes to the next one's in a record of eight
    place_rows: tuple[tuple[int, ...], ...]  # by slot: bytes from a record's first code to the word, of token 0


def quantize_kernel(
    plan: FragmentQuantizePlan, header: tuple[str, ...], chunk_bytes: int = 512
) -> FragmentQuantizeKernel:
    """Regroup a plan for printing. chunk_bytes: from one chunk of a token's codes to the next."""
    words = plan.words.slots

    def place(number: int) -> int:
        chunk, thread, j = number // 16, number // 4 % 4, number % 4
        return (4 * chunk + j) * 128 + 4 * thread if plan.layout.matrices else chunk * chunk_bytes + number % 16 * 4

    places = [NONE if w.place == NONE else place(w.place) for w in words]
    return FragmentQuantizeKernel(
        header=header,
        plan=plan,
        absent=NONE,
        token_bytes=16 if plan.layout.matrices else 64,
        place_rows=tuple(tuple(places[i : i + 16]) for i in range(0, len(places), 16)),
    )


def ksplit_kernel(plan: KsplitPlan, header: tuple[str, ...]) -> KsplitKernel:
    """Regroup a plan for printing."""
    main = next(i for i, term in enumerate(plan.terms) if term.codes)
    factors = []
    units = []
    group_count = plan.groups // plan.units
    for index in range(plan.layout.units):
        block, u = divmod(index, plan.units)
        steps = []
        products: dict[str, SumProduct] = {}  # by scale, which may serve the codes and the bare sums
        for i, (term, word) in enumerate(zip(plan.terms, plan.scale_words, strict=True)):
            name = f"f{index}_{i}" if term.floats[u] else ""
            if name:
                factors.append(Factor(name=name, reader=f"factor_{u}_{i}", block=block, floats=term.floats[u]))
            if word is not None and (not term.codes or plan.code_offset):
                known = word.name in products and products[word.name].into_total
                products[word.name] = SumProduct(
                    name=word.name, unsigned=not word.signed, into_total=known or term.codes
                )
            integer = "total" if term.codes else word.name if word is not None else "sums"
            steps.append(
                Step(
                    negative=term.negative,
                    factor=name,
                    reader=f"factor_{u}_{i}",
                    scale=index * plan.contract.unit // plan.layout.group,
                    integer=integer,
                )
            )
        word = plan.scale_words[main]
        groups = tuple(
            Group(
                pairs=tuple(_shifted(pair, block * plan.code_words) for pair in plan.pairs[g]),
                scale=None
                if word is None
                else ByteUse(word.name, g // 4, g % 4, "signed" if word.signed else "unsigned"),
            )
            for g in range(u * group_count, (u + 1) * group_count)
        )
        units.append(
            Unit(
                index=index,
                block=block,
                groups=groups,
                scaled=word is not None,
                sum_products=tuple(products.values()),
                steps=tuple(steps),
            )
        )
    used = plan.scale_words[main]
    return KsplitKernel(
        header=header,
        plan=plan,
        scale_words=tuple(dict.fromkeys(w for w in plan.scale_words if w is not None)),
        multipliers=(used.name,) if used is not None else (),
        factors=tuple(factors),
        units=tuple(units),
    )


def _shifted(pair: Pair, words: int) -> Pair:
    return Pair(first=pair.first + words, second=pair.second + words if pair.second >= 0 else -1)
