"""docs/dispatch.md is executable: its commands run, its TOML is read, its paths exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from dispatch_world import world

from qgen import cli
from qgen.dispatch import gate_proof, proof

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "dispatch.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("line", blocks("sh")[0].strip().splitlines())
def test_commands(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "qgen"
    arguments = [
        str(ROOT / a) if a.startswith("specs/") else str(tmp_path / a) if a.endswith(".html") else a for a in arguments
    ]
    assert cli.main(arguments) == 0


def test_the_grammar_shown_is_the_grammar() -> None:
    routes, tuned = (tomllib.loads(block) for block in blocks("toml"))
    assert set(routes) == {"op", "gate", "class", "route", "invariant", "waste"}
    assert set(routes["gate"][0]) == {"code", "when", "require", "reason", "deliberate"}
    assert set(tuned) == {"arch", "device", "driver", "date", "command", "choice"}


def test_the_shown_routes_are_read_by_the_code(tmp_path: Path) -> None:
    """With the knobs and numbers of the made-up world in place of the shipped ones."""
    text = blocks("toml")[0]
    for old, new in (
        ('team_blocks = "full" ', ""), ('rows = "rows_two", ', "rows = 2 "), ('"quarter + 1"', '"lanes + 1"'),
        ("[8192,", "[1024,"),
    ):  # fmt: skip
        text = text.replace(old, new)
    sound = world()
    sound.routes["mul_mat"] = tomllib.loads(text)
    sound.load(tmp_path)


def test_every_kind_of_finding_is_in_the_table() -> None:
    listed = {
        word
        for line in TEXT.splitlines()
        if line.startswith("| ")
        for word in line.split("|")[1].replace(",", " ").split()
    }
    assert set(proof.KINDS) <= listed
    assert set(gate_proof.KINDS) - set(proof.KINDS) == {"no_kernel", "promise", "lie"}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:specs|docs|generated)/[\w./{},*-]+)`", TEXT))))
def test_paths(path: str) -> None:
    for item in ["qgen_dispatch.h", "qgen_dispatch.c"] if "{" in path else [path]:
        found = item if "/" in item else f"generated/{item}"
        if "*" in found or "OP" in found:
            assert (ROOT / found).parent.name in ("tuned", "gates", "routes")
        else:
            assert (ROOT / found).exists()
