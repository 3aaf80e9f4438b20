"""When the progress of each job is written, where nothing else of its status has changed.

What changes with every step must not keep the API server busy, however many jobs train. So each job
has a time of its own, a fifth of a second from those of others; with more than 150 jobs the
interval grows. Rounds may come late, and all at once after an outage or a pause. So tries are
counted as well: who comes when there were enough just now gets another time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable

INTERVAL_SECONDS = 30.0
"""The shortest pause between two writes of progress alone."""
WRITES_A_SECOND = 5
"""Over all jobs. Metrics are live, and `progress.updatedTime` says how old the progress is."""
LATE_SECONDS = 0.2
"""How late a round may come, and write all the same where others are on time."""
_FULL_SECONDS = 1.0 - LATE_SECONDS
"""Within so long there may be WRITES_A_SECOND."""
RETRY_SECONDS = 1.0
_TIMER_SECONDS = 1e-3
"""Timers may end as much too early. Another round for the rest would be in vain."""


class ProgressSchedule:
    """The time of the next write of each job, as the number of a fifth of a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Hashable, int] = {}
        self._taken, self._first = 0, 0
        """A bit for each number from `_first` on: of a thousand jobs, nearly all of the next
        thousand numbers are taken.
        """
        self._tries: deque[float] = deque(maxlen=WRITES_A_SECOND)
        """When the last writes of progress were begun."""

    def seconds_left(self, key: Hashable) -> float:
        """Until the progress of this job is due; 0 once it is. Jobs that are new here, as all are
        after a restart, come in turn.
        """
        if key not in self._due:
            self._plan(key, 0.0)
        left = self._due[key] / WRITES_A_SECOND - self._clock()
        return left if left > _TIMER_SECONDS else 0.0

    def begin(self, key: Hashable) -> bool:
        """Whether the progress of this job may be written now. The try counts, and where it fails,
        the next one has a time of its own.
        """
        if self.seconds_left(key):
            return False
        now = self._clock()
        free_at = self._tries[0] + _FULL_SECONDS if len(self._tries) == WRITES_A_SECOND else now
        if free_at > now:
            self._plan(key, free_at - now)
            return False
        self._tries.append(now)
        self._plan(key, RETRY_SECONDS)
        return True

    def written(self, key: Hashable) -> None:
        """The status of this job was just written."""
        self._plan(key, INTERVAL_SECONDS)

    def forget(self, key: Hashable) -> None:
        """The job is gone."""
        after_first = self._due.pop(key, -1) - self._first
        if after_first >= 0:
            self._taken &= ~(1 << after_first)

    def _plan(self, key: Hashable, pause: float) -> None:
        """Take the first time after `pause` that no other job has, and give the former one back: so
        the times of all jobs are within an interval, however often their statuses are written.
        """
        self.forget(key)
        now = self._clock()
        past = max(0, math.floor(now * WRITES_A_SECOND) - self._first)
        self._first += past
        self._taken >>= past
        after_first = max(0, math.ceil((now + pause) * WRITES_A_SECOND) - self._first)
        later = self._taken >> after_first
        after_first += (~later & (later + 1)).bit_length() - 1  # to the lowest bit that is 0
        self._due[key] = self._first + after_first
        self._taken |= 1 << after_first
