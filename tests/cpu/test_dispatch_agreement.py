"""Graph, Python look-up and C dispatcher give the same answers: an exhaustive walk, and anywhere in the space."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from dispatch_c import INVALID, SERVED, Dispatcher, Kernel, compile_c
from numpy.typing import NDArray

from qgen import dispatch, models
from qgen.dispatch.judge import Leaf
from qgen.dispatch.proof import Proof
from qgen.dispatch.space import Ints, Value, holds
from qgen.dispatch.table import Table, loads
from qgen.paths import data_dir
from qgen.plan import CLASSES, plan_all
from qgen.spec import load_formats

AWKWARD = [(n, k) for n in (1, 7, 262144) for k in (640, 896, 2880)]
LARGE_T = (2305, 4095, 4096, 4097, 8192, 65535, 65536, 65537, 1 << 20, (1 << 24) - 1, 1 << 24)
Runs = list[tuple[int, str]]  # at this T the answer becomes this


@pytest.fixture(scope="module")
def proof() -> Proof:
    return dispatch.prove_shipped(*plan_all(load_formats()))


@pytest.fixture(scope="module")
def files(proof: Proof) -> dict[str, str]:
    return {name: file.text for name, file in dispatch.files(proof).items()}


@pytest.fixture(scope="module")
def table(files: dict[str, str]) -> Table:
    return loads(files["dispatch.json"])


@pytest.fixture(scope="module")
def c(files: dict[str, str], proof: Proof, tmp_path_factory: pytest.TempPathFactory) -> Dispatcher:
    folder = tmp_path_factory.mktemp("c")
    for name in ("qgen_dispatch.h", "qgen_dispatch.c"):
        (folder / name).write_text(files[name])
    source = Path(__file__).with_name("dispatch_walk.c")
    library = compile_c(source, folder / "walk.so", "-O3", "-shared", "-fPIC", include=folder)
    return Dispatcher(library, proof.space)


def shapes() -> list[tuple[int, int]]:
    return sorted({*models.shapes(), *AWKWARD})


def tokens(table: Table) -> list[int]:
    """1 to 2304, the large ones, and every T at which some row begins or ends."""
    ends = {
        edge
        for row in table.rows
        if isinstance(t := row.where.get("T"), Ints)
        for edge in (t.lo - 1, t.lo, t.hi, t.hi + 1)
    }
    axis = table.space.axis("T")
    return sorted({*range(1, 2305), *LARGE_T, *(t for t in ends if axis.lo <= t <= axis.hi)})


TILED = ("sm_75", "sm_86", "sm_90", "sm_120")


def contexts(table: Table, op: str) -> Iterator[dict[str, Value]]:
    """Every format, architecture and epilogue, with the format's own activation; f16, bf16 and tiles on some."""
    plain: dict[str, Value] = {"op": op, "storage": "native", "contiguous": "yes", "policy": "fastest"}
    for format in table.space.axis("format").values:
        for arch in table.space.axis("arch").values:
            for epilogue in table.space.axis("epilogue").values:
                yield {**plain, "format": format, "activation": own(format), "arch": arch, "epilogue": epilogue}
        for arch in TILED:
            tiles = {**plain, "storage": "tiled", "format": format, "activation": own(format), "arch": arch}
            yield {**tiles, "epilogue": "none"}
        for arch, storage, activation in product(("sm_75", "sm_90"), ("native", "tiled"), CLASSES):
            if activation != own(format) and (arch, storage) != ("sm_75", "tiled"):
                asked = {**plain, "storage": storage, "format": format, "activation": activation, "arch": arch}
                yield {**asked, "epilogue": "none"}


class FromTable:
    """The look-up for all T at once: the rows that hold but for T must tile T, so exactly one holds for each."""

    def __init__(self, table: Table, context: dict[str, Value]) -> None:
        self.rows = [
            row
            for row in table.candidates(str(context["op"]), str(context["format"]))
            if all(name in ("T", "N", "K") or holds(c, context[name]) for name, c in row.where.items())
        ]
        self.flat = all("N" not in row.where and "K" not in row.where for row in self.rows)
        self.whole = table.space.axis("T").whole

    def runs(self, n: int, k: int) -> list[tuple[int, int, str]]:
        at = {"N": n, "K": k}
        found = []
        for row in self.rows:
            if all(holds(c, at[name]) for name, c in row.where.items() if name in at):
                t = row.where.get("T", self.whole)
                assert isinstance(t, Ints) and not t.multiple and not t.indivisible
                found.append((t.lo, t.hi, row.decision.kernel or f"{row.decision.code}: {row.decision.reason}"))
        found.sort()
        assert isinstance(self.whole, Ints)
        edges = [self.whole.lo - 1, *(hi for _, hi, _ in found)]
        assert [lo for lo, _, _ in found] == [edge + 1 for edge in edges[:-1]] and edges[-1] == self.whole.hi
        return found


class FromGraph:
    """The graph for all T at once: walk to where T comes up, then take every way."""

    def __init__(self, proof: Proof, context: dict[str, Value]) -> None:
        self.diagram = proof.diagram
        self.node = self.diagram.root
        while self._axis(self.node) not in ("", "T", "N", "K"):
            self.node = self.diagram.next(self.node, context)
        self.flat = self._axis(self.node) in ("", "T")

    def _axis(self, node: int) -> str:
        return "" if self.diagram.is_leaf(node) else str(self.diagram.graph.nodes[node]["axis"])

    def runs(self, n: int, k: int) -> list[tuple[int, int, str]]:
        node = self.node
        while self._axis(node) in ("N", "K"):
            node = self.diagram.next(node, {"N": n, "K": k})
        whole = self.diagram.space.axis("T").whole
        ways = [(whole, node)] if self.diagram.is_leaf(node) else self.diagram.exits(node)
        found = []
        for t, leaf in ways:
            outcome = self.diagram.outcome(leaf)
            assert isinstance(t, Ints) and isinstance(outcome, Leaf)
            refusal = outcome.refusal
            found.append((t.lo, t.hi, outcome.kernel or (f"{refusal.code}: {refusal.reason}" if refusal else "?")))
        return sorted(found)


def listed(runs: list[tuple[int, int, str]], ts: list[int]) -> Runs:
    """Where the answer changes along `ts`."""
    changes: Runs = []
    for lo, hi, answer in runs:
        index = int(np.searchsorted(ts, lo))
        if index < len(ts) and ts[index] <= hi and (not changes or changes[-1][1] != answer):
            changes.append((ts[index], answer))
    return changes


@pytest.mark.parametrize("op", sorted(path.stem for path in (data_dir("specs") / "ops").glob("*.toml")))
def test_every_shape_and_every_t(op: str, proof: Proof, table: Table, c: Dispatcher) -> None:
    """C is asked for each request in turn; table and graph are solved for all T at once, which their form allows."""
    ts, sizes = tokens(table), shapes()
    t_array = np.array(ts, np.int64)
    size_array = np.array(sizes, np.int64)
    ids: NDArray[np.int32] = np.zeros(len(sizes), np.int32)
    starts: NDArray[np.int32] = np.zeros(len(sizes) + 1, np.int32)
    run_t: NDArray[np.int64] = np.zeros(1 << 14, np.int64)
    run_to: NDArray[np.int32] = np.zeros(1 << 14, np.int32)
    names = answers(c)
    asked = 0
    met: set[str] = set()  # what C answered for some T > 1
    for context in contexts(table, op):
        request = c.request({**context, "T": 1, "N": 1, "K": 1})
        lists = c.library.walk_shapes(
            ctypes.byref(request),
            pointer(size_array),
            len(sizes),
            pointer(t_array),
            len(ts),
            pointer(ids),
            pointer(starts),
            pointer(run_t),
            pointer(run_to),
            len(run_t),
        )
        assert lists > 0
        asked += len(sizes) * len(ts)
        from_c = [
            [(int(run_t[i]), names[int(run_to[i])]) for i in range(starts[number], starts[number + 1])]
            for number in range(lists)
        ]
        for runs in from_c:
            ends = [*(t for t, _ in runs[1:]), ts[-1] + 1]
            met |= {answer for (_, answer), end in zip(runs, ends, strict=True) if end > 2}
        sides = (FromTable(table, context), FromGraph(proof, context))
        for side in sides:
            solved = {sizes[0]: listed(side.runs(*sizes[0]), ts)} if side.flat else {}
            for size, number in zip(sizes, ids, strict=True):
                runs = solved[sizes[0]] if side.flat else listed(side.runs(*size), ts)
                assert runs == from_c[number], f"{type(side).__name__} and C differ: {context}, N x K = {size}"
    axes = [len(table.space.axis(name).values) for name in ("format", "arch", "epilogue")]
    others = sum(3 * (activation != own(format)) for format in load_formats() for activation in CLASSES)
    others += len(TILED) * axes[0]
    assert asked == (prod(axes) + others) * len(sizes) * len(ts)
    # Kernels that take no x serve any T.
    several = [k for k in proof.catalog.kernels if k.op == op and "T" in k.where and k.columns != 1]
    counting = {k.name: most(k.where["T"]) for k in several}
    ladder = {name for name, tokens in counting.items() if name in proof.reached and tokens > 1}
    assert ladder == met & set(counting), "kernels for T > 1 that no shape of the walk reaches, or others"
    assert bool(ladder) == (op in ("mul_mat", "quantize_activation"))


def most(condition: object) -> int:
    assert isinstance(condition, Ints)
    return condition.hi


def pointer(array: NDArray[np.int32] | NDArray[np.int64]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def answers(c: Dispatcher) -> dict[int, str]:
    """The C side's numbers, by name as the others name them."""
    library = c.library
    library.qgen_refusal_code.restype = library.qgen_refusal_reason.restype = ctypes.c_char_p
    library.qgen_kernel_at.restype = ctypes.POINTER(Kernel)
    names: dict[int, str] = {}
    for number in range(100000):
        name = library.qgen_kernel_at(number).contents.name.decode()
        if not name:
            break
        names[number] = name
    for number in range(100000):
        code = library.qgen_refusal_code(number).decode()
        if not code:
            break
        names[-1 - number] = f"{code}: {library.qgen_refusal_reason(number).decode()}"
    return names


def test_anywhere_in_the_space(proof: Proof, table: Table, c: Dispatcher) -> None:
    """All axes at once, at and around every number that means something: one by one through the public functions."""
    rng = random.Random(20)
    edges: dict[str, set[int]] = {axis.name: {axis.lo, axis.hi} for axis in table.space.axes if not axis.choice}
    likely = {"T": [1, 1, 2, 9, 33], "N": [1, 4096, 8191, 8192], "K": [32, 256, 288, 512, 768, 4096]}
    for row in table.rows:
        for name, condition in row.where.items():
            if isinstance(condition, Ints):
                around = {condition.lo - 1, condition.lo, condition.hi, condition.hi + 1, condition.lo + 256}
                edges[name] |= {x for x in around if x in table.space.axis(name).whole}
    served = {1: 0, 2: 0}  # by T, where 2 stands for all T > 1
    for _ in range(20000):
        values: dict[str, Value] = {}
        for axis in table.space.axes:
            if not axis.choice:
                values[axis.name] = rng.choice(likely[axis.name] if rng.random() < 0.7 else sorted(edges[axis.name]))
            elif rng.random() < 0.8 and axis.name not in ("op", "format", "arch"):
                values[axis.name] = own(str(values["format"])) if axis.name == "activation" else axis.values[0]
            else:
                values[axis.name] = rng.choice(axis.values)
        leaf = proof.diagram.decide(values)
        assert isinstance(leaf, Leaf)
        found = [
            row.decision for row in table.candidates(str(values["op"]), str(values["format"])) if row.holds(values)
        ]
        assert len(found) == 1
        said = c.ask(values)
        assert said.status != INVALID
        assert (found[0].kernel or "") == (leaf.kernel or "") == said.kernel.contents.name.decode(), values
        assert (found[0].quantiser or "") == said.quantiser.contents.name.decode()
        assert (found[0].code or "", found[0].reason) == (said.code.decode(), said.reason.decode())
        served[min(int(values["T"]), 2)] += said.status == SERVED
    assert min(served.values()) > 300, served


@cache
def _own() -> dict[str, str]:
    return {name: format.activation or "f32" for name, format in load_formats().items()}


def own(format: str) -> str:
    return _own()[format]
