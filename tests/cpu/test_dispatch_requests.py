"""Measured choices, the request space, requests and the table: wrong ones get an error that says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dispatch_world import World, toml, world

from qgen.dispatch import Request, Table, lookup
from qgen.dispatch.emission import Ends, flat
from qgen.dispatch.space import load_space
from qgen.dispatch.table import loads, read
from qgen.errors import QgenError

# ---- measured choices

TUNED: dict[str, Any] = {
    "arch": "sm_90",
    "device": "NVIDIA H200",
    "driver": "580",
    "date": "2026-01-01",
    "command": "qgen bench",
    "choice": [
        {
            "op": "mul_mat",
            "formats": ["A"],
            "family": "matvec",
            "storage": ["native"],
            "T": [1, 1],
            "N": [512, 600],
            "kernel": {"rows": 2},
            "figure": 4.1,
            "replaced": 4.4,
        }
    ],
}


def tuned(tmp_path: Path, **changes: Any) -> World:
    sound = world()
    sound.load(tmp_path)
    choice = {**TUNED["choice"][0], **changes.pop("choice", {})}
    data = {key: value for key, value in {**TUNED, **changes, "choice": [choice]}.items() if value is not None}
    (tmp_path / "tuned" / "h200.toml").write_text(toml(data))
    return sound


def test_a_measured_choice_replaces_the_route_in_its_box(tmp_path: Path) -> None:
    proof = tuned(tmp_path).prove(tmp_path)
    assert proof.ok, [str(f) for f in proof.findings]
    table = loads(flat(proof, Ends.of(proof)))

    def kernel(n: int, arch: str, format: str = "A") -> str | None:
        return table.look_up(Request("mul_mat", format, "q8", 1, n, 512, arch)).kernel

    assert [kernel(n, "sm_90") for n in (511, 512, 600, 601, 1024)] == ["mv1_A", "mv2_A", "mv2_A", "mv1_A", "mv2_A"]
    assert kernel(512, "sm_80") == "mv1_A" and kernel(512, "sm_90", "B") == "mv1_B"


def test_two_measured_choices_for_one_request(tmp_path: Path) -> None:
    sound = tuned(tmp_path)
    (tmp_path / "tuned" / "again.toml").write_text(toml(TUNED))
    assert {finding.kind for finding in sound.prove(tmp_path).findings} == {"overlap"}


def test_a_measured_choice_under_another_contract_leaves_policy_invariant_alone(tmp_path: Path) -> None:
    choice = {"family": "tile", "storage": ["tiled"], "T": [20, 24], "N": [1, 99], "kernel": {}}
    proof = tuned(tmp_path, choice=choice).prove(tmp_path)
    assert proof.ok, [str(f) for f in proof.findings]
    table = loads(flat(proof, Ends.of(proof)))
    request = Request("mul_mat", "A", "q8", 20, 9, 512, "sm_90", storage="tiled")
    assert table.look_up(request).kernel == "tile_A"
    assert table.look_up(Request(**{**request.__dict__, "policy": "invariant"})).kernel == "mma24_A"


@pytest.mark.parametrize(
    ("changes", "place", "found"),
    [
        ({"arch": "sm90"}, "arch", "did you mean 'sm_90'"),
        ({"device": None}, "device", "missing"),
        ({"command": ""}, "command", "''"),
        ({"choice": {"op": "mulmat"}}, "choice[0].op", "did you mean 'mul_mat'"),
        ({"choice": {"figure": "fast"}}, "choice[0].figure", "'fast'"),
        ({"choice": {"kernel": {"rows": 8}}}, "choice[0].kernel", "0 matvec kernels"),
        ({"choice": {"arch": ["sm_80"]}}, "choice[0].arch", "unknown key"),
    ],
)
def test_wrong_measured_choices(changes: dict[str, Any], place: str, found: str, tmp_path: Path) -> None:
    wrong = tuned(tmp_path, **changes)
    with pytest.raises(QgenError) as caught:
        wrong.load(tmp_path)
    error = caught.value
    assert place in error.subject and found in error.found and "h200.toml" in error.subject


# ---- the space, requests, the table


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda axes: axes.pop(0), "format, activation"),
        (lambda axes: axes.reverse(), "T, N, K"),
        (lambda axes: axes[0].update(values=["x", "x"]), "x twice"),
        (lambda axes: axes[0].update(values=[]), "no value"),
        (lambda axes: axes[0].update(values=["specs/nowhere"]), "nowhere holds no"),
        (lambda axes: axes[0].update(limits=[1, 2]), "both or neither"),
        (lambda axes: axes[8].update(limits=[9, 2]), "runs backwards"),
        (lambda axes: axes[8].update(limits=[1, 2.5]), "2.5"),
        (lambda axes: axes[0].update(docs="x"), "did you mean 'doc'"),
        (lambda axes: axes[1].update(name="op"), "two axes called 'op'"),
        (lambda axes: axes.clear(), "no axis"),
    ],
)
def test_wrong_request_space(change: Callable[[list[dict[str, Any]]], object], found: str, tmp_path: Path) -> None:
    axes = world().axes
    change(axes)
    (tmp_path / "requests.toml").write_text(toml({"axis": axes}))
    with pytest.raises(QgenError) as caught:
        load_space(tmp_path / "requests.toml")
    assert found in caught.value.found and "requests.toml" in caught.value.subject


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    proof = world().prove(tmp_path_factory.mktemp("world"))
    return loads(flat(proof, Ends.of(proof)))


@pytest.mark.parametrize(
    ("changes", "found", "allowed"),
    [
        ({"format": "a"}, "'a' (did you mean 'A'?)", "A, B, C"),
        ({"op": "mulmat"}, "did you mean 'mul_mat'", "mul_mat_id"),
        ({"arch": "sm90"}, "did you mean 'sm_90'", "sm_80"),
        ({"policy": "invarient"}, "did you mean 'invariant'", "fastest"),
        ({"T": 0}, "0", "1..4096"),
        ({"T": 4097}, "4097", "1..4096"),
        ({"N": -1}, "-1", "rows"),
        ({"K": 2.0}, "2.0", "an integer"),
        ({"K": True}, "True", "an integer"),
    ],
)
def test_requests_outside_the_space(changes: dict[str, Any], found: str, allowed: str, table: Table) -> None:
    sound = {"op": "mul_mat", "format": "A", "activation": "q8", "T": 1, "N": 64, "K": 64, "arch": "sm_90"}
    assert table.look_up(Request(**sound)).served  # type: ignore[arg-type]
    with pytest.raises(QgenError) as caught:
        lookup(Request(**{**sound, **changes}), table)
    assert found in caught.value.found and allowed in caught.value.allowed
    assert f"request, {next(iter(changes))}" in caught.value.subject


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"axes": []}', '{"axes": 3, "kernels": [], "refusals": [], "rows": []}']
)
def test_a_damaged_table(text: str, tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    with pytest.raises(QgenError, match="it cannot be read"):
        read(path)
    path.write_text(text)
    with pytest.raises(QgenError, match="it is damaged") as caught:
        read(path)
    assert "qgen build" in caught.value.next


def test_a_table_with_a_row_twice_or_lost(table: Table) -> None:
    request = Request("mul_mat", "A", "q8", 1, 64, 64, "sm_90")
    for rows, count in (((*table.rows, *table.rows), 2), ((), 0)):
        with pytest.raises(QgenError, match=f"{count} rows for"):
            Table(table.space, rows, table.kernels).look_up(request)
