"""Other engines' tables: the two worked examples are understood unaided, their repairs pass, damage is found."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dispatch_world import toml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qgen.dispatch.gate_proof import GateProof, prove_gates
from qgen.dispatch.gates import load_gates
from qgen.errors import QgenError
from qgen.paths import data_dir

GATES = data_dir("specs") / "gates"
TQ1, TQ1_REPAIRED = GATES / "ggml_like_tq1_0.toml", GATES / "ggml_like_tq1_0_repaired.toml"
Q5, Q5_REPAIRED = GATES / "q5_linear_ladder.toml", GATES / "q5_linear_ladder_repaired.toml"
Data = dict[str, Any]


def proof_of(path: Path) -> GateProof:
    return prove_gates(load_gates(path))


def texts(proof: GateProof, kind: str) -> list[str]:
    return [finding.text for finding in proof.findings if finding.kind == kind]


def test_the_reachable_expert_path_without_a_kernel() -> None:
    proof = proof_of(TQ1)
    found = [f for f in proof.findings if f.kind == "no_kernel" and "experts" in f.text]
    assert len(found) == 1 and "reachable path without a kernel" in found[0].text
    assert "start -> fusion -> experts -> set mat_vec" in found[0].text
    assert found[0].witness == {"op": "mul_mat_id", "type": "TQ1_0", "fused": "no", "arch": "sm_75", "T": 1}
    # The plain path is sound: nothing is said of it, or of any other type.
    assert all(f.witness and f.witness["type"] == "TQ1_0" for f in proof.findings)
    assert not any("-> plain ->" in f.text for f in proof.findings)


def test_the_gates_that_disagree() -> None:
    found = texts(proof_of(TQ1), "disagree")
    said = "should_use_mmvq says no, mmid_max_batch says yes, should_fuse says yes"
    assert any(said in text and "no kernel" in text for text in found)


def test_the_gates_that_promise_what_is_not_there() -> None:
    assert {text.split()[0] for text in texts(proof_of(TQ1), "lie")} == {"mmid_max_batch", "should_fuse"}


def test_the_unreachable_rungs() -> None:
    proof = proof_of(Q5)
    (rung,) = [f for f in proof.findings if f.kind == "rung"]
    assert "rungs 8, 16, 24 of ladder q5 are compiled but unreachable" in rung.text
    assert rung.witness == {"op": "linear", "format": "Q5", "K": 6144, "N": 5120, "T": 2}


def test_the_waste() -> None:
    proof = proof_of(Q5)
    waste = [f for f in proof.findings if f.kind == "waste"]
    assert any("T = 2..17: 16.0 x at T = 2, 1.9 x at T = 17" in f.text for f in waste)
    # Only the plain Q5 layer: the Q4 ladder and the layer with a residual are sound.
    assert {(f.witness["op"], f.witness["format"]) for f in proof.findings if f.witness} == {("linear", "Q5")}


@pytest.mark.parametrize("path", [TQ1_REPAIRED, Q5_REPAIRED], ids=lambda path: path.stem)
def test_the_repaired_versions_pass(path: Path) -> None:
    proof = proof_of(path)
    assert proof.ok, [str(f) for f in proof.findings]


def test_every_shipped_example_is_tested() -> None:
    assert sorted(GATES.glob("*.toml")) == sorted([TQ1, TQ1_REPAIRED, Q5, Q5_REPAIRED])


# ---- damage to the repaired versions


def data_of(path: Path) -> Data:
    return tomllib.loads(path.read_text())


def named(data: Data, kind: str, name: str) -> Data:
    found: Data = next(item for item in data[kind] if item["name"] == name)
    return found


Draw = Callable[[st.SearchStrategy[Any]], Any]


def type_lost_from_a_gate(draw: Draw, data: Data) -> str:
    gate = named(data, "gate", draw(st.sampled_from(["should_use_mmvq", "mmid_max_batch", "should_fuse"])))
    box = draw(st.sampled_from(gate["yes"]))
    lost = draw(st.sampled_from(box["type"]))
    box["type"] = [t for t in box["type"] if t != lost]
    return "narrow"


def type_added_to_a_gate(draw: Draw, data: Data) -> str:
    gate = named(data, "gate", draw(st.sampled_from(["should_use_mmvq", "mmid_max_batch", "should_fuse"])))
    draw(st.sampled_from(gate["yes"]))["type"].append("TQ1_0")
    return "no_kernel"


def batch_off_by_one(draw: Draw, data: Data) -> str:
    gate = named(data, "gate", draw(st.sampled_from(["should_use_mmvq", "mmid_max_batch"])))
    box = draw(st.sampled_from(gate["yes"]))
    step = draw(st.sampled_from([-1, 1]))
    box["T"] = [1, box["T"][1] + step]
    return "lie" if step > 0 else "narrow"


def capability_too_wide(draw: Draw, data: Data) -> str:
    named(data, "kernel", "dequantize_gemm")["when"] = [{"type": ["Q4_0", "Q4_K", "Q8_0"]}]
    return "no_kernel"


def capability_too_narrow(draw: Draw, data: Data) -> str:
    lost = draw(st.sampled_from(["Q4_0", "Q4_K", "Q8_0"]))
    gate = named(data, "gate", "supports_op")
    gate["yes"] = [{"type": [t for t in gate["yes"][0]["type"] if t != lost]}]
    return "narrow"


def capability_that_is_refused_later(draw: Draw, data: Data) -> str:
    step = named(data, "step", draw(st.sampled_from(["plain", "experts", "fused"])))
    step[draw(st.sampled_from(["yes", "no"]))] = {"refuse": "not today"}
    return "promise"


def kernel_lost(draw: Draw, data: Data) -> str:
    kernel = draw(st.sampled_from(["mmvq", "mmvq_id"]))
    data["kernel"].remove(named(data, "kernel", kernel))
    return "no_kernel"


def kernel_doubled(draw: Draw, data: Data) -> str:
    twin = {**named(data, "kernel", draw(st.sampled_from(["mmvq", "mmvq_id"]))), "name": "twin"}
    data["kernel"].append(twin)
    return "overlap"


def case_too_narrow(draw: Draw, data: Data) -> str:
    case = draw(st.sampled_from(named(data, "step", "fusion")["cases"]))
    lo = draw(st.integers(1, 512))
    case["when"]["T"] = [lo, draw(st.integers(lo, 512 if lo > 1 else 511))]
    return "hole"


def case_too_wide(draw: Draw, data: Data) -> str:
    cases = named(data, "step", "fusion")["cases"]
    case = draw(st.sampled_from(cases[1:]))
    case["when"].pop(draw(st.sampled_from(sorted(case["when"]))))
    return "overlap"


ON_GATES = (
    type_lost_from_a_gate,
    type_added_to_a_gate,
    batch_off_by_one,
    capability_too_wide,
    capability_too_narrow,
    capability_that_is_refused_later,
    kernel_lost,
    kernel_doubled,
    case_too_narrow,
    case_too_wide,
)


def rung_lost(draw: Draw, data: Data) -> str:
    # The dispatcher skips a rung that is there.
    cases = named(data, "step", "q5")["cases"]
    at = draw(st.integers(1, 2))
    lost = cases.pop(at)
    cases[at]["when"]["T"][0] = lost["when"]["T"][0]
    return "rung"


def rungs_swapped(draw: Draw, data: Data) -> str:
    cases = named(data, "step", draw(st.sampled_from(["q4", "q5"])))["cases"]
    at = draw(st.integers(1, 3))
    cases[at]["to"], cases[at + 1]["to"] = cases[at + 1]["to"], cases[at]["to"]
    return "order"


def rung_boundary_off_by_one(draw: Draw, data: Data) -> str:
    cases = named(data, "step", draw(st.sampled_from(["q4", "q5"])))["cases"]
    case = draw(st.sampled_from(cases[:-1]))
    step = draw(st.sampled_from([-1, 1])) if case["when"]["T"][0] < case["when"]["T"][1] else 1
    case["when"]["T"] = [case["when"]["T"][0], case["when"]["T"][1] + step]
    return "hole" if step < 0 else "overlap"


def everything_in_one_rung(draw: Draw, data: Data) -> str:
    cases = named(data, "step", "q4")["cases"]
    cases[:] = [{"when": {"T": [1, 96]}, "to": {"kernel": "q4_rung32"}}]
    return "dead"


ON_LADDERS = (rung_lost, rungs_swapped, rung_boundary_off_by_one, everything_in_one_rung)


@pytest.mark.parametrize(
    ("base", "damage"),
    [(TQ1_REPAIRED, d) for d in ON_GATES] + [(Q5_REPAIRED, d) for d in ON_LADDERS],
    ids=lambda item: getattr(item, "__name__", None) or item.stem,
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(draw=st.data())
def test_damage_is_found(base: Path, damage: Callable[[Draw, Data], str], draw: Any, tmp_path: Path) -> None:
    data = data_of(base)
    kind = damage(draw.draw, data)
    path = tmp_path / "gates.toml"
    path.write_text(toml(data))
    proof = proof_of(path)
    assert kind in {finding.kind for finding in proof.findings}, [str(f) for f in proof.findings]
    for finding in proof.findings:
        assert finding.witness and finding.sources and str(path) in "".join(finding.sources) + str(path)
        if finding.kind in ("no_kernel", "hole", "overlap"):
            assert naive(data, finding.witness) == finding.kind


def naive(data: Data, request: Data) -> str:
    """The walk for one request, straight from the data: "kernel", "refuse", or what is wrong."""
    step = data["step"][0]
    for _ in range(len(data["step"])):
        if "ask" in step:
            place = step["yes" if any_box(named(data, "gate", step["ask"])["yes"], request) else "no"]
        else:
            taken = [case["to"] for case in step["cases"] if any_box([case["when"]], request)]
            if len(taken) != 1:
                return "overlap" if taken else "hole"
            (place,) = taken
        if "step" not in place:
            break
        step = named(data, "step", place["step"])
    if "refuse" in place:
        return "refuse"
    able = [
        k
        for k in data["kernel"]
        if place.get("kernels") == k["set"] or place.get("kernel") == k["name"]
        if any_box(k["when"], request)
    ]
    return "kernel" if len(able) == 1 else "overlap" if able else "no_kernel"


def any_box(boxes: list[Data], request: Data) -> bool:
    def meets(axis: str, condition: list[Any]) -> bool:
        value = request[axis]
        return bool(condition[0] <= value <= condition[1]) if isinstance(value, int) else value in condition

    return any(all(meets(axis, c) for axis, c in box.items()) for box in boxes)


@pytest.mark.parametrize("path", [TQ1, TQ1_REPAIRED], ids=lambda path: path.stem)
def test_the_diagram_walks_as_the_file_says(path: Path) -> None:
    """Every request of the example, one by one."""
    data, proof = data_of(path), proof_of(path)
    axes = [a.values or range(a.lo, 12) for a in proof.engine.space.axes]
    for values in itertools.product(*axes):
        request: Data = dict(zip(proof.engine.space.names, values, strict=True))
        leaf: Any = proof.diagram.decide(request)
        said = naive(data, request)
        if said == "kernel":
            assert leaf.kernel
        elif said == "refuse":
            assert leaf.refusal
        else:
            assert said in {mark.kind for mark in leaf.marks}


# ---- wrong files

WRONG: dict[str, tuple[Callable[[Data], object], str, str]] = {
    "unknown key": (lambda d: d["gate"][0].update(name2="x"), "gate[0].name2", "did you mean 'name'"),
    "unknown axis": (
        lambda d: d["gate"][0].update(yes=[{"typ": ["Q4_0"]}]),
        "gate[0].yes[0].typ",
        "did you mean 'type'",
    ),
    "unknown value": (lambda d: d["gate"][0].update(yes=[{"type": ["Q4_9"]}]), "gate[0].yes[0].type", "no type 'Q4_9'"),
    "backwards": (lambda d: d["gate"][1]["yes"][0].update(T=[8, 1]), "gate[1].yes[0].T", "runs backwards"),
    "outside": (lambda d: d["gate"][1]["yes"][0].update(T=[0, 8]), "gate[1].yes[0].T", "[0, 8]"),
    "unknown set": (lambda d: d["gate"][1].update(guards="matvec"), "gate[1].guards", "did you mean 'mat_vec'"),
    "unknown gate": (lambda d: d["step"][0].update(ask="supports"), "step[0].ask", "no gate 'supports'"),
    "unknown step": (
        lambda d: d["step"][0].update(yes={"step": "fuzion"}),
        "step[0].yes.step",
        "did you mean 'fusion'",
    ),
    "unknown kernel": (
        lambda d: d["step"][2].update(yes={"kernel": "mmwq"}),
        "step[2].yes.kernel",
        "did you mean 'mmvq'",
    ),
    "nowhere to go": (lambda d: d["step"][0].update(yes={}), "step[0].yes", "{}"),
    "two ways to go": (lambda d: d["step"][0].update(yes={"step": "plain", "refuse": "x"}), "step[0].yes", "plain"),
    "refusal without reason": (lambda d: d["step"][0].update(no={"refuse": ""}), "step[0].no.refuse", "''"),
    "ask and cases": (lambda d: d["step"][1].update(ask="supports_op"), "step[1].ask", "both"),
    "a circle": (lambda d: d["step"][3].update(no={"step": "start"}), "step", "start -> fusion -> plain -> start"),
    "a lost step": (
        lambda d: d["step"].append(
            {"name": "alone", "ask": "supports_op", "yes": {"kernels": "gemm"}, "no": {"kernels": "gemm"}}
        ),
        "step",
        "'alone'",
    ),
    "a name twice": (lambda d: d["kernel"].append(dict(d["kernel"][0])), "kernel[3].name", "'mmvq' again"),
    "no boxes": (lambda d: d["kernel"][0].update(when=[]), "kernel[0].when", "no box"),
    "a rung of no width": (lambda d: d["kernel"][0].update(ladder="x"), "kernel[0].columns", "without columns"),
    "no axes": (lambda d: d.pop("axis"), "axis", "no axis"),
    "T in front": (lambda d: d["axis"].reverse(), "axis", "T, arch"),
    "no steps": (lambda d: d.pop("step"), "step", "no step"),
    "a fact of qgen's own": (lambda d: d["gate"][1]["yes"][0].update(T=[1, "block"]), "gate[1].yes[0].T", "'block'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name: str, tmp_path: Path) -> None:
    change, place, found = WRONG[name]
    data = data_of(TQ1_REPAIRED)
    change(data)
    path = tmp_path / "gates.toml"
    path.write_text(toml(data))
    with pytest.raises(QgenError) as caught:
        load_gates(path)
    error = caught.value
    assert error.stage == "dispatch" and f"{path}: {place}" in error.subject
    assert found in error.found and error.allowed and error.next


def test_a_missing_file_names_those_there_are() -> None:
    with pytest.raises(QgenError) as caught:
        load_gates(GATES / "q5_linear_lader.toml")
    assert "did you mean 'q5_linear_ladder.toml'" in caught.value.found
