"""Limits the Events about one job: what a coordinator says may change with every step, and a quota
of the namespace may refuse all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from regroup_operator.api.resource import Key
from regroup_operator.controller.work_queue import retry_pause

BURST = 50
"""Events of a job at once: all that a coordinator keeps."""
SECONDS_EACH = 6.0
"""After a burst, one more comes in so many seconds."""


@dataclass
class _Bucket:
    left: float
    filled: float
    refusals: int = 0
    """In a row."""
    until: float = 0.0
    """When the next one may be tried after a refusal; 0: at once."""


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
        if bucket.left < 1 or now < bucket.until:
            return False
        bucket.left -= 1
        return True

    def note(self, key: Key, *, refused: bool) -> None:
        """What became of an Event that was allowed. After a refusal none is, for a while."""
        bucket = self._buckets[key]
        bucket.refusals = bucket.refusals + 1 if refused else 0
        bucket.until = self._clock() + retry_pause(bucket.refusals) if refused else 0.0

    def due(self, key: Key) -> float | None:
        """Seconds until a refused Event may be tried again; None where none is waited for: it may
        not be wanted any more once its pause is over.
        """
        bucket = self._buckets.get(key)
        left = bucket.until - self._clock() if bucket else 0.0
        return left if left > 0 else None

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._buckets.pop(key, None)
