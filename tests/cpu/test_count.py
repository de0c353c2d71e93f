"""Counting instructions in machine code: control flow by hand, real kernels and their plans, what is refused."""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from qgen.archs import load_archs
from qgen.bench import instructions
from qgen.bench.candidates import AnyCandidate, FusedCandidate, RungCandidate, candidates, ladder_candidates
from qgen.bench.cases import Case, Shape
from qgen.build import Resources
from qgen.cli import count as verb
from qgen.count import PIPES, count, graph, nvdisasm, pipes, warps_of
from qgen.count.nest import Nest, Problem, plan_nest
from qgen.count.resident import resident_ctas
from qgen.count.weigh import weigh_blocks
from qgen.errors import QgenError
from qgen.plan import FusedPlan, KsplitPlan, MatvecPlan, Rung, entries, launch_ksplit, plan_all
from qgen.spec import load_formats

ROOT = Path(__file__).resolve().parents[2]
FORMATS = load_formats()
PLANS, _ = plan_all(FORMATS)


@pytest.fixture
def tool() -> Path:
    try:
        return nvdisasm.find()
    except QgenError as error:
        pytest.skip(f"nothing disassembles here: {error}")


# ---- control flow ------------------------------------------------------------------------------------------------


def program(text: str) -> tuple[nvdisasm.Instruction, ...]:
    """One instruction a line, `@P0 BRA 3`; targets are line numbers."""
    found = []
    for line in text.strip().splitlines():
        words = line.split()
        predicate = words.pop(0) if words[0].startswith("@") else ""
        target = int(words[-1]) if words[0].startswith("BRA") else None
        found.append(nvdisasm.Instruction(predicate, words[0], ",".join(words[1:]), target))
    return tuple(found)


def weighed(text: str, nest: Nest) -> list[float]:
    """How often each block runs, in the order of the text; 0 for one that never does."""
    blocks = graph.cut(program(text), "made up")
    _, times = weigh_blocks(blocks, "made up", nest)
    return [times.get(number, 0.0) for number in blocks]


OWN = Nest(warps=8, row_tiles=3.0, stages=12.0, dots=(12.0, 6.0), bulk=False, before=(1.0,), inside=(8.0,))
ROWS_AND_STAGES = """
LDGSTS a
S2R x
IMAD row
IDP.4A.S8.S8 a
@P0 BRA 6
IDP.4A.S8.S8 b
@P1 BRA 8
LDGSTS b
@!P2 BRA 3
STG y
@!P3 BRA 2
EXIT
"""


def test_known_blocks_decide_how_often_ways_are_taken() -> None:
    # start, row tile, stage, second dot, behind it, request, end of the stage, end of the row tile, end
    assert weighed(ROWS_AND_STAGES, OWN) == [1.0, 3.0, 12.0, 6.0, 12.0, 8.0, 12.0, 3.0, 1.0]


HELD = Nest(
    warps=16, row_tiles=2.0, stages=6.0, dots=(6.0,), dot="IMMA", bulk=True, before=(0.25, 0.125), inside=(0.0,),
    copies=1.0, sums=(0.0, 0.25), bundles=1.5, columns=(1.0, 0.5),
)  # fmt: skip
BUNDLES_AND_STAGES = """
S2R x
@P0 BRA 3
UBLKCP first
@P0 BRA 5
UBLKCP rest
@P1 BRA 10
@P2 BRA 8
LDG next
IDP.4A.S8.S8 sum
@!P3 BRA 6
IMAD row
IMMA.16832.S8.S8 a
@!P4 BRA 11
@!P5 BRA 10
@P6 EXIT
@P7 EXIT
STG y
EXIT
"""


def test_a_quantiser_in_front_is_a_loop_of_its_own_and_its_sums_are_no_dots() -> None:
    # start, requests, way past the bundles; bundle, columns of the next, sums; row tile, stage; EXITs, sums of one warp
    found = [1.0, 0.25, 1.0, 0.125, 1.0, 1.5, 0.5, 1.5, 2.0, 6.0, 2.0, 1.0, 1.0, 0.25]
    assert weighed(BUNDLES_AND_STAGES, HELD) == found
    without = replace(HELD, bundles=0.5, columns=(0.5, 0.0))  # for half of the warps
    assert weighed(BUNDLES_AND_STAGES, without) == [*found[:5], 0.5, 0.0, 0.5, *found[8:]]


@pytest.mark.parametrize(
    ("change", "nest", "says"),
    [
        (("@!P3 BRA 2", "NOP"), OWN, "1 loops around its dots"),
        (("IMAD row", "IDP row"), OWN, "dots"),
        (("IDP.4A.S8.S8 b", "IADD3 b"), OWN, "fewer dots"),
        (("LDGSTS b", "NOP"), OWN, "0 copies of weights"),
        (("S2R x", "@P5 BRA 1"), OWN, "a loop at instruction 1"),
        (("S2R x", "BRX R2"), OWN, "a branch to somewhere"),
        (("S2R x", "@P5 BRA 4"), OWN, "entered in two places"),
        (("S2R x", "S2R x"), replace(OWN, dots=(12.0, 6.0, 6.0)), "fewer dots"),
        (("S2R x", "S2R x"), replace(OWN, stages=10.0), "dots of a warp"),
        (("LDG next", "LDS next"), HELD, "0 loops that load x"),
        (("S2R x", "UBLKCP x"), HELD, "more places that request weights"),
        (("UBLKCP rest", "NOP"), HELD, "bulk copies of a warp"),
        (("S2R x", "S2R x"), replace(HELD, bundles=None), "a loop at instruction 6"),
    ],
)
def test_what_is_not_the_plans_is_refused(change: tuple[str, str], nest: Nest, says: str) -> None:
    text = BUNDLES_AND_STAGES if nest.bulk else ROWS_AND_STAGES
    assert change[0] in text
    with pytest.raises(QgenError, match=says):
        weighed(text.replace(*change), nest)


def test_waiting_and_parted_warps_do_not_count() -> None:
    text = """
    SYNCS.EXCH.64 b
    IMAD row
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0
    @!P0 BRA 12
    BRA.DIV UR4 14
    IMMA.16832.S8.S8 a
    @P1 BRA 8
    UBLKCP b
    @!P2 BRA 2
    @!P3 BRA 1
    STG y
    EXIT
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0
    @!P0 BRA 12
    BRA 4
    """
    nest = Nest(
        warps=8, row_tiles=2.0, stages=6.0, dots=(6.0,), bulk=True, before=(0.0,), inside=(0.75,), copies=1.0,
        sums=(0.0, 0.5), barriers=(1.0, 1), dot="IMMA",
    )  # fmt: skip
    # The third looks at the barrier, the fourth is for the parted; then the dot, and a request. The last two never run.
    assert weighed(text, nest) == [1.0, 2.0, 6.0, 6.0, 6.0, 0.75, 6.0, 2.0, 1.0, 0.0, 0.0]


def test_pipes_are_known_by_opcode_and_others_refused() -> None:
    pipe = {i.name: pipes.pipe_of(i) for i in program("LOP3.LUT a\nFFMA a\nUIADD3 a\nIMMA.16832 a\nLDS.128 a\nI2FP a")}
    assert pipe == {"LOP3": "alu", "FFMA": "fma", "UIADD3": "uniform", "IMMA": "tensor", "LDS": "lsu", "I2FP": "alu"}
    assert set(pipe.values()) <= set(PIPES)
    assert [pipes.heavy(i) for i in program("IMAD.MOV.U32 a\nFFMA a\nIDP.4A.S8.S8 a")] == [True, False, True]
    with pytest.raises(QgenError, match="opcode FROB.X"):
        pipes.pipe_of(program("FROB.X a")[0])


# ---- CTAs a multiprocessor ---------------------------------------------------------------------------------------


def test_resident_ctas_are_those_that_the_driver_named() -> None:
    arch = load_archs()["sm_90"]
    kept = json.loads((ROOT / "generated" / "resources.json").read_text())["kernels"]
    report = {row["entry"]: row for row in kept if row["arch"] == "sm_90"}
    owners = {name: p for p in PLANS for name in entries(p)}
    for folder in ("h200_t1", "h200_tiled_t1"):
        seen = 0
        with (ROOT / "docs" / "benchmarks" / folder / "results.csv").open() as file:
            for row in csv.DictReader(file):
                # Of texts that formats had before; routed then; a launch that asks for more shared memory since.
                if row["kernel"] not in report or (row["format"] == "MXFP4" and "__fused" in row["kernel"]):
                    assert row["format"] in ("Q1_0", "Q2_0", "PQ2_0", "PTQ1_0", "TQ1_0", "MXFP4")
                    continue
                owner, r = owners[row["kernel"]], report[row["kernel"]]
                resources = Resources(*(r[name] for name in Resources.__dataclass_fields__))
                assert isinstance(owner, MatvecPlan | KsplitPlan | FusedPlan)
                some = owner.rungs if isinstance(owner, KsplitPlan) else owner.instances
                (instance,) = (i for i in some if i.name == row["kernel"])
                warps, shared = warps_of(owner, instance), instance.shared_bytes
                found = resident_ctas(arch, resources, warps=warps, shared_bytes=shared)
                if isinstance(owner, KsplitPlan) and isinstance(instance, Rung):
                    # A launch of few CTAs asks for more shared memory, so that they spread.
                    launch, _ = launch_ksplit(owner, instance, int(row["rows"]), 1, 132, found, arch)
                    found = resident_ctas(arch, resources, warps=warps, shared_bytes=launch.shared)
                assert found == int(row["resident"]), row["kernel"]
                seen += 1
        assert seen >= 50


# ---- real kernels ------------------------------------------------------------------------------------------------


def routed(format: str, storage: str, tokens: int = 1, shape: Shape | None = None) -> tuple[Case, RungCandidate]:
    case = Case(FORMATS[format], shape or Shape(14336, 4096), tokens, storage=storage)
    (found,) = (c for c in candidates(case, PLANS, every=False, arch="sm_90") if c.routed)
    return case, found  # type: ignore[return-value]


def for_one_token(format: str, kind: type, shape: Shape) -> tuple[Case, AnyCandidate]:
    """The narrowest kernel of a class over tiles, routed or not."""
    case = Case(FORMATS[format], shape, storage="tiled")
    return case, next(c for c in ladder_candidates(case, PLANS, arch="sm_90") if isinstance(c, kind))


@pytest.mark.parametrize(
    ("format", "storage", "tokens", "instructions_a_block"),
    [
        ("Q4_K", "tiled", 1, 8 + 2),  # eight groups of one k32 form, and two for the sums under integer mins
        ("Q4_K", "native", 16, 2 * (8 + 2)),  # two column tiles
        ("Q2_0", "tiled", 1, 2),  # eight blocks of K at once, two k32 forms each
        ("TQ1_0", "tiled", 1, 8),
    ],
)
def test_tensor_instructions_are_what_arithmetic_says(
    tool: Path, format: str, storage: str, tokens: int, instructions_a_block: int
) -> None:
    case, candidate = routed(format, storage, tokens)
    # A fragment is sixteen rows of a block; a warp's instruction is one of 32 threads.
    wanted = 32 * instructions_a_block / (16 * case.format.block)
    assert instructions.predict(case, candidate).a_weight()["tensor"] == pytest.approx(wanted, rel=1e-9)


FUSED = {plan.format: plan for plan in PLANS if isinstance(plan, FusedPlan)}


@pytest.mark.parametrize("format", FUSED)
def test_fused_kernels_have_the_loops_and_dots_of_their_plans(tool: Path, format: str) -> None:
    """Many row tiles; and fewer than CTAs, with a last stage that is not whole: what is not there is not counted."""
    ladder = FUSED[format].ladder
    a_block = (2 if ladder.halves else 1) * sum(map(len, ladder.pairs))
    a_block += 2 * (ladder.layout.sums and ladder.layout.packed_sums)
    stage = 32 if ladder.one == "blocks" else 1  # columns of an instruction are blocks, there or not
    for tiles, columns in ((896, 4096), (65, 5120)):
        case = Case(FORMATS[format], Shape(16 * tiles, columns), storage="tiled")
        for instance in FUSED[format].instances:
            found = instructions.predict(case, FusedCandidate(FUSED[format], instance, False)).count
            dots = tiles * -(-case.blocks // stage) * stage * a_block
            assert found.pipes["tensor"] == pytest.approx(dots, rel=1e-9) and found.warps == 16 * min(tiles, 132)


def test_every_cta_quantises_x_once(tool: Path) -> None:
    """Conversions to integers have a pipe of their own, eight a thread and bundle, and what a quotient starts from."""
    shapes = Shape(4096, 4096), Shape(8192, 8192)
    one, other = (instructions.predict(*for_one_token("Q4_K", FusedCandidate, s)).count.pipes["xu"] for s in shapes)
    assert other - one == pytest.approx(132 * 16 * (8 + 1))


def test_teams_have_row_tiles_and_warps_bundles_of_their_own() -> None:
    # Five row tiles for four teams, eighteen bundles for sixteen warps; five stages a row tile, two of them ahead.
    problem = Problem(load_archs()["sm_90"], rows=80, blocks=18, tokens=1, multiprocessors=1, resident=1)
    own = plan_nest(FUSED["Q4_K"], FUSED["Q4_K"].instances[0], problem)
    assert (own.row_tiles, own.before, own.inside, own.sums) == (1.25, (0.25, 0.25), (1.0625,), (0.0625, 0.25))
    assert (own.bundles, own.columns) == (1.125, (1.0, 0.125))
    # Four blocks a bundle, eight apart: of 33 the last is alone in the second eight.
    filled = plan_nest(FUSED["Q4_0"], FUSED["Q4_0"].instances[0], replace(problem, blocks=33))
    assert (filled.bundles, filled.columns) == (1.0, (9 / 16, 0.0))


@pytest.mark.parametrize(("kind", "tiles", "warps"), [(RungCandidate, 660, 4 * 660), (FusedCandidate, 1056, 16 * 132)])
def test_twice_the_rows_are_twice_the_work_of_the_loops(tool: Path, kind: type, tiles: int, warps: int) -> None:
    """What is left over is what a launch does once a warp, whatever the matrix."""
    small, large = (instructions.predict(*for_one_token("Q4_K", kind, Shape(n * tiles, 4096))) for n in (16, 32))
    assert small.count.warps == large.count.warps == warps
    once = 2 * small.count.instructions - large.count.instructions
    assert 100 < once / small.count.warps < 600
    assert large.count.pipes["tensor"] == pytest.approx(2 * small.count.pipes["tensor"])


def test_a_plan_that_is_not_the_kernels_is_refused(tool: Path) -> None:
    _, candidate = routed("Q4_K", "tiled", 16, Shape(2048, 4096))
    sizes = {"rows": 2048, "columns": 4096, "tokens": 16, "multiprocessors": 132}
    cubin = instructions.machine_code(candidate)
    assert count(candidate.plan, candidate.instance, cubin, **sizes).instructions > 0
    other = replace(candidate.instance, warp_bundles=candidate.instance.warp_bundles + 1)
    with pytest.raises(QgenError, match="fewer dots in its loop over K"):
        count(candidate.plan, other, cubin, **sizes)
    with pytest.raises(QgenError, match="machine code for sm_80"):
        count(candidate.plan, candidate.instance, replace(cubin, arch="sm_80"), **sizes)


def test_a_fused_plan_that_is_not_the_kernels_is_refused(tool: Path) -> None:
    plan, own = FUSED["Q4_K"], FUSED["Q4_K"].instances[0]
    cubin = instructions.machine_code(FusedCandidate(plan, own, False))
    for instance, columns, tokens, says in (
        (own, 8448, 1, "K = 8448, T = 1\n.*at most 8192 columns, and one token"),
        (own, 4096, 2, "K = 4096, T = 2\n"),
        (replace(own, warp_blocks=2), 4096, 1, "2 loops around its dots"),
        (replace(own, warp_blocks=0), 4096, 1, "fewer dots in its loop over K"),
        (replace(own, stages=2), 4096, 1, "more places that request weights"),
    ):
        with pytest.raises(QgenError, match=says):
            count(plan, instance, cubin, rows=2048, columns=columns, tokens=tokens, multiprocessors=132)


def test_ragged_rows_are_refused(tool: Path) -> None:
    case, candidate = routed("Q4_0", "native", shape=Shape(4096, 640))
    with pytest.raises(QgenError, match="20 x 18 = 360 bytes"):
        instructions.predict(case, candidate)


DOCUMENT = ROOT / "docs" / "instructions.md"
REPORTS = {"native": ["h200_t1"], "tiled": ["h200_tiled_t1", "h200_tiled_profile"]}


@pytest.mark.parametrize(
    ("format", "storage"), [("TQ1_0", "native"), ("MXFP4", "native"), ("Q8_0", "tiled"), ("IQ4_XS", "tiled")]
)
def test_the_documented_figures_are_the_commands(tool: Path, format: str, storage: str) -> None:
    beside = [ROOT / "docs" / "benchmarks" / folder / "results.csv" for folder in REPORTS[storage]]
    report = instructions.predictions([format], storage=storage, beside=beside)
    line = next(line for line in instructions.markdown(report).splitlines() if line.startswith(f"| {format} "))
    assert line in DOCUMENT.read_text(encoding="utf-8"), f"{DOCUMENT}: make its tables again with the commands in it"


def test_every_format_is_documented_in_both_storages() -> None:
    _, native, tiled = re.split(r"^## (?:Native|Tiled) storage$", DOCUMENT.read_text(encoding="utf-8"), flags=re.M)
    served = {p.format for p in PLANS if isinstance(p, KsplitPlan)}
    for part in (native, tiled.split("\n## ")[0]):
        assert set(re.findall(r"^\| (\w+) \| 14336x4096 ", part, re.M)) == served


# ---- the tool and the verb ---------------------------------------------------------------------------------------


def test_without_nvdisasm_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(nvdisasm, "distribution", missing)
    with pytest.raises(QgenError, match="it is not installed") as caught:
        instructions.predictions(["Q4_K"])
    assert "pip install" in caught.value.next and nvdisasm.PACKAGE in caught.value.next


def test_what_nvdisasm_cannot_read_is_said(tmp_path: Path, tool: Path) -> None:
    broken = tmp_path / "kernel.cubin"
    broken.write_bytes(b"not machine code")
    with pytest.raises(QgenError, match="it prints"):
        nvdisasm._disassemble(broken)


@pytest.fixture
def parse() -> Callable[..., argparse.Namespace]:
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers(dest="verb"))
    return lambda *words: parser.parse_args(["count", *words])


def test_the_verb(
    tool: Path, tmp_path: Path, parse: Callable[..., argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    args = parse("q4_k", "--storage", "tiled", "--out", str(tmp_path / "a" / "b"), "--clock", "990")
    assert args.run(args) == 0
    printed = capsys.readouterr().out
    assert "990 MHz" in printed and "fused_w" in printed and "bytes" in printed
    kept = json.loads((tmp_path / "a" / "b" / "results.json").read_text())
    (row,) = kept["rows"]
    assert row["walls_us"]["issue"] == pytest.approx(sum(row["warp_instructions"].values()) / 528 / 990)
    assert (tmp_path / "a" / "b" / "report.md").read_text().startswith("# qgen count")
    (line,) = csv.DictReader((tmp_path / "a" / "b" / "results.csv").open())
    assert float(line["all"]) == pytest.approx(row["a_weight"]["all"], abs=1e-4)
    args = parse("Q4_0", "--shape", "64x640", "--shape", "64x100", "--csv")
    assert args.run(args) == 1  # rows of 360 bytes
    assert capsys.readouterr().out.startswith("format,rows")


def test_words_that_mean_nothing_are_refused(tool: Path, parse: Callable[..., argparse.Namespace]) -> None:
    for words, says in (
        (["Q4_K", "--clock", "0"], "0 MHz"),
        (["Q4_X"], "no such format"),
        (["Q4_K", "--shape", "big"], "--shape"),
        (["Q4_K", "--beside", str(ROOT / "README.md")], "it cannot be read"),
    ):
        args = parse(*words)
        with pytest.raises(QgenError, match=says):
            args.run(args)
    args = parse("Q4_K", "--tokens", "0")
    assert args.run(args) == 1
