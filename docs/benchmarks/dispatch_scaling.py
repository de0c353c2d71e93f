"""Time and memory of the dispatch proof against the size of the space, up to ten times today's.

    python docs/benchmarks/dispatch_scaling.py            measures and writes dispatch_scaling.{md,png} beside this file
    python docs/benchmarks/dispatch_scaling.py shipped 10  one point, as JSON

Two spaces grow by copying their formats, each copy with kernels, gates and rows of its own: what is shipped today, and
the made-up one of tests/cpu/dispatch_world.py, which has what later families bring (ladders, tiled storage, epilogues,
experts, several contracts). Every point is a fresh process, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cpu")]

from qgen.archs import load_archs  # noqa: E402
from qgen.dispatch.emission import Ends, flat  # noqa: E402
from qgen.dispatch.kernels import Catalog, Facts, Kernel, catalog  # noqa: E402
from qgen.dispatch.proof import prove  # noqa: E402
from qgen.dispatch.routes import load_routes  # noqa: E402
from qgen.dispatch.shipped import load_like  # noqa: E402
from qgen.dispatch.space import Space, load_space  # noqa: E402
from qgen.paths import data_dir  # noqa: E402
from qgen.plan import plan_all  # noqa: E402
from qgen.spec import load_formats  # noqa: E402

LATER = 10  # its three formats ten times are about as many as are shipped
STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
SERIES = {"shipped": "what is shipped", "later": "with ladders, tiled storage, epilogues and experts"}


# heading: (key, format)
COLUMNS = {
    "x": ("times", ""),
    "formats": ("formats", ""),
    "kernels": ("kernels", ""),
    "rows of routes": ("rows", ""),
    "requests": ("requests", ".1e"),
    "graph nodes": ("nodes", ""),
    "table rows": ("table", ""),
    "read s": ("load_s", ".2f"),
    "prove s": ("prove_s", ".2f"),
    "write s": ("write_s", ".2f"),
    "peak MB": ("peak_mb", ".0f"),
}


def copied(kernel: Kernel, suffix: str) -> Kernel:
    name = f"{kernel.format}{suffix}"
    return replace(
        kernel,
        name=f"{kernel.name}{suffix}",
        format=name,
        where={**kernel.where, "format": frozenset({name})},
        quantiser=f"{kernel.quantiser}{suffix}" if kernel.quantiser else None,
        ladder=f"{kernel.ladder}{suffix}" if kernel.ladder else "",
    )


def grown(space: Space, things: Catalog, times: int) -> tuple[Space, Catalog]:
    """Every format `times` times, the first under its own name."""
    suffixes = ["", *(f"_{i}" for i in range(2, times + 1))]
    names = tuple(f"{name}{suffix}" for suffix in suffixes for name in space.axis("format").values)
    axes = tuple(replace(a, values=names) if a.name == "format" else a for a in space.axes)
    facts: dict[str, Facts] = {
        f"{name}{suffix}": replace(f, format=f"{name}{suffix}")
        for suffix in suffixes
        for name, f in things.facts.items()
    }
    kernels = tuple(copied(kernel, suffix) for suffix in suffixes for kernel in things.kernels)
    return replace(space, axes=axes), Catalog(kernels, facts)


def with_copies(text: str, names: list[str], times: int) -> str:
    """A routes file in which lists of formats name the copies too."""
    listed = "[" + ", ".join(json.dumps(name) for name in names) + "]"
    copies = [f"{name}{suffix}" for suffix in ["", *(f"_{i}" for i in range(2, times + 1))] for name in names]
    return text.replace(listed, json.dumps(copies))


def point(series: str, times: int) -> dict[str, Any]:
    """One measurement. Seconds are those of the processor; memory is the peak of the process."""
    folder = Path(tempfile.mkdtemp())
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if series == "shipped":
        formats = load_formats()
        space = load_space()
        things = catalog(*plan_all(formats), formats, space)
        like, names, source = load_like(space), ["TQ1_0", "TQ2_0"], data_dir("specs") / "routes"
    else:
        from dispatch_world import world

        made = world()
        space, things, _ = made.load(folder)
        like, names, source = made.like, ["A", "B"], folder / "routes"
        times *= LATER
    space, things = grown(space, things, times)
    target = folder / "copies"
    target.mkdir()
    for path in source.glob("*.toml"):
        (target / path.name).write_text(with_copies(path.read_text(), names, times))
    started = time.process_time()
    routes = load_routes(space, things, target, folder / "tuned")
    loaded = time.process_time()
    proof = prove(space, things, routes, load_archs(), like=like)
    proved = time.process_time()
    assert proof.ok, [str(f) for f in proof.findings[:3]]
    text = flat(proof, Ends.of(proof))
    written = time.process_time()
    return {
        "times": times // (1 if series == "shipped" else LATER),
        "formats": len(things.facts),
        "kernels": len(proof.reached),
        "rows": len(routes.rows),
        "requests": proof.requests,
        "nodes": len(proof.diagram.graph),
        "table": text.count("\n"),
        "load_s": loaded - started,
        "prove_s": proved - loaded,
        "write_s": written - proved,
        "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024,
        "base_mb": base / 1024,
    }


def plot(points: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for series, rows in points.items():
        x = [row["times"] for row in rows]
        (line,) = left.plot(x, [row["load_s"] + row["prove_s"] for row in rows], "o-", label=SERIES[series])
        left.plot(x, [row["write_s"] for row in rows], ":", color=line.get_color(), label="   its table written")
        right.plot(x, [row["peak_mb"] for row in rows], "o-", label=SERIES[series])
    left.axhline(5, color="grey", linewidth=0.8)
    left.set_ylim(0, 5.6)
    left.annotate("allowed for the shipped space (1 x): 5 s", (1, 5), ha="left", va="bottom", fontsize=8, color="grey")
    left.set(
        xlabel="size of the space (times its formats)",
        ylabel="seconds, one core",
        title="reading the routes and proving",
    )
    right.set(
        xlabel="size of the space (times its formats)", ylabel="MB", title="peak memory of the process", ylim=(0, None)
    )
    left.legend(fontsize=8, loc="center left")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def report(points: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# The dispatch proof against the size of the space",
        "",
        "`python docs/benchmarks/dispatch_scaling.py` measures this and writes both files; it says what grows and how.",
        f"One core of {os.cpu_count()} ({platform.machine()}), Python {platform.python_version()}. Memory is the "
        "peak of the process, interpreter and libraries included.",
        "",
        "![time and memory](dispatch_scaling.png)",
    ]
    for series, rows in points.items():
        lines += [
            "",
            f"## {SERIES[series][0].upper()}{SERIES[series][1:]}",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---" * len(COLUMNS) + "|",
        ]
        lines += [f"| {' | '.join(format(row[key], form) for key, form in COLUMNS.values())} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(point(sys.argv[1], int(sys.argv[2]))))
        return
    points: dict[str, list[dict[str, Any]]] = {}
    for series in SERIES:
        for times in STEPS:
            command = [sys.executable, __file__, series, str(times)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            points.setdefault(series, []).append(json.loads(done.stdout))
            print(series, times, done.stdout.strip())
    plot(points, HERE / "dispatch_scaling.png")
    (HERE / "dispatch_scaling.md").write_text(report(points))


if __name__ == "__main__":
    main()
