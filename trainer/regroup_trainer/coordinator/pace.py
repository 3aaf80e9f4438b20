"""Which ranks compute slower than the others, from the times that they report. Pure.

A rank is slow while the median of its last reports exceeds the median of all ranks by the limit. It
becomes a straggler after it was slow for a while. It is one no more when it exceeds the median by
less than half the limit. Of an even number of ranks the lower median counts, so that of two ranks
one is slow beside the other.
"""

from __future__ import annotations

import statistics
from collections import deque

REPORTS = 20
"""Of each rank, over which its median is taken."""
LEAST_REPORTS = 5
HOLD_SECONDS = 10.0
"""How long a rank must be slow. An evaluation, a cold cache or a short neighbouring job passes."""


class Pace:
    """The pace of the ranks of one generation. Times are monotonic seconds."""

    def __init__(self, world_size: int) -> None:
        self._reports: list[deque[float]] = [deque(maxlen=REPORTS) for _ in range(world_size)]
        self._reported: set[int] = set()
        """Ranks with a report since the last check."""
        self._medians = [0.0] * world_size
        self._slow_since: dict[int, float] = {}
        self.stragglers: dict[int, int] = {}
        """Rank -> percent above the median when it became a straggler."""
        self.excess: dict[int, float] = {}
        """Rank -> share above the median (0.3: 30 %); empty until all ranks reported enough."""

    def note(self, rank: int, seconds: float) -> None:
        """A rank reported its mean own time of a step; 0 where it does not measure it."""
        if seconds > 0:
            self._reports[rank].append(seconds)
            self._reported.add(rank)

    def forgive(self, seconds: float) -> None:
        """The coordinator was paused, and read no report for so long."""
        self._slow_since = {rank: since + seconds for rank, since in self._slow_since.items()}

    def check(self, now: float, limit: float) -> list[int]:
        """Judge the ranks; returns those that became stragglers.

        A rank is slow when it exceeds the median by more than `limit` (0.3: 30 %).
        """
        self.excess = self._excess()
        before = set(self.stragglers)
        for rank, excess in self.excess.items():
            self._judge(rank, excess, now, limit)
        return sorted(set(self.stragglers) - before)

    def _excess(self) -> dict[int, float]:
        if any(len(reports) < LEAST_REPORTS for reports in self._reports):
            return {}
        for rank in self._reported:
            self._medians[rank] = statistics.median(self._reports[rank])
        self._reported.clear()
        medians = self._medians
        usual = statistics.median_low(medians)
        return {rank: median / usual - 1 for rank, median in enumerate(medians)}

    def _judge(self, rank: int, excess: float, now: float, limit: float) -> None:
        if excess > limit:
            since = self._slow_since.setdefault(rank, now)
            if now - since >= HOLD_SECONDS:
                self.stragglers.setdefault(rank, round(100 * excess))
        elif rank not in self.stragglers or excess <= limit / 2:
            self._slow_since.pop(rank, None)
            self.stragglers.pop(rank, None)
