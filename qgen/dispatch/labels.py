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
    """

    code: str
    reason: str
    source: str
    deliberate: bool = False


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

    rank: int
    refusal: Refusal


@dataclass(frozen=True)
class Waste:
    """More columns than max(columns, bound * T) computed for T tokens is waste."""

    columns: int
    bound: float
