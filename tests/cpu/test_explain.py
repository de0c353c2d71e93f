"""qgen explain: the path, the kernel, the neighbours, and help for those who mistype."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dispatch_world import world

from qgen import cli
from qgen.dispatch import Request
from qgen.dispatch.explain import Explanation, explain
from qgen.dispatch.proof import Proof
from qgen.dispatch.routes import Routes
from qgen.errors import QgenError

DESIGN = ["--op", "mul_mat", "--format", "Q5_K", "--arch", "sm_90", "-T", "2", "-N", "5120", "-K", "6144"]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[Proof, Routes]:
    return world().prove_with_routes(tmp_path_factory.mktemp("world"))


def ask(made_up: tuple[Proof, Routes], **changes: Any) -> Explanation:
    sound = {"op": "mul_mat", "format": "A", "activation": "q8", "T": 1, "N": 64, "K": 64, "arch": "sm_90"}
    return explain(*made_up, Request(**{**sound, **changes}))


def test_the_path_and_the_kernel(made_up: tuple[Proof, Routes]) -> None:
    made = ask(made_up, T=12, storage="tiled")
    assert made.leaf.kernel == "mma16_A" and made.kernel["columns"] == 16
    assert made.source.endswith("mul_mat.toml: route[3]")
    asked = [turn.axis for turn in made.turns]
    assert asked[:3] == ["op", "format", "activation"] and asked[-1] == "T"
    last = made.turns[-1]
    assert last.answer == "T in 9..16"
    assert dict(last.others)["T <= 8"] == "mma8_A" and "mma24_A" in dict(last.others)["T in 17..24, in 33..48"]


def test_why_each_neighbour_was_not_taken(made_up: tuple[Proof, Routes]) -> None:
    because = {n.kernel: n.because for n in ask(made_up).neighbours}
    assert because["mv2_A"] == "needs N >= 1024, not 64"
    assert because["mr_A"] == "needs T in 2..8, not 1"
    assert because["mma8_A"] == "needs storage = tiled, not native"
    assert because["tile_A"] == "needs storage = tiled, not native; needs T >= 97, not 1"
    assert set(because) == {"mv2_A", "mr_A", "mma8_A", "mma16_A", "mma24_A", "mma32_A", "tile_A"}


def test_a_refusal_names_the_nearest_request_that_is_served(made_up: tuple[Proof, Routes]) -> None:
    def nearest(**changes: Any) -> str:
        made = ask(made_up, **changes)
        assert made.leaf.refusal and len(made.neighbours) == 1
        return f"{made.neighbours[0].kernel}: {made.neighbours[0].because}"

    assert nearest(T=9) in (
        "mr_A: it would serve this request with T = 8",
        "mma16_A: it would serve this request with storage = tiled",
    )
    assert nearest(K=65) == "mv1_A: it would serve this request with K = 64"
    assert nearest(K=31) == "mv1_A: it would serve this request with K = 32"
    assert nearest(activation="f16") == "mv1_A: it would serve this request with activation = q8"
    assert (
        nearest(activation="f16", K=1 << 31)
        == "mv1_A: it would serve this request with activation = q8, K = 2147483616"
    )
    assert ask(made_up, format="C").neighbours == ()


def test_a_measured_choice_is_named(tmp_path: Path) -> None:
    from test_dispatch_requests import tuned

    made = ask(tuned(tmp_path).prove_with_routes(tmp_path), N=512)
    assert made.leaf.kernel == "mv2_A" and made.source.endswith("h200.toml: choice[0]")
    assert {n.kernel: n.because for n in made.neighbours}["mv1_A"] == "a measured choice replaces its row here"


def test_a_fault_is_explained_as_one(tmp_path: Path) -> None:
    broken = world()
    broken.routes["mul_mat"]["route"].pop(2)
    made = ask(broken.prove_with_routes(tmp_path), T=3)
    assert made.leaf.kernel is None and made.leaf.refusal is None
    assert [mark.kind for mark in made.leaf.marks] == ["hole"]


def test_the_command_of_the_design(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *DESIGN, "--policy", "invariant"]) == 0
    text = capsys.readouterr().out
    assert "format = Q5_K" in text and "  T in 2..8\n" in text
    assert "kernel mul_mat_q5_k_q8_g256_t8__ksplit_mma_native_w8\n" in text
    assert "a ladder's rung of 8 columns" in text
    assert "x comes from quantize_activation_q8_g256_q5_k_fragments__warp_block" in text
    assert re.search(r"specs/routes/mul_mat.toml: route\[\d+\]", text)
    assert "mul_mat_q5_k_q8_g256_t16__ksplit_mma_native_w8\n      needs T in 9..16, not 2\n" in text
    assert "mul_mat_q5_k_q8_g256_t1__matvec_native_r2_b8\n      needs T = 1, not 2\n" in text


@pytest.mark.parametrize(
    ("arch", "kernel"), [("sm_90", "t32__ksplit_mma_native_w8"), ("sm_75", "t8__multirow_native_r2")]
)
def test_a_refusal_in_text(arch: str, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *DESIGN, "-T", "65529", "--arch", arch, "--policy", "invariant"]) == 0
    text = capsys.readouterr().out
    assert "  T >= 65529\n" in text and "refused (tokens): kernels of Q5_K take at most 65528 tokens" in text
    assert "specs/routes/mul_mat.toml: gate[8]" in text
    assert f"mul_mat_q5_k_q8_g256_{kernel}\n      it would serve this request with T = 65528" in text


def test_tokens_without_the_tensor_cores_are_served_by_dp4a(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *DESIGN, "--arch", "sm_75", "--policy", "invariant"]) == 0
    text = capsys.readouterr().out
    assert "kernel mul_mat_q5_k_q8_g256_t2__multirow_native_r2\n" in text and "a ladder's rung of 2 columns" in text
    assert "x comes from quantize_activation_q8_g256_q5_k__warp_block" in text
    assert "mul_mat_q5_k_q8_g256_t8__ksplit_mma_native_w8\n      needs arch = sm_100, not sm_75\n" in text
    assert "mul_mat_q5_k_q8_g256_t4__multirow_native_r2\n      needs T in 3..4, not 2\n" in text


def test_a_served_request_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    served = ["explain", *DESIGN[:6], "-N", "5120", "-K", "6144"]
    assert cli.main(served) == 0
    text = capsys.readouterr().out
    assert "kernel mul_mat_q5_k_q8_g256_t1__matvec_native_r2_b8" in text
    assert "x comes from quantize_activation_q8_g256_q5_k__warp_block" in text
    assert "needs K in 256..512 and K % 256 == 0, not 6144" in text and "--json lists them" in text
    assert cli.main([*served, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kernel"]["name"] in text and said["refusal"] is None
    assert said["request"]["activation"] == "q8_g256" and said["path"][0]["axis"] == "op"
    # All that any other number of tokens or columns, or another architecture, would get, and nothing else.
    assert [n["kernel"].removeprefix("mul_mat_q5_k_q8_g256_") for n in said["neighbours"]] == [
        "t1__matvec_native_r2_b2",
        *(f"t{columns}__ksplit_mma_native_w8" for columns in (8, 16, 24, 32)),
        *(f"t{columns}__multirow_native_r2" for columns in (2, 4, 8)),
        "t1__ksplit_mma_tiled_w4",
        *(f"t{columns}__ksplit_mma_tiled_w8" for columns in (8, 16, 24)),
        *(f"t32__ksplit_mma_tiled_{warps}" for warps in ("r1w8", "w8")),
        *(f"mul_mat_q5_k_{rung}__ksplit_mma_native_r1w8" for rung in ("bf16_t8", "bf16_t16", "f16_t8")),
        *(f"mul_mat_q5_k_{rung}__ksplit_mma_tiled_w8" for rung in ("bf16_t8", "bf16_t16", "f16_t8", "f16_t16")),
        *(f"t1__fused_tiled_{warps}" for warps in ("w8", "w4")),
        *(f"t{rung}" for rung in ("16__wgmma_tiled_g2s2", "32__wgmma_tiled_g2s2", "48__wgmma_tiled_g2s1")),
        *(f"t{rung}" for rung in ("64__wgmma_tiled_g2s1", "32__wgmma_tiled_g1s2", "16__wgmma_tiled_g1s4")),
        *(
            f"mul_mat_q5_k_{activation}_t{columns}__wgmma_tiled_{shape}"
            for activation, two in (("f16", "g2s1"), ("bf16", "g2s2"))
            for columns, shape in ((16, "g2s2"), (32, two), (48, "g2s1"), (64, "g2s1"), (16, "g1s4"), (32, "g1s2"))
        ),
    ]
    assert cli.main(["explain", "--op", "mul_mat", "--format", "Q4_0", *DESIGN[4:6], "-N", "5120", "-K", "6144"]) == 0
    assert "mul_mat_q4_0_q8_g32_t1__matvec_native_r4_b32\n      needs N >= 8192, not 5120" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--format", "Q5_k"], "did you mean 'Q5_K'"),
        (["--format", "q5_k"], "did you mean 'Q5_K'"),
        (["--op", "mulmat"], "did you mean 'mul_mat'"),
        (["--arch", "sm90"], "did you mean 'sm_90'"),
        (["--activation", "q8_256"], "did you mean 'q8_g256'"),
        (["--storage", "tilde"], "did you mean 'tiled'"),
        (["--epilogue", "biass"], "did you mean 'bias'"),
        (["--policy", "invarient"], "did you mean 'invariant'"),
        (["-T", "0"], "1..16777216"),
        (["-N", "-4"], "rows: output features"),
    ],
)
def test_did_you_mean(changes: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *DESIGN, *changes]) == 1
    said = capsys.readouterr()
    assert words in said.err and not said.out


def test_a_request_outside_the_space(made_up: tuple[Proof, Routes]) -> None:
    with pytest.raises(QgenError, match="did you mean 'A'"):
        ask(made_up, format="a")
