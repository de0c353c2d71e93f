"""What is measured: matrices of a format and a shape, and for each the kernels that can take it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qgen import layout
from qgen.archs import load_archs
from qgen.dispatch import routed_batch, routed_float, routed_instance
from qgen.errors import QgenError
from qgen.plan import (
    CLASSES,
    TILE_ROWS,
    ArrangePlan,
    FloatKsplitPlan,
    FloatRung,
    FragmentQuantizePlan,
    Instance,
    KsplitPlan,
    MatvecPlan,
    MultirowInstance,
    MultirowPlan,
    Plan,
    QuantizePlan,
    RepackPlan,
    Rung,
)
from qgen.spec import Format

SHAPES = ("14336x4096", "4096x14336", "4096x4096", "262144x640")
QUICK_SHAPES = ("4096x4096",)
QUICK_FORMATS = ("TQ1_0", "Q4_K", "Q8_0")
# What `qgen bench multirow` times: matrices of public models (specs/models), the hardest formats first.
MULTIROW_CASES = (
    ("Q4_K", "14336x4096"),
    ("Q4_K", "4096x14336"),
    ("Q4_K", "25600x5120"),
    ("Q4_K", "1024x4096"),
    ("Q5_K", "14336x4096"),
    ("Q5_K", "4096x4096"),
    ("Q6_K", "14336x4096"),
    ("Q6_K", "4096x14336"),
    ("IQ4_XS", "14336x4096"),
    ("IQ4_XS", "5120x5120"),
    ("Q3_K", "18944x3584"),
    ("Q2_K", "14336x4096"),
    ("TQ1_0", "14336x4096"),
    ("Q8_0", "4096x4096"),
    ("Q4_0", "9728x2560"),
)
_SHAPE = re.compile(r"(\d+)x(\d+)")
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """N rows by K columns."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Case:
    """One matrix times `tokens` columns of x.

    activation: "f16", "bf16", or "" for int8 as the format's file says; storage: of the matrix
    """

    format: Format
    shape: Shape
    tokens: int = 1
    activation: str = ""
    storage: str = "native"

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.shape.columns // self.format.block

    @property
    def placed(self) -> layout.Matrix:
        """The matrix in bytes, in native storage; rows lie back to back."""
        return layout.matrix(self.format, rows=self.shape.rows, columns=self.shape.columns)

    @property
    def stored_bytes(self) -> int:
        """Bytes from the matrix' first to its last, those that only fill up planes and row tiles included."""
        if self.storage == "tiled":
            return -(-self.shape.rows // TILE_ROWS) * TILE_ROWS * self.row_bytes
        return self.placed.total

    @property
    def in_planes(self) -> bool:
        """Whether the matrix lies in planes: tiles are one piece."""
        return self.format.split and self.storage == "native"

    @property
    def unit(self) -> int:
        """Bytes of a piece of the format's pattern that its matrices are made of; planes are filled one by one."""
        if self.in_planes:
            return 1
        return self.format.bytes * (TILE_ROWS if self.storage == "tiled" else 1)

    @property
    def row_bytes(self) -> int:
        """Packed bytes of a row, over all planes."""
        return sum(span.row_stride for span in self.placed.spans)

    @property
    def weight_bytes(self) -> int:
        """Packed bytes of the matrix: the least that must be read."""
        return self.shape.rows * self.row_bytes

    def __str__(self) -> str:
        activation = f" x {self.activation}" if self.activation else ""
        return f"{self.format.name}{activation} {self.shape}, T = {self.tokens}"


@dataclass(frozen=True)
class Candidate:
    """One kernel that serves a case. `routed`: the one that a call without a wish gets."""

    plan: MatvecPlan
    quantize: QuantizePlan
    instance: Instance
    routed: bool

    @property
    def label(self) -> str:
        """The launch shape alone: what differs between the candidates of a case."""
        return self.instance.name.removeprefix(f"{self.plan.file}_")


@dataclass(frozen=True)
class RungCandidate:
    """One rung of a ladder that serves a case. `routed`: the one that a call without a wish gets."""

    plan: KsplitPlan
    quantize: FragmentQuantizePlan
    instance: Rung
    routed: bool

    @property
    def label(self) -> str:
        """Columns and the last word of its name: what differs between the rungs of a ladder."""
        return f"t{self.instance.columns}_{self.instance.name.rpartition('_')[2]}"


@dataclass(frozen=True)
class MultirowCandidate:
    """One variant of the family multirow that serves a case. `routed`: the one that a call without a wish gets.

    plan: cut down to this variant, in a file of its own name, since all of them together take long to compile
    """

    plan: MultirowPlan
    quantize: QuantizePlan
    instance: MultirowInstance
    routed: bool

    @property
    def label(self) -> str:
        """Rows a team; the tokens are those of the case, or as many as there are variants for."""
        return f"multirow_r{self.instance.rows}"


@dataclass(frozen=True)
class FloatCandidate:
    """One rung with f16 or bf16 activations that serves a case. `routed`: the one that a call without a wish gets."""

    plan: FloatKsplitPlan
    quantize: ArrangePlan
    instance: FloatRung
    routed: bool

    @property
    def label(self) -> str:
        """Columns, row tiles and warps: what differs between the rungs of a ladder."""
        return f"t{self.instance.columns}_r{self.instance.row_tiles}w{self.instance.warps}"


AnyCandidate = Candidate | RungCandidate | MultirowCandidate | FloatCandidate


def of_activation(plans: Iterable[Plan], activation: str, storage: str = "native") -> list[Plan]:
    """The plans for a class of float activations, for "" those for int8, over one storage."""
    found: list[Plan] = []
    for p in plans:
        other = isinstance(p, MatvecPlan | MultirowPlan | KsplitPlan | FloatKsplitPlan) and p.storage != storage
        if isinstance(p, RepackPlan) or other:
            continue
        if (p.layout.activation if p.layout.activation in CLASSES else "") == activation:
            found.append(p)
    return found


@dataclass(frozen=True)
class Skipped:
    """A format, or a format at a shape, that is not measured, and why."""

    what: str
    reason: str


def parse_shape(text: str) -> Shape:
    """ "14336x4096" -> N = 14336, K = 4096. Raises QgenError for anything else."""
    found = _SHAPE.fullmatch(text.lower())
    shape = Shape(int(found[1]), int(found[2])) if found else Shape(0, 0)
    if not (1 <= shape.rows <= _INT32 and 1 <= shape.columns <= _INT32):
        raise QgenError(
            stage="bench",
            subject="--shape",
            found=repr(text),
            allowed=f"NxK, rows by columns, each from 1 to {_INT32}",
            next="write it like 14336x4096",
        )
    return shape


def choose_formats(wanted: Sequence[str], formats: Mapping[str, Format], plans: Iterable[Plan]) -> list[Format]:
    """The formats named (any case), or all that have kernels. Raises QgenError for a name without kernels."""
    served = {plan.format for plan in plans if isinstance(plan, MatvecPlan | KsplitPlan | FloatKsplitPlan)}
    if not wanted:
        return [format for name, format in formats.items() if name in served]
    chosen = []
    for name in dict.fromkeys(name.upper() for name in wanted):
        if name not in served:
            near = difflib.get_close_matches(name, served, n=1)
            found = "a format without kernels" if name in formats else "no such format"
            raise QgenError(
                stage="bench",
                subject=f"--format {name}",
                found=found + (f" (did you mean {near[0]}?)" if near and name not in formats else ""),
                allowed=", ".join(sorted(served)),
                next="run `qgen formats` for the reason a format has none",
            )
        chosen.append(formats[name])
    return chosen


def cases(
    formats: Iterable[Format],
    shapes: Sequence[Shape],
    tokens: Sequence[int] = (1,),
    activation: str = "",
    storage: str = "native",
) -> tuple[list[Case], list[Skipped]]:
    """Every format at every shape and token count, format by format; those whose block does not divide K are named."""
    found: list[Case] = []
    skipped: list[Skipped] = []
    for format in formats:
        for shape in shapes:
            quotient, rest = divmod(shape.columns, format.block)
            if rest:
                reason = f"K = {shape.columns} = {quotient} x {format.block} + {rest}: not whole blocks"
                skipped.append(Skipped(f"{format.name} {shape}", reason))
            else:
                found += [Case(format, shape, count, activation, storage) for count in tokens]
    return found, skipped


def candidates(case: Case, plans: Iterable[Plan], *, every: bool, arch: str) -> list[AnyCandidate]:
    """The kernels for a case: the one routed on `arch`, or with `every` all instances of the routed family.

    Raises QgenError when no plan takes the case.
    """
    own = of_activation((plan for plan in plans if plan.format == case.format.name), case.activation, case.storage)
    quantizers = {plan.layout.name: plan for plan in own if isinstance(plan, QuantizePlan)}
    found: list[AnyCandidate] = []
    if case.activation:
        found += [c for c in _float_rungs(case, own, arch) if every or c.routed]
    elif case.tokens > 1 or case.storage == "tiled":
        batch = routed_batch(case.format, case.shape.rows, case.shape.columns, case.tokens, arch, storage=case.storage)
        found += [c for c in _rungs(own, arch, batch) if every or c.routed]
        found += [c for c in _multirows(own, (batch,), batch)]
    for plan in own:
        if isinstance(plan, MatvecPlan) and case.tokens == 1:
            routed = routed_instance(plan, case.shape.rows, case.shape.columns, arch)
            found += [
                Candidate(plan, quantizers[plan.layout.name], instance, instance is routed)
                for instance in plan.instances
                if every or instance is routed
            ]
    if not found:
        raise QgenError(
            stage="bench",
            subject=str(case),
            found="no kernel takes it",
            allowed="a format and a token count with a kernel",
            next="leave this token count out",
        )
    return found


def ladder_candidates(case: Case, plans: Sequence[Plan], *, arch: str) -> list[AnyCandidate]:
    """What may compete for a case of any token count: the routed kernel and every rung that runs on `arch`.

    Raises QgenError when no plan takes the case.
    """
    own = of_activation((plan for plan in plans if plan.format == case.format.name), case.activation, case.storage)
    found = candidates(case, own, every=True, arch=arch)
    if case.tokens > 1 or case.activation or case.storage == "tiled":
        return found
    return [*(c for c in found if c.routed), *_rungs(own, arch, None)]


def every_candidate(case: Case, plans: Sequence[Plan], *, arch: str) -> list[AnyCandidate]:
    """Every kernel for int8 activations that runs on `arch` and takes the case, whether a route leads to it or not; of
    the variants of multirow first those that hold all tokens.

    Raises QgenError when no plan takes the case.
    """
    own = of_activation((plan for plan in plans if plan.format == case.format.name), "", case.storage)
    found = ladder_candidates(case, own, arch=arch)
    found += candidates(case, own, every=True, arch=arch)
    variants = [i for plan in own if isinstance(plan, MultirowPlan) for i in plan.instances]
    found += _multirows(own, sorted(variants, key=lambda i: (i.columns < case.tokens, i.columns)), None)
    return list({c.instance.name: c for c in reversed(found)}.values())[::-1]


def _float_rungs(case: Case, plans: Sequence[Plan], arch: str) -> list[FloatCandidate]:
    """Every rung that fits the architecture. Raises QgenError where the dispatch refuses the case."""
    shape = case.shape
    routed = routed_float(
        case.format, case.activation, shape.rows, shape.columns, case.tokens, arch, storage=case.storage
    )
    arrange = {plan.layout.name: plan for plan in plans if isinstance(plan, ArrangePlan)}
    return [
        FloatCandidate(plan, arrange[plan.layout.name], rung, rung.name == routed.name)
        for plan in plans
        if isinstance(plan, FloatKsplitPlan)
        for rung in plan.rungs
        if rung.shared_bytes <= load_archs()[arch].shared_per_block_optin
    ]


def multirow_candidates(case: Case, plans: Sequence[Plan], *, arch: str) -> list[AnyCandidate]:
    """What may compete for a few tokens: the routed kernel, the narrowest rung that runs on `arch` and holds them, and
    for each number of rows the variant of multirow with the fewest columns that hold them (the most, if none do).

    Raises QgenError when no plan takes the case.
    """
    own = of_activation((plan for plan in plans if plan.format == case.format.name), "")
    found = candidates(case, own, every=False, arch=arch)
    routed = found[0].instance
    rungs = _rungs(own, arch, None)
    if not any(isinstance(c, RungCandidate) for c in found):
        found += [c for c in rungs if c.instance.columns >= case.tokens][:1] or rungs[-1:]
    for plan in own:
        if isinstance(plan, MultirowPlan):
            for rows in sorted({i.rows for i in plan.instances}):
                narrow = [i for i in plan.instances if i.rows == rows]
                chosen = next((i for i in narrow if i.columns >= case.tokens), narrow[-1])
                found += _multirows(own, (chosen,), None) if chosen != routed else []
    return found


def _multirows(
    plans: Iterable[Plan], wanted: Iterable[Rung | MultirowInstance], routed: Rung | MultirowInstance | None
) -> list[MultirowCandidate]:
    """Those of the variants wanted that are of multirow."""
    plans = tuple(plans)
    quantizers = {plan.layout.name: plan for plan in plans if isinstance(plan, QuantizePlan)}
    return [
        MultirowCandidate(
            plan=replace(plan, instances=(instance,), file=instance.name),
            quantize=quantizers[plan.layout.name],
            instance=instance,
            routed=instance == routed,
        )
        for plan in plans
        if isinstance(plan, MultirowPlan)
        for instance in wanted
        if isinstance(instance, MultirowInstance)
    ]


def _rungs(plans: Iterable[Plan], arch: str, routed: Rung | MultirowInstance | None) -> list[RungCandidate]:
    plans = tuple(plans)
    quantizers = {plan.layout.name: plan for plan in plans if isinstance(plan, FragmentQuantizePlan)}
    device = load_archs()[arch]
    return [
        RungCandidate(plan, quantizers[plan.layout.name], rung, rung == routed)
        for plan in plans
        if isinstance(plan, KsplitPlan) and all(getattr(device.instructions, need) for need in plan.requires)
        for rung in plan.rungs
        if rung.shared_bytes <= device.shared_per_block_optin
    ]
