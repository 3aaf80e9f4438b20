"""What is asked of Regroup's operator, and whether the figures show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SUBJECT = "regroup"
ALL_CASES = ("1x8", "100x8", "300x8", "1000x8")
MANY = ("100x8", "1000x8")

Figures = Mapping[tuple[str, str, str], float]
"""Case, subject, metric -> value."""


@dataclass(frozen=True)
class Goal:
    """A value that a metric of Regroup may have at most."""

    metric: str
    cases: tuple[str, ...]
    limit: float
    times: str = ""
    """The subject whose value the limit is a multiple of; empty: it is the value itself."""

    def judged(self, figures: Figures, case: str) -> str:
        """The goal, and `met` or `missed`; for a multiple, also the one that was reached.

        A goal that nothing can be compared with yet is `open`.
        """
        asked = f"<= {self.limit:g}" + (f"x {self.times}" if self.times else "")
        found = figures.get((case, SUBJECT, self.metric))
        other = figures.get((case, self.times, self.metric)) if self.times else 1.0
        if found is None or not other:
            return f"{asked}: open"
        reached = found / other
        verdict = "met" if reached <= self.limit else "missed"
        return f"{asked}: {verdict}" + (f" ({reached:.2f}x)" if self.times else "")


GOALS = (
    Goal("total_seconds", MANY, 1.3, "floor"),
    Goal("total_seconds", ALL_CASES, 1, "trainer-v2"),
    Goal("api_writes_per_job", ALL_CASES, 21),
    Goal("cpu_ms_per_job", ALL_CASES, 1, "trainer-v2"),
    Goal("rss_peak_mb", ("1000x8",), 250),
    Goal("rss_peak_standby_mb", ("1000x8",), 250),
    Goal("idle_cpu_percent", ("1000x8",), 5),
    Goal("replacement_seconds", ALL_CASES, 0.15),
    Goal("replacement_p99_seconds", ("300x8",), 0.3),
    Goal("unreported_losses", ALL_CASES, 0),
    Goal("failover_term_seconds", ALL_CASES, 2),
    Goal("failover_kill_seconds", ALL_CASES, 20),
    Goal("sync_seconds", ALL_CASES, 10),
    Goal("sync_status_writes_per_job", ALL_CASES, 1),
    Goal("sync_status_losses", ALL_CASES, 0),
    Goal("needless_successors", ALL_CASES, 0),
)


def goals_of(metric: str, case: str) -> list[Goal]:
    """Those of a metric in a case."""
    return [goal for goal in GOALS if goal.metric == metric and case in goal.cases]
