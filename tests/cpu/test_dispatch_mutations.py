"""Damage of every kind is found, with a witness that shows it and is the smallest; sound tables give no finding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dispatch_damage import DAMAGES, Draw, Expected
from dispatch_world import ARCHS, MAX_K, MAX_N, MAX_T, World, can, naive, world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qgen.dispatch.proof import Finding

PER_KIND = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@PER_KIND
@given(data=st.data())
def test_damage_is_found(damage: Callable[[Draw, World], Expected], data: Any, tmp_path: Path) -> None:
    damaged = world()
    expected = damage(data.draw, damaged)
    proof = damaged.prove(tmp_path)
    found = {finding.kind for finding in proof.findings}
    assert set(expected.kinds) <= found, f"expected {expected}, found {[str(f) for f in proof.findings]}"
    assert any(expected.subject in str(finding) for finding in proof.findings)
    for finding in proof.findings:
        shows(damaged, finding)


def test_at_least_a_dozen_kinds() -> None:
    assert len({damage.__name__ for damage in DAMAGES}) == len(DAMAGES) >= 12


@PER_KIND
@given(data=st.data())
def test_sound_tables_give_no_finding(data: Any, tmp_path: Path) -> None:
    """Other boundaries, other orders of the rows, rungs that are not used and not made: all of them sound."""
    sound = world()
    routes = sound.routes["mul_mat"]["route"]
    low, high = (next(r for r in routes if r.get("kernel") == {"rows": rows}) for rows in (1, 2))
    split = data.draw(st.integers(1, MAX_N - 1))
    low["N"], high["N"] = [1, split], [split + 1, "max"]
    # 16 and 24 for 8 and 16 before them; 32 may go from 49 down to 33 columns without waste: 64 / 36 < 1.8
    t = data.draw(st.integers(35, 48))
    for r in routes:
        if r.get("T") == [33, 48]:
            r["T"] = [33, t]
        if r.get("T") == [49, 96]:
            r["T"] = [t + 1, 96]
    sound.routes["mul_mat"]["route"] = data.draw(st.permutations(routes))
    if split >= (1 << 31) - 1:
        return  # the second row would lie behind the gate that keeps N to 31 bits, and is then rightly found idle
    proof = sound.prove(tmp_path)
    assert proof.ok, [str(f) for f in proof.findings]


# ---- judging a witness ------------------------------------------------------------------------------------------


def shows(damaged: World, finding: Finding) -> None:
    """The witness has the fault, by the independent judge, and no smaller T, N, K with the same choices has it."""
    witness = finding.witness
    if witness is None:
        assert finding.kind == "dead" and "no route names it" in finding.text
        return
    fault = FAULTS.get(finding.kind)
    if fault is None:
        assert finding.kind in ASIDE
        ASIDE[finding.kind](damaged, finding)
        return
    assert fault(damaged, finding, witness), f"{finding} does not show it: {naive(damaged, witness)}"
    for smaller in below(damaged, witness):
        assert not fault(damaged, finding, smaller), f"{finding}: {smaller} is smaller"


def below(damaged: World, witness: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Requests before the witness: all T, and N and K where anything can change."""
    edges = {1, 2, MAX_N, (1 << 31) - 1, 1 << 31, witness["N"]}
    for routing in damaged.routes.values():
        for r in routing["route"]:
            edges |= {n + d for n in r.get("N", []) if isinstance(n, int) for d in (-1, 0, 1)}
    ns = sorted(n for n in edges if 1 <= n <= MAX_N)
    ks = sorted({1, 2, 31, 32, 33, 255, 256, 257, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, MAX_K, witness["K"]})
    ts = [t for t in range(1, min(witness["T"], MAX_T) + 1)]
    for t, n, k in itertools.product(ts[-40:], ns, ks):
        if (t, n, k) < (witness["T"], witness["N"], witness["K"]):
            yield {**witness, "T": t, "N": n, "K": k}


Fault = Callable[[World, Finding, dict[str, Any]], bool]


def _kind(kind: str) -> Fault:
    return lambda damaged, finding, request: naive(damaged, request).kind == kind


def overlap(damaged: World, finding: Finding, request: dict[str, Any]) -> bool:
    said = naive(damaged, request)
    return said.kind == "overlap" and said.rows == " ".join(source.split(": ")[-1] for source in finding.sources)


def outside(damaged: World, finding: Finding, request: dict[str, Any]) -> bool:
    said = naive(damaged, request)
    row, kernel = finding.sources
    there = said.kind == "kernel" and said.name == kernel and said.rows == row.split(": ")[-1]
    return there and not can(damaged.kernel(kernel), request)


def narrow(damaged: World, finding: Finding, request: dict[str, Any]) -> bool:
    kind = naive(damaged, request).kind
    able = [k.name for k in damaged.kernels if can(k, request)]
    return kind in ("refused", "gap") and finding.sources[1] in able


def waste(damaged: World, finding: Finding, request: dict[str, Any]) -> bool:
    kind, name, _ = naive(damaged, request)
    if kind != "kernel" or name != finding.sources[0]:
        return False
    columns, t = damaged.kernel(name).columns, request["T"]
    computed = -(-t // columns) * columns if columns else 0
    # One mark a stretch: a smaller T of an earlier stretch has one of its own.
    stretch = f"computes {computed} columns" in finding.text or finding.kind == "rung"
    return computed > max(8, 1.8 * t) and stretch


def launch(damaged: World, finding: Finding, request: dict[str, Any]) -> bool:
    kind, name, _ = naive(damaged, request)
    return kind == "kernel" and name == finding.sources[0] and f" on {request['arch']}" in finding.text


FAULTS: dict[str, Fault] = {
    "hole": _kind("hole"),
    "overlap": overlap,
    "outside": outside,
    "narrow": narrow,
    "waste": waste,
    "rung": waste,
    "launch": launch,
    "compiled": launch,
}


def dead(damaged: World, finding: Finding) -> None:
    assert finding.witness is not None
    kernel = damaged.kernel(finding.sources[0])
    assert can(kernel, finding.witness)
    assert naive(damaged, finding.witness)[:2] != ("kernel", kernel.name)


def duplicate(damaged: World, finding: Finding) -> None:
    assert finding.witness is not None
    named = [k for k in damaged.kernels if k.name == finding.sources[0]]
    assert len(named) == 2 and any(can(k, finding.witness) for k in named)


def dead_route(damaged: World, finding: Finding) -> None:
    assert finding.witness is not None
    assert naive(damaged, finding.witness).kind in ("refused", "hole", "kernel")


def order(damaged: World, finding: Finding) -> None:
    assert finding.witness is not None
    before, after = (damaged.kernel(name) for name in finding.sources)
    assert naive(damaged, finding.witness)[:2] == ("kernel", after.name)
    t = int(finding.witness["T"])
    earlier = {**finding.witness, "T": t - 1}
    assert naive(damaged, earlier)[:2] == ("kernel", before.name)
    assert after.columns < before.columns >= t


def contract(damaged: World, finding: Finding) -> None:
    witness = finding.witness
    assert witness is not None and witness["policy"] == "invariant"
    if "mixes" not in finding.text:
        said = naive(damaged, witness)
        assert said.name == finding.sources[1] and damaged.kernel(said.name).contract != f"c_{witness['format']}"
        return
    at = {t: naive(damaged, {**witness, "T": t}) for t in range(1, int(witness["T"]) + 1)}
    seen = {damaged.kernel(name).contract for kind, name, _ in at.values() if kind == "kernel"}
    del at[int(witness["T"])]
    before = {damaged.kernel(name).contract for kind, name, _ in at.values() if kind == "kernel"}
    assert len(seen) == 2 and len(before) == 1


def quantiser(damaged: World, finding: Finding) -> None:
    witness = finding.witness
    assert witness is not None
    free: dict[str, list[Any]] = {"storage": ["native", "tiled"], "epilogue": ["none"], "policy": ["fastest"], "N": [1]}
    requests = [
        {**witness, "op": op, **dict(zip(free, values, strict=True))}
        for op in ("mul_mat", "mul_mat_id", "quantize_activation")
        for values in itertools.product(*free.values())
    ]
    answers = {(r["op"], naive(damaged, r)) for r in requests}
    assert any(
        op != "quantize_activation" and kind == "kernel" and damaged.kernel(name).quantiser == finding.sources[0]
        for op, (kind, name, _) in answers
    )
    assert all(kind != "kernel" for op, (kind, *_) in answers if op == "quantize_activation")


def disagree(damaged: World, finding: Finding) -> None:
    witness = finding.witness
    assert witness is not None
    served = {
        op: any(
            naive(damaged, {**witness, "op": op, "T": t, "N": n, "policy": policy}).kind == "kernel"
            for t in (1, 2, 8, 9, MAX_T)
            for n in (1, 2000)
            for policy in ("fastest", "invariant")
        )
        for op in finding.sources
    }
    assert sorted(served.values()) == [False, True]


ASIDE: dict[str, Callable[[World, Finding], None]] = {
    "dead": dead,
    "duplicate": duplicate,
    "dead_route": dead_route,
    "order": order,
    "contract": contract,
    "quantiser": quantiser,
    "disagree": disagree,
}


def test_archs_of_the_world_are_shipped_ones() -> None:
    from qgen.archs import load_archs

    assert set(ARCHS) <= set(load_archs())
