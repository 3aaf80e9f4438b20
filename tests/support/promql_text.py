"""Parts of PromQL expressions, found by their text: for tests of what dashboards and rules ask."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(r'"[^"]*"|\{(?:"[^"]*"|[^"}])*\}|[(),]|\bor\b')
_MATCHING = re.compile(r"\s*(?:on|ignoring)\s*\([^)]*\)")
_SELECTOR = re.compile(r'\b(\w+)(?:\{((?:"[^"]*"|[^"}])*)\})?')
_GROUPING = re.compile(r"\bby\s*\(([^)]*)\)\s*\(")


@dataclass(frozen=True)
class Selector:
    """A series that is asked for, and the labels by which."""

    name: str
    labels: frozenset[str]


@dataclass(frozen=True)
class Grouping:
    """The labels by which an aggregation groups, and what it groups."""

    labels: frozenset[str]
    body: str


def alternatives(expression: str) -> Iterator[tuple[str, ...]]:
    """The parts of each chain of `or` in an expression, the inner chains first.

    The operator binds weaker than all others: a part ends at the next `or`, comma or bracket.
    """
    found: list[tuple[str, ...]] = []
    open_parts: list[list[int]] = [[0]]

    def close(end: int) -> None:
        bounds = [*open_parts.pop(), end]
        if len(bounds) > 2:
            pairs = zip(bounds[::2], bounds[1::2], strict=True)
            found.append(tuple(_part(expression[start:stop]) for start, stop in pairs))

    for token in _TOKEN.finditer(expression):
        if token[0] == "or":
            open_parts[-1] += [token.start(), token.end()]
        elif token[0] in "),":
            close(token.start())
        if token[0] in "(,":
            open_parts.append([token.end()])
    close(len(expression))
    yield from found


def _part(text: str) -> str:
    return _MATCHING.sub("", text, count=1).strip() if _MATCHING.match(text) else text.strip()


def selectors(expression: str, names: re.Pattern[str]) -> Iterator[Selector]:
    """The series in an expression whose names match."""
    for found in _SELECTOR.finditer(re.sub(r"\b(by|on) *\([^)]*\)", "", expression)):
        if names.fullmatch(found[1]):
            labels = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', found[2] or "")
            yield Selector(found[1], frozenset(labels))


def groupings(expression: str) -> Iterator[Grouping]:
    """The aggregations of an expression that group by labels."""
    for found in _GROUPING.finditer(expression):
        body = expression[found.end() : _closing(expression, found.end())]
        yield Grouping(_names(found[1]), body)


def matchings(expression: str) -> Iterator[frozenset[str]]:
    """The labels on which operators of an expression match."""
    for found in re.finditer(r"\bon\s*\(([^)]*)\)", expression):
        yield _names(found[1])


def _names(listed: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", listed))


def _closing(expression: str, at: int) -> int:
    """Where the bracket closes that is open at `at`."""
    depth = 1
    for token in _TOKEN.finditer(expression, at):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.start()
    raise ValueError(f"{expression} has an open bracket")
