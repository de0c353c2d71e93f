"""The shipped dispatch: proved, in time; its hot choices by name; what is generated is what is proved."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from qgen import dispatch, generate
from qgen.archs import load_archs
from qgen.dispatch import Request, table
from qgen.dispatch.checks import launch_faults
from qgen.dispatch.proof import KINDS, Proof
from qgen.errors import QgenError
from qgen.plan import entries, plan_all
from qgen.spec import Format, load_formats

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0  # for the proof of all of it, on two cores


@cache
def formats() -> dict[str, Format]:
    return load_formats()


@pytest.fixture(scope="module")
def proof() -> Proof:
    return dispatch.prove_shipped(*plan_all(formats()), report=dispatch.read_report(generate.generated_dir()))


def test_the_dispatch_is_proved(proof: Proof) -> None:
    assert proof.ok, "\n".join(str(f) for f in proof.findings)


def test_the_policy_costs_nothing(proof: Proof) -> None:
    """No decision asks for it: what "invariant" takes is what "fastest" takes."""
    graph = proof.diagram.graph
    asked = {graph.nodes[node]["axis"] for node in graph if not proof.diagram.is_leaf(node)}
    assert {"T", "storage"} < asked and "policy" not in asked


PROOF = """
import time
from qgen import dispatch, generate
from qgen.plan import plan_all
from qgen.spec import load_formats

def count():
    started = time.process_time()
    table = {}
    for i in range(1_000_000):
        table[i % 1000] = table.get(i % 1000, 0) + (i & -i).bit_length()
    return time.process_time() - started

before = count()
started = time.process_time()
proof = dispatch.prove_shipped(*plan_all(load_formats()), report=dispatch.read_report(generate.generated_dir()))
assert proof.ok
taken = time.process_time() - started
print(taken, (before + count()) / 2)
"""
COUNT = 0.2  # seconds that `count` takes where nothing else runs


def test_the_proof_takes_seconds() -> None:
    # Reading specs and planning count too: this is what `qgen check-dispatch` does. In a process of its own, for the
    # collector would walk the objects of all tests before; what else runs on the machine slows a loop down alike.
    done = subprocess.run([sys.executable, "-c", PROOF], cwd=ROOT, capture_output=True, text=True, check=True)
    taken, count = map(float, done.stdout.split())
    assert taken < SECONDS * max(1.0, count / COUNT), f"{taken} seconds where counting takes {count}"


def test_the_proof_takes_little_memory() -> None:
    tracemalloc.start()
    dispatch.prove_shipped(*plan_all(load_formats()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_generated_files_are_those_of_the_proof(proof: Proof) -> None:
    for name, file in dispatch.files(proof).items():
        assert (generate.generated_dir() / name).read_text() == file.text, f"{name} is stale: run `qgen build`"


def test_nothing_is_planned_for_generation_that_is_not_reached(proof: Proof) -> None:
    plans, refused = plan_all(load_formats())
    kept = dispatch.keep_routed(plans, refused)
    assert {name for plan in kept for name in entries(plan)} == set(proof.reached)
    assert dispatch.routed_archs(kept, refused) == proof.reached


def test_a_dispatch_that_is_not_proved_is_not_written(proof: Proof) -> None:
    from qgen.dispatch.proof import Finding

    broken = replace(proof, findings=(Finding("hole", "mul_mat", "a hole"),))
    with pytest.raises(QgenError, match="1 findings, the first: hole: a hole"):
        dispatch.files(broken)


# ---- hot choices: a change here is a change of what runs, and is read as such in review

HOT = """
format   N       K      kernel
TQ1_0    4096    4096   r2_b8
TQ1_0    4096    14336  r2_b8
TQ1_0    14336   4096   r4_b8
TQ1_0    128256  4096   r4_b8
TQ1_0    4096    512    r2_b2
TQ2_0    8191    2048   r2_b8
TQ2_0    8192    2048   r4_b8
Q4_K     4096    4096   r2_b8
Q4_K     14336   4096   r2_b8
Q4_K     8191    768    r2_b8
Q4_K     8192    768    r2_b8
Q4_K     8192    512    r2_b2
Q6_K     151936  896    -
Q6_K     262144  768    r2_b8
Q5_K     5120    6144   r2_b8
IQ4_XS   4096    4096   r2_b8
Q4_0     4096    4096   r2_b32
Q4_0     14336   4096   r4_b32
Q4_0     262144  640    r4_b32
Q4_0     640     256    r4_b8
Q4_0     640     288    r2_b32
Q8_0     8191    4096   r2_b32
Q8_0     8192    4096   r4_b32
Q5_0     896     640    r2_b32
Q1_0     4096    1024   r4_b8
Q1_0     4096    1152   r2_b32
PTQ1_0   14336   4096   r4_b32
MXFP4    2880    2880   r2_b32
NVFP4    4096    512    r4_b8
NVFP4    4096    576    r2_b32
"""


@pytest.mark.parametrize(
    "row", [line.split() for line in HOT.strip().splitlines()[1:]], ids=lambda row: "-".join(row[:3])
)
@pytest.mark.parametrize("arch", list(load_archs()))
def test_hot_choices(row: list[str], arch: str) -> None:
    format, n, k, expected = row
    activation = formats()[format].activation or ""
    decision = dispatch.lookup(Request("mul_mat", format, activation, T=1, N=int(n), K=int(k), arch=arch))
    if expected == "-":
        assert decision.code == "block" and "256" in decision.reason
    else:
        assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_t1__matvec_native_{expected}"
        assert decision.quantiser == f"quantize_activation_{activation}_{format.lower()}__warp_block"
        assert decision.file == decision.kernel.rsplit("_r", 1)[0]


# Columns of the rung by tokens: some small blocks take 32 at once, ternary ones and K-quants of 16 scales two tiles of
# 16 or 24.
LADDER = """
tokens  Q4_K  Q4_0  TQ1_0  PTQ1_0  Q6_K
2       8     8     8      8       8
8       8     8     8      8       8
9       16    16    16     16      16
16      16    16    16     16      16
17      24    32    24     24      24
24      24    32    24     24      24
25      32    32    16     16      32
32      32    32    16     16      32
33      32    32    24     24      24
65      32    32    24     24      32
97      32    32    32     32      32
65528   32    32    32     32      32
"""
LADDER_ROWS = [line.split() for line in LADDER.strip().splitlines()]
# The same over tiles.
TILED_LADDER = """
tokens  Q4_K  Q4_0  TQ1_0  PTQ1_0  Q6_K  Q8_0  Q5_1
17      24    24    24     24      24    24    24
24      24    24    24     24      24    24    24
25      32r1  32    16     32      32    16    32r1
32      32r1  32    16     32      32    16    32r1
33      24    24    24     24      24    16    24
48      24    24    24     24      24    16    24
49      32    32    32     32      32    32    32r1
65528   32    32    32     32      32    32    32r1
"""
TILED_ROWS = [line.split() for line in TILED_LADDER.strip().splitlines()]


@pytest.mark.parametrize(
    "tokens, columns, format",
    [
        pytest.param(row[0], columns, format, id=f"{format}-{row[0]}")
        for row in LADDER_ROWS[1:]
        for format, columns in zip(LADDER_ROWS[0][1:], row[1:], strict=True)
        if format in ("Q4_K", "TQ1_0") or int(row[0]) > 4  # up to four tokens of small blocks: see below
    ],
)
@pytest.mark.parametrize("policy", ["fastest", "invariant"])
def test_hot_choices_of_the_ladder(tokens: str, columns: str, format: str, policy: str) -> None:
    activation = formats()[format].activation or ""
    request = Request("mul_mat", format, activation, T=int(tokens), N=4096, K=4096, arch="sm_90", policy=policy)
    decision = dispatch.lookup(request)
    assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_t{columns}__ksplit_mma_native_w8"
    assert decision.quantiser == f"quantize_activation_{activation}_{format.lower()}_fragments__warp_block"


@pytest.mark.parametrize(
    "tokens, rung, format",
    [
        pytest.param(row[0], rung, format, id=f"{format}-{row[0]}")
        for row in TILED_ROWS[1:]
        for format, rung in zip(TILED_ROWS[0][1:], row[1:], strict=True)
    ],
)
@pytest.mark.parametrize("policy", ["fastest", "invariant"])
def test_hot_choices_of_the_ladder_over_tiles(tokens: str, rung: str, format: str, policy: str) -> None:
    """Of so few rows that kernels for warpgroups are not worth it."""
    activation = formats()[format].activation or ""
    decision = dispatch.lookup(
        Request(
            "mul_mat", format, activation, T=int(tokens), N=2048, K=4096, arch="sm_90", policy=policy, storage="tiled"
        )
    )
    columns, alone = rung.removesuffix("r1"), "r1" if rung.endswith("r1") else ""
    assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_t{columns}__ksplit_mma_tiled_{alone}w8"


@pytest.mark.parametrize(
    "format, tokens, kernel",
    [
        ("Q4_0", 2, "t2__multirow_native_r4"),
        ("Q4_0", 4, "t4__multirow_native_r4"),
        ("PTQ1_0", 3, "t4__multirow_native_r4"),
        ("Q5_1", 2, "t2__multirow_native_r2"),
        ("Q5_1", 4, "t4__multirow_native_r4"),
        ("Q6_K", 2, "t2__multirow_native_r2"),
        ("Q6_K", 3, "t8__ksplit_mma_native_w8"),
        ("Q8_0", 2, "t2__multirow_native_r2"),
        ("Q8_0", 3, "t8__ksplit_mma_native_w8"),
    ],
)
def test_hot_choices_of_few_tokens(format: str, tokens: int, kernel: str) -> None:
    activation = formats()[format].activation or ""
    for policy in ("fastest", "invariant"):
        request = Request("mul_mat", format, activation, T=tokens, N=4096, K=4096, arch="sm_90", policy=policy)
        assert dispatch.lookup(request).kernel == f"mul_mat_{format.lower()}_{activation}_{kernel}"


@pytest.mark.parametrize("tokens, columns", [(2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 8), (65528, 8)])
@pytest.mark.parametrize("format", ["Q4_K", "Q4_0", "TQ1_0", "PTQ1_0"])
def test_hot_choices_without_tensor_cores(tokens: int, columns: int, format: str) -> None:
    activation = formats()[format].activation or ""
    decision = dispatch.lookup(Request("mul_mat", format, activation, T=tokens, N=4096, K=4096, arch="sm_75"))
    assert decision.kernel == f"mul_mat_{format.lower()}_{activation}_t{columns}__multirow_native_r2"
    assert decision.quantiser == f"quantize_activation_{activation}_{format.lower()}__warp_block"


REFUSED = """
what                       code        a word of the reason
T=65529                    tokens      65528
T=65529,arch=sm_75         tokens      65528
op=mul_mat_id              op          mul_mat_id has no kernels
op=get_rows                op          get_rows
op=dequantize              op          dequantize
activation=f32             activation  q8_g256, bf16, f16
activation=q8_g32          activation  q8_g256, bf16, f16
activation=f16,arch=sm_75  instruction m16n8k16
activation=bf16,arch=sm_75 instruction m16n8k16
storage=tiled,arch=sm_75   instruction m16n8k32
storage=tiled,arch=sm_75,op=quantize_activation instruction m16n8k32
storage=tiled,activation=f16,arch=sm_75 instruction m16n8k16
format=Q5G64_F16S,activation=bf16,storage=tiled,arch=sm_75 instruction m16n8k16
epilogue=bias              epilogue    fused
epilogue=glu               epilogue    fused
contiguous=                contiguous  dense
K=4097                     block       256 weights
K=1099511627776            size        32 bits
N=1099511627776            size        32 bits
format=IQ2_XXS             format      grid
format=Q4G64_F16S          activation  bf16, f16
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines()[1:], ids=lambda row: row.split()[0])
def test_refusals_say_what_is_missing(row: str) -> None:
    what, code, words = row.split(maxsplit=2)
    changes = dict(item.split("=") for item in what.split(","))
    asked = {"op": "mul_mat", "format": "Q4_K", "activation": "q8_g256", "T": 1, "N": 4096, "K": 4096, "arch": "sm_90"}
    asked |= {key: int(v) if key in "TNK" else bool(v) if key == "contiguous" else v for key, v in changes.items()}
    decision = dispatch.lookup(Request(**asked))  # type: ignore[arg-type]
    assert not decision.served and decision.kernel is None
    assert decision.code == code and words in decision.reason


def test_invariant_covers_what_one_contract_serves(proof: Proof) -> None:
    served = {format for op, format in proof.coverage if op == "mul_mat"}
    assert len(served) == 24
    assert all(spans == ((1, 65528),) for (op, _), spans in proof.coverage.items() if op == "mul_mat")


def test_launch_faults_are_arithmetic(proof: Proof) -> None:
    """Every limit, on the edge and one past it."""
    report = dispatch.read_report(generate.generated_dir())
    kernel = next(k for k in proof.catalog.kernels if k.name in proof.reached)
    arch = load_archs()["sm_90"]
    resources = report[kernel.name, "sm_90"]
    assert not [*launch_faults(kernel, arch, resources)]
    for changes, bad in (
        ({"threads": arch.max_threads_per_block}, False),
        ({"threads": arch.max_threads_per_block + 32}, True),
        ({"shared_bytes": arch.shared_per_block_optin - resources.static_shared}, False),
        ({"shared_bytes": arch.shared_per_block_optin - resources.static_shared + 1}, True),
        ({"requires": ("cp_async", "tma")}, False),
    ):
        assert bool([*launch_faults(replace(kernel, **changes), arch, replace(resources, registers=32))]) is bad
    # 8 warps of 248 registers: 8 * 248 * 32 = 63488 of 65536; 255 are rounded up to 256: 65536; 9 warps: too many
    for threads, registers, bad in ((256, 248, False), (256, 255, False), (288, 255, True), (32, 256, True)):
        found = [*launch_faults(replace(kernel, threads=threads), arch, replace(resources, registers=registers))]
        assert bool(found) is bad, found
    assert [*launch_faults(replace(kernel, requires=("tma",)), load_archs()["sm_80"], resources)]


def test_looking_up_loads_no_graph_library() -> None:
    code = (
        "import sys; from qgen.dispatch import lookup, Request; "
        "print(lookup(Request('mul_mat','Q4_K','q8_g256',1,64,256,'sm_90')).kernel, "
        "{'networkx', 'numpy', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split(maxsplit=1) == ["mul_mat_q4_k_q8_g256_t1__matvec_native_r2_b2", "set()\n"]


def test_every_kind_of_finding_has_a_meaning() -> None:
    assert all(meaning.strip() for meaning in KINDS.values())
    assert table.shipped() is table.shipped()
