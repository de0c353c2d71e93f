"""What there is to dispatch to: kernels with the requests each can serve, and the facts about formats that routes use.

A kernel's domain comes from its plan and nowhere else, so a route that claims more or a gate that refuses what a
kernel can do shows as a contradiction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qgen.archs import Arch, load_archs
from qgen.dispatch.space import Axis, Condition, Ints, Space, Where
from qgen.errors import QgenError
from qgen.plan import (
    CLASSES,
    FUSED_WARPS,
    LADDER,
    MAX_TOKENS,
    ArrangePlan,
    FloatKsplitPlan,
    FloatRung,
    FloatWgmmaPlan,
    FragmentQuantizePlan,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    Plan,
    QuantizePlan,
    RepackPlan,
    Rung,
    WgmmaPlan,
    WgmmaRung,
)
from qgen.spec.records import Format

INT32_MAX = 2**31 - 1
MAX_ROWS = INT32_MAX - 127  # kernels round rows up to whole tiles of at most 128 in int32

_Ladder = KsplitPlan | FloatKsplitPlan | WgmmaPlan | FloatWgmmaPlan


@dataclass(frozen=True)
class Kernel:
    """One compiled entry as dispatch sees it.

    where:         the requests it can serve: its domain; axes left out are free
    contract:      name of its arithmetic contract; None for ops that have none
    quantiser:     the kernel that makes its activation; None where it takes x as it is
    columns:       tokens it computes at a time, needed or not (a ladder's rung); 0 where T does not matter
    ladder:        kernels that differ only in their rung share this name; "" outside ladders
    threads:       threads of a block
    shared_bytes:  dynamic shared memory of a block
    rows:          output rows a block finishes in one step
    alignment:     bytes the weights must be aligned to
    knobs:         what tells instances of a family apart in routes
    requires:      instructions (fields of qgen.archs.Instructions) it cannot do without
    """

    name: str
    file: str
    op: str
    family: str
    format: str
    where: Where
    contract: str | None = None
    quantiser: str | None = None
    columns: int = 0
    ladder: str = ""
    threads: int = 128
    shared_bytes: int = 0
    rows: int = 1
    alignment: int = 1
    knobs: Mapping[str, int | str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()

    @property
    def archs(self) -> Condition | None:
        """The architectures of its domain; None for all."""
        return self.where.get("arch")


@dataclass(frozen=True)
class Facts:
    """What routes may say about a format without naming it.

    numbers:    usable as ends of intervals, divisors and knobs
    activation: the activation its file names; None for none
    refused:    why there is no matmul kernel; "" where there is
    taken:      the activations its matmul kernels read
    stored:     the storages they read W from
    stored_floats: those that the ones for float activations read it from
    """

    format: str
    numbers: Mapping[str, int]
    activation: str | None
    refused: str = ""
    taken: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    stored_floats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Catalog:
    """Everything routes can name: kernels and formats, from one list of plans."""

    kernels: tuple[Kernel, ...]
    facts: Mapping[str, Facts]

    def of(self, op: str, format: str) -> tuple[Kernel, ...]:
        """The kernels of one op and format, in plan order."""
        return tuple(k for k in self.kernels if k.op == op and k.format == format)


def catalog(
    plans: Iterable[Plan], refused: Mapping[str, QgenError], formats: Mapping[str, Format], space: Space
) -> Catalog:
    """The catalog of what `qgen.plan.plan_all` returned for `formats`."""
    plans = tuple(plans)
    archs = load_archs()
    # A matmul kernel's quantiser is the one that writes the layout it reads.
    converts = QuantizePlan | FragmentQuantizePlan | ArrangePlan
    quantisers = {p.layout.name: p.name for p in plans if isinstance(p, converts)}
    kernels: list[Kernel] = []
    # tokens: how many the kernels of a format take in one call; rungs: of its int8 ladder over native storage;
    # tiled_rungs, row_tiles_COLUMNS: see _tiled; block_columns: of those whose columns are blocks of K;
    # float_rungs, tiled_float_rungs: of the ladders for f16 and bf16; widest_ARCH: see _widest
    numbers: dict[str, dict[str, int]] = {
        name: {
            "block": f.block,
            "tokens": 1,
            "rungs": 0,
            "tiled_rungs": 0,
            "block_columns": 0,
            **{f"row_tiles_{columns}": 0 for columns in LADDER},
            "float_rungs": 0,
            "tiled_float_rungs": 0,
            **{f"widest_{arch}": 0 for arch in archs},
        }
        for name, f in formats.items()
    }
    taken: dict[str, dict[str, None]] = {name: {} for name in formats}
    stored: dict[str, dict[str, None]] = {name: {} for name in formats}
    stored_floats: dict[str, dict[str, None]] = {name: {} for name in formats}
    read: dict[str, set[str]] = {}  # by activation layout, the storages of the kernels that read it
    for plan in plans:
        if not isinstance(plan, converts | RepackPlan | FusedPlan):  # the last takes what its ladder takes
            taken[plan.format][plan.layout.activation] = None
            stored[plan.format][plan.storage] = None
            read.setdefault(plan.layout.name, set()).add(plan.storage)
            if isinstance(plan, FloatKsplitPlan):
                stored_floats[plan.format][plan.storage] = None
    for plan in plans:
        if isinstance(plan, MatvecPlan):
            kernels += _matvec(plan, quantisers.get(plan.layout.name), space)
            # A full team is a warp's worth of threads on one row; a quarter of it serves rows of few blocks.
            team = 32 // plan.lanes
            # Large blocks leave no room for as many rows. The last instance is that of a quarter team.
            rows = [i.rows for i in plan.instances[:-1]]
            numbers[plan.format] |= {
                "lanes": plan.lanes,
                "full": team,
                "quarter": team // 4,
                "rows_quarter": plan.instances[-1].rows,
                "rows_two": max(r for r in rows if r <= 2),
                "rows_four": max(rows),
            }
        elif isinstance(plan, MultirowPlan):
            kernels += _multirow(plan, quantisers.get(plan.layout.name), space)
            numbers[plan.format] |= {"tokens": MAX_TOKENS}
        elif isinstance(plan, KsplitPlan) and plan.tile:
            kernels += _ksplit(plan, quantisers.get(plan.layout.name), space, archs)
            numbers[plan.format] |= {"tokens": MAX_TOKENS} | _tiled(plan)
        elif isinstance(plan, KsplitPlan):
            kernels += _ksplit(plan, quantisers.get(plan.layout.name), space, archs)
            numbers[plan.format] |= {"tokens": MAX_TOKENS, "rungs": len(plan.rungs)} | _widest(plan, archs)
        elif isinstance(plan, FloatKsplitPlan):
            kernels += _ksplit(plan, quantisers.get(plan.layout.name), space, archs)
            key = "tiled_float_rungs" if plan.tile else "float_rungs"
            numbers[plan.format] |= {"tokens": MAX_TOKENS, key: numbers[plan.format][key] + len(plan.rungs)}
        elif isinstance(plan, FusedPlan):
            kernels += _fused(plan, space, archs)
        elif isinstance(plan, WgmmaPlan | FloatWgmmaPlan):
            kernels += _ksplit(plan, quantisers.get(plan.layout.name), space, archs)
        elif isinstance(plan, RepackPlan):
            kernels += _repack(plan, space)
        else:
            kernels.append(_quantize(plan, frozenset(read.get(plan.layout.name, ())), space, archs))
    facts = {
        name: Facts(
            name,
            numbers[name],
            f.activation,
            refused[name].found if name in refused else "",
            tuple(taken[name]),
            tuple(stored[name]),
            tuple(stored_floats[name]),
        )
        for name, f in formats.items()
    }
    return Catalog(tuple(kernels), facts)


def _integers(axis: Axis, lo: int, hi: int, multiple: int = 1) -> Ints:
    return Ints(max(lo, axis.lo), min(hi, axis.hi), frozenset({multiple} - {1}))


def _matvec(plan: MatvecPlan, quantiser: str | None, space: Space) -> list[Kernel]:
    where: dict[str, Condition] = {
        "op": frozenset({plan.op}),
        "format": frozenset({plan.format}),
        "activation": frozenset({plan.layout.activation}),
        "storage": frozenset({plan.storage}),
        "epilogue": frozenset({"none"}),
        "contiguous": frozenset({"yes"}),
        # The kernel counts rows and blocks in int32; K is held to the same bound because x is indexed by columns.
        "K": _integers(space.axis("K"), plan.block, INT32_MAX, plan.block),
        "N": _integers(space.axis("N"), 1, MAX_ROWS),
        "T": _integers(space.axis("T"), 1, 1),
    }
    return [
        Kernel(
            name=i.name, file=plan.file, op=plan.op, family=plan.family, format=plan.format, where=where,
            contract=plan.contract.name, quantiser=quantiser, columns=1, threads=32 * plan.warps,
            shared_bytes=i.shared_bytes, rows=plan.warps * i.warp_rows, alignment=plan.alignment,
            knobs={"rows": i.rows, "team_blocks": i.team_blocks},
        )
        for i in plan.instances
    ]  # fmt: skip


def _multirow(plan: MultirowPlan, quantiser: str | None, space: Space) -> list[Kernel]:
    where: dict[str, Condition] = {
        "op": frozenset({plan.op}),
        "format": frozenset({plan.format}),
        "activation": frozenset({plan.layout.activation}),
        "storage": frozenset({plan.storage}),
        "epilogue": frozenset({"none"}),
        "contiguous": frozenset({"yes"}),
        "K": _integers(space.axis("K"), plan.block, INT32_MAX, plan.block),
        "N": _integers(space.axis("N"), 1, MAX_ROWS),
        "T": _integers(space.axis("T"), 1, MAX_TOKENS),
    }
    return [
        Kernel(
            name=i.name, file=plan.file, op=plan.op, family=plan.family, format=plan.format, where=where,
            contract=plan.contract.name, quantiser=quantiser, columns=i.columns, ladder=f"{plan.file}_r{i.rows}",
            threads=32 * i.warps, shared_bytes=i.shared_bytes, rows=i.warps * i.warp_rows, alignment=plan.alignment,
            knobs={"rows": i.rows},
        )
        for i in plan.instances
    ]  # fmt: skip


def _ksplit(plan: _Ladder, quantiser: str | None, space: Space, archs: Mapping[str, Arch]) -> list[Kernel]:
    where: dict[str, Condition] = {
        "op": frozenset({plan.op}),
        "format": frozenset({plan.format}),
        "activation": frozenset({plan.layout.activation}),
        "storage": frozenset({plan.storage}),
        "epilogue": frozenset({"none"}),
        "contiguous": frozenset({"yes"}),
        "K": _integers(space.axis("K"), plan.block, INT32_MAX, plan.block),
        "N": _integers(space.axis("N"), 1, MAX_ROWS),
        # Any T tiles over the grid; what its quantiser takes is the end of it.
        "T": _integers(space.axis("T"), 1, MAX_TOKENS),
    }
    return [
        Kernel(
            name=r.name, file=plan.file, op=plan.op, family=plan.family, format=plan.format,
            where={**where, **_where_runs(plan.requires, r.shared_bytes, space, archs)},
            contract=plan.contract.name, quantiser=quantiser, columns=r.columns, ladder=plan.file,
            threads=r.threads if isinstance(r, WgmmaRung) else 32 * r.warps, shared_bytes=r.shared_bytes, rows=r.rows,
            alignment=plan.alignment, knobs=_knobs(plan, r),
            requires=plan.requires,
        )
        for r in plan.rungs
    ]  # fmt: skip


def _knobs(plan: _Ladder, rung: Rung | FloatRung | WgmmaRung) -> dict[str, int | str]:
    if isinstance(rung, WgmmaRung):
        return {"class": _class(plan.layout.activation, plan.storage), "groups": rung.row_groups}
    own = {"row_tiles": rung.row_tiles} if isinstance(rung, FloatRung) or plan.storage == "tiled" else {}
    return {"class": _class(plan.layout.activation, plan.storage), **own}


def _fused(plan: FusedPlan, space: Space, archs: Mapping[str, Arch]) -> list[Kernel]:
    """One token, in float32 as it is: there is no quantiser in front."""
    block = plan.ladder.block
    where: dict[str, Condition] = {
        "op": frozenset({plan.op}),
        "format": frozenset({plan.format}),
        "activation": frozenset({plan.contract.activation}),
        "storage": frozenset({plan.storage}),
        "epilogue": frozenset({"none"}),
        "contiguous": frozenset({"yes"}),
        "K": _integers(space.axis("K"), block, plan.most_blocks * block, block),
        "N": _integers(space.axis("N"), 1, MAX_ROWS),
        "T": _integers(space.axis("T"), 1, 1),
    }
    return [
        Kernel(
            name=i.name, file=plan.file, op=plan.op, family=plan.family, format=plan.format,
            where={**where, **_where_runs(plan.requires, i.shared_bytes, space, archs)},
            contract=plan.contract.name, columns=1, threads=32 * FUSED_WARPS, shared_bytes=i.shared_bytes,
            rows=i.rows, alignment=plan.alignment, knobs={"warps": i.warps}, requires=plan.requires,
        )
        for i in plan.instances
    ]  # fmt: skip


def _class(activation: str, storage: str = "native") -> str:
    """The knob that tells the ladders of one format apart: how the tensor cores see x, and whether W is in tiles."""
    if activation in CLASSES:
        return f"{activation}_tiles" if storage == "tiled" else activation
    return "tiles" if storage == "tiled" else "int8"


def _widest(plan: KsplitPlan, archs: Mapping[str, Arch]) -> dict[str, int]:
    """Under "widest_ARCH" the columns of the widest rung that fits the architecture's shared memory."""
    return {
        f"widest_{name}": max((r.columns for r in plan.fitting(arch.shared_per_block_optin)), default=0)
        for name, arch in archs.items()
    }


def _tiled(plan: KsplitPlan) -> dict[str, int]:
    """Column capacities of the ladder over tiles, those of blocks of K, and the most row tiles a warp of each width."""
    most = {f"row_tiles_{columns}": max(r.row_tiles for r in plan.rungs if r.columns == columns) for columns in LADDER}
    return {"tiled_rungs": len({r.columns for r in plan.rungs}), "block_columns": int(plan.one == "blocks"), **most}


def _where_runs(
    requires: tuple[str, ...], shared_bytes: int, space: Space, archs: Mapping[str, Arch]
) -> dict[str, Condition]:
    """The condition on the architecture: instructions and shared memory. None where all will do."""
    able = frozenset(
        name for name in space.axis("arch").values
        if shared_bytes <= archs[name].shared_per_block_optin
        and all(getattr(archs[name].instructions, need) for need in requires)
    )  # fmt: skip
    return {} if able == space.axis("arch").whole else {"arch": able}


def _quantize(
    plan: QuantizePlan | FragmentQuantizePlan | ArrangePlan,
    storages: frozenset[str],
    space: Space,
    archs: Mapping[str, Arch],
) -> Kernel:
    """storages: of the weights that its result meets."""
    order = "teams" if isinstance(plan, QuantizePlan) else "fragments"
    if isinstance(plan, FragmentQuantizePlan | ArrangePlan) and plan.layout.matrices:
        order = "matrices"
    block = plan.weight_block if isinstance(plan, FragmentQuantizePlan) else plan.layout.block
    where: dict[str, Condition] = {
        "op": frozenset({plan.op}),
        "format": frozenset({plan.format}),
        "activation": frozenset({plan.layout.activation}),
        "storage": storages,
        "epilogue": frozenset({"none"}),
        "contiguous": frozenset({"yes"}),
        "K": _integers(space.axis("K"), block, INT32_MAX, block),
        "T": _integers(space.axis("T"), 1, MAX_TOKENS),
    }
    # A layout that no kernel of an architecture reads is of no use there.
    requires = () if isinstance(plan, QuantizePlan) else plan.requires
    where |= _where_runs(requires, plan.shared_bytes, space, archs)
    return Kernel(
        name=plan.name, file=plan.file, op=plan.op, family=plan.family, format=plan.format, where=where,
        threads=32 * plan.warps, shared_bytes=plan.shared_bytes,
        alignment=2 if isinstance(plan, ArrangePlan) else 4,
        knobs={"order": order, "class": _class(plan.layout.activation)},
        requires=requires,
    )  # fmt: skip


def _repack(plan: RepackPlan, space: Space) -> list[Kernel]:
    """The storage asked about is the one the weight has; x has no part in it."""
    where: dict[str, Condition] = {
        "op": frozenset({plan.op}),
        "format": frozenset({plan.format}),
        "epilogue": frozenset({"none"}),
        "K": _integers(space.axis("K"), plan.block, INT32_MAX, plan.block),
        "N": _integers(space.axis("N"), 1, MAX_ROWS),
    }
    return [
        Kernel(
            name=name, file=plan.file, op=plan.op, family=plan.family, format=plan.format,
            where={**where, "storage": frozenset({storage})},
            threads=32 * plan.warps, shared_bytes=plan.shared_bytes, rows=plan.tile_rows,
            alignment=alignment, knobs={"to": to},
        )
        for name, storage, to, alignment in (
            (plan.to_tiled, "native", "tiled", 1), (plan.to_native, "tiled", "native", 16),
        )
    ]  # fmt: skip
