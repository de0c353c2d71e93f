"""The kernels that can take a case, each with what its launches are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from qgen.archs import load_archs
from qgen.bench.cases import Case
from qgen.dispatch import routed_batch, routed_float, routed_instance
from qgen.errors import QgenError
from qgen.plan import (
    CLASSES,
    ArrangePlan,
    FloatKsplitPlan,
    FloatRung,
    FloatWgmmaPlan,
    FragmentQuantizePlan,
    FusedInstance,
    FusedPlan,
    Instance,
    KsplitPlan,
    MatvecPlan,
    MultirowInstance,
    MultirowPlan,
    Plan,
    QuantizePlan,
    RepackPlan,
    Rung,
    WgmmaPlan,
    WgmmaRung,
)


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


@dataclass(frozen=True)
class FusedCandidate:
    """One kernel of the family fused that serves a case. `routed`: the one that a call without a wish gets."""

    plan: FusedPlan
    instance: FusedInstance
    routed: bool
    quantize = None  # the kernel does that by itself

    @property
    def label(self) -> str:
        """Warps a team: what differs between the kernels of a format."""
        return f"fused_w{self.instance.warps}"


@dataclass(frozen=True)
class WgmmaCandidate:
    """One rung for warpgroups that serves a case. `routed`: the one that a call without a wish gets.

    plan: cut down to this rung, in a file of its own name, since all of them together take long to compile
    """

    plan: WgmmaPlan | FloatWgmmaPlan
    quantize: FragmentQuantizePlan | ArrangePlan
    instance: WgmmaRung
    routed: bool

    @property
    def label(self) -> str:
        """Columns and warpgroups of rows: what differs between the rungs of a format."""
        return f"w{self.instance.columns}g{self.instance.row_groups}"


AnyCandidate = Candidate | RungCandidate | MultirowCandidate | FloatCandidate | FusedCandidate | WgmmaCandidate
_Multiplies = MatvecPlan | MultirowPlan | KsplitPlan | FloatKsplitPlan | FusedPlan | WgmmaPlan | FloatWgmmaPlan
Batch = Rung | MultirowInstance | FusedInstance | WgmmaRung  # what `routed_batch` may give


def of_activation(plans: Iterable[Plan], activation: str, storage: str = "native") -> list[Plan]:
    """The plans for a class of float activations, for "" those for int8, over one storage."""
    found: list[Plan] = []
    for p in plans:
        if isinstance(p, RepackPlan) or (isinstance(p, _Multiplies) and p.storage != storage):
            continue
        own = (p.ladder if isinstance(p, FusedPlan) else p).layout.activation
        if (own if own in CLASSES else "") == activation:
            found.append(p)
    return found


def candidates(case: Case, plans: Iterable[Plan], *, every: bool, arch: str) -> list[AnyCandidate]:
    """The kernels for a case: the one routed on `arch`, or with `every` all instances of the routed family; over tiles
    also those of the families beside it, of the rungs for warpgroups the few that suit the number of tokens.

    Raises QgenError when no plan takes the case.
    """
    own = of_activation((plan for plan in plans if plan.format == case.format.name), case.activation, case.storage)
    quantizers = {plan.layout.name: plan for plan in own if isinstance(plan, QuantizePlan)}
    found: list[AnyCandidate] = []
    if case.activation:
        found += [c for c in _float_rungs(case, own, arch) if every or c.routed]
    elif case.tokens > 1 or case.storage == "tiled":
        batch = routed_batch(case.format, case.shape.rows, case.shape.columns, case.tokens, arch, storage=case.storage)
        found += [c for c in _fused(case, own, arch, batch) if every or c.routed]
        found += [c for c in _rungs(own, arch, batch) if every or c.routed]
        found += [c for c in _wgmma(own, arch, batch, case.tokens) if every or c.routed]
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
    found += _wgmma(own, arch, None, None)
    variants = [i for plan in own if isinstance(plan, MultirowPlan) for i in plan.instances]
    variants.sort(key=lambda i: (i.columns < case.tokens, i.columns))
    found += _multirows(own, variants, None)
    return list({c.instance.name: c for c in reversed(found)}.values())[::-1]


def _float_rungs(case: Case, plans: Sequence[Plan], arch: str) -> list[FloatCandidate | WgmmaCandidate]:
    """Every rung of the ladder that fits the architecture, and those for warpgroups that suit the number of tokens.

    Raises QgenError where the dispatch refuses the case.
    """
    shape = case.shape
    routed = routed_float(
        case.format, case.activation, shape.rows, shape.columns, case.tokens, arch, storage=case.storage
    )
    arrange = {plan.layout.name: plan for plan in plans if isinstance(plan, ArrangePlan)}
    ladder = [
        FloatCandidate(plan, arrange[plan.layout.name], rung, rung == routed)
        for plan in plans
        if isinstance(plan, FloatKsplitPlan)
        for rung in plan.rungs
        if rung.shared_bytes <= load_archs()[arch].shared_per_block_optin
    ]
    return [*ladder, *_wgmma(plans, arch, routed, case.tokens)]


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


def _multirows(plans: Iterable[Plan], wanted: Iterable[Batch], routed: Batch | None) -> list[MultirowCandidate]:
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


def _rungs(plans: Iterable[Plan], arch: str, routed: Batch | None) -> list[RungCandidate]:
    plans = tuple(plans)
    quantizers = {plan.layout.name: plan for plan in plans if isinstance(plan, FragmentQuantizePlan)}
    return [
        RungCandidate(plan, quantizers[plan.layout.name], rung, rung == routed)
        for plan in plans
        if isinstance(plan, KsplitPlan)
        for rung in plan.rungs
        if _runs(plan, rung, arch)
    ]


def _wgmma(
    plans: Iterable[Plan], arch: str, routed: Batch | FloatRung | None, tokens: int | None
) -> list[WgmmaCandidate]:
    """Those that run on `arch`: the routed one and those that suit so many tokens, or with None all."""
    return [
        WgmmaCandidate(replace(plan, rungs=(rung,), file=rung.name), plan.quantize, rung, rung == routed)
        for plan in plans
        if isinstance(plan, WgmmaPlan | FloatWgmmaPlan)
        for rung in plan.rungs
        if _runs(plan, rung, arch) and (tokens is None or rung == routed or rung.columns in _widths(plan, tokens))
    ]


def _widths(plan: WgmmaPlan | FloatWgmmaPlan, tokens: int) -> set[int]:
    """The fewest columns that take all tokens at once, and the fewest that take them at twice; the most, where none do.

    Others compute more columns that nobody asked for, or read the weights more often. One token is not for this family.
    """
    every = {rung.columns for rung in plan.rungs} if tokens > 1 else set()
    held = (tokens, -(-tokens // 2))
    return {min((c for c in every if c >= least), default=max(every)) for least in held if every}


def _fused(case: Case, plans: Iterable[Plan], arch: str, routed: Batch | None) -> list[FusedCandidate]:
    """Those that run on `arch`; none for more tokens than one and for rows of more blocks than they hold."""
    return [
        FusedCandidate(plan, instance, instance == routed)
        for plan in plans
        if isinstance(plan, FusedPlan) and case.tokens == 1 and case.blocks <= plan.most_blocks
        for instance in plan.instances
        if _runs(plan, instance, arch)
    ]


def _runs(
    plan: KsplitPlan | FusedPlan | WgmmaPlan | FloatWgmmaPlan, instance: Rung | FusedInstance | WgmmaRung, arch: str
) -> bool:
    """Whether the architecture has the instructions of the plan and the shared memory of the instance."""
    device = load_archs()[arch]
    needs = (getattr(device.instructions, need) for need in plan.requires)
    return all(needs) and instance.shared_bytes <= device.shared_per_block_optin
