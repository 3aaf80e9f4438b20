"""A clock that runs only while this process could receive answers.

On an overloaded machine the event loop is late: answers lie in its sockets unread, and its own
time-outs end first. Such time does not count as time without an answer. So each tick counts for the
time between two ticks, however late the next one comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_SECONDS = 0.1
LONGEST_TICK_SECONDS = 0.2
"""What is above counts as lateness: the clock stands."""


class ContactClock:
    """Seconds from some moment on; it never goes back. `run` makes it tick."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticked = self._started = clock()
        self._counted = 0.0

    def now(self) -> float:
        """Seconds in which this process could receive, from the time of its start on."""
        since = self._clock() - self._ticked
        return self._started + self._counted + min(since, LONGEST_TICK_SECONDS)

    def tick(self) -> None:
        """The event loop has come round."""
        self._counted = self.now() - self._started
        self._ticked = self._clock()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(TICK_SECONDS)
