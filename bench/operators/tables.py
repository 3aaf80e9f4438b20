"""The results for a terminal: subjects beside each other, and goals beside numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from bench.harness import Row
from bench.operators.goals import goals_of
from bench.operators.operator_course import STOCK, UNITS


def tables(found: Sequence[Row], cases: Sequence[str]) -> Iterator[Table]:
    """With open limits of clients, and with those that they come with."""
    for title, is_stock in (("open limits of clients", False), ("stock limits of clients", True)):
        some = (row for row in found if row.case in cases)
        rows = [row for row in some if row.subject.endswith(STOCK) == is_stock]
        if rows:
            yield _table(title, rows, cases, has_goals=not is_stock)


def _table(title: str, rows: Sequence[Row], cases: Sequence[str], *, has_goals: bool) -> Table:
    subjects = list(dict.fromkeys(row.subject for row in rows))
    figures = {(row.case, row.subject, row.metric): row.median for row in rows}
    drawn = Table(title=f"operator, {title}")
    for column in ("case", "metric", "unit"):
        drawn.add_column(column, no_wrap=True)
    for subject in subjects:
        drawn.add_column(subject, justify="right", no_wrap=True)
    if has_goals:
        drawn.add_column("goal of regroup")
    for case in cases:
        for metric, unit in UNITS.items():
            of = {subject: figures.get((case, subject, metric)) for subject in subjects}
            if any(value is not None for value in of.values()):
                shown = ("-" if value is None else f"{value:.3g}" for value in of.values())
                goals = (_goals(metric, case, of),) if has_goals else ()
                drawn.add_row(case, metric, unit, *shown, *goals)
        drawn.add_section()
    return drawn


def _goals(metric: str, case: str, of: Mapping[str, float | None]) -> str:
    goals = goals_of(metric, case)
    return "\n".join(goal.judged(of.get("regroup"), of.get(goal.times)) for goal in goals)
