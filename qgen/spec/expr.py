"""The value expression: text -> tree (whose association the decoder keeps in float32) -> sum of products.

Grammar: sum := product (("+" | "-") product)*, product := unary ("*" unary)*, unary := "-" unary | atom,
atom := number | name | "(" sum ")". Operators of one rank associate to the left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Negate:
    operand: Expression


@dataclass(frozen=True)
class Binary:
    """`operator` is "+", "-" or "*"."""

    operator: str
    left: Expression
    right: Expression


Expression = Number | Name | Negate | Binary


@dataclass(frozen=True)
class Term:
    """`constant` (it carries the sign) times the named fields, in source order."""

    constant: float
    factors: tuple[str, ...]


_MAX_TOKENS = 100  # bounds the recursion below; the longest shipped expression has 15
_MAX_TERMS = 64
_MAX_NUMBER = 3.0e38  # below the largest float32: the decoder computes in float32


class ExpressionError(ValueError):
    """The text is not an expression; the message says where and what was expected."""


_TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>[-+*()]))")


def _tokens(text: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip())
            raise ExpressionError(f"{text[column]!r} at column {column + 1} is no number, field name, +, -, *, ( or )")
        found.append((match.group().strip(), match.end()))
        position = match.end()
        if len(found) > _MAX_TOKENS:
            raise ExpressionError(f"more than {_MAX_TOKENS} tokens")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.index = 0

    def peek(self) -> str:
        return self.tokens[self.index][0] if self.index < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.index += 1
        return token

    def fail(self, expected: str) -> ExpressionError:
        token = self.peek()
        if not token:
            return ExpressionError(f"the expression ends where {expected} was expected")
        column = self.tokens[self.index][1] - len(token) + 1
        return ExpressionError(f"{token!r} at column {column} where {expected} was expected")

    def sum(self) -> Expression:
        left = self.product()
        while self.peek() in ("+", "-"):
            operator = self.take()
            left = Binary(operator, left, self.product())
        return left

    def product(self) -> Expression:
        left = self.unary()
        while self.peek() == "*":
            self.take()
            left = Binary("*", left, self.unary())
        return left

    def unary(self) -> Expression:
        if self.peek() == "-":
            self.take()
            return Negate(self.unary())
        return self.atom()

    def atom(self) -> Expression:
        token = self.peek()
        if token == "(":
            self.take()
            inner = self.sum()
            if self.peek() != ")":
                raise self.fail("')'")
            self.take()
            return inner
        if token and (token[0].isdigit() or token[0] == "."):
            number = float(token)
            if number > _MAX_NUMBER:
                raise ExpressionError(f"{token} is outside float32")
            self.take()
            return Number(number)
        if token and (token[0].isalpha() or token[0] == "_"):
            return Name(self.take())
        raise self.fail("a field name, a number or '('")


def parse(text: str) -> Expression:
    """The tree of `text`. Raises ExpressionError."""
    parser = _Parser(text)
    tree = parser.sum()
    if parser.peek():
        raise parser.fail("an operator or the end")
    return tree


def expand(tree: Expression) -> tuple[Term, ...]:
    """The sum of products equal to `tree`, terms and factors in source order; equal terms are not merged.

    Raises ExpressionError when it grows too long.
    """
    if isinstance(tree, Number):
        return (Term(tree.value, ()),)
    if isinstance(tree, Name):
        return (Term(1.0, (tree.name,)),)
    if isinstance(tree, Negate):
        return tuple(Term(-term.constant, term.factors) for term in expand(tree.operand))
    left, right = expand(tree.left), expand(tree.right)
    if tree.operator == "+":
        return left + right
    if tree.operator == "-":
        return left + tuple(Term(-term.constant, term.factors) for term in right)
    if len(left) * len(right) > _MAX_TERMS:
        raise ExpressionError(f"multiplied out it has {len(left) * len(right)} terms, more than {_MAX_TERMS}")
    return tuple(Term(a.constant * b.constant, a.factors + b.factors) for a in left for b in right)


def names(tree: Expression) -> tuple[str, ...]:
    """Every field name of `tree`, once each, in source order."""
    if isinstance(tree, Number):
        return ()
    if isinstance(tree, Name):
        return (tree.name,)
    if isinstance(tree, Negate):
        return names(tree.operand)
    return tuple(dict.fromkeys(names(tree.left) + names(tree.right)))
