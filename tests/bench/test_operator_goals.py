"""Goals of the operators' benchmark are judged beside the figures that they are compared with."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.harness import Row
from bench.operators.course import UNITS
from bench.operators.goals import GOALS, Goal
from bench.operators.tables import tables


def row(subject: str, metric: str, value: float, case: str = "100x8") -> Row:
    return Row(case, subject, metric, UNITS[metric], value, value, value, 1)


@pytest.mark.parametrize(("seconds", "expected"), [(13.0, "met (1.30x)"), (14.0, "missed (1.40x)")])
def test_a_multiple_is_judged_with_what_was_reached(seconds: float, expected: str) -> None:
    goal = Goal("total_seconds", ("100x8",), 1.3, "floor")
    figures = {
        ("100x8", "regroup", "total_seconds"): seconds,
        ("100x8", "floor", "total_seconds"): 10.0,
    }
    assert goal.judged(figures, "100x8") == f"<= 1.3x floor: {expected}"


def test_a_value_is_judged_alone() -> None:
    goal = Goal("needless_successors", ("100x8",), 0)
    assert goal.judged({("100x8", "regroup", "needless_successors"): 0.0}, "100x8") == "<= 0: met"


def test_a_goal_is_open_until_both_are_measured() -> None:
    goal = Goal("total_seconds", ("100x8",), 1, "trainer-v2")
    assert goal.judged({}, "100x8") == "<= 1x trainer-v2: open"
    figures = {("100x8", "regroup", "total_seconds"): 1.0}
    assert goal.judged(figures, "100x8") == "<= 1x trainer-v2: open"


def test_each_goal_is_that_of_a_metric() -> None:
    assert {goal.metric for goal in GOALS} <= UNITS.keys()


def test_stock_limits_have_a_table_of_their_own() -> None:
    rows = [
        row("regroup", "total_seconds", 12.0),
        row("floor", "total_seconds", 10.0),
        row("regroup", "total_seconds", 0.2, "1x8"),
        row("regroup-stock", "total_seconds", 30.0),
    ]
    made = list(tables(rows, ["100x8"]))
    out = io.StringIO()
    for one in made:
        Console(file=out, width=140).print(one)
    first, second = out.getvalue().split("stock limits")
    assert len(made) == 2
    assert "1.3x floor: met (1.20x)" in first
    assert "30" in second
    assert "1x8" not in out.getvalue().replace("100x8", "")
