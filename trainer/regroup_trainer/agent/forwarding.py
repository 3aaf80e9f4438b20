"""Which reports of ranks go to the coordinator, and when. Pure.

Everything goes at once but Progress, which may come thousands of times a second: of it the newest of each rank goes
every `PROGRESS_SECONDS`. The first one after a restored state goes at once: it ends the down time.
"""

from __future__ import annotations

from regroup_trainer.contract import Progress, Report, Restored

PROGRESS_SECONDS = 0.2


class Forwarder:
    """Holds back what can wait."""

    def __init__(self) -> None:
        self._waiting: dict[int, Progress] = {}
        self._sent_at: dict[int, float] = {}

    def reset(self) -> None:
        """A new generation: what waits belongs to the old one."""
        self._waiting.clear()
        self._sent_at.clear()

    def offer(self, report: Report, now: float) -> list[Report]:
        """What goes out now that `report` came in. What waits of the same rank goes before it."""
        if isinstance(report, Progress):
            self._waiting[report.rank] = report
            return self.due(now)
        held = self._waiting.pop(report.rank, None)
        if isinstance(report, Restored):
            self._sent_at.pop(report.rank, None)
            return [report]
        return [held, report] if held is not None else [report]

    def due(self, now: float) -> list[Report]:
        """The held reports whose time has come."""
        ranks = [rank for rank in self._waiting if now - self._sent_at.get(rank, float("-inf")) >= PROGRESS_SECONDS]
        self._sent_at.update(dict.fromkeys(ranks, now))
        return [self._waiting.pop(rank) for rank in ranks]
