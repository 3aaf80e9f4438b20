"""Parts of queries that tests look at one by one."""

from __future__ import annotations

import re

import pytest

from tests.support.promql_text import Selector, alternatives, groupings, matchings, selectors

OURS = re.compile(r"job_\w+")


@pytest.mark.parametrize(
    ("expression", "chains"),
    [
        ("sum(a) or vector(0)", [("sum(a)", "vector(0)")]),
        ("max(a or b) / c", [("a", "b")]),
        ("(a - (b or vector(0))) or c", [("b", "vector(0)"), ("(a - (b or vector(0)))", "c")]),
        ('f(a or b, "x or y") > 1', [("a", "b")]),
        ('a{l="or",m="("} == 1 or on (l) b', [('a{l="or",m="("} == 1', "b")]),
        ("sum by (a, b) (c)", []),
    ],
)
def test_the_parts_of_each_or(expression: str, chains: list[tuple[str, ...]]) -> None:
    assert list(alternatives(expression)) == chains


def test_series_with_the_labels_by_which_they_are_selected() -> None:
    query = 'sum by (job_x) (job_a{b="1", c=~"x{2}|y"}) / on (job_y) other{d="1"} + job_b[1m]'
    assert list(selectors(query, OURS)) == [
        Selector("job_a", frozenset({"b", "c"})),
        Selector("job_b", frozenset()),
    ]


def test_what_is_grouped_and_matched_by_which_labels() -> None:
    query = 'max by (a, b) (rate(x{c="("}[1m])) and on (d) count by (e) (y)'
    found = [(set(one.labels), one.body) for one in groupings(query)]
    assert found == [({"a", "b"}, 'rate(x{c="("}[1m])'), ({"e"}, "y")]
    assert list(matchings(query)) == [frozenset({"d"})]
