"""Ways to damage a sound world: each draws one instance, does the damage, and says what the proof must call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dispatch_world import ARCHS, Routing, World
from hypothesis import strategies as st

from qgen.build.resources import Resources
from qgen.dispatch.kernels import Kernel
from qgen.dispatch.space import Condition, Ints

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Expected:
    """kinds: findings that must be there, all of them; subject: a text that one of them carries."""

    kinds: tuple[str, ...]
    subject: str = ""


def change(world: World, name: str, /, **changes: Any) -> None:
    world.kernels = [replace(k, **changes) if k.name == name else k for k in world.kernels]


def narrow_to(world: World, name: str, axis: str, condition: Condition) -> None:
    change(world, name, where={**world.kernel(name).where, axis: condition})


def row(world: World, op: str, family: str, **has: Any) -> Routing:
    found = [
        r
        for r in world.routes[op]["route"]
        if r["family"] == family and all(r.get(key) == value for key, value in has.items())
    ]
    assert len(found) == 1
    only: Routing = found[0]
    return only


def any_kernel(draw: Draw, world: World, but: tuple[str, ...] = ()) -> Kernel:
    kernel = draw(st.sampled_from([k for k in world.kernels if k.family not in but]))
    assert isinstance(kernel, Kernel)
    return kernel


def compile_all(world: World) -> dict[tuple[str, str], Resources]:
    world.report = {(k.name, arch): Resources(k.name, 64, 0, 0, 0, 0) for k in world.kernels for arch in ARCHS}
    return world.report


# ---- routes


def lost_row(draw: Draw, world: World) -> Expected:
    op = draw(st.sampled_from(list(world.routes)))
    routes = world.routes[op]["route"]
    routes.pop(draw(st.integers(0, len(routes) - 1)))
    return Expected(("hole",))


def shrunken_interval(draw: Draw, world: World) -> Expected:
    r = draw(
        st.sampled_from([r for r in world.routes["mul_mat"]["route"] if r.get("T", [1, 1])[0] != r.get("T", [1, 1])[1]])
    )
    lo, hi = r["T"]
    top = 4096 if hi == "max" else hi
    cut = draw(st.integers(1, top - lo))
    if draw(st.booleans()) and "ladder" not in r:
        r["T"] = [lo + cut, hi]
    elif "ladder" in r:
        r["T"], r["ladder"] = [lo, 24 - draw(st.integers(0, 7))], [8, 16, 24]
    else:
        r["T"] = [lo, top - cut]
    return Expected(("hole",))


def grown_interval(draw: Draw, world: World) -> Expected:
    r = row(world, "mul_mat", "mma", T=[33, 48])
    r["T"] = draw(st.sampled_from([[32, 48], [20, 48], [33, 49], [33, 96], [1, 4096]]))
    return Expected(("overlap",))


def boundary_off_by_one(draw: Draw, world: World) -> Expected:
    low, high = row(world, "mul_mat", "matvec", N=[1, 1023]), row(world, "mul_mat", "matvec", N=[1024, "max"])
    which = draw(st.integers(0, 3))
    if which < 2:
        low["N"] = [1, 1022 if which else 1024]
    else:
        high["N"] = [1025 if which == 3 else 1023, "max"]
    return Expected(("hole",) if which in (1, 3) else ("overlap",))


def doubled_row(draw: Draw, world: World) -> Expected:
    r = draw(st.sampled_from([r for r in world.routes["mul_mat"]["route"] if r["family"] == "matvec"]))
    other = {**r, "kernel": {"rows": 3 - r["kernel"]["rows"]}}
    world.routes["mul_mat"]["route"].insert(draw(st.integers(0, 8)), other)
    return Expected(("overlap",))


def row_behind_a_gate(draw: Draw, world: World) -> Expected:
    t = draw(st.integers(9, 4000))
    extra = {"class": "all", "family": "multirow", "storage": ["native"], "T": [t, draw(st.integers(t, 4096))]}
    world.routes["mul_mat"]["route"].append(extra)
    return Expected(("dead_route",), "route[8]")


def expert_row_missing(draw: Draw, world: World) -> Expected:
    r = draw(st.sampled_from(world.routes["mul_mat_id"]["route"]))
    r["formats"] = [draw(st.sampled_from(["A", "B"]))]
    return Expected(("hole", "disagree"))


def swapped_rungs(draw: Draw, world: World) -> Expected:
    r = row(world, "mul_mat", "mma", T=[1, 32])
    routes = world.routes["mul_mat"]["route"]
    routes.remove(r)
    rungs = [8, 16, 24, 32]
    i = draw(st.integers(0, 2))
    swapped = [*rungs[:i], rungs[i + 1], rungs[i], *rungs[i + 2 :]]
    for lo, hi, rung in zip([1, 9, 17, 25], rungs, swapped, strict=True):
        routes.append(
            {"class": "all", "family": "mma", "storage": ["tiled"], "T": [lo, hi], "kernel": {"columns": rung}}
        )
    return Expected(("order",), f"rung {rungs[i + 1]} (")


def lost_rung(draw: Draw, world: World) -> Expected:
    lost = draw(st.sampled_from([8, 16, 24]))
    world.emitted = {k.name for k in world.kernels}
    row(world, "mul_mat", "mma", T=[1, 32])["ladder"] = [r for r in (8, 16, 24, 32) if r != lost]
    tiles = row(world, "mul_mat", "mma", T=[33, 48])
    if lost == 24:
        tiles["kernel"] = {"columns": 32}
    # 24 columns for T = 9..16 stay wasteful; 32 for 17..24 too
    return Expected(("waste", "rung", "dead"), "compiled but unreachable")


# ---- gates


def gate(world: World, op: str, code: str) -> Routing:
    return next(g for g in world.routes[op]["gate"] if g["code"] == code)


def gate_too_wide(draw: Draw, world: World) -> Expected:
    gate(world, "mul_mat", "tokens")["require"]["T"] = [1, draw(st.integers(9, 4095))]
    return Expected(("hole",))


def gate_lost(draw: Draw, world: World) -> Expected:
    op = draw(st.sampled_from(["mul_mat", "mul_mat_id"]))
    code = draw(st.sampled_from(["block", "size", "strided", "activation"]))
    world.routes[op]["gate"].remove(gate(world, op, code))
    return Expected(("outside",))


def fusion_narrower_than_its_kernel(draw: Draw, world: World) -> Expected:
    if draw(st.booleans()):
        gate(world, "mul_mat", "epilogue")["require"]["epilogue"] = ["none"]
        return Expected(("narrow", "disagree"), "narrower than the kernel")
    t = draw(st.integers(1, 7))
    extra = {"code": "fused", "when": {"epilogue": ["bias"]}, "require": {"T": [1, t]}, "reason": "not fused"}
    world.routes["mul_mat_id"]["gate"].append(extra)
    return Expected(("narrow",), "narrower than the kernel")


def quantiser_refused(draw: Draw, world: World) -> Expected:
    t = draw(st.integers(1, 4095))
    world.routes["quantize_activation"]["gate"].append({"code": "tokens", "require": {"T": [1, t]}, "reason": "few"})
    return Expected(("quantiser", "narrow"))


# ---- plans


def dead_instance(draw: Draw, world: World) -> Expected:
    mother = any_kernel(draw, world)
    world.emitted = {k.name for k in world.kernels} | {"orphan"}
    world.kernels.append(replace(mother, name="orphan", family="nobody"))
    return Expected(("dead",), "orphan")


def compiled_but_not_routed(draw: Draw, world: World) -> Expected:
    compile_all(world)["orphan", draw(st.sampled_from(ARCHS))] = Resources("orphan", 8, 0, 0, 0, 0)
    return Expected(("dead",), "orphan")


def duplicate_name(draw: Draw, world: World) -> Expected:
    one = any_kernel(draw, world)
    other = draw(st.sampled_from([k for k in world.kernels if k.name != one.name]))
    change(world, one.name, name=other.name)
    return Expected(("duplicate",), other.name)


def wrong_arch(draw: Draw, world: World) -> Expected:
    kernel = any_kernel(draw, world)
    narrow_to(world, kernel.name, "arch", frozenset({draw(st.sampled_from(ARCHS))}))
    return Expected(("outside",), kernel.name)


def too_much_shared(draw: Draw, world: World) -> Expected:
    kernel = any_kernel(draw, world)
    # sm_80 has 166912 bytes a block, sm_90 232448
    change(world, kernel.name, shared_bytes=draw(st.sampled_from([166913, 200000, 232449])))
    return Expected(("launch",), kernel.name)


def too_many_threads(draw: Draw, world: World) -> Expected:
    kernel = any_kernel(draw, world)
    change(world, kernel.name, threads=draw(st.integers(33, 64)) * 32)
    return Expected(("launch",), kernel.name)


def too_many_registers(draw: Draw, world: World) -> Expected:
    kernel = any_kernel(draw, world)
    change(world, kernel.name, threads=512)
    arch = draw(st.sampled_from(ARCHS))
    compile_all(world)[kernel.name, arch] = Resources(kernel.name, draw(st.integers(129, 255)), 0, 0, 0, 0)
    return Expected(("launch",), f"{kernel.name} cannot start on {arch}")


def missing_instruction(draw: Draw, world: World) -> Expected:
    kernel = any_kernel(draw, world)
    change(world, kernel.name, requires=("tma",))
    return Expected(("launch",), f"{kernel.name} cannot start on sm_80")


def not_compiled(draw: Draw, world: World) -> Expected:
    kernel, arch = any_kernel(draw, world), draw(st.sampled_from(ARCHS))
    del compile_all(world)[kernel.name, arch]
    return Expected(("compiled",), f"{kernel.name} is reached on {arch}")


def smaller_domain(draw: Draw, world: World) -> Expected:
    kernel = draw(st.sampled_from([k for k in world.kernels if k.family in ("multirow", "moe", "moe_tiled")]))
    narrow_to(world, kernel.name, "T", Ints(1, draw(st.integers(1, 7))))
    return Expected(("outside",), kernel.name)


def larger_domain(draw: Draw, world: World) -> Expected:
    kernel = draw(st.sampled_from([k for k in world.kernels if k.family in ("multirow", "moe", "moe_tiled")]))
    narrow_to(world, kernel.name, "T", Ints(1, draw(st.integers(9, 4096))))
    return Expected(("narrow",), kernel.name)


def contract_mix(draw: Draw, world: World) -> Expected:
    which = draw(st.integers(0, 1))
    if which:
        # The prefill kernel is let in under `invariant`.
        r = row(world, "mul_mat", "tile")
        r["policy"] = ["fastest", "invariant"]
        world.routes["mul_mat"]["route"].remove(row(world, "mul_mat", "mma", T=[97, "max"]))
        return Expected(("contract",), "mixes contracts")
    # One kernel's contract changes and its row says it serves every policy.
    format = draw(st.sampled_from(["A", "B"]))
    change(world, f"mr_{format}", contract="other")
    row(world, "mul_mat", "multirow")["policy"] = ["fastest", "invariant"]
    return Expected(("contract",), "mixes contracts")


def ops_disagree(draw: Draw, world: World) -> Expected:
    # Kernels and gate agree with each other, but not with mul_mat.
    for format in ("A", "B"):
        narrow_to(world, f"moe_{format}", "epilogue", frozenset({"none"}))
    gate(world, "mul_mat_id", "epilogue")["require"]["epilogue"] = ["none"]
    return Expected(("disagree",))


DAMAGES: tuple[Callable[[Draw, World], Expected], ...] = (
    lost_row,
    shrunken_interval,
    grown_interval,
    boundary_off_by_one,
    doubled_row,
    row_behind_a_gate,
    expert_row_missing,
    swapped_rungs,
    lost_rung,
    gate_too_wide,
    gate_lost,
    fusion_narrower_than_its_kernel,
    quantiser_refused,
    dead_instance,
    compiled_but_not_routed,
    duplicate_name,
    wrong_arch,
    too_much_shared,
    too_many_threads,
    too_many_registers,
    missing_instruction,
    not_compiled,
    smaller_domain,
    larger_domain,
    contract_mix,
    ops_disagree,
)
