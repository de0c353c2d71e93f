"""What the templates of the C dispatcher receive: every table as finished text, numbered and in order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from qgen.archs import Arch
from qgen.dispatch.diagram import Diagram
from qgen.dispatch.emission import Ends
from qgen.dispatch.judge import Leaf
from qgen.dispatch.kernels import Kernel
from qgen.dispatch.proof import Proof
from qgen.dispatch.space import Axis
from qgen.spec.records import Format


@dataclass(frozen=True)
class CValue:
    """One value of a choice: enum constant, number, name in quotes."""

    constant: str
    number: int
    text: str


@dataclass(frozen=True)
class CChoice:
    """One choice axis as a C enum. reason: what is said of a value it does not have."""

    name: str
    doc: str
    number: int
    axis_constant: str
    count_constant: str
    count: int
    values: tuple[CValue, ...]
    reason: str


@dataclass(frozen=True)
class CInteger:
    """One integer axis and its limits."""

    name: str
    doc: str
    lo: int
    hi: int
    reason: str


@dataclass(frozen=True)
class CRow:
    """One line of a table."""

    text: str
    number: int


@dataclass(frozen=True)
class CNode:
    """One question: its row in `nodes`, its answers in `next`, the interval ends in `upper`."""

    text: str
    comment: str
    answers: str
    bounds: str


@dataclass(frozen=True)
class CCase:
    """One case of a switch."""

    key: int
    constant: str


@dataclass(frozen=True)
class CSource:
    """Everything both templates print."""

    choices: tuple[CChoice, ...]
    integers: tuple[CInteger, ...]
    kernels: tuple[CRow, ...]
    refusals: tuple[CRow, ...]
    nodes: tuple[CNode, ...]
    root: int
    gguf: tuple[CCase, ...]
    capabilities: tuple[CCase, ...]


def c_source(proof: Proof, ends: Ends, formats: Mapping[str, Format], archs: Mapping[str, Arch]) -> CSource:
    """The record for dispatch/qgen_dispatch.{h,c}.j2."""
    choices = [axis for axis in proof.space.axes if axis.choice]
    # The order of the request's members is for people: T, N, K.
    integers = [axis for axis in reversed(proof.space.axes) if not axis.choice]
    numbers = {k.name: i for i, k in enumerate(ends.kernels)}
    nodes, root = _nodes(proof.diagram, ends, [a.name for a in choices], [a.name for a in integers])
    return CSource(
        choices=tuple(_choice(axis, i) for i, axis in enumerate(choices)),
        integers=tuple(_integer(axis) for axis in integers),
        kernels=tuple(CRow(_kernel(k, i, numbers), i) for i, k in enumerate(ends.kernels)),
        refusals=tuple(CRow(f"{_quoted(code)}, {_quoted(why)}", i) for i, (code, why) in enumerate(ends.refusals)),
        nodes=nodes,
        root=root,
        gguf=tuple(CCase(f.id, _constant("format", name)) for name, f in sorted(formats.items()) if f.id is not None),
        capabilities=tuple(
            CCase(major * 100 + minor, _constant("arch", arch.name))
            for arch in archs.values()
            for major, minor in arch.serves
        ),
    )


def _constant(axis: str, value: str) -> str:
    return f"QGEN_{axis}_{value}".upper()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _choice(axis: Axis, number: int) -> CChoice:
    upper = axis.name.upper()
    return CChoice(
        name=axis.name,
        doc=axis.doc,
        number=number,
        axis_constant=f"QGEN_AXIS_{upper}",
        count_constant=f"QGEN_{upper}_COUNT",
        count=len(axis.values),
        values=tuple(CValue(_constant(axis.name, v), i, _quoted(v)) for i, v in enumerate(axis.values)),
        reason=_quoted(f"{axis.name} is none of the values of enum qgen_{axis.name}"),
    )


def _integer(axis: Axis) -> CInteger:
    reason = _quoted(f"{axis.name} is outside {axis.lo}..{axis.hi}")
    return CInteger(axis.name, axis.doc, axis.lo, axis.hi, reason)


def _kernel(k: Kernel, number: int, numbers: Mapping[str, int]) -> str:
    texts = ", ".join(_quoted(text) for text in (k.name, k.file, k.contract or ""))
    quantiser = numbers[k.quantiser] if k.quantiser else -1
    facts = (k.threads, k.shared_bytes, k.rows, k.alignment, k.columns, quantiser, number)
    return f"{texts}, {', '.join(map(str, facts))}"


def _nodes(diagram: Diagram, ends: Ends, choices: list[str], integers: list[str]) -> tuple[tuple[CNode, ...], int]:
    """The graph's questions in an order in which every answer leads on; leaves become numbers below zero."""
    order = [node for node in reversed(list(diagram.bottom_up())) if not diagram.is_leaf(node)]
    target = {node: i for i, node in enumerate(order)}
    numbers = {k.name: i for i, k in enumerate(ends.kernels)}
    for leaf in diagram.leaves():
        outcome = diagram.outcome(leaf)
        assert isinstance(outcome, Leaf)
        kind, which = ends.place(outcome)
        target[leaf] = -1 - (numbers[str(which)] if kind == "kernel" else len(ends.kernels) + int(which))
    nodes: list[CNode] = []
    first = 0
    for node in order:
        data = diagram.graph.nodes[node]
        axis = diagram.space.axis(data["axis"])
        answers, bounds = _answers(diagram, node, axis, target)
        place = (choices if axis.choice else integers).index(axis.name)
        kind, modulus = data["kind"].upper(), data.get("modulus", 0)
        asked = f"{axis.name} % {modulus}" if modulus else axis.name
        nodes.append(
            CNode(
                text=f"{kind}, {place}, {len(answers)}, {first}, {modulus}",
                comment=f"{target[node]}: {asked}",
                answers="".join(f"{a}, " for a in answers).rstrip() + f" /* {target[node]}: {asked} */",
                bounds="".join(f"INT64_C({b}), " if b else "0, " for b in bounds).rstrip() + f" /* {target[node]} */",
            )
        )
        first += len(answers)
    return tuple(nodes), target[diagram.root]


def _answers(diagram: Diagram, node: int, axis: Axis, target: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Where each answer leads, and the ends of the intervals (0 for other kinds of question)."""
    edges = [(edge["answer"], target[child]) for child, edge in diagram.graph.adj[node].items()]
    kind = diagram.graph.nodes[node]["kind"]
    if kind == "range":
        spans = sorted((lo, hi, to) for answer, to in edges for lo, hi in answer)
        return [to for _, _, to in spans], [hi for _, hi, _ in spans]
    if kind == "divides":
        found = dict(edges)
        return [found[False], found[True]], [0, 0]
    answers = [next(to for answer, to in edges if value in answer) for value in axis.values]
    return answers, [0] * len(answers)
