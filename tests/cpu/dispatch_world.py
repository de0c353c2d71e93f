"""A made-up dispatch with everything later families bring: ladders, tiled storage, epilogues, contracts, experts.

It is kept as plain data (a `World`), which tests damage, write out as TOML and prove. `naive` decides one request
straight from that data, without the code under test: it judges the witnesses.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from qgen.archs import Arch, load_archs
from qgen.build.resources import Resources
from qgen.dispatch.kernels import Catalog, Facts, Kernel
from qgen.dispatch.proof import Proof, prove
from qgen.dispatch.routes import Routes, load_routes
from qgen.dispatch.space import Condition, Ints, Space, load_space

BLOCKS = {"A": 32, "B": 256, "C": 64}  # C has no kernels
ARCHS = ("sm_80", "sm_90")
MAX_K = MAX_N = 1 << 33
INT32 = (1 << 31) - 1
MAX_T = 4096
OPS = ("mul_mat", "mul_mat_id", "quantize_activation")
Routing = dict[str, Any]


@dataclass
class World:
    """Axes, kernels, routes by op, the compiler's report, and which kernels are generated (None: those routed)."""

    axes: list[dict[str, Any]]
    kernels: list[Kernel]
    routes: dict[str, Routing]
    report: dict[tuple[str, str], Resources] | None = None
    emitted: set[str] | None = None
    like: dict[str, str] = field(default_factory=lambda: {"mul_mat_id": "mul_mat"})

    def copy(self) -> World:
        return copy.deepcopy(self)

    def kernel(self, name: str) -> Kernel:
        return next(k for k in self.kernels if k.name == name)

    def facts(self) -> dict[str, Facts]:
        lanes = {"A": 1, "B": 4}
        return {
            name: Facts(
                name,
                {"block": block, **({"lanes": lanes[name]} if name in lanes else {})},
                "q8",
                "" if name in lanes else "its codes are a riddle",
            )
            for name, block in BLOCKS.items()
        }

    def load(self, folder: Path) -> tuple[Space, Catalog, Routes]:
        """Write the world out as TOML and read it with the code under test."""
        (folder / "routes").mkdir(exist_ok=True)
        (folder / "tuned").mkdir(exist_ok=True)
        (folder / "requests.toml").write_text(toml({"axis": self.axes}))
        for op, routing in self.routes.items():
            (folder / "routes" / f"{op}.toml").write_text(toml(routing))
        space = load_space(folder / "requests.toml")
        catalog = Catalog(tuple(self.kernels), self.facts())
        return space, catalog, load_routes(space, catalog, folder / "routes", folder / "tuned")

    def prove(self, folder: Path) -> Proof:
        return self.prove_with_routes(folder)[0]

    def prove_with_routes(self, folder: Path) -> tuple[Proof, Routes]:
        space, catalog, routes = self.load(folder)
        made = prove(space, catalog, routes, archs(), report=self.report, emitted=self.emitted, like=self.like)
        return made, routes


_ARCHS: dict[str, Arch] = {}


def archs() -> dict[str, Arch]:
    if not _ARCHS:
        _ARCHS.update(load_archs())
    return _ARCHS


def toml(data: Mapping[str, Any]) -> str:
    """Top-level values first, then tables; what is inside them inline."""
    plain = [f"{key} = {_value(v)}" for key, v in data.items() if not isinstance(v, dict) and not _tables(v)]
    tables = [
        f"[{key}]\n" + "".join(f"{k} = {_value(v)}\n" for k, v in t.items())
        for key, t in data.items()
        if isinstance(t, dict)
    ]
    lists = [
        f"[[{key}]]\n" + "".join(f"{k} = {_value(v)}\n" for k, v in item.items())
        for key, items in data.items()
        if _tables(items)
        for item in items
    ]
    return "\n".join([*plain, *tables, *lists]) + "\n"


def _tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(value)


def world() -> World:
    """A sound one: proving it finds nothing."""
    axes: list[dict[str, Any]] = [
        {"name": "op", "doc": "op", "values": list(OPS)},
        {"name": "format", "doc": "format", "values": list(BLOCKS)},
        {"name": "activation", "doc": "activation", "values": ["q8", "f16"]},
        {"name": "storage", "doc": "storage", "values": ["native", "tiled"]},
        {"name": "epilogue", "doc": "epilogue", "values": ["none", "bias", "glu"]},
        {"name": "contiguous", "doc": "dense", "values": ["yes", "no"]},
        {"name": "arch", "doc": "arch", "values": list(ARCHS)},
        {"name": "policy", "doc": "policy", "values": ["fastest", "invariant"]},
        {"name": "K", "doc": "columns", "limits": [1, MAX_K]},
        {"name": "N", "doc": "rows", "limits": [1, MAX_N]},
        {"name": "T", "doc": "tokens", "limits": [1, MAX_T]},
    ]
    kernels = [kernel for format in ("A", "B") for kernel in kernels_of(format)]
    routes = {"mul_mat": mul_mat(), "mul_mat_id": mul_mat_id(), "quantize_activation": quantize()}
    return World(axes, kernels, routes)


def kernels_of(f: str) -> list[Kernel]:
    def make(name: str, op: str, family: str, t: tuple[int, int], storage: str, epilogues: str, **more: Any) -> Kernel:
        where: dict[str, Condition] = {
            "op": frozenset({op}),
            "format": frozenset({f}),
            "activation": frozenset({"q8"}),
            "contiguous": frozenset({"yes"}),
            "K": Ints(1, INT32, frozenset({BLOCKS[f]})),
            "T": Ints(*t),
        }
        if op != "quantize_activation":
            where |= {"storage": frozenset({storage}), "epilogue": frozenset(epilogues.split()), "N": Ints(1, INT32)}
            more = {"contract": f"c_{f}", "quantiser": f"quantize_{f}", **more}
        return Kernel(name=f"{name}_{f}", file=name, op=op, family=family, format=f, where=where, **more)

    ladder = [
        make(
            f"mma{r}",
            "mul_mat",
            "mma",
            (1, MAX_T),
            "tiled",
            "none bias glu",
            columns=r,
            ladder=f"mma_{f}",
            shared_bytes=r * 1024,
        )
        for r in (8, 16, 24, 32)
    ]
    return [
        make("quantize", "quantize_activation", "convert", (1, MAX_T), "", ""),
        make("mv1", "mul_mat", "matvec", (1, 1), "native", "none bias", columns=1, knobs={"rows": 1}),
        make("mv2", "mul_mat", "matvec", (1, 1), "native", "none bias", columns=1, knobs={"rows": 2}),
        make("mr", "mul_mat", "multirow", (1, 8), "native", "none bias", columns=8),
        *ladder,
        make("tile", "mul_mat", "tile", (1, MAX_T), "tiled", "none bias glu", columns=0, contract=f"d_{f}"),
        make("moe", "mul_mat_id", "moe", (1, 8), "native", "none bias", columns=8),
        make("moe_tiled", "mul_mat_id", "moe_tiled", (1, 8), "tiled", "none bias glu", columns=8),
    ]


def gates(op: str) -> list[Routing]:
    """What all ops refuse alike."""
    return [
        {"code": "format", "require": {"format": "planned"}, "reason": "{format} has no " + op + " kernel: {refused}"},
        {"code": "activation", "require": {"activation": "own"}, "reason": "{format} takes {own}"},
        {"code": "strided", "require": {"contiguous": ["yes"]}, "reason": "x is strided"},
        {"code": "size", "require": {"K": [1, INT32], "N": [1, INT32]}, "reason": "32 bits"},
        {"code": "block", "require": {"K": {"multiple_of": "block"}}, "reason": "K is no multiple of {block}"},
    ]


def mul_mat() -> Routing:
    return {
        "op": "mul_mat",
        "gate": [
            *gates("mul_mat"),
            {
                "code": "epilogue",
                "when": {"storage": ["native"]},
                "require": {"epilogue": ["none", "bias"]},
                "reason": "no fused GLU on native",
            },
            {"code": "tokens", "when": {"storage": ["native"]}, "require": {"T": [1, 8]}, "reason": "repack for T > 8"},
        ],
        "class": {"all": {"lanes": [1, 32]}},
        "route": [
            {
                "class": "all",
                "family": "matvec",
                "storage": ["native"],
                "T": [1, 1],
                "N": [1, 1023],
                "kernel": {"rows": 1},
            },
            {
                "class": "all",
                "family": "matvec",
                "storage": ["native"],
                "T": [1, 1],
                "N": [1024, "max"],
                "kernel": {"rows": 2},
            },
            {"class": "all", "family": "multirow", "storage": ["native"], "T": [2, 8]},
            {"class": "all", "family": "mma", "storage": ["tiled"], "T": [1, 32], "ladder": [8, 16, 24, 32]},
            {"class": "all", "family": "mma", "storage": ["tiled"], "T": [33, 48], "kernel": {"columns": 24}},
            {"class": "all", "family": "mma", "storage": ["tiled"], "T": [49, 96], "kernel": {"columns": 32}},
            {"class": "all", "family": "tile", "storage": ["tiled"], "T": [97, "max"], "policy": ["fastest"]},
            {
                "class": "all",
                "family": "mma",
                "storage": ["tiled"],
                "T": [97, "max"],
                "policy": ["invariant"],
                "kernel": {"columns": 32},
            },
        ],
        "invariant": {"family": "mma"},
        "waste": {"columns": 8, "bound": 1.8},
    }


def mul_mat_id() -> Routing:
    return {
        "op": "mul_mat_id",
        "gate": [
            *gates("mul_mat_id"),
            {
                "code": "epilogue",
                "when": {"storage": ["native"]},
                "require": {"epilogue": ["none", "bias"]},
                "reason": "no fused GLU on native",
            },
            {"code": "tokens", "require": {"T": [1, 8]}, "reason": "prefill with experts is not built"},
        ],
        "route": [
            {"formats": ["A", "B"], "family": "moe", "storage": ["native"], "T": [1, 8]},
            {"formats": ["A", "B"], "family": "moe_tiled", "storage": ["tiled"], "T": [1, 8]},
        ],
        "invariant": {"family": "moe"},
    }


def quantize() -> Routing:
    shared = [gate for gate in gates("quantize_activation") if gate["code"] != "size"]
    size = {"code": "size", "require": {"K": [1, INT32]}, "reason": "32 bits"}
    return {
        "op": "quantize_activation",
        "gate": [*shared, size],
        "route": [{"formats": ["A", "B"], "family": "convert"}],
    }


# ---- the independent judge


class Verdict(NamedTuple):
    """kind: kernel, refused, gap, hole or overlap. name: the kernel or the code. rows: the routes that claim it."""

    kind: str
    name: str = ""
    rows: str = ""


def naive(world: World, request: Mapping[str, Any]) -> Verdict:
    """The decision, straight from the data."""
    routing = world.routes[request["op"]]
    for gate in routing["gate"]:
        inside = all(_meets(world, request, axis, c) for axis, c in gate.get("when", {}).items())
        if inside and not all(_meets(world, request, axis, c) for axis, c in gate.get("require", {"op": []}).items()):
            return Verdict("refused", gate["code"])
    found, rows, gap = [], [], False
    for number, route in enumerate(routing["route"]):
        if "formats" in route:
            inside = request["format"] in route["formats"]
        else:
            inside = request["format"] in ("A", "B")  # the only class there is
        axes = {a["name"] for a in world.axes}
        if not inside or not all(_meets(world, request, axis, c) for axis, c in route.items() if axis in axes):
            continue
        kernel = _kernel(world, request, route)
        promised = {
            k.contract
            for k in world.kernels
            if k.format == request["format"] and k.family == routing.get("invariant", {}).get("family")
        }
        foreign = "policy" not in route and kernel.contract is not None and kernel.contract not in promised
        if foreign and request["policy"] == "invariant":
            gap = True
        else:
            found.append(kernel.name)
            rows.append(f"route[{number}]")
    if found:
        return Verdict("kernel" if len(found) == 1 else "overlap", found[0], " ".join(sorted(rows)))
    return Verdict("gap" if gap else "hole")


def _meets(world: World, request: Mapping[str, Any], axis: str, condition: Any) -> bool:
    value, block = request[axis], BLOCKS[request["format"]]
    if condition == "planned":
        return any(k.op == request["op"] and k.format == value for k in world.kernels)
    if condition == "own":
        return bool(value == "q8")
    if isinstance(condition, dict):
        words = {"block": block}
        return all(value % words.get(m, m) == 0 for key, m in condition.items() if key == "multiple_of") and (
            "range" not in condition or _meets(world, request, axis, condition["range"])
        )
    if all(isinstance(item, str) for item in condition) and axis not in ("T", "N", "K"):
        return value in condition
    top = {"T": MAX_T, "N": MAX_N, "K": MAX_K}[axis]
    lo, hi = (top if item == "max" else item for item in condition)
    return bool(lo <= value <= hi)


def _kernel(world: World, request: Mapping[str, Any], route: Routing) -> Kernel:
    wanted = dict(route.get("kernel", {}))
    if "ladder" in route:
        wanted["columns"] = min(rung for rung in route["ladder"] if rung >= request["T"])
    for k in world.kernels:
        if (k.op, k.format, k.family) == (request["op"], request["format"], route["family"]):
            if all({"columns": k.columns, **k.knobs}.get(key) == value for key, value in wanted.items()):
                return k
    raise AssertionError(f"no kernel for {route}")


def can(kernel: Kernel, request: Mapping[str, Any]) -> bool:
    """Whether a request lies in a kernel's domain."""
    return all(request[axis] in condition for axis, condition in kernel.where.items())
