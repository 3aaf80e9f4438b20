"""What is asked of Regroup's operator: metric, cases, goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.harness import Goal, Row

SUBJECT = "regroup"
ALL_CASES = ("1x8", "100x8", "300x8", "1000x8")
MANY = ("100x8", "1000x8")

GOALS = (
    ("total_seconds", MANY, Goal(1.3, times="floor")),
    ("total_seconds", ALL_CASES, Goal(1, times="trainer-v2")),
    ("api_writes_per_job", ALL_CASES, Goal(21)),
    ("cpu_ms_per_job", ALL_CASES, Goal(1, times="trainer-v2")),
    ("rss_peak_mb", ("1000x8",), Goal(250)),
    ("rss_peak_standby_mb", ("1000x8",), Goal(250)),
    ("idle_cpu_percent", ("1000x8",), Goal(5)),
    ("replacement_seconds", ALL_CASES, Goal(0.15)),
    ("replacement_p99_seconds", ("300x8",), Goal(0.3)),
    ("unreported_losses", ALL_CASES, Goal(0)),
    ("failover_term_seconds", ALL_CASES, Goal(2)),
    ("failover_kill_seconds", ALL_CASES, Goal(20)),
    ("sync_seconds", ALL_CASES, Goal(10)),
    ("sync_status_writes_per_job", ("100x8", "300x8", "1000x8"), Goal(1)),
    ("sync_status_losses", ALL_CASES, Goal(0)),
    ("needless_successors", ALL_CASES, Goal(0)),
)


def goals_of(metric: str, case: str) -> list[Goal]:
    """Those of a metric in a case."""
    return [goal for name, cases, goal in GOALS if name == metric and case in cases]


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows, those of Regroup with what is asked of them and whether it is so."""
    found = {(row.case, row.subject, row.metric): row.median for row in rows}
    return [_judged(row, found) if row.subject == SUBJECT else row for row in rows]


def _judged(row: Row, found: Mapping[tuple[str, str, str], float]) -> Row:
    texts = [
        goal.judged(row.median, found.get((row.case, goal.times, row.metric))).partition(": ")
        for goal in goals_of(row.metric, row.case)
    ]
    goal, verdict = ("; ".join(text[part] for text in texts) for part in (0, 2))
    return replace(row, goal=goal, verdict=verdict)
