"""Everything `qgen build` writes: the kernels, the headers they include, their resources. One list, used by all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qgen import archs, build, dispatch, paths, tree
from qgen.emit import Source, emit
from qgen.errors import QgenError
from qgen.plan import FusedPlan, MatvecPlan, MultirowPlan, Plan, QuantizePlan, RepackPlan, entries, plan_all
from qgen.spec import load_formats

RESOURCES = "resources.json"


@dataclass(frozen=True)
class Generated:
    """The planned kernels with their texts, the formats refused (with reasons), and the header texts.

    archs: by kernel, the architectures on which the dispatch sends requests to it
    """

    plans: tuple[Plan, ...]
    sources: tuple[Source, ...]
    refused: Mapping[str, QgenError]
    headers: Mapping[str, str]
    archs: Mapping[str, frozenset[str]]

    def source_of(self, kernel: str) -> tuple[Plan, Source]:
        """The plan and text that hold kernel `kernel`, or a file of that name. Raises QgenError for neither."""
        for plan, source in zip(self.plans, self.sources, strict=True):
            if kernel in source.kernels or kernel in (plan.file, source.path):
                return plan, source
        raise QgenError(
            stage="show",
            subject=kernel,
            found="no such kernel or file",
            allowed=f"one of {sum(len(s.kernels) for s in self.sources)} kernels in {len(self.sources)} files",
            next="list them: qgen formats",
        )


def generate() -> Generated:
    """Plan and print every kernel. Raises QgenError for a bad spec, a template's refusal or two kernels of one name."""
    legal, refused = plan_all(load_formats())
    # Planners say what is legal; what no route can reach is not generated.
    plans = dispatch.keep_routed(legal, refused)
    routed = dispatch.routed_archs(plans, refused)
    sources = tuple(emit(plan, _guards(plan, routed)) for plan in plans)
    seen: dict[str, str] = {}
    for source in sources:
        for kernel in source.kernels:
            if kernel in seen:
                raise QgenError(
                    stage="name",
                    subject=kernel,
                    found=f"made twice: {seen[kernel]} and {source.path}",
                    allowed="one plan a name",
                    next="mend the name in the planner of the second",
                )
            seen[kernel] = source.path
    library = paths.data_dir("templates") / "lib"
    headers = {path.name: path.read_text(encoding="utf-8") for path in sorted(library.glob("*.cuh"))}
    return Generated(plans=plans, sources=sources, refused=refused, headers=headers, archs=routed)


def _guards(plan: Plan, routed: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Conditions for those kernels of a file that the dispatch sends nothing to on some architecture of the others."""
    own = {kernel: routed[kernel] for kernel in entries(plan)}
    everywhere = frozenset[str]().union(*own.values())
    guards = {}
    for kernel, some in own.items():
        if some != everywhere:
            numbers = sorted(10 * int(arch.removeprefix("sm_")) for arch in some)
            # nvcc's pass for the host, which defines no architecture, must see every kernel.
            guards[kernel] = "".join(["!defined(__CUDA_ARCH__)", *(f" || __CUDA_ARCH__ == {n}" for n in numbers)])
    return guards


def kernel_files(made: Generated) -> dict[str, tree.File]:
    """Path under generated/ -> file, for the kernels and their headers."""
    files = {f"include/{name}": tree.File(text=text, kind="header") for name, text in made.headers.items()}
    for plan, source in zip(made.plans, made.sources, strict=True):
        files[source.path] = tree.File(
            text=source.text,
            kind="kernel",
            fields={
                "op": plan.op,
                "family": plan.family,
                "format": plan.format,
                # One token's own kernels read x as it is.
                "layout": "f32" if isinstance(plan, FusedPlan) else plan.layout.name,
                "entries": list(source.kernels),
            },
        )
    return files


def compile_sources(
    made: Generated,
    names: list[str] | None = None,
    *,
    show_progress: bool = True,
) -> dict[tuple[str, str], build.Cubin]:
    """Compile every source for every architecture (or those in `names`) that is sent to it and has what it needs.

    Raises QgenError on a failure or a spill.
    """
    known = archs.load_archs()
    targets = [known[name] for name in names or known]
    done: dict[tuple[str, str], build.Cubin] = {}
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for plan, source in zip(made.plans, made.sources, strict=True):
        requires = () if isinstance(plan, MatvecPlan | MultirowPlan | QuantizePlan | RepackPlan) else plan.requires
        routed = frozenset[str]().union(*(made.archs[kernel] for kernel in source.kernels))
        able = tuple(
            a.name for a in targets if a.name in routed and all(getattr(a.instructions, need) for need in requires)
        )
        groups.setdefault(able, []).append((plan.file, source.text))
    for able, items in groups.items():
        done |= build.compile_all(items, able, show_progress=show_progress)
    return done


def resources_file(cubins: Mapping[tuple[str, str], build.Cubin]) -> tree.File:
    """The compiler's report, one line an entry and architecture: registers, stack, spills, static shared memory."""
    compiler = next(iter(cubins.values())).compiler
    lines = []
    for (_, arch), cubin in sorted(cubins.items()):
        for r in cubin.entries:
            lines.append(
                json.dumps(
                    {
                        "entry": r.entry,
                        "arch": arch,
                        "registers": r.registers,
                        "stack_bytes": r.stack_bytes,
                        "spill_stores": r.spill_stores,
                        "spill_loads": r.spill_loads,
                        "static_shared": r.static_shared,
                    }
                )
            )
    text = '{"compiler": ' + json.dumps(compiler) + ',\n"kernels": [\n' + ",\n".join(lines) + "\n]}\n"
    return tree.File(text=text, kind="report")


def generated_dir() -> Path:
    """generated/ of the checkout this package runs from."""
    return paths.data_dir("specs").parent / "generated"


def all_files(made: Generated, cubins: Mapping[tuple[str, str], build.Cubin]) -> dict[str, tree.File]:
    """The whole of generated/: kernels, the compiler's report, and the dispatcher, which has to be proved first."""
    report = {(entry.entry, arch): entry for (_, arch), cubin in cubins.items() for entry in cubin.entries}
    proof = dispatch.prove_shipped(made.plans, made.refused, report=report)
    return kernel_files(made) | {RESOURCES: resources_file(cubins)} | dispatch.files(proof)
