"""Places that several groups share: whoever takes many delays the others by little."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairPlaces:
    """So many places, of which one group holds at most `most_of_a_group`. Groups that wait take
    turns; the order within one is that of arrival.
    """

    def __init__(self, places: int, most_of_a_group: int) -> None:
        self._free = places
        self._most = most_of_a_group
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By group. The first of them was given a place the longest ago."""

    @asynccontextmanager
    async def place(self, group: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        await self.acquire(group)
        try:
            yield
        finally:
            self.release(group)

    async def acquire(self, group: str) -> None:
        """Wait for a place. `release` must follow."""
        if self._free and self._taken[group] < self._most:  # nobody waits who could have it
            self._take(group)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release(group)
            raise

    def _take(self, group: str) -> None:
        self._free -= 1
        self._taken[group] += 1

    def release(self, group: str) -> None:
        """Give a place back."""
        self._free += 1
        self._taken[group] -= 1
        if not self._taken[group]:
            del self._taken[group]
        while self._free and (turn := self._next()):
            turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """Take a place for whoever is next; None: nobody waits who could have it."""
        for group in list(self._waiting):
            if self._taken[group] >= self._most:
                continue
            queue = self._waiting.pop(group)
            while queue and queue[0].done():  # cancelled
                queue.popleft()
            if queue:
                turn = queue.popleft()
                if queue:
                    self._waiting[group] = queue
                self._take(group)
                return turn
        return None
