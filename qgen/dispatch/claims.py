"""The [[route]] and [[choice]] rows of one op: which formats, which box, which kernel, under which contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qgen.dispatch.diagram import Row
from qgen.dispatch.kernels import Catalog, Facts, Kernel
from qgen.dispatch.labels import INVARIANT, Claim, Gap, Refusal
from qgen.dispatch.reader import Entry
from qgen.dispatch.space import Condition, Ints, Space, Where
from qgen.dispatch.terms import Words
from qgen.spec.reader import close, listed

CHOOSE = ("class", "formats", "family", "kernel", "ladder", "blocks")


class Claims:
    """Reads the rows of one op. Raises QgenError naming file, row, what was found and what was allowed."""

    def __init__(self, space: Space, catalog: Catalog, op: str, top: Entry) -> None:
        self.space, self.catalog, self.op, self._top = space, catalog, op, top
        self.planned = frozenset(k.format for k in catalog.kernels if k.op == op)
        self._kernels: dict[str, list[Kernel]] = {}
        for kernel in catalog.kernels:
            if kernel.op == op:
                self._kernels.setdefault(kernel.format, []).append(kernel)
        listing = top.table("class")
        self._classes = {name: listing.table(name) for name in listing.data}
        for entry in self._classes.values():
            self._members(entry)
        self._families = self._invariant_families()

    def words(self, facts: Facts | None) -> Words:
        """What names in conditions mean, for one format or for all."""
        return Words(self.space, facts, self.planned)

    def routes(self) -> Iterator[Row]:
        """The rows of every [[route]]."""
        keys = (*CHOOSE, *(name for name in self.space.names if name not in ("op", "format")))
        for entry in self._top.entries("route", keys):
            for name in self._formats(entry):
                for kernel, where in self._boxes(entry, self.catalog.facts[name]):
                    yield from self._claim(entry, kernel, where)

    def choice(self, entry: Entry, arch: str) -> Iterator[Row]:
        """The rows of a measured choice. One under another contract leaves policy "invariant" to the routes."""
        for name in self._named(entry, "formats"):
            for kernel, where in self._boxes(entry, self.catalog.facts[name]):
                where["arch"] = frozenset({arch})
                if kernel.contract not in (None, self._promised(kernel)):
                    where["policy"] = self._other_policies()
                yield Row(Claim(kernel.name, entry.source, tuned=True), where)

    def promises(self) -> dict[tuple[str, str], str]:
        """The contract that policy "invariant" promises, by format and activation, where there is any."""
        found: dict[tuple[str, str], str] = {}
        for kernel in (k for kernels in self._kernels.values() for k in kernels):
            promised = self._promised(kernel)
            if promised is not None:
                found |= {(kernel.format, activation): promised for activation in self._activations(kernel)}
        return found

    # ---- which formats

    def _formats(self, entry: Entry) -> tuple[str, ...]:
        if ("class" in entry.data) == ("formats" in entry.data):
            entry.refuse("class", "both or neither of class and formats", "one of the two")
        if "formats" in entry.data:
            return self._named(entry, "formats")
        name = entry.text("class")
        if name not in self._classes:
            entry.refuse("class", f"no class {name!r}{close(name, self._classes)}", listed(self._classes))
        return self._members(self._classes[name])

    def _named(self, entry: Entry, key: str) -> tuple[str, ...]:
        names = entry.texts(key)
        for name in names:
            if name not in self.catalog.facts:
                entry.refuse(key, f"no format {name!r}{close(name, self.catalog.facts)}", listed(self.catalog.facts))
            if name not in self.planned:
                entry.refuse(key, f"{name} has no {self.op} kernel", listed(sorted(self.planned)))
        return names

    def _members(self, entry: Entry) -> tuple[str, ...]:
        """The planned formats that a class describes: by intervals of facts, by name, or all but some."""
        facts = {name: self.catalog.facts[name].numbers for name in sorted(self.planned)}
        numbers = sorted({key for known in facts.values() for key in known})
        entry.check_keys(("formats", "except", *numbers))
        left_out = self._named(entry, "except") if "except" in entry.data else ()
        named = self._named(entry, "formats") if "formats" in entry.data else tuple(facts)
        bounds = {key: entry.pair(key) for key in entry.data if key in numbers}
        return tuple(
            name
            for name in named
            if name not in left_out and all(lo <= facts[name].get(key, -1) <= hi for key, (lo, hi) in bounds.items())
        )

    # ---- which kernel in which box

    def _boxes(self, entry: Entry, facts: Facts) -> Iterator[tuple[Kernel, dict[str, Condition]]]:
        words = self.words(facts)
        where: dict[str, Condition] = {
            "op": frozenset({self.op}),
            "format": frozenset({facts.format}),
            **words.conditions(entry, skip=(*CHOOSE, "op", "figure", "replaced")),
        }
        if "blocks" in entry.data:
            where["K"] = self._blocks(entry, words, facts, where)
        kernels = tuple(self._kernels.get(facts.format, ()))
        for rung, box in self._rungs(entry, words, where):
            yield choose(entry, words, kernels, rung), box

    def _blocks(self, entry: Entry, words: Words, facts: Facts, where: Where) -> Ints:
        """`blocks`: an interval of K in blocks of the format; K is then a multiple of the block."""
        if "K" in where:
            entry.refuse("blocks", "both K and blocks", "one of the two")
        axis, block, value = self.space.axis("K"), facts.numbers["block"], entry.data["blocks"]
        most = axis.hi // block
        items = value if isinstance(value, list) and len(value) == 2 else ["max", 0]
        lo, hi = (most if item == "max" else words.number(entry, "blocks", item) for item in items)
        if not 1 <= lo <= hi <= most:
            backwards = f" = [{lo}, {hi}]: the interval runs backwards" if lo > hi > 0 else ""
            entry.refuse("blocks", f"{value!r} for {facts.format}{backwards}", f"[least, largest] in 1..{most}")
        return Ints(lo * block, hi * block, frozenset({block} - {1}))

    def _rungs(self, entry: Entry, words: Words, where: Where) -> Iterator[tuple[int | None, dict[str, Condition]]]:
        """A ladder is one row for all its rungs: rung r takes the T above the rung before it, up to r."""
        if "ladder" not in entry.data:
            yield None, dict(where)
            return
        rungs = entry.data["ladder"]
        if not isinstance(rungs, list) or not rungs:
            entry.refuse("ladder", repr(rungs), "column capacities, smallest first")
        numbers = [words.number(entry, "ladder", rung) for rung in rungs]
        for before, after in zip(numbers, numbers[1:], strict=False):
            if before >= after:
                entry.refuse("ladder", f"{before} in front of {after}", "rungs in order: the smallest capacity first")
        axis = self.space.axis("T")
        span = where.get("T", axis.whole)
        assert isinstance(span, Ints)
        if span.hi > numbers[-1]:
            entry.refuse("ladder", f"T up to {span.hi} over rungs up to {numbers[-1]}", "a rung for every T of the row")
        low = axis.lo
        for rung in numbers:
            if rung < span.lo or low > span.hi:
                entry.refuse("ladder", f"rung {rung} serves no T of {span}", "only rungs that the row's T reaches")
            yield rung, {**where, "T": span.meet(Ints(low, rung))}
            low = rung + 1

    # ---- under which contract

    def _claim(self, entry: Entry, kernel: Kernel, where: Where) -> Iterator[Row]:
        """A route under the invariant contract serves every policy; another one leaves a gap under "invariant"."""
        promised = self._promised(kernel)
        if "policy" in entry.data or kernel.contract in (None, promised):
            yield Row(Claim(kernel.name, entry.source), where)
            return
        t = where.get("T", self.space.axis("T").whole)
        reason = (
            f"policy invariant: {kernel.format} promises contract {promised or 'none'}, but T = {t} has only "
            f"{kernel.name} under contract {kernel.contract}"
        )
        yield Row(Claim(kernel.name, entry.source), {**where, "policy": self._other_policies()})
        gap = Gap(Refusal("contract_gap", reason, entry.source))
        yield Row(gap, {**where, "policy": frozenset({INVARIANT})})

    def _other_policies(self) -> frozenset[str]:
        return frozenset(self.space.axis("policy").values) - {INVARIANT}

    def _invariant_families(self) -> tuple[str, ...]:
        """[invariant] family: one, or several of which the first with kernels for a format and activation counts.

        The contract of those kernels is what policy "invariant" promises there.
        """
        if "invariant" not in self._top.data:
            return ()
        inner = self._top.table("invariant", ("family",))
        named = inner.texts("family") if isinstance(inner.data.get("family"), list) else (inner.text("family"),)
        families = sorted({k.family for ks in self._kernels.values() for k in ks})
        for family in named:
            if family not in families:
                allowed = listed(families) or "none: there are no kernels"
                inner.refuse("family", f"no family {family!r}{close(family, families)}", allowed)
            for kernel in (k for format in sorted(self._kernels) for k in self._kernels[format]):
                contracts = self._contracts(kernel, family)
                if len(contracts) > 1:
                    one = listed(sorted(map(str, contracts)))
                    found = f"{family} kernels of {kernel.format} have the contracts {one} for one activation"
                    inner.refuse("family", found, "a family with one contract a format and activation")
        return named

    def _activations(self, kernel: Kernel) -> frozenset[str]:
        condition = kernel.where.get("activation", self.space.axis("activation").whole)
        assert isinstance(condition, frozenset)
        return condition

    def _contracts(self, kernel: Kernel, family: str) -> set[str | None]:
        """The contracts of a family's kernels that read what this one reads."""
        own = self._activations(kernel)
        others = (k for k in self._kernels.get(kernel.format, ()) if k.family == family)
        return {k.contract for k in others if own & self._activations(k)}

    def _promised(self, kernel: Kernel) -> str | None:
        """What is promised for the requests a kernel is for; None for nothing."""
        for family in self._families:
            for contract in self._contracts(kernel, family):
                return contract
        return None


def choose(entry: Entry, words: Words, kernels: tuple[Kernel, ...], rung: int | None) -> Kernel:
    """The one kernel a row names by family and knobs. Raises QgenError for none or several."""
    family, inner = entry.text("family"), entry.table("kernel")
    wanted: dict[str, int | str] = {key: _knob(words, inner, key) for key in inner.data}
    if rung is not None:
        wanted["columns"] = rung
    of_family = [k for k in kernels if k.family == family]
    fitting = [k for k in of_family if all(knobs(k).get(key) == value for key, value in wanted.items())]
    if len(fitting) == 1:
        return fitting[0]
    format = words.facts.format if words.facts else "?"
    families = sorted({k.family for k in kernels})
    if not of_family:
        entry.refuse("family", f"{format} has no {family!r} kernels{close(family, families)}", listed(families))
    known = sorted({key for k in of_family for key in knobs(k)})
    for key in wanted:
        if key not in known:
            inner.refuse(key, f"no knob {key!r}{close(key, known)}", listed(known))
    asked = _shown(wanted) or "nothing further"
    have = "; ".join(sorted({_shown(knobs(k)) for k in of_family}))
    entry.refuse("kernel", f"{len(fitting)} {family} kernels of {format} with {asked}", f"exactly one of: {have}")


def knobs(kernel: Kernel) -> Mapping[str, int | str]:
    """What a row can say to pick this kernel out of its family."""
    return {**({"columns": kernel.columns} if kernel.ladder else {}), **kernel.knobs}


def _knob(words: Words, entry: Entry, key: str) -> int | str:
    """A knob's value: an integer, a fact of the format, or a word of the planner's."""
    value = entry.data[key]
    facts = words.facts.numbers if words.facts else {}
    if isinstance(value, str) and value.split(" ")[0] not in facts:
        return value
    return words.number(entry, key, value)


def _shown(values: Mapping[str, int | str]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())
