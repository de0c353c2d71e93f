"""Wrong routes: one clear error each, with the file, the row, what was found and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dispatch_world import World, world

from qgen.errors import QgenError


def refused(sound: World, folder: Path) -> QgenError:
    with pytest.raises(QgenError) as caught:
        sound.load(folder)
    assert caught.value.stage == "dispatch"
    return caught.value


def route(w: World, number: int) -> Any:
    return w.routes["mul_mat"]["route"][number]


def gate(w: World, number: int) -> Any:
    return w.routes["mul_mat"]["gate"][number]


def put(target: Callable[[World], Any], **changes: Any) -> Callable[[World], None]:
    def change(w: World) -> None:
        target(w).update(changes)

    return change


def drop(target: Callable[[World], Any], key: str) -> Callable[[World], None]:
    def change(w: World) -> None:
        del target(w)[key]

    return change


def top(w: World) -> Any:
    return w.routes["mul_mat"]


# what is done to the routes; the place the error names; words it says of what was found and of what is allowed
WRONG: dict[str, tuple[Callable[[World], None], str, str, str]] = {
    "unknown key of a route": (
        put(lambda w: route(w, 0), familly="x"),
        "mul_mat.toml: route[0].familly",
        "did you mean 'family'",
        "ladder",
    ),
    "unknown axis in a condition": (
        put(lambda w: gate(w, 0), when={"colour": ["red"]}),
        "gate[0].when.colour",
        "no axis 'colour'",
        "storage",
    ),
    "unknown format": (
        put(lambda w: w.routes["mul_mat_id"]["route"][0], formats=["AA"]),
        "route[0].formats",
        "no format 'AA' (did you mean 'A'?)",
        "A, B, C",
    ),
    "format without kernels": (
        put(lambda w: w.routes["mul_mat_id"]["route"][0], formats=["C"]),
        "route[0].formats",
        "C has no mul_mat_id kernel",
        "A, B",
    ),
    "unknown architecture": (
        put(lambda w: route(w, 0), arch=["sm_91"]),
        "route[0].arch",
        "did you mean 'sm_90'",
        "sm_80, sm_90",
    ),
    "unknown policy": (
        put(lambda w: route(w, 0), policy=["fast"]),
        "route[0].policy",
        "did you mean 'fastest'",
        "invariant",
    ),
    "unknown family": (put(lambda w: route(w, 0), family="mavtec"), "route[0].family", "did you mean 'matvec'", "mma"),
    "unknown knob": (
        put(lambda w: route(w, 0), kernel={"row": 1}),
        "route[0].kernel.row",
        "did you mean 'rows'",
        "rows",
    ),
    "no such kernel": (
        put(lambda w: route(w, 0), kernel={"rows": 4}),
        "route[0].kernel",
        "0 matvec kernels of A with rows = 4",
        "rows = 1; rows = 2",
    ),
    "several kernels": (drop(lambda w: route(w, 0), "kernel"), "route[0].kernel", "2 matvec kernels", "exactly one"),
    "interval that runs backwards": (put(lambda w: route(w, 0), N=[9, 3]), "route[0].N", "9 > 3", "[least, largest]"),
    "interval of one number": (put(lambda w: route(w, 0), N=[9]), "route[0].N", "[9]", "[least, largest]"),
    "interval outside the limits": (put(lambda w: route(w, 0), T=[1, 5000]), "route[0].T", "[1, 5000]", "1..4096"),
    "blocks that run backwards": (
        put(lambda w: route(w, 0), blocks=[9, 3]),
        "route[0].blocks",
        "runs backwards",
        "[least, largest]",
    ),
    "blocks and K": (put(lambda w: route(w, 0), blocks=[1, 3], K=[1, 9]), "route[0].blocks", "both", "one of the two"),
    "a fact there is not": (put(lambda w: route(w, 0), N=[1, "blok"]), "route[0].N", "did you mean 'block'", "max"),
    "divisor of nothing": (
        put(lambda w: gate(w, 4), require={"K": {"multiple_of": 0}}),
        "gate[4].require.K.multiple_of",
        "0",
        "1 or more",
    ),
    "unknown key of an interval": (
        put(lambda w: gate(w, 4), require={"K": {"multiple": 3}}),
        "gate[4].require.K.multiple",
        "did you mean 'multiple_of'",
        "range",
    ),
    "class and formats": (put(lambda w: route(w, 0), formats=["A"]), "route[0].class", "both", "one of the two"),
    "unknown class": (put(lambda w: route(w, 0), **{"class": "al"}), "route[0].class", "did you mean 'all'", "all"),
    "unknown fact in a class": (
        put(lambda w: top(w)["class"]["all"], lane=[1, 2]),
        "class.all.lane",
        "did you mean 'lanes'",
        "block",
    ),
    "ladder out of order": (
        put(lambda w: route(w, 3), ladder=[8, 24, 16, 32]),
        "route[3].ladder",
        "24 in front of 16",
        "in order",
    ),
    "ladder with a rung twice": (
        put(lambda w: route(w, 3), ladder=[8, 8, 32]),
        "route[3].ladder",
        "8 in front of 8",
        "in order",
    ),
    "ladder too short": (
        put(lambda w: route(w, 3), ladder=[8, 16]),
        "route[3].ladder",
        "T up to 32 over rungs up to 16",
        "every T",
    ),
    "ladder too long": (put(lambda w: route(w, 3), T=[1, 20]), "route[3].ladder", "rung 32 serves no T", "reaches"),
    "refusal without reason": (
        drop(lambda w: gate(w, 1), "reason"),
        "gate[1].reason",
        "missing",
        "a text that says something",
    ),
    "refusal with an empty reason": (
        put(lambda w: gate(w, 1), reason=" "),
        "gate[1].reason",
        "' '",
        "a text that says something",
    ),
    "refusal without a code": (drop(lambda w: gate(w, 1), "code"), "gate[1].code", "missing", "a text"),
    "a word there is not": (
        put(lambda w: gate(w, 1), reason="{fromat} is it"),
        "gate[1].reason",
        "did you mean 'format'",
        "own",
    ),
    "an open brace": (put(lambda w: gate(w, 1), reason="{format is it"), "gate[1].reason", "format", "braces"),
    "nothing required": (put(lambda w: gate(w, 1), require={}), "gate[1].require", "an empty table", "leave it out"),
    "a word where names belong": (
        put(lambda w: gate(w, 2), require={"contiguous": "yes"}),
        "gate[2].require.contiguous",
        "'yes'",
        "a list of yes, no",
    ),
    "a file of another op": (put(top, op="mul_mad"), "mul_mat.toml: op", "'mul_mad'", "'mul_mat'"),
    "invariant of no family": (
        put(top, invariant={"family": "mmma"}),
        "invariant.family",
        "did you mean 'mma'",
        "matvec",
    ),
    "a bound that flags everything": (put(top, waste={"columns": 8, "bound": 1.0}), "waste.bound", "1.0", ">= 1.01"),
    "waste without columns": (put(top, waste={"bound": 1.8}), "waste.columns", "missing", "an integer >= 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_routes(name: str, tmp_path: Path) -> None:
    change, place, found, allowed = WRONG[name]
    wrong = world()
    change(wrong)
    error = refused(wrong, tmp_path)
    assert place in error.subject and str(tmp_path) in error.subject
    assert found in error.found and allowed in error.allowed and error.next


def test_a_contract_that_is_not_one(tmp_path: Path) -> None:
    from dispatch_damage import change

    wrong = world()
    change(wrong, "mma8_A", contract="other")
    error = refused(wrong, tmp_path)
    assert "c_A, other" in error.found and "one contract" in error.allowed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("op = ", "not TOML"),
        ("\xff", "not TOML"),
        ('op = "mul_mat"\nroute = 3', "3"),
        ('op = "mul_mat"\n[[gaet]]', "did you mean 'gate'"),
        ("", "missing"),
    ],
)
def test_malformed_files(text: str, found: str, tmp_path: Path) -> None:
    sound = world()
    space, catalog, _ = sound.load(tmp_path)
    from qgen.dispatch.routes import load_routes

    (tmp_path / "routes" / "mul_mat.toml").write_text(text)
    with pytest.raises(QgenError) as caught:
        load_routes(space, catalog, tmp_path / "routes", tmp_path / "tuned")
    assert found in caught.value.found and "mul_mat.toml" in caught.value.subject
    (tmp_path / "routes" / "mul_mat.toml").write_bytes(b"op = '\xff'")
    with pytest.raises(QgenError, match="not UTF-8"):
        load_routes(space, catalog, tmp_path / "routes", tmp_path / "tuned")
    (tmp_path / "routes" / "mul_mat.toml").unlink()
    with pytest.raises(QgenError, match="no such file"):
        load_routes(space, catalog, tmp_path / "routes", tmp_path / "tuned")


def test_a_file_for_no_op(tmp_path: Path) -> None:
    sound = world()
    sound.load(tmp_path)
    (tmp_path / "routes" / "mul_matt.toml").write_text('op = "mul_matt"')
    error = refused(sound, tmp_path)
    assert "did you mean 'mul_mat'" in error.found
