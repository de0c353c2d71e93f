"""Checks beyond totality: can the device start it, is every compiled kernel used, do the ops agree with each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from qgen.archs import Arch
from qgen.build.resources import Resources
from qgen.dispatch.diagram import Diagram, Row, build
from qgen.dispatch.judge import Leaf, Mark, Witness, witnesses
from qgen.dispatch.kernels import Catalog, Kernel
from qgen.dispatch.space import Condition, Ints, Space, Value, Where, holds

REGISTER_UNIT = 256  # registers are handed to a warp in pieces of this many

Report = Mapping[tuple[str, str], Resources]  # (entry, architecture) -> the compiler's figures


def launch_faults(kernel: Kernel, arch: Arch, resources: Resources | None) -> Iterator[str]:
    """Why a launch of the kernel would fail on the architecture; nothing where it starts."""
    if kernel.threads > arch.max_threads_per_block:
        yield f"{kernel.threads} threads a block; {arch.name} starts at most {arch.max_threads_per_block}"
    static = resources.static_shared if resources else 0
    shared = kernel.shared_bytes + static
    if shared > arch.shared_per_block_optin:
        sum_ = f"{kernel.shared_bytes} dynamic + {static} static = " if static else ""
        yield f"{sum_}{shared} bytes of shared memory a block; {arch.name} has {arch.shared_per_block_optin}"
    missing = [name for name in kernel.requires if not getattr(arch.instructions, name)]
    if missing:
        yield f"it needs {', '.join(missing)}, which {arch.name} does not have"
    if resources is None:
        return
    if resources.registers > arch.max_registers_per_thread:
        yield f"{resources.registers} registers a thread; {arch.name} has {arch.max_registers_per_thread}"
    warps = -(-kernel.threads // 32)
    total = warps * (-(-resources.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT)
    if total > arch.registers_per_sm:
        yield (
            f"{warps} warps of {resources.registers} registers take {total}; "
            f"a multiprocessor of {arch.name} has {arch.registers_per_sm}"
        )


def launch_marks(
    kernel: Kernel, reached: Iterable[str], archs: Mapping[str, Arch], report: Report | None
) -> Iterator[Mark]:
    """Launch faults, and missing compilations, on the architectures on which requests reach the kernel."""
    for name in sorted(reached):
        needs = (("arch", name),)
        resources = report.get((kernel.name, name)) if report is not None else None
        if report is not None and resources is None:
            text = f"{kernel.name} is reached on {name}, but was not compiled for it"
            yield Mark("compiled", text, (kernel.name,), needs)
        for fault in launch_faults(kernel, archs[name], resources):
            yield Mark("launch", f"{kernel.name} cannot start on {name}: {fault}", (kernel.name,), needs)


def first_of(space: Space, where: Where, fixed: Mapping[str, Value]) -> Witness | None:
    """The smallest request of a box in which `fixed` holds; None where there is none."""
    request: Witness = {}
    for axis in space.axes:
        condition = where.get(axis.name, axis.whole)
        if axis.name in fixed:
            if not holds(condition, fixed[axis.name]):
                return None
            request[axis.name] = fixed[axis.name]
        elif isinstance(condition, Ints):
            whole = axis.whole
            assert isinstance(whole, Ints)
            least = condition.meet(whole).least()
            if least is None:
                return None
            request[axis.name] = least
        else:
            chosen = [value for value in axis.values if value in condition]
            if not chosen:
                return None
            request[axis.name] = chosen[0]
    return request


@dataclass(frozen=True)
class Dead:
    """A compiled kernel that no request reaches on an architecture, and what its smallest request comes to instead."""

    kernel: Kernel
    archs: tuple[str, ...]
    witness: Witness | None
    instead: str


def dead_kernels(
    diagram: Diagram, emitted: Iterable[tuple[Kernel, str]], reached: Mapping[str, frozenset[str]]
) -> Iterator[Dead]:
    """`emitted`: every (kernel, architecture) that is compiled."""
    lost: dict[str, tuple[Kernel, list[str]]] = {}
    for kernel, arch in emitted:
        if arch not in reached.get(kernel.name, frozenset()):
            lost.setdefault(kernel.name, (kernel, []))[1].append(arch)
    for kernel, archs in lost.values():
        witness = first_of(diagram.space, kernel.where, {"arch": archs[0]})
        instead = "nothing: its own conditions exclude each other"
        if witness is not None:
            leaf = diagram.decide(witness)
            assert isinstance(leaf, Leaf)
            instead = leaf.kernel or (f"the refusal {leaf.refusal.code!r}" if leaf.refusal else "nothing")
        yield Dead(kernel, tuple(archs), witness, instead)


# ---- agreement between ops --------------------------------------------------------------------------------------

Box = dict[str, Condition]


def served_boxes(diagram: Diagram) -> list[tuple[Box, str]]:
    """The boxes of the space that a kernel serves."""
    return [(where, leaf.kernel) for where, leaf in diagram.boxes() if isinstance(leaf, Leaf) and leaf.kernel]


def _of_op(boxes: Iterable[tuple[Box, str]], op: str, dropped: Iterable[str]) -> Iterator[tuple[Box, str]]:
    """The boxes of one op, projected: there is a request with some value on each dropped axis."""
    gone = {"op", *dropped}
    for where, kernel in boxes:
        condition = where.get("op")
        if condition is None or holds(condition, op):
            yield {name: c for name, c in where.items() if name not in gone}, kernel


def compare(
    space: Space, sides: Mapping[str, Iterable[Box]], verdict: Callable[[frozenset[str]], Mark | None]
) -> dict[Mark, Witness]:
    """Lay sets of boxes over each other; `verdict` says what is wrong where a request is in these and no other sets."""
    rows = [Row(side, where) for side, boxes in sides.items() for where in boxes]

    def judge(labels: tuple[Hashable, ...]) -> Leaf:
        mark = verdict(frozenset(str(label) for label in labels))
        return Leaf(marks=(mark,) if mark else ())

    diagram = build(space, rows, judge)
    return witnesses(diagram, {n: [(m, {}) for m in _marks(diagram, n)] for n in diagram.leaves()})


def _marks(diagram: Diagram, leaf: int) -> tuple[Mark, ...]:
    outcome = diagram.outcome(leaf)
    return outcome.marks if isinstance(outcome, Leaf) else ()


def quantiser_faults(space: Space, boxes: list[tuple[Box, str]], catalog: Catalog) -> dict[Mark, Witness]:
    """A matmul kernel that is served, but whose quantiser the dispatch refuses for the same x."""
    dropped = ("storage", "epilogue", "policy", "N")
    op = "quantize_activation"
    if op not in space.axis("op").values:
        return {}
    quantiser = {k.name: k.quantiser for k in catalog.kernels if k.quantiser}
    offered: dict[str, list[Box]] = {}
    for where, kernel in _of_op(boxes, op, dropped):
        offered.setdefault(f"has {kernel}", []).append(where)
    needed: dict[str, list[Box]] = {}
    for other in space.axis("op").values:
        if other != op:
            for where, kernel in _of_op(boxes, other, dropped):
                if kernel in quantiser:
                    needed.setdefault(f"needs {quantiser[kernel]}", []).append(where)

    def verdict(sides: frozenset[str]) -> Mark | None:
        for side in sorted(sides):
            name = side.removeprefix("needs ")
            if side != name and f"has {name}" not in sides:
                return Mark("quantiser", f"a matmul kernel needs {name}, which op {op} refuses there", (name,))
        return None

    return compare(space.without(("op", *dropped)), {**needed, **offered}, verdict)


def op_faults(space: Space, boxes: list[tuple[Box, str]], like: Mapping[str, str]) -> dict[Mark, Witness]:
    """Ops that must serve alike: where both have kernels for a format, they take the same requests, T and N aside."""
    faults: dict[Mark, Witness] = {}
    for op, model in like.items():
        dropped = ("T", "N", "policy")
        sides = {name: [where for where, _ in _of_op(boxes, name, dropped)] for name in (op, model)}
        formats = _formats(space, sides[op]) & _formats(space, sides[model])
        if not formats:
            continue
        for name in sides:
            # `format` may be free in a box; only the formats both ops serve are compared.
            sides[name] = [{**w, "format": both} for w in sides[name] if (both := _formats(space, [w]) & formats)]

        def verdict(found: frozenset[str], op: str = op, model: str = model) -> Mark | None:
            if len(found) != 1:
                return None
            (one,) = found
            other = model if one == op else op
            return Mark(
                "disagree", f"{one} serves what {other} refuses, for a format both have kernels for", (op, model)
            )

        faults |= compare(space.without(("op", *dropped)), sides, verdict)
    return faults


def _formats(space: Space, boxes: Iterable[Box]) -> frozenset[str]:
    names: frozenset[str] = frozenset()
    for where in boxes:
        condition = where.get("format", space.axis("format").whole)
        assert isinstance(condition, frozenset)
        names |= condition
    return names
