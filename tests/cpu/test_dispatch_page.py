"""The HTML page in a real browser: cells, colours, clicks, no network. Skips, saying so, where there is no Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dispatch_world import World, world

from qgen import cli
from qgen.dispatch import page
from qgen.errors import QgenError

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium: THE PAGE WAS NOT LOOKED AT; apt-get install chromium"
)


def broken() -> World:
    """Holes, overlaps, waste and a row behind a gate, in tiled storage."""
    damaged = world()
    routes = damaged.routes["mul_mat"]["route"]
    routes[3] |= {"T": [1, 24], "ladder": [8, 24]}  # 24 columns for T = 9..13 is waste; 25..32 is a hole
    routes[4] |= {"T": [33, 50]}  # overlaps what begins at 49
    return damaged


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, made_of in (("sound", world()), ("broken", broken())):
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder / "page.html"
        page.write(made[name], *made_of.prove_with_routes(folder))
    return made


def dom(path: Path, script: str = "", address: str = "") -> str:
    """The page's elements after its scripts, and after `script`, which may click."""
    assert BROWSER
    if script:
        text = path.read_text().replace("</body>", f"<script>{script}</script></body>")
        path = path.with_name("clicked.html")
        path.write_text(text)
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--dump-dom",
            f"file://{path}{address}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)


def cells(text: str) -> dict[str, tuple[str, str]]:
    """Cell -> (colour class, what it says)."""
    found = re.findall(r'<button[^>]*class="(\w+)"[^>]*data-cell="([^"]+)"[^>]*>([^<]*)</button>', text)
    return {cell: (kind, html.unescape(said)) for kind, cell, said in found}


TILED = "#op=mul_mat&arch=sm_90&storage=tiled"


@needs_browser
def test_served_and_refused_cells(pages: dict[str, Path]) -> None:
    text = dom(pages["sound"], address="#op=mul_mat&arch=sm_90")
    found = cells(text)
    assert (
        found["A|1"] == ("served", "yes") and found["A|2"] == ("served", "8") and found["A|9"] == ("refused", "tokens")
    )
    assert found["C|1"] == ("refused", "format")
    assert ">proved<" in text and '<details id="findings" hidden' in text


@needs_browser
def test_a_ladder_shows_its_rungs(pages: dict[str, Path]) -> None:
    found = cells(dom(pages["sound"], address=TILED))
    assert [found[f"B|{t}"] for t in (1, 9, 17, 25, 33, 49)] == [
        ("served", r) for r in ("8", "16", "24", "32", "24", "32")
    ]


@needs_browser
def test_holes_overlaps_and_waste_are_visible(pages: dict[str, Path]) -> None:
    text = dom(pages["broken"], address=TILED)
    found = cells(text)
    assert (
        found["A|9"] == ("waste", "2.7 x")
        and found["A|25"] == ("hole", "hole")
        and found["A|49"] == ("overlap", "overlap")
    )
    assert found["A|1"][0] == "served"
    assert re.search(r'id="verdict" class="no">\d+ findings', text)
    assert "no gate refuses it and no route claims it" in text and "T=25" in text


@needs_browser
def test_a_click_shows_the_path(pages: dict[str, Path]) -> None:
    click = """document.querySelector('[data-cell="A|9"]').click();"""
    text = dom(pages["broken"], click, TILED)
    detail = html.unescape(re.sub(r"<[^>]+>", " ", text[text.index('id="detail"') :]))
    assert "mul_mat, A, sm_90, T = 9..24" in detail
    assert "activation q8" in detail and "storage tiled" in detail and "K % 32 == 0" in detail and "mma24_A" in detail
    assert "2.7 x the columns needed (rung 24)" in detail
    assert "refused: block" in detail and "route" not in detail.split("refused: block")[0][-40:]
    assert re.search(r'aria-pressed="true"[^>]*>2.7 x', text)


@needs_browser
def test_the_choices_narrow_the_view(pages: dict[str, Path]) -> None:
    choose = """
      const n = document.getElementById("choose-N"); n.value = "2000"; n.dispatchEvent(new Event("change"));
      const p = document.getElementById("choose-policy"); p.value = "invariant"; p.dispatchEvent(new Event("change"));
      document.querySelectorAll("#archs button")[0].click();
      document.querySelector('[data-cell="B|1"]').click();
    """
    text = dom(pages["sound"], choose, "#op=mul_mat&arch=sm_90")
    detail = text[text.index('id="detail"') :]
    assert "mul_mat, B, sm_80, T = 1" in detail and "mv2_B" in detail and "mv1_B" not in detail


@needs_browser
def test_every_script_error_would_show(pages: dict[str, Path]) -> None:
    """The page works only if its script ran to the end: the last thing it does is the table."""
    text = dom(pages["sound"])
    assert len(cells(text)) >= 3


def test_the_page_asks_for_nothing(pages: dict[str, Path]) -> None:
    text = pages["sound"].read_text()
    assert not re.findall(r"(?:src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest|https?://", text)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert {"axes", "rows", "outcomes", "summary", "waste", "own", "kinds"} == set(data)


def test_data_cannot_end_its_element(tmp_path: Path) -> None:
    hostile = world()
    hostile.routes["mul_mat"]["gate"][2]["reason"] = "</script><script>alert(1)</script>"
    proof, routes = hostile.prove_with_routes(tmp_path)
    assert page.html(proof, routes).count("</script>") == 2


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    proof, routes = world().prove_with_routes(tmp_path)
    with pytest.raises(QgenError, match="cannot be written"):
        page.write(tmp_path / "no" / "page.html", proof, routes)


# ---- the command


def test_check_dispatch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert cli.main(["check-dispatch", "--html", str(out)]) == 0
    text = capsys.readouterr().out
    assert "proved: every request reaches exactly one kernel or one refusal" in text and str(out) in text
    assert "mul_mat_id           refused for every format" in text
    assert out.stat().st_size > 50000


@pytest.mark.parametrize(
    "flags", [["--policy", "invariant"], ["--arch", "sm_75"], ["--arch", "sm_120", "--policy", "fastest"]]
)
def test_check_dispatch_for_a_part(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-dispatch", "--json", *flags]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["proved"] is True and said["findings"] == []
    assert said["axes"]["arch"] == (1 if "--arch" in flags else 7)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--arch", "sm90"], "did you mean 'sm_90'"),
        (["--policy", "fast"], "did you mean 'fastest'"),
        (["--gates", "specs/gates/none.toml"], "no such file"),
        (["--root", "/nowhere"], "qgen build"),
    ],
)
def test_check_dispatch_refuses(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-dispatch", *flags]) == 1
    assert words in capsys.readouterr().err


def test_check_dispatch_of_another_engine(capsys: pytest.CaptureFixture[str]) -> None:
    gates = Path(__file__).resolve().parents[2] / "specs" / "gates"
    assert cli.main(["check-dispatch", "--gates", str(gates / "ggml_like_tq1_0.toml")]) == 1
    assert "reachable path without a kernel" in capsys.readouterr().out
    assert cli.main(["check-dispatch", "--json", "--gates", str(gates / "q5_linear_ladder.toml")]) == 1
    kinds = {finding["kind"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert kinds == {"rung", "waste"}
    assert cli.main(["check-dispatch", "--gates", str(gates / "q5_linear_ladder_repaired.toml")]) == 0
