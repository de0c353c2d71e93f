"""The proof as text and JSON: everything a person or a program asks of it is there, of a sound and of a broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dispatch_world import world

from qgen.dispatch.proof import KINDS, Proof
from qgen.dispatch.report import proof_json, proof_text


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    return world().prove(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    damaged = world()
    damaged.routes["mul_mat"]["route"].pop(2)
    return damaged.prove(tmp_path_factory.mktemp("broken"))


def test_a_sound_proof_in_words(sound: Proof) -> None:
    text = proof_text(sound)
    assert all(f" none  {meaning}" in text for meaning in KINDS.values())
    assert "proved: every request reaches exactly one kernel or one refusal" in text
    assert "policy invariant: mul_mat T = 1..4096 under one contract each for A, B" in text
    assert "columns computed over columns needed: at most 8.00 x (mul_mat A, T = 1 on rung 8)" in text


def test_a_broken_proof_in_words(broken: Proof) -> None:
    text = proof_text(broken)
    assert "NOT proved: 1 findings" in text
    assert "hole: no gate refuses it and no route claims it" in text
    assert "op=mul_mat format=A activation=q8 storage=native epilogue=none" in text and "K=32 N=1 T=2" in text
    assert "formats: A, B" in text


def test_json_says_the_same(sound: Proof, broken: Proof) -> None:
    said = json.loads(json.dumps(proof_json(sound)))
    assert said["proved"] is True and said["findings"] == [] and len(said["kernels"]) == len(sound.reached)
    assert {"op": "mul_mat", "format": "A", "T": [[1, 4096]]} in said["invariant"]
    rung = {
        "op": "mul_mat",
        "format": "A",
        "T": [33, 48],
        "computed_at_a_time": 24,
        "worst_ratio": 1.455,
        "worst_T": 33,
    }
    assert rung in said["columns"]
    (finding,) = json.loads(json.dumps(proof_json(broken)))["findings"]
    assert finding["kind"] == "hole" and finding["formats"] == ["A", "B"]
    assert finding["witness"]["T"] == 2 and finding["witness"]["storage"] == "native"


def test_invariant_gaps_show_in_the_coverage(tmp_path: Path) -> None:
    """Without its row for `invariant`, T > 96 is refused there, with the gap named; T up to 96 stays covered."""
    damaged = world()
    routes = damaged.routes["mul_mat"]["route"]
    del routes[6]["policy"]
    routes.pop(7)
    proof = damaged.prove(tmp_path)
    assert proof.coverage["mul_mat", "A"] == ((1, 96),)
    # Rung 32 is generated for smaller T and could keep the promise: the refusal is narrower than the kernel.
    assert {f.kind for f in proof.findings} == {"narrow"}
    request = {**proof.findings[0].witness, "op": "mul_mat"}  # type: ignore[dict-item]
    leaf = proof.diagram.decide(request)
    reason = leaf.refusal.reason  # type: ignore[attr-defined]
    assert "promises contract c_A" in reason and "T = 97..4096" in reason and "tile_A under contract d_A" in reason
