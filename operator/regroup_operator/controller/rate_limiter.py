"""Limits how often something is done over all jobs: a token bucket."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimiter:
    """Allows `per_second` events a second, and a burst of as many."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = per_second
        self._filled = clock()

    def allows(self) -> bool:
        """Whether one more event is allowed now. An event that is allowed is counted."""
        now = self._clock()
        self._left = min(self._per_second, self._left + (now - self._filled) * self._per_second)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
