"""What a row of the dispatch says of its box: refused by a gate, claimed by a kernel, or a gap in the contract."""

from __future__ import annotations

from dataclasses import dataclass

INVARIANT = "invariant"  # the policy under which a column's bits do not depend on T


@dataclass(frozen=True)
class Refusal:
    """A leaf that says no.

    code:       what is missing, one word, for programs
    reason:     the same for people; never empty
    source:     the row it comes from
    deliberate: it may refuse what a kernel could serve
    rank:       the place of its gate: what a request passed before it was refused; -1 for a gap
    """

    code: str
    reason: str
    source: str
    deliberate: bool = False
    rank: int = -1


@dataclass(frozen=True)
class Claim:
    """A route's or a measured choice's say that a kernel serves a box."""

    kernel: str
    source: str
    tuned: bool = False


@dataclass(frozen=True)
class Gap:
    """The refusal of policy "invariant" in a box whose route runs under another contract."""

    refusal: Refusal


@dataclass(frozen=True)
class Gate:
    """A gate that does not let a box through."""

    refusal: Refusal


@dataclass(frozen=True)
class Waste:
    """More columns than max(columns, bound * T) computed for T tokens is waste."""

    columns: int
    bound: float
