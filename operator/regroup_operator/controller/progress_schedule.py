"""When the progress of each job is written, where nothing else of its status has changed.

What changes with every step must not keep the API server busy, however many jobs train. So each job
has its own time. These are a fifth of a second apart, and with more than 150 jobs the interval
grows. No job is ever overdue for longer than its next round takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

INTERVAL_SECONDS = 30.0
"""The shortest pause between two writes of progress alone."""
WRITES_A_SECOND = 5.0
"""Over all jobs. Metrics are live, and `progress.updatedTime` says how old the progress is."""


class ProgressSchedule:
    """The time of the next write of each job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Hashable, float] = {}
        self._last = float("-inf")
        """The latest of all times."""

    def seconds_left(self, key: Hashable) -> float:
        """Until the progress of this job is due; 0 once it is. Jobs that are new here, as all are
        after a restart, come in turn.
        """
        if key not in self._due:
            self._due[key] = self._clock()  # it counts, too
            self._due[key] = self._take(0.0)
        return max(0.0, self._due[key] - self._clock())

    def written(self, key: Hashable) -> None:
        """The status of this job was just written."""
        self._due[key] = self._take(INTERVAL_SECONDS)

    def forget(self, key: Hashable) -> None:
        """The job is gone."""
        self._due.pop(key, None)

    def _take(self, pause: float) -> float:
        """The first time after `pause` that is free, within an interval: other writes of a status
        take times too, and must not put off the progress for ever.
        """
        now, interval = self._clock(), max(INTERVAL_SECONDS, len(self._due) / WRITES_A_SECOND)
        self._last = max(now + pause, self._last + 1 / WRITES_A_SECOND)
        self._last = min(self._last, now + interval)
        return self._last
