"""How often something may be done over all jobs: a bucket that fills with time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """At most `per_second` in any second, and no more than that saved up."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = per_second
        self._filled = clock()

    def allows(self) -> bool:
        """Whether it may be done once more now; counts it when it may."""
        now = self._clock()
        self._left = min(self._per_second, self._left + (now - self._filled) * self._per_second)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
