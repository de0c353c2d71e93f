"""The only room that knows Jinja: a plan becomes the text of one CUDA file. It chooses nothing and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NoReturn

import jinja2

from qgen import paths
from qgen.emit.fused import fused_activation, fused_kernel
from qgen.emit.ksplit import ksplit_kernel, quantize_kernel
from qgen.emit.ksplit_float import arrange_kernel, float_facts, float_kernel
from qgen.emit.multirow import multirow_kernel
from qgen.emit.repack import repack_facts, repack_kernel
from qgen.emit.sums import FloatStep, Total, block_sums
from qgen.emit.wgmma import wgmma_kernel, wgmma_launch
from qgen.emit.wgmma_float import float_wgmma_kernel
from qgen.errors import QgenError
from qgen.plan import (
    ArrangePlan,
    FloatKsplitPlan,
    FloatWgmmaPlan,
    FragmentQuantizePlan,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    Plan,
    QuantizePlan,
    RepackPlan,
    WgmmaPlan,
    entries,
)


@dataclass(frozen=True)
class Source:
    """One generated file: its path under generated/, its text, and the kernels in it."""

    path: str
    text: str
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """Two packed element numbers of the quantiser's order table."""

    low: int
    high: int


@dataclass(frozen=True)
class Kernel:
    """What a template receives, under the one name `k`."""

    header: tuple[str, ...]
    plan: Plan
    threads: int
    integers: int = 0
    group_numbers: tuple[int, ...] = ()
    totals: tuple[Total, ...] = ()
    float_steps: tuple[FloatStep, ...] = ()
    order_rows: tuple[tuple[Pair, ...], ...] = ()
    sums_at: int = 0
    group_first: str = ""
    group_end: str = ""


def _fail(message: str) -> NoReturn:
    raise QgenError(
        stage="emit",
        subject="template",
        found=message,
        allowed="a plan the template was written for",
        next="render the plan with the template its family names",
    )


@cache
def environment() -> jinja2.Environment:
    """The one Jinja environment: strict, no globals beyond fail()."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.data_dir("templates")),
        undefined=jinja2.StrictUndefined,
        line_statement_prefix="//%",
        line_comment_prefix="//#",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.globals = {"fail": _fail}
    return env


def emit(plan: Plan, guards: Mapping[str, str] = MappingProxyType({})) -> Source:
    """The CUDA text of `plan`. Raises QgenError (stage "emit") where a template refuses it.

    guards: by kernel the preprocessor's condition under which it is compiled at all; the others always are
    """
    kernel: object
    if isinstance(plan, KsplitPlan):
        template = "ksplit_tiled.cu.j2" if plan.tile else "ksplit.cu.j2"
        kernel = ksplit_kernel(plan, _header(plan, template, f"{plan.format} x {plan.layout.activation}", _facts(plan)))
    elif isinstance(plan, FusedPlan):
        template = "fused.cu.j2"
        facts = _facts(plan.ladder, activation=fused_activation(plan))
        kernel = fused_kernel(plan, _header(plan, template, f"{plan.format} x f32, one token", facts))
    elif isinstance(plan, WgmmaPlan):
        template = "wgmma.cu.j2"
        subject = f"{plan.format} x {plan.layout.activation}, many tokens"
        facts = _facts(plan.ladder, each=" for the tokens of a CTA")
        kernel = wgmma_kernel(plan, _header(plan, template, subject, [*wgmma_launch(), *facts]))
    elif isinstance(plan, FloatWgmmaPlan):
        template = "wgmma_float.cu.j2"
        subject = f"{plan.format} x {plan.layout.activation}, many tokens"
        facts = [*wgmma_launch(), *float_facts(plan.ladder)]
        kernel = float_wgmma_kernel(plan, _header(plan, template, subject, facts))
    elif isinstance(plan, MultirowPlan):
        template = "multirow.cu.j2"
        subject = f"{plan.format} x {plan.layout.activation}, a few tokens"
        kernel = multirow_kernel(plan, _header(plan, template, subject, _facts(plan)))
    elif isinstance(plan, FragmentQuantizePlan):
        template = "quantize_fragments.cu.j2"
        subject = f"to {plan.layout.activation} for {plan.format} fragments"
        kernel = quantize_kernel(plan, _header(plan, template, subject, []))
    elif isinstance(plan, FloatKsplitPlan):
        template = "ksplit_float_tiled.cu.j2" if plan.tile else "ksplit_float.cu.j2"
        subject = f"{plan.format} x {plan.layout.activation}"
        kernel = float_kernel(plan, _header(plan, template, subject, float_facts(plan)))
    elif isinstance(plan, ArrangePlan):
        template = "arrange.cu.j2"
        subject = f"to {plan.layout.activation} for {plan.format} fragments"
        kernel = arrange_kernel(plan, _header(plan, template, subject, []))
    elif isinstance(plan, RepackPlan):
        template = "repack.cu.j2"
        kernel = repack_kernel(plan, _header(plan, template, f"{plan.format} to tiles and back", repack_facts(plan)))
    elif isinstance(plan, MatvecPlan):
        template, kernel = "matvec.cu.j2", _matvec(plan)
    else:
        template, kernel = "quantize.cu.j2", _quantize(plan)
    text = environment().get_template(template).render(k=kernel, guards=guards)
    return Source(path=f"{plan.family}/{plan.file}.cu", text=_squeeze(text), kernels=entries(plan))


def emit_text(template: str, k: object) -> str:
    """The text of a template that prints no kernel (dispatcher, report page), from one finished record.

    Raises QgenError (stage "emit") where the template refuses it.
    """
    return _squeeze(environment().get_template(template).render(k=k))


def _squeeze(text: str) -> str:
    """A macro call on a line of its own leaves blank lines: keep at most one."""
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return text.strip("\n") + "\n"


def _header(plan: Plan, template: str, subject: str, facts: list[str]) -> tuple[str, ...]:
    return (
        f"{plan.op} {subject}, family {plan.family}.",
        f"Generated from specs/formats/{plan.format.lower()}.toml and templates/{template};",
        "edit those, then run: qgen build",
        "",
        *facts,
    )


def _facts(plan: MatvecPlan | KsplitPlan | MultirowPlan, activation: str = "", each: str = "") -> list[str]:
    """activation: a line that says how x is read, where that is not the plan's layout; each: for what bytes come."""
    c = plan.contract
    layout = f"activation  {plan.layout.activation} in the layout {plan.layout.name}, from quantize_activation"
    storage = f"blocks as in the file, aligned to {plan.alignment}, rows row_stride bytes apart"
    if plan.storage == "tiled":
        storage = "tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back"
    return [
        f"format      {plan.format}: {plan.block} elements in {plan.block_bytes} bytes",
        f"storage     {plan.storage}: {storage}",
        activation or layout,
        f"traffic     every packed byte is requested once{each} (read factor {plan.read_factor:.2f})",
        f"contract    {c.name}: block b of a row belongs to slice b mod {c.slices}; a slice takes its blocks in",
        f"            increasing order, in them units of {c.unit} elements, and each term as",
        "            fma(factors * dx, float(integer sum), slice), terms " + ", ".join(c.terms) + ";",
        "            slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1",
        f"integers    exact: no sum of a unit exceeds {plan.largest_sum}{_in_place(plan)}",
        "",
    ]


def _in_place(plan: MatvecPlan | KsplitPlan | MultirowPlan) -> str:
    if not isinstance(plan, KsplitPlan) or plan.in_place is None:
        return ""
    return f"; of codes left in place {127 * 127 * plan.block}"  # both factors are below 128


def _matvec(plan: MatvecPlan) -> Kernel:
    totals, steps = block_sums(plan, tuple(range(plan.units)))
    return Kernel(
        header=_header(plan, "matvec.cu.j2", f"{plan.format} x {plan.layout.activation}, one token", _facts(plan)),
        plan=plan,
        threads=32 * plan.warps,
        integers=len(totals),
        group_numbers=tuple(range(plan.groups)),
        totals=totals,
        float_steps=steps,
    )


def _quantize(plan: QuantizePlan) -> Kernel:
    layout = plan.layout
    pairs = [Pair(low=a, high=b) for a, b in plan.order]
    width = 4
    first, end = _line(layout.group_words[:-1]), _line(layout.group_words[1:])
    facts = [
        f"layout      {layout.name}: int8 per {layout.group} columns, in the order the {plan.format} kernels read it:",
        "            codes  int8  [tile][chunk][thread of a warp][16]",
        f"            scale  f32   [block][{layout.scales}]",
        f"            sums   int32 [block][{layout.lanes}][{layout.sum_slots}]"
        if layout.sum_slots
        else "            no sums",
        "",
    ]
    return Kernel(
        header=_header(plan, "quantize.cu.j2", f"to {layout.activation} for {plan.format}", facts),
        plan=plan,
        threads=32 * plan.warps,
        order_rows=tuple(tuple(pairs[i : i + width]) for i in range(0, len(pairs), width)),
        sums_at=-(-(layout.block + 1) // 16) * 16,
        group_first=first if end else "",
        group_end=end if first else "",
    )


def _line(values: tuple[int, ...]) -> str:
    """C text of an arithmetic progression in `group`, or "" where the values are none."""
    step = values[1] - values[0] if len(values) > 1 else 0
    if any(v != values[0] + i * step for i, v in enumerate(values)):
        return ""
    return f"{values[0]} + {step} * group" if step else str(values[0])
