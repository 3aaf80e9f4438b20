"""Who computes slower than the others: pure, over what the ranks tell of their own time.

A rank is slow while the median of its last reports lies so much above the median of all ranks; it is a straggler when
it has been slow for a while, and no more when it is less than half as far above. Of an even number of ranks the lower
median counts: of two ranks one is slow beside the other.
"""

from __future__ import annotations

import statistics
from collections import deque

REPORTS = 20
"""Of each rank, over which its median is taken."""
LEAST_REPORTS = 5
HOLD_SECONDS = 10.0
"""How long a rank must be slow: a page of evaluations, a cold cache, a neighbour's short job are no reason."""


class Pace:
    """Of the ranks of one world. Times are monotonic seconds."""

    def __init__(self, world_size: int) -> None:
        self._reports: list[deque[float]] = [deque(maxlen=REPORTS) for _ in range(world_size)]
        self._slow_since: dict[int, float] = {}
        self.stragglers: dict[int, int] = {}
        """Rank -> percent above the median, as it was found."""
        self.excess: dict[int, float] = {}
        """Rank -> how far above the median (0.3: 30 %); empty until all ranks have told enough."""

    def note(self, rank: int, seconds: float) -> None:
        """A rank told its mean own time of a step; 0 where it does not measure it."""
        if seconds > 0:
            self._reports[rank].append(seconds)

    def look(self, now: float, limit: float) -> list[int]:
        """Judge the ranks: more than `limit` (0.3: 30 %) above the median is slow. Returns the new stragglers."""
        self.excess = self._excess()
        before = set(self.stragglers)
        for rank, excess in self.excess.items():
            self._judge(rank, excess, now, limit)
        return sorted(set(self.stragglers) - before)

    def _excess(self) -> dict[int, float]:
        if any(len(reports) < LEAST_REPORTS for reports in self._reports):
            return {}
        medians = [statistics.median(reports) for reports in self._reports]
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
