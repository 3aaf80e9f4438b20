"""Limits the Events about one job: what a coordinator says may change with every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from regroup_operator.api.resource import Key

BURST = 50
"""Events of a job at once: all that a coordinator keeps."""
SECONDS_EACH = 6.0
"""After a burst, one more comes in so many seconds."""


@dataclass
class _Bucket:
    left: float
    filled: float


class EventLimit:
    """A token bucket for each job. The buckets of jobs that are gone must be forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[Key, _Bucket] = {}

    def allows(self, key: Key) -> bool:
        """Whether one more Event about this job is possible now. It is then counted."""
        now = self._clock()
        bucket = self._buckets.setdefault(key, _Bucket(BURST, now))
        bucket.left = min(BURST, bucket.left + (now - bucket.filled) / SECONDS_EACH)
        bucket.filled = now
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._buckets.pop(key, None)
