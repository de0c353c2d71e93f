"""generated/ is what qgen makes now: every byte, the set of files, the compiler's report; a second build is quiet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_cases import GENERATED

from qgen import archs, build, dispatch, generate, tree
from qgen.build.resources import Resources
from qgen.cli import main
from qgen.errors import QgenError
from qgen.plan import (
    FUSED_WARPS,
    FloatKsplitPlan,
    FloatWgmmaPlan,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    RepackPlan,
    WgmmaPlan,
    entries,
)

MADE = generate.generate()
ENTRIES = {entry for source in MADE.sources for entry in source.kernels}
ARCHS = list(archs.load_archs())
# The ladder needs the int8 tensor cores of sm_80.
COMPILED = {(entry, arch) for entry in ENTRIES for arch in MADE.archs[entry]}


def report() -> dict[str, Any]:
    loaded = json.loads((GENERATED / generate.RESOURCES).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def rows() -> list[dict[str, Any]]:
    found = report()["kernels"]
    assert isinstance(found, list)
    return found


def reported_cubins(*_: object, **__: object) -> Mapping[tuple[str, str], Any]:
    """What compile_sources returned when generated/ was built, from its report: seconds instead of minutes."""
    by_entry = {(row["entry"], row["arch"]): row for row in rows()}
    return {
        (plan.file, arch): SimpleNamespace(
            compiler=report()["compiler"],
            entries=tuple(
                Resources(**{key: value for key, value in by_entry[entry, arch].items() if key != "arch"})
                for entry in sorted(source.kernels)
                if (entry, arch) in COMPILED
            ),
        )
        for plan, source in zip(MADE.plans, MADE.sources, strict=True)
        for arch in ARCHS
        if any((kernel, arch) in COMPILED for kernel in source.kernels)
    }


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """`qgen build` with the compiler's results as reported."""
    monkeypatch.setattr(generate, "compile_sources", reported_cubins)


# ---- generated/ ------------------------------------------------------------------------------------------------------


def test_every_byte_and_the_set_of_files_are_what_qgen_makes(compiled: None) -> None:
    proof = dispatch.prove_shipped(MADE.plans, MADE.refused, report=dispatch.read_report(GENERATED))
    wanted = generate.kernel_files(MADE) | dispatch.files(proof)
    wanted[generate.RESOURCES] = generate.resources_file(generate.compile_sources(MADE))
    differences = [str(difference) for difference in tree.check(GENERATED, wanted)]
    assert not differences, "run `qgen build`, read the diff and commit it"


def test_every_file_is_in_the_manifest() -> None:
    listed = {row.path for row in tree.read_manifest(GENERATED)} | {tree.MANIFEST}
    assert listed == {path.relative_to(GENERATED).as_posix() for path in GENERATED.rglob("*") if path.is_file()}
    assert len(ENTRIES) == sum(len(source.kernels) for source in MADE.sources)


# ---- the compiler's report -------------------------------------------------------------------------------------------


def test_the_report_covers_every_kernel_on_every_architecture() -> None:
    reported = [(row["entry"], row["arch"]) for row in rows()]
    assert len(reported) == len(set(reported))
    assert set(reported) == COMPILED and len(ARCHS) >= 7
    assert report()["compiler"].startswith("nvrtc ")


def test_the_report_shows_no_spill_and_registers_for_the_promised_blocks() -> None:
    limits = archs.load_archs()
    # entry -> threads that must fit a multiprocessor at once: __launch_bounds__(threads, blocks)
    promised: dict[str, int] = {}
    paired: set[tuple[str, str]] = set()  # rungs and the architectures on which two CTAs share a multiprocessor
    for plan in MADE.plans:
        if isinstance(plan, MatvecPlan):
            promised |= {i.name: 32 * plan.warps * i.min_ctas for i in plan.instances}
        elif isinstance(plan, MultirowPlan):
            promised |= {i.name: 32 * i.warps * i.min_ctas for i in plan.instances}
        elif isinstance(plan, KsplitPlan) or (isinstance(plan, FloatKsplitPlan) and plan.tile):
            promised |= {r.name: 32 * r.warps for r in plan.rungs}
            roomy = ("sm_90",) if plan.tile else ("sm_80", "sm_90")
            paired |= {(r.name, arch) for r in plan.rungs for arch in roomy if r.min_ctas == 2}
        elif isinstance(plan, FloatKsplitPlan):
            promised |= {r.name: 32 * r.warps * r.min_ctas for r in plan.rungs}
        elif isinstance(plan, FusedPlan):
            promised |= {i.name: 32 * FUSED_WARPS for i in plan.instances}
        elif isinstance(plan, WgmmaPlan | FloatWgmmaPlan):
            promised |= {r.name: r.threads for r in plan.rungs}
        elif isinstance(plan, RepackPlan):
            promised |= dict.fromkeys(entries(plan), 32 * plan.warps * plan.min_ctas)
        else:
            promised[plan.name] = 32 * plan.warps
    for row in rows():
        where = f"{row['entry']} on {row['arch']}"
        assert row["spill_stores"] == row["spill_loads"] == row["stack_bytes"] == row["static_shared"] == 0, where
        arch = limits[row["arch"]]
        assert 0 < row["registers"] <= arch.max_registers_per_thread, where
        ctas = 2 if (row["entry"], row["arch"]) in paired else 1
        assert row["registers"] * promised[row["entry"]] * ctas <= arch.registers_per_sm, where


def test_kernels_compile_for_sm_90_without_spills_and_as_reported() -> None:
    """With the compiler of the report every figure agrees; with another one, nothing spills (compile raises)."""
    cubins = generate.compile_sources(MADE, ["sm_90"], show_progress=False)
    found = {r.entry: r for cubin in cubins.values() for r in cubin.entries}
    assert set(found) == {entry for entry, arch in COMPILED if arch == "sm_90"} and all(r.clean for r in found.values())
    assert not [warning for cubin in cubins.values() for warning in cubin.warnings]
    compiler = next(iter(cubins.values())).compiler
    if compiler == report()["compiler"]:
        reported = {row["entry"]: row["registers"] for row in rows() if row["arch"] == "sm_90"}
        assert {entry: r.registers for entry, r in found.items()} == reported


# ---- qgen build ------------------------------------------------------------------------------------------------------


def state(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_second_build_writes_nothing(compiled: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "out"
    assert main(["build", "--out", str(root)]) == 0
    first = state(root)
    assert len(first) > len(MADE.sources)
    capsys.readouterr()
    assert main(["build", "--out", str(root), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["changed"] == summary["removed"] == [] and summary["kernels"] == len(ENTRIES)
    assert state(root) == first, "a file was written although nothing changed"
    assert main(["build", "--out", str(root), "--check"]) == 0


def test_check_names_every_difference_and_changes_nothing(
    compiled: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "out"
    assert main(["build", "--out", str(root)]) == 0
    kernel, other = MADE.sources[0].path, MADE.sources[1].path
    (root / kernel).write_text((root / kernel).read_text().replace("__dp4a", "__dp4b").replace("float", "double", 1))
    (root / other).unlink()
    (root / "mine.txt").write_text("someone's own")
    before = state(root)
    assert main(["build", "--out", str(root), "--check"]) == 1
    shown = capsys.readouterr().err
    assert f"changed: {kernel}" in shown and f"missing: {other}" in shown and "foreign: mine.txt" in shown
    assert "3 differences" in shown and "run `qgen build`" in shown
    assert main(["build", "--out", str(root), "--check", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["differences"]) == 3
    assert state(root) == before
    (root / "mine.txt").unlink()
    assert main(["build", "--out", str(root)]) == 0 and main(["build", "--out", str(root), "--check"]) == 0


def test_a_kernel_that_spills_is_no_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def spilling(text: str, name: str, arch: str, **_: object) -> build.Cubin:
        raise QgenError(stage="build", subject=f"{name} for {arch}", found="4 bytes spilled", allowed="none", next="?")

    monkeypatch.setattr(build, "compile", spilling)
    assert main(["build", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
