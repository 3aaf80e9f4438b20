"""The steps of a program without a Session, as the reports that a Session would send. Pure.

The program says only which step it has made. It resumes from what it has saved itself, and nobody
else knows from where: its first step in a generation shows it.
"""

from __future__ import annotations

from collections import deque

from regroup_trainer.protocol.rank_messages import (
    Busy,
    Progress,
    RankReport,
    Report,
    Restored,
    ScriptStep,
)

_RATE_REPORTS = 10
"""The rate of steps is a mean over the time of so many reports."""


class ScriptReports:
    """The scripts that run here in one generation, by rank."""

    def __init__(self, now: float) -> None:
        self._begun = now
        self._ranks: dict[int, ScriptProgress] = {}
        self._reporting: set[int] = set()
        """Ranks that report by themselves."""

    def reports(self, rank: int) -> bool:
        """Whether a rank reports its steps by itself."""
        return rank in self._reporting

    def on_report(self, report: RankReport, now: float) -> tuple[Report, ...]:
        """What becomes of a report of a rank; most are passed on as they are."""
        if isinstance(report, ScriptStep):
            self._reporting.add(report.rank)
            return self.on_written(report, now)
        if isinstance(report, Busy) and report.lasting:
            return (self._of(report.rank).on_busy(report, now),)
        return (report,)

    def on_written(self, step: ScriptStep, now: float) -> tuple[Report, ...]:
        """What becomes of a step that a rank has reported, or written."""
        return self._of(step.rank).on_step(step, now)

    def _of(self, rank: int) -> ScriptProgress:
        return self._ranks.setdefault(rank, ScriptProgress(self._begun))


class ScriptProgress:
    """One rank of a script in one generation, which began at `now`. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._last = now
        """When its last report came."""
        self._longest = 0.0
        self._seconds: dict[str, float] = {"step": 0.0, "evaluation": 0.0}
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_REPORTS + 1)
        """(time, step) of the newest reports."""
        self._is_busy = False

    @property
    def has_begun(self) -> bool:
        """Whether it has reported a step."""
        return bool(self._recent)

    def on_busy(self, report: Busy, now: float) -> Busy:
        """It does something else than steps, from now to its next step. Returns the report with its
        last step.
        """
        if not self._is_busy:
            self._spend(now)
        self._is_busy = True
        return report.model_copy(update={"step": self._recent[-1][1] if self._recent else 0})

    def on_step(self, step: ScriptStep, now: float) -> tuple[Restored | Progress, ...]:
        """What it has reported, for the coordinator: `Restored` comes with its first step."""
        restored = () if self.has_begun else (_restored(step),)
        self._spend(now)
        self._is_busy = False
        if self._recent and step.step < self._recent[-1][1]:
            self._recent.clear()
        self._recent.append((now, step.step))
        return (*restored, self._progress(step))

    def _spend(self, now: float) -> None:
        """Book the time since the last report."""
        seconds = max(0.0, now - self._last)
        self._last = now
        if self.has_begun:
            self._seconds["evaluation" if self._is_busy else "step"] += seconds
        if not self._is_busy:
            self._longest = max(self._longest, seconds)

    def _progress(self, step: ScriptStep) -> Progress:
        return Progress(
            generation=step.generation,
            rank=step.rank,
            step=step.step,
            time=step.time,
            seconds=dict(self._seconds),
            loss=step.loss,
            has_loss=step.has_loss,
            total_steps=step.total,
            steps_per_second=self._rate(),
            report_seconds=self._longest,
        )

    def _rate(self) -> float:
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        return (last - first) / (end - start) if end > start else 0.0


def _restored(step: ScriptStep) -> Restored:
    """The first step of a generation shows where the script has resumed: one before it."""
    return Restored(
        generation=step.generation,
        rank=step.rank,
        step=max(0, step.step - 1),
        restored_from="Script",
        total_steps=step.total or None,
    )
