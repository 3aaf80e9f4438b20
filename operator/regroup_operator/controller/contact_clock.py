"""A clock that runs only while this process could receive answers.

On an overloaded machine the event loop is late: answers lie in its sockets unread, and its own
time-outs end first. Such time does not count as time without an answer. So each tick counts for the
time between two ticks, however late the next one comes.

A time-out of this clock takes some ticks at least, however late they come. By the wall clock it
could end before a loop that is late has read any answer, each time anew.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

TICK_SECONDS = 0.1
LONGEST_TICK_SECONDS = 0.2
"""What is above counts as lateness: the clock stands."""

SetLimit = Callable[[float | None], None]
"""Has a time-out end in so many seconds instead; None: it has no end."""


class ContactClock:
    """Seconds from some moment on; it never goes back. `run` makes it tick."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticked = self._started = clock()
        self._counted = 0.0
        self._ends: dict[asyncio.Timeout, float] = {}
        self._next_end = math.inf
        """None of them is sooner. Each line of a watch puts an end off: nearly no tick looks at
        all.
        """

    def now(self) -> float:
        """Seconds in which this process could receive, from the time of its start on."""
        since = self._clock() - self._ticked
        return self._started + self._counted + min(since, LONGEST_TICK_SECONDS)

    def tick(self) -> None:
        """The event loop has come round."""
        self._counted = self.now() - self._started
        self._ticked = self._clock()
        if (now := self.now()) < self._next_end:
            return
        for timeout in [timeout for timeout, end in self._ends.items() if end <= now]:
            del self._ends[timeout]
            timeout.reschedule(asyncio.get_running_loop().time())
        self._next_end = min(self._ends.values(), default=math.inf)

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[SetLimit]:
        """As asyncio.timeout, by this clock, which must tick meanwhile."""
        async with asyncio.timeout(None) as timeout:

            def set_limit(seconds: float | None) -> None:
                if self._ends.pop(timeout, None) is None and not timeout.expired():
                    timeout.reschedule(None)
                if seconds is not None:
                    self._ends[timeout] = self.now() + seconds
                    self._next_end = min(self._next_end, self._ends[timeout])

            set_limit(seconds)
            try:
                yield set_limit
            finally:
                self._ends.pop(timeout, None)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(TICK_SECONDS)
