"""qgen show: the chain from format file to kernel, for one kernel, file or format."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from typing import Any

from qgen import generate
from qgen.cli import emit_json
from qgen.errors import QgenError
from qgen.plan import (
    TILE_ROWS,
    ActivationLayout,
    Contract,
    FloatContract,
    FloatFragments,
    FloatKsplitPlan,
    FloatWgmmaPlan,
    FragmentLayout,
    FusedPlan,
    KsplitPlan,
    MatvecPlan,
    MultirowPlan,
    Plan,
    TileLayout,
    WgmmaPlan,
    entries,
)
from qgen.spec import load_formats


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "show",
        help="print the chain from format to kernel for one NAME",
        description="Prints spec, layout, contract, plan and instances of a format (TQ1_0), of a kernel "
        "(mul_mat_tq1_0_q8_g256_t1__matvec_native_r2_b8) or of a generated file; --text adds the CUDA.",
    )
    verb.add_argument("name", help="a format, a kernel or a generated file")
    verb.add_argument("--text", action="store_true", help="also print the generated CUDA")
    verb.add_argument("--json", action="store_true", help="print the plan record for programs")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or a QgenError for an unknown name or a format without kernels."""
    made = generate.generate()
    formats = load_formats()
    format_name = args.name.upper()
    if format_name in made.refused:
        raise made.refused[format_name]
    if format_name in formats:
        multiply = MatvecPlan | MultirowPlan | KsplitPlan | FusedPlan | WgmmaPlan | FloatKsplitPlan | FloatWgmmaPlan
        plan: Plan
        plan, *others = [p for p in made.plans if p.format == format_name and isinstance(p, multiply)]
        text = made.source_of(plan.file)[1].text
    else:
        try:
            plan, source = made.source_of(args.name)
            others = []
            text = source.text
        except QgenError as error:
            kernels = [name for source in made.sources for name in source.kernels]
            near = difflib.get_close_matches(format_name, formats, n=1)
            near = near or difflib.get_close_matches(args.name.lower(), kernels, n=1, cutoff=0.9)
            raise QgenError(
                stage="show",
                subject=args.name,
                found=error.found + (f" (did you mean {near[0]}?)" if near else ""),
                allowed=f"a format ({', '.join(formats)}), a kernel or a generated file",
                next="list them: qgen formats",
            ) from None
    if args.json:
        emit_json(dataclasses.asdict(plan) | {"text": text if args.text else None})
        return 0
    format = formats[plan.format]
    print(f"format    {format.name}: {format.doc}")
    print(
        f"          {format.block} elements in {format.bytes} bytes = {format.bits_per_weight:g} bits per weight, "
        f"aligned to {format.alignment}; value = {format.value}"
    )
    for field in format.fields:
        places = [f"{p.width} bits at bit {p.bit}{f' of {p.plane}' if format.split else ''}" for p in field.parts] + [
            f"digits from {s.digit}" for s in field.segments
        ]
        print(f"  field   {field.name}: {field.entries} x {field.type or field.kind}, {'; '.join(places)}")
    _print_plan(plan)
    for other in others:
        archs = sorted(frozenset[str]().union(*(made.archs[name] for name in entries(other))))
        print(f"\non {', '.join(archs)}")
        _print_plan(other)
    if args.text:
        print("\n" + text, end="")
    return 0


def _print_plan(plan: Plan) -> None:
    if isinstance(plan, FusedPlan):
        _print_fused(plan)
        return
    if isinstance(plan, WgmmaPlan | FloatWgmmaPlan):
        _print_wgmma(plan)
        return
    _print_layout(plan.layout)
    if isinstance(plan, MatvecPlan | MultirowPlan | KsplitPlan | FloatKsplitPlan):
        print(f"contract  {_contract(plan.contract)}; {', '.join(plan.contract.terms)}")
        exact = "" if isinstance(plan, FloatKsplitPlan) else f"; largest integer sum {plan.largest_sum}"
        print(
            f"plan      {plan.op}, family {plan.family}, {plan.storage} storage; "
            f"read factor {plan.read_factor:.2f}{exact}"
        )
        _print_variants(plan)
    else:
        print(f"plan      {plan.op}, family {plan.family}")
        for name in entries(plan):
            print(f"  kernel  {name}")
    print(f"file      generated/{plan.family}/{plan.file}.cu")


def _print_fused(plan: FusedPlan) -> None:
    columns = plan.most_blocks * plan.ladder.block
    print(
        f"layout    f32: every CTA quantises x to {plan.contract.activation} by itself, at most {columns} columns, "
        f"into records of {plan.record.record_bytes} bytes in shared memory"
    )
    print(f"contract  {_contract(plan.contract)}; {', '.join(plan.contract.terms)}")
    print(
        f"plan      {plan.op}, family {plan.family}, {plan.storage} storage; read factor "
        f"{plan.ladder.read_factor:.2f}; largest integer sum {plan.ladder.largest_sum}"
    )
    for i in plan.instances:
        print(
            f"  kernel  {i.name}: one token, {i.teams} team(s) of {i.warps} warps, {i.stages} stages of "
            f"{i.stage_blocks} blocks a team, {i.shared_bytes} B shared"
        )
    print(f"file      generated/{plan.family}/{plan.file}.cu")


def _print_wgmma(plan: WgmmaPlan | FloatWgmmaPlan) -> None:
    _print_layout(plan.layout)
    print(f"contract  {_contract(plan.contract)}; {', '.join(plan.contract.terms)}")
    folded = plan.folded if isinstance(plan, WgmmaPlan) else plan.contract.folded
    scaled = "codes times their integer scales" if folded else "codes"
    exact = f"largest integer sum {plan.ladder.largest_sum}; " if isinstance(plan, WgmmaPlan) else ""
    print(
        f"plan      {plan.op}, family {plan.family}, {plan.storage} storage; read factor "
        f"{plan.ladder.read_factor:.2f}; {exact}instructions multiply {scaled}"
    )
    for r in plan.rungs:
        print(
            f"  kernel  {r.name}: {r.columns} tokens x {r.rows} rows a CTA, {r.row_groups} x {r.split} warpgroup(s) of "
            f"rows and slices and one that fetches, {r.stages} stages, {r.shared_bytes} B shared"
        )
    print(f"file      generated/{plan.family}/{plan.file}.cu")


def _contract(c: Contract | FloatContract) -> str:
    if isinstance(c, FloatContract) and c.folded:
        return (
            f"{c.name}: {c.activation} activations from T = 1 up, float32 sums S of blocks, (code * integer scale) * x "
            f"in steps of 16 products, M of integer scales * the sums of {c.group} x in two bf16 pieces, {c.slices} "
            "slices by block, halving tree"
        )
    if isinstance(c, FloatContract):
        return (
            f"{c.name}: {c.activation} activations from T = 1 up, float32 sums S of groups of {c.group} in steps of 16 "
            f"products, X the sum of their x, {c.slices} slices by block, halving tree"
        )
    return f"{c.name}: units of {c.unit}, {c.slices} slices by block, halving tree"


def _print_layout(layout: ActivationLayout | FragmentLayout | FloatFragments | TileLayout) -> None:
    if isinstance(layout, TileLayout):
        pieces = ", ".join(str(piece.bytes) for piece in layout.pieces)
        print(f"layout    {layout.name}: tiles of {TILE_ROWS} rows and one block, pieces of {pieces} bytes a row")
        return
    if isinstance(layout, FloatFragments):
        sums = f", {layout.groups} sum(s){' in two bf16 pieces' if layout.pieced else ''}" if layout.sums else ""
        shape = f"eight tokens a tile, {layout.pieces} x 16 bytes a thread, token and block{sums}"
        if layout.matrices:
            shape = f"eight tokens a tile, {layout.record_bytes} bytes each and {layout.bundle} block(s){sums}"
    elif isinstance(layout, FragmentLayout):
        shape = f"eight tokens a tile, {layout.chunks} x 16 bytes a thread, token and bundle"
    else:
        shape = f"{layout.lanes} thread(s) a block, {layout.chunks} x 16 bytes each, {layout.sum_slots} sum(s)"
    print(f"layout    {layout.name}: activation {layout.activation}, {shape}")


def _print_variants(plan: MatvecPlan | MultirowPlan | KsplitPlan | FloatKsplitPlan) -> None:
    if isinstance(plan, MultirowPlan):
        for m in plan.instances:
            print(
                f"  kernel  {m.name}: {m.rows} row(s) x {m.columns} token(s) a team, {m.team_blocks} blocks at once, "
                f"{m.warps} warps, {m.stages} stages, {m.shared_bytes} B shared"
            )
        return
    if isinstance(plan, KsplitPlan | FloatKsplitPlan):
        for r in plan.rungs:
            print(
                f"  kernel  {r.name}: {r.columns} tokens a CTA, {r.warps} warps, {r.stages} stages of "
                f"{r.stage_blocks} blocks, {r.shared_bytes} B shared"
            )
        return
    for i in plan.instances:
        print(
            f"  kernel  {i.name}: {i.rows} row(s) x {i.teams} team(s) a warp, {i.team_blocks} blocks at once, "
            f"{i.stages} stages, {i.shared_bytes} B shared"
        )
