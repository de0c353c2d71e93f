"""What kernels of the family wgmma with f16 or bf16 activations ask for, and when: the emulator takes registers when it
is asked, a device reads them as long as an instruction is on its way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_plan_float import toy
from test_wgmma_float import PLANS, SCALED, each_plan, name_of

from qgen.emit import emit
from qgen.emit.wgmma_float import float_wgmma_kernel
from qgen.plan import FloatWgmmaPlan, plan_wgmma_float

_EVENTS = re.compile(
    r"    (?:"
    r"uint32_t (?P<decode>a\d+)\[4\];"
    r"|const uint32_t (?P<copy>pair\d+_\d+)\[4\]"
    r"|uint32_t (?P<pairs>pairs)\[\d+\]\[rows\];"
    r"|qgen_wgmma_k16<.*, (?P<fresh>true|false)>\(way\.(?P<sums>[dm]\[\d+\]), (?P<a>\w+), matrices, (?P<at>\d+)\);"
    r"|(?P<commit>qgen_wgmma_commit)\(\);"
    r"|qgen_wgmma_wait<(?P<wait>\d)>\(\);"
    r"|(?P<add>    way\.add_to|way\.add_to)\(sum\);"
    r"|    (?P<done>done)\(\);"
    r"|way\.(?P<coefficient>c\d+\[\d+\])\[0\]"
    r")"
)


def functions(text: str) -> dict[str, list[re.Match[str]]]:
    """Of every add_bundle its events, in order."""
    found = {}
    for part in re.split(r"__device__ __forceinline__ void (?=add_bundle_)", text)[1:]:
        body = part[: part.index("\n}\n")]
        found[part[: part.index("(")]] = [match for line in body.splitlines() if (match := _EVENTS.match(line))]
    return found


def _pairs(register: str) -> str:
    """Scales by their run of groups; code words as they are called."""
    return re.sub(r"^pair\d+", "pair", register)


class Device:
    """Follows a warp's instructions, and says what it must not do."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[str, str]]] = []  # on their way: registers and sums of each instruction
        self.open: list[tuple[str, str]] = []
        self.added = 0  # sums taken by add_to since they were asked for

    def step(self, event: re.Match[str]) -> None:
        """Takes an event."""
        busy = [use for group in (*self.groups, self.open) for use in group]
        if event["decode"]:
            assert not any(a == event["decode"] for a, _ in busy), "code words are written while they are read"
            assert len(self.groups) <= 1, "registers of three chunks are held"
        elif event["pairs"] or event["copy"]:
            # What is taken as it is and what it is a copy of may share registers.
            written = _pairs(event["copy"]) if event["copy"] else "pair"
            assert not any(a.startswith(written) for a, _ in busy), "scales are written while they are read"
        elif event["a"]:
            self.open.append((_pairs(event["a"]), event["sums"]))
        elif event["commit"]:
            self.groups.append(self.open)
            self.open = []
        elif event["wait"]:
            assert not self.open, "an instruction in no group"
            self.groups = self.groups[max(0, len(self.groups) - int(event["wait"])) :]
        elif event["add"]:
            assert not busy, "sums are read while an instruction writes them"
            self.added += 1
        elif event["coefficient"]:
            assert busy, "coefficients of sums that are taken already"


def check_function(events: list[re.Match[str]], batches: int) -> None:
    """Three bundles in a row."""
    device = Device()
    taken = ["done" if event["done"] else "add" for event in events if event["done"] or event["add"]]
    assert taken == ["add", "done", *["add"] * (batches - 1)], "a stage is free once all of it is added"
    for _ in range(3):
        for event in events:
            device.step(event)
    assert device.added == 3 * batches and len(device.groups) <= 1


def variants(plan: FloatWgmmaPlan) -> Iterator[tuple[list[re.Match[str]], int]]:
    """Of each function its events and its batches."""
    found = functions(emit(plan).text)
    for variant in float_wgmma_kernel(plan, ()).variants:
        yield found.pop(f"add_bundle_{variant.depth}_{variant.width}"), len(variant.batches)
    assert not found


@each_plan
def test_registers_are_written_when_nothing_reads_them(plan: FloatWgmmaPlan) -> None:
    for events, batches in variants(plan):
        check_function(events, batches)


def test_registers_of_a_bundle_of_one_chunk(tmp_path: Path) -> None:
    """Nothing in it waits for it: the next one does before it decodes."""
    plan = plan_wgmma_float(toy(SCALED, tmp_path), "f16")
    assert [v.alone for v in float_wgmma_kernel(plan, ()).variants].count(True) >= 1
    for events, batches in variants(plan):
        check_function(events, batches)


@pytest.mark.parametrize("name", ["Q4_K-f16", "Q8_0-bf16"])
def test_a_lost_wait_is_seen(name: str) -> None:
    """Each wait is there for something that these tests know of."""
    (plan,) = (plan for plan in PLANS if name_of(plan) == name)
    for events, batches in variants(plan):
        for lost in (event for event in events if event["wait"]):
            with pytest.raises(AssertionError):
                check_function([event for event in events if event is not lost], batches)


@each_plan
def test_every_code_word_is_asked_for_once(plan: FloatWgmmaPlan) -> None:
    """In the contract's order within a sum, which begins anew; with x of its own place; minimums in front."""
    layout, count = plan.layout, plan.ladder.code_words
    for variant in float_wgmma_kernel(plan, ()).variants:
        steps = [step for batch in variant.batches for chunk in batch.chunks for step in chunk.steps]
        assert sorted(step.word for step in steps) == list(range(layout.bundle * count))
        seen: dict[tuple[int, int], list[int]] = {}
        for batch in variant.batches:
            assert [run.sums for run in batch.runs] == list(range(variant.width))
            assert [chunk.first for chunk in batch.chunks] == [True] + [False] * (len(batch.chunks) - 1)
            assert all(len(chunk.steps) <= 2 * variant.depth for chunk in batch.chunks)
            for step in (step for chunk in batch.chunks for step in chunk.steps):
                run = batch.runs[step.sums]
                own = seen.setdefault((run.block, 0 if plan.contract.folded else run.group), [])
                assert step.block == run.block and (plan.contract.folded or step.group == run.group)
                assert step.fresh == (not own) and step.word // count == step.block
                own.append(step.word)
        assert all(words == sorted(words) for words in seen.values())
        assert len(seen) == layout.bundle * (1 if plan.contract.folded else layout.groups)
    for events in functions(emit(plan).text).values():
        asked = [event for event in events if event["a"]]
        for event in asked:
            if event["a"].startswith("a"):
                assert int(event["at"]) == 256 * int(event["a"][1:])
            else:
                block, eight = map(int, event["a"][4:].split("_"))
                assert int(event["at"]) == layout.sums_at + block * layout.sum_bytes + 256 * eight
        pieces = [event for event in asked if event["a"].startswith("pair")]
        assert len(pieces) == (layout.bundle * layout.groups // 8 if layout.pieced else 0)
        assert asked[: len(pieces)] == pieces and all((e["fresh"] == "true") == e["a"].endswith("_0") for e in pieces)
