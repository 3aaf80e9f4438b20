"""Goals of the operators' benchmark are judged beside the figures that they are compared with."""

from __future__ import annotations

import io

from rich.console import Console

from bench.harness import Row
from bench.operators.goals import GOALS, judged
from bench.operators.operator_course import UNITS
from bench.operators.tables import tables


def row(subject: str, metric: str, value: float, case: str = "100x8") -> Row:
    return Row(case, subject, metric, UNITS[metric], value, value, value, 1)


def test_each_goal_is_that_of_a_metric() -> None:
    assert {metric for metric, _cases, _goal in GOALS} <= UNITS.keys()


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
    assert "goal" not in second
    assert "1x8" not in out.getvalue().replace("100x8", "")


def test_the_results_say_which_goals_were_met() -> None:
    metrics = {"total_seconds": 12.0, "replacement_seconds": 0.2, "rss_idle_mb": 90.0}
    own = [row("regroup", metric, value) for metric, value in metrics.items()]
    rows = judged([*own, row("floor", "total_seconds", 10.0)])
    assert [(one.goal, one.verdict) for one in rows] == [
        ("<= 1.3x floor; <= 1x trainer-v2", "met (1.20x); open"),
        ("<= 0.15", "missed"),
        ("", ""),
        ("", ""),
    ]
    assert judged([*rows, row("trainer-v2", "total_seconds", 20.0)])[0].verdict == (
        "met (1.20x); met (0.60x)"
    )
