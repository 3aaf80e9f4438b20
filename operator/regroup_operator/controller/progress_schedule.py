"""When the progress of each job is written, where nothing else of its status has changed.

What changes with every step must not keep the API server busy, however many jobs train. So each job
has its own time, spread evenly, and with more than 600 jobs the interval grows. No job is ever
overdue for longer than its next round takes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable

INTERVAL_SECONDS = 30.0
"""The shortest pause between two writes of progress alone."""
WRITES_A_SECOND = 20.0
"""Over all jobs, on average."""


class ProgressSchedule:
    """The time of the next write of each job. `draw` gives numbers from 0 to 1."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._draw = draw
        self._due: dict[Hashable, float] = {}

    def seconds_left(self, key: Hashable) -> float:
        """Until the progress of this job is due; 0 once it is. A job that is new here, as all are
        after a restart, gets a time that is drawn from a whole interval.
        """
        if key not in self._due:
            self._due[key] = 0.0  # it counts, too
            self._due[key] = self._clock() + self._draw() * self._interval()
        return max(0.0, self._due[key] - self._clock())

    def written(self, key: Hashable) -> None:
        """The status of this job was just written."""
        self._due[key] = self._clock() + self._interval()

    def forget(self, key: Hashable) -> None:
        """The job is gone."""
        self._due.pop(key, None)

    def _interval(self) -> float:
        return max(INTERVAL_SECONDS, len(self._due) / WRITES_A_SECOND)
