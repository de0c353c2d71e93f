"""The shipped dispatch in one call each: what to generate, the proof, the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from qgen.archs import load_archs
from qgen.build.resources import Resources
from qgen.dispatch import table
from qgen.dispatch.c_source import c_source
from qgen.dispatch.checks import Report
from qgen.dispatch.emission import Ends, flat
from qgen.dispatch.kernels import catalog
from qgen.dispatch.proof import Proof, prove
from qgen.dispatch.reader import read
from qgen.dispatch.routes import Routes, load_routes
from qgen.dispatch.space import Space, load_space
from qgen.emit import emit_text
from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.plan import (
    FloatKsplitPlan,
    FloatWgmmaPlan,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    Plan,
    WgmmaPlan,
    entries,
)
from qgen.spec import load_formats
from qgen.spec.reader import close, listed
from qgen.tree import File

RESOURCES = "resources.json"


def keep_routed(plans: Iterable[Plan], refused: Mapping[str, QgenError]) -> tuple[Plan, ...]:
    """The plans with only those instances and rungs that some route names: nothing is generated that nobody can reach.

    Raises QgenError for wrong routes.
    """
    plans = tuple(plans)
    space = load_space()
    wanted = load_routes(space, catalog(plans, refused, load_formats(), space)).kernels
    kept: list[Plan] = []
    for plan in plans:
        if isinstance(plan, MatvecPlan):
            instances = tuple(i for i in plan.instances if i.name in wanted)
            kept += [replace(plan, instances=instances)] if instances else []
        elif isinstance(plan, MultirowPlan):
            few = tuple(i for i in plan.instances if i.name in wanted)
            kept += [replace(plan, instances=few)] if few else []
        elif isinstance(plan, FusedPlan):
            fused = tuple(i for i in plan.instances if i.name in wanted)
            kept += [replace(plan, instances=fused)] if fused else []
        elif isinstance(plan, KsplitPlan):
            rungs = tuple(r for r in plan.rungs if r.name in wanted)
            kept += [replace(plan, rungs=rungs)] if rungs else []
        elif isinstance(plan, WgmmaPlan | FloatWgmmaPlan):
            many = tuple(r for r in plan.rungs if r.name in wanted)
            kept += [replace(plan, rungs=many)] if many else []
        elif isinstance(plan, FloatKsplitPlan):
            float_rungs = tuple(r for r in plan.rungs if r.name in wanted)
            kept += [replace(plan, rungs=float_rungs)] if float_rungs else []
        elif wanted.issuperset(entries(plan)):
            kept.append(plan)
    return tuple(kept)


def routed_archs(plans: Iterable[Plan], refused: Mapping[str, QgenError]) -> dict[str, frozenset[str]]:
    """By kernel of the plans, the architectures on which some route names it: nothing is compiled for others.

    Raises QgenError for wrong routes.
    """
    space = load_space()
    return load_routes(space, catalog(tuple(plans), refused, load_formats(), space)).archs(space)


def prove_shipped(
    plans: Iterable[Plan],
    refused: Mapping[str, QgenError],
    *,
    report: Report | None = None,
    policy: str | None = None,
    arch: str | None = None,
) -> Proof:
    """Prove specs/routes for these plans (as `plan_all` returns them, or `keep_routed`).

    report: the compiler's figures by (entry, architecture); policy, arch: prove for that one only.
    Raises QgenError for wrong specs and for a policy or architecture there is not.
    """
    return proof_and_routes(plans, refused, report=report, policy=policy, arch=arch)[0]


def proof_and_routes(
    plans: Iterable[Plan],
    refused: Mapping[str, QgenError],
    *,
    report: Report | None = None,
    policy: str | None = None,
    arch: str | None = None,
) -> tuple[Proof, Routes]:
    """`prove_shipped`, and the rows it was proved from."""
    space = load_space()
    things = catalog(plans, refused, load_formats(), space)
    routes = load_routes(space, things)
    chosen = _chosen(space, {"policy": policy, "arch": arch})
    part = space.restrict(chosen)
    like = load_like(space)
    return prove(part, things, routes, load_archs(), report=report, like=like, restricted=chosen), routes


def files(proof: Proof) -> dict[str, File]:
    """Path under generated/ -> file: the flat table, the C header and the C dispatcher, all from the proved graph.

    Raises QgenError (stage "dispatch") when the proof does not hold.
    """
    if not proof.ok:
        raise QgenError(
            stage="dispatch",
            subject="specs/routes",
            found=f"{len(proof.findings)} findings, the first: {proof.findings[0]}",
            allowed="a dispatch that is proved",
            next="qgen check-dispatch lists them all",
        )
    ends = Ends.of(proof)
    source = c_source(proof, ends, load_formats(), load_archs())
    made = {table.FILE: File(text=flat(proof, ends), kind="table")}
    for name in ("qgen_dispatch.h", "qgen_dispatch.c"):
        made[name] = File(text=emit_text(f"dispatch/{name}.j2", source), kind="dispatcher")
    return made


def _chosen(space: Space, wanted: Mapping[str, str | None]) -> dict[str, str]:
    chosen = {name: value for name, value in wanted.items() if value is not None}
    for name, value in chosen.items():
        values = space.axis(name).values
        if value not in values:
            raise QgenError(
                stage="dispatch",
                subject=f"--{name} {value}",
                found=f"no such {name}{close(value, values)}",
                allowed=listed(values),
                next="name one of these",
            )
    return chosen


def load_like(space: Space, folder: Path | None = None) -> dict[str, str]:
    """specs/ops: which op must serve what another one serves. Raises QgenError for an unknown op."""
    ops = space.axis("op").values
    like: dict[str, str] = {}
    for op in ops:
        entry = read((folder or data_dir("specs") / "ops") / f"{op}.toml", ("name", "doc", "like"))
        if entry.text("name") != op:
            entry.refuse("name", repr(entry.text("name")), f"{op!r}, as the file is called")
        entry.text("doc")
        if "like" in entry.data:
            other = entry.text("like")
            if other not in ops or other == op:
                entry.refuse("like", f"{other!r}{close(other, ops)}", listed(name for name in ops if name != op))
            like[op] = other
    return like


def read_report(root: Path) -> Report:
    """The compiler's report of a generated tree. Raises QgenError where it is missing or damaged."""
    path = root / RESOURCES
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["kernels"]
        return {
            (row["entry"], row["arch"]): Resources(
                row["entry"],
                row["registers"],
                row["stack_bytes"],
                row["spill_stores"],
                row["spill_loads"],
                row["static_shared"],
            )
            for row in rows
        }
    except OSError as error:
        found = f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError) as error:
        found = f"it is damaged: {error!r}"
    raise QgenError(
        stage="dispatch",
        subject=str(path),
        found=found,
        allowed="the compiler's report qgen wrote",
        next="run `qgen build`",
    )
