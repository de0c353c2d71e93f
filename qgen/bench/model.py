"""A run of `qgen bench --model`: the matrices of one decode step in order, as an engine would issue them.

Products are made by calls of qgen.run, quantisation of the activation included, and all of them are one CUDA graph.
Those that take the same x are one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qgen.bench import floors
from qgen.bench.candidates import AnyCandidate, MultirowCandidate, WgmmaCandidate, candidates
from qgen.bench.cases import QUICK_FORMATS, Case, Shape, Skipped, choose_formats
from qgen.bench.inputs import F32, PATTERN_BLOCKS, Inputs, Pattern, difference, pattern, stored
from qgen.bench.ladder import parse_sweep
from qgen.bench.machine import Caller, Machine
from qgen.bench.matvec import text
from qgen.bench.model_records import Kind, ModelReport, Step
from qgen.bench.protocol import ALIGNMENT, cold_bytes, measure
from qgen.bench.session import PASSES, QUICK_PASSES, close, loaded_state, opened
from qgen.bench.steps import Placement, Product, Slot, alike, place, products, together
from qgen.bench.sweep import Run, run_sweeps
from qgen.errors import QgenError
from qgen.models import model_named
from qgen.plan import CLASSES, FloatWgmmaPlan, MultirowPlan, Plan, WgmmaPlan, plan_all
from qgen.progress import progress
from qgen.run import quantisers, written
from qgen.spec import Format, load_formats
from qgen.weights import Weight

SWEEP = "1"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run.

    model:   a name of the catalog
    formats: empty for all with kernels, or the quick ones; passes: None for the default number
    sweep:   token counts of a step
    storage: of the matrices
    peers:   live ones, as `qgen.bench.live.peer.LivePeer` takes them: beside every distinct matrix on its own
    """

    model: str
    formats: Sequence[str] = ()
    sweep: str = SWEEP
    storage: str = "native"
    passes: int | None = None
    quick: bool = False
    peers: Sequence[str] = ()
    label: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if self.passes is not None and self.passes < 1:
            raise QgenError(
                stage="bench",
                subject="--repeat",
                found=f"{self.passes}",
                allowed="at least 1 pass",
                next=f"leave it out for {PASSES}",
            )


@dataclass(frozen=True)
class _Run:
    """What does not change from format to format."""

    name: str
    step: Sequence[Product]
    sweep: Sequence[int]
    passes: int
    storage: str

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Those of the step, each once."""
        return tuple(dict.fromkeys(product.shape for product in self.step))


def bench_model(options: Options, machine: Caller, *, show_progress: bool = True) -> ModelReport:
    """Run the steps, format by format.

    A step with a wrong product gets no time and makes the report not ok. An error of the device ends the run; the
    report then holds what came before it. A format that cannot serve a matrix of the model is skipped with the reason.
    Raises QgenError for options that do not fit, and when no format is left.
    """
    model = model_named(options.model)
    step, left_out = products(model)
    passes = options.passes or (QUICK_PASSES if options.quick else PASSES)
    run = _Run(model.name, step, parse_sweep(options.sweep), passes, options.storage)
    plans = plan_all(load_formats())[0]
    wanted = options.formats or (QUICK_FORMATS if options.quick else ())
    chosen = choose_formats(wanted, load_formats(), plans)
    report = ModelReport(**vars(opened(machine, options.command, options.label)))
    report.skipped += left_out
    todo: dict[str, list[AnyCandidate]] = {}
    for format in chosen:
        try:
            todo[format.name] = _served(format, run, plans, machine.facts.arch)
        except QgenError as error:
            report.skipped.append(Skipped(f"{model.name} in {format.name}", f"{error.subject}: {error.found}"))
    if not todo:
        raise QgenError(
            stage="bench",
            subject=f"{model.name} in {', '.join(format.name for format in chosen)}",
            found="; ".join(s.reason for s in report.skipped[len(left_out) :]),
            allowed="a format that serves every matrix of the model",
            next="choose another --format; `qgen formats` lists their blocks",
        )
    machine.compile({floors.FILE: floors.text(), **_texts(todo, plans)})
    rulers = floors.Rulers(machine)
    report.no_chain = rulers.no_chain
    with progress(f"bench {model.name}", len(todo), show=show_progress) as advance:
        for number, name in enumerate(todo):
            try:
                chain = _Chain(machine, load_formats()[name], run)
                if number == 0:
                    rulers.check(chain.buffer, min(floors.CHECKED, chain.placement.nbytes))
                steps, graph = chain.measure(rulers)
                report.steps += steps
                if number in (0, len(todo) - 1):
                    loaded_state(machine, "loaded, last" if number else "loaded, first", graph, report)
            except QgenError as error:
                report.aborted = f"{run.name} in {name}: {error.subject}: {error.found} ({error.next})"
                break
            del chain, graph  # the next format has the memory
            advance()
    if options.peers and not report.aborted:
        _alone(options, list(todo), run, machine, plans, report, show_progress=show_progress)
    close(report)
    return report


def _alone(
    options: Options,
    todo: Sequence[str],
    run: _Run,
    machine: Machine,
    plans: Sequence[Plan],
    report: ModelReport,
    *,
    show_progress: bool,
) -> None:
    """Every distinct matrix on its own, beside the peers, into the report's rows."""
    formats = load_formats()

    def choose(case: Case) -> list[AnyCandidate]:
        return candidates(case, plans, every=False, arch=machine.facts.arch)

    sweeps = Run(
        todo=[case_of(formats[name], shape, run.sweep[-1], run.storage) for name in todo for shape in run.shapes],
        sweep=run.sweep,
        choose=choose,
        passes=run.passes,
        title="bench matrices",
        peers=options.peers,
    )
    run_sweeps(sweeps, machine, plans, report, show_progress=show_progress)


def case_of(format: Format, shape: Shape, tokens: int, storage: str) -> Case:
    """The matrix with the activation that the format's file names."""
    return Case(format, shape, tokens, format.activation if format.activation in CLASSES else "", storage)


def _served(format: Format, run: _Run, plans: Sequence[Plan], arch: str) -> list[AnyCandidate]:
    """The kernel of every shape and token count. Raises QgenError for the first that has none."""
    found = []
    for product in run.step:
        quotient, rest = divmod(product.shape.columns, format.block)
        if rest:
            raise QgenError(
                stage="bench",
                subject=f"{product.role} {product.shape}",
                found=f"K = {product.shape.columns} = {quotient} x {format.block} + {rest}: not whole blocks",
                allowed=f"a K that the format's block of {format.block} divides",
                next="choose another format",
            )
    for shape in run.shapes:
        for tokens in run.sweep:
            found += candidates(case_of(format, shape, tokens, run.storage), plans, every=False, arch=arch)
    return found


def _texts(todo: Mapping[str, Sequence[AnyCandidate]], plans: Sequence[Plan]) -> dict[str, str]:
    """Name -> text of the files that the calls will load, so that they are compiled side by side."""
    found: dict[str, str] = {}
    for candidate in (c for chosen in todo.values() for c in chosen):
        whole: Plan = candidate.plan
        if isinstance(candidate, MultirowCandidate | WgmmaCandidate):  # cut down to one, where a call loads the file
            uncut = (p for p in plans if isinstance(p, MultirowPlan | WgmmaPlan | FloatWgmmaPlan))
            whole = next(p for p in uncut if p.format == whole.format and p.layout == candidate.plan.layout)
        found[whole.file] = written(whole, candidate.instance.name) or text(whole)
        if candidate.quantize:
            found[candidate.quantize.file] = text(candidate.quantize)
    return found


class _Chain:
    """The steps of one format on the machine."""

    def __init__(self, machine: Caller, format: Format, run: _Run) -> None:
        """Places and fills the weights. Raises QgenError when they do not fit."""
        self.machine, self.format, self.run = machine, format, run
        self.pattern = pattern(format)
        # Every slot begins with the pattern, or with that of its first plane.
        unit = ALIGNMENT if format.split and run.storage == "native" else PATTERN_BLOCKS * format.bytes
        self.placement = place(
            run.step,
            lambda shape: case_of(format, shape, 1, run.storage).stored_bytes,
            unit=unit,
            available=machine.available(),
            cold=cold_bytes(machine.facts.l2_bytes),
        )
        self.buffer = machine.filled(self.placement.nbytes)
        _fill(machine, self.buffer, self.placement, format, self.pattern, run.storage)
        self.weights = [_weight(machine, self.buffer, slot, format, run.storage) for slot in self.placement.slots]

    def measure(self, rulers: floors.Rulers) -> tuple[list[Step], Any]:
        """A step a token count, and a graph that keeps the device at work."""
        slots, count = self.placement.slots, len(self.placement.rounds)
        reads = [(slots[s].offset, slots[s].nbytes) for s in self.placement.order]
        walks = rulers.walks(self.buffer, reads)
        graphs = {name: (graph, count) for name, graph in walks.items()}
        streams = rulers.walks(self.buffer, [(0, self.placement.nbytes)])
        graphs |= {f"stream {name}": (graph, 1) for name, graph in streams.items()}
        # Graphs hold no reference to the memory they use; these do.
        issued = {tokens: _Issue(self, tokens) for tokens in self.run.sweep}
        for tokens, issue in issued.items():
            if not issue.problem:
                graphs[f"T = {tokens}"] = (issue.capture(), count)
        times = measure(self.machine, graphs, self.run.passes)
        nbytes = sum(slots[s].nbytes for s in self.placement.rounds[0])
        read, chain = rulers.best(times, nbytes)
        stream = self.placement.nbytes / min(times[f"stream {name}"].median for name in streams) / 1e3
        steps = []
        for tokens, issue in issued.items():
            problem = issue.problem or issue.replayed()
            us = None if problem else times[f"T = {tokens}"]
            made = replace(self.record(tokens, issue), problem=problem, us=us)
            steps.append(replace(made, read_floor=read, chain_floor=chain, stream=stream))
        return steps, next(iter(walks.values()))

    def record(self, tokens: int, issue: _Issue) -> Step:
        """Without times."""
        placement, step = self.placement, self.run.step
        kinds = []
        for shape in self.run.shapes:
            roles = tuple(dict.fromkeys(p.role for p in step if p.shape == shape))
            count = sum(p.shape == shape for p in step)
            kinds.append(Kind(str(shape), roles, count, issue.kernel_of(shape)))
        return Step(
            model=self.run.name,
            storage=self.run.storage,
            format=self.format.name,
            tokens=tokens,
            products=len(step),
            quantisations=issue.quantisations,
            weight_bytes=sum(case_of(self.format, product.shape, 1, self.run.storage).weight_bytes for product in step),
            layers=placement.layers,
            distinct=placement.distinct,
            copies=len(placement.rounds),
            kinds=tuple(kinds),
        )


class _Issue:
    """The calls of a step for one token count. `problem`: what is wrong with a product, "" for nothing."""

    def __init__(self, chain: _Chain, tokens: int) -> None:
        """Makes the calls ready and judges the product of every distinct matrix once."""
        self.chain, self.tokens, machine = chain, tokens, chain.machine
        self.slots = chain.placement.slots
        stands = alike(chain.run.step)
        made: dict[Shape, Inputs] = {}
        self.inputs: dict[Shape, Inputs] = {}
        for shape in dict.fromkeys(slot.shape for slot in self.slots):
            case = case_of(chain.format, shape, tokens, chain.run.storage)
            self.inputs[shape] = Inputs(machine, case, chain.pattern, made.get(stands[shape]))
            made.setdefault(stands[shape], self.inputs[shape])
        self.bound = [machine.bind(weight, tokens) for weight in chain.weights]
        scratch = max(bound.workspace_for(tokens) for bound in self.bound)
        self.workspace = machine.put(np.zeros(scratch, dtype=np.uint8))
        calls = together(chain.run.step)
        self.calls = [[slots[i] for i in call] for slots in chain.placement.rounds for call in calls]
        self.quantisations = sum(sum(quantisers(self._bindings(call))) for call in self.calls[: len(calls)])
        self.outs = {shape: self._room(inputs) for shape, inputs in self.inputs.items()}
        self.right: dict[Shape, F32] = {}
        self.problem = next((found for found in map(self._judge, range(len(self.slots))) if found), "")

    def _judge(self, number: int) -> str:
        """The first matrix of a shape is held against the contract, the others, of the same content, against it."""
        shape = self.slots[number].shape
        inputs = self.inputs[shape]
        inputs.machine.poison(inputs.y)
        inputs.machine.poison(self.workspace)
        self._call([number])
        y = inputs.machine.fetch(inputs.y)
        if shape in self.right:
            found = difference(y, self.right[shape])
        else:
            found, self.right[shape] = inputs.judge(y[:, inputs.sample]), y
        return found and f"{self.kernel_of(shape)} at {shape}: {found}"

    def _bindings(self, numbers: Sequence[int]) -> list[Any]:
        return [self.bound[number] for number in numbers]

    def _room(self, inputs: Inputs) -> list[Any]:
        """A y for each product of one call that has this shape, and one at least: they may not overlap."""
        shape = inputs.case.shape
        most = max(sum(self.slots[number].shape == shape for number in call) for call in self.calls)
        return [
            inputs.y,
            *(inputs.machine.put(np.zeros((self.tokens, shape.rows), dtype=np.float32)) for _ in range(1, most)),
        ]

    def _call(self, numbers: Sequence[int]) -> None:
        """The products of some slots that take the same x."""
        shapes = [self.slots[number].shape for number in numbers]
        outs = [self.outs[shape][shapes[:i].count(shape)] for i, shape in enumerate(shapes)]
        self.chain.machine.call(self._bindings(numbers), self.inputs[shapes[0]].x, outs, self.workspace)

    def capture(self) -> Any:
        """The graph of all steps."""
        self.graph = self.chain.machine.capture(lambda i: self._call(self.calls[i]), len(self.calls))
        return self.graph

    def replayed(self) -> str:
        """What is wrong with the last results of each shape after one more run of the graph; "" for nothing."""
        machine = self.chain.machine
        for out in (out for outs in self.outs.values() for out in outs):
            machine.poison(out)
        machine.lap([self.graph])
        for shape, outs in self.outs.items():
            for out in outs:
                found = difference(machine.fetch(out), self.right[shape])
                if found:
                    return f"{self.kernel_of(shape)} at {shape}, in the graph: {found}"
        return ""

    def kernel_of(self, shape: Shape) -> str:
        """The kernel that a shape gets."""
        return next(str(b.instance.name) for b, s in zip(self.bound, self.slots, strict=True) if s.shape == shape)


def _fill(machine: Caller, buffer: Any, placement: Placement, format: Format, blocks: Pattern, storage: str) -> None:
    """All slots alike: the pattern from each one's, or each plane's, first byte on."""
    cases = {slot.shape: case_of(format, slot.shape, 1, storage) for slot in placement.slots}
    some = next(iter(cases.values()))
    if not some.in_planes:
        machine.repeat(buffer, stored(some, blocks))
        return
    for slot in placement.slots:
        spans = cases[slot.shape].placed.spans
        ends = [*(span.offset for span in spans[1:]), slot.nbytes]
        for span, end in zip(spans, ends, strict=True):
            machine.repeat(machine.part(buffer, slot.offset + span.offset, end - span.offset), blocks[span.plane])


def _weight(machine: Caller, buffer: Any, slot: Slot, format: Format, storage: str) -> Weight:
    """The one place where weights are made: a matrix over the bytes of its slot, without a copy."""
    return Weight.of(
        format,
        machine.part(buffer, slot.offset, slot.nbytes),
        rows=slot.shape.rows,
        columns=slot.shape.columns,
        name=f"{format.name} {slot.shape}",
        storage=storage,
    )
