"""A de-duplicating queue of keys with a back-off per key: many events about one job become one
reconcile.

The rules are those of controller-runtime's work queue. A key that is added while it is worked on
runs again afterwards. A key that failed waits longer each time. One that succeeded starts from
zero. In one thing they are not: what something has happened to goes before what is only looked at
again, so that a lost pod does not wait behind a burst of routine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Generic, TypeVar

from regroup_trainer.protocol.backoff import backoff_seconds

Key = TypeVar("Key")
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 60.0
ROUTINE_SECONDS = 1.0
"""What is only looked at again takes its turn as if it had come so much later: it is not starved.
"""


class WorkQueue(Generic[Key]):
    """Keys to reconcile, for any number of workers in one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.PriorityQueue[tuple[float, int, Key]] = asyncio.PriorityQueue()
        """Turn, a number that tells equal turns apart, key. Stale where the key has another turn.
        """
        self._numbers = itertools.count()
        self._added: dict[Key, float] = {}
        """Keys that wait -> since when."""
        self._turns: dict[Key, float] = {}
        """Keys that wait -> their turn."""
        self._working: set[Key] = set()
        self._again: dict[Key, bool] = {}
        """Keys that were added while they were worked on -> whether patiently."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._added)

    def add(self, key: Key, *, patient: bool = False, routine: bool = False) -> None:
        """Have `key` reconciled soon. A key that waits already is added once. A `patient` one waits
        to the end of its back-off. A `routine` one goes behind those that something happened to.
        """
        if key in self._working:
            self._again[key] = patient and self._again.get(key, True)
        elif not (patient and key in self._failures):
            self._cancel_timer(key)
            self._queue(key, time.monotonic(), ROUTINE_SECONDS if routine else 0.0)

    def _queue(self, key: Key, now: float, delay: float) -> None:
        turn = now + delay
        if key in self._added and self._turns[key] <= turn:
            return
        self._added.setdefault(key, now)
        self._turns[key] = turn
        self._ready.put_nowait((turn, next(self._numbers), key))

    def add_after(self, key: Key, seconds: float) -> None:
        """Have `key` reconciled in so many seconds, unless it is sooner for another reason."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self._expire, key)

    async def take(self) -> tuple[Key, float]:
        """The next key, and the seconds that it has waited. `done` must follow."""
        while True:
            turn, _, key = await self._ready.get()
            if self._turns.get(key) == turn:
                break
        del self._turns[key]
        waited = time.monotonic() - self._added.pop(key)
        self._working.add(key)
        return key, waited

    def done(self, key: Key, *, failed: bool = False) -> None:
        """End the work on a key. One that failed is added again by itself, later each time."""
        self._working.discard(key)
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            # One more than there were: the queue also waits after the first failure.
            self.add_after(
                key, backoff_seconds(count + 1, FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)
            )
        else:
            self._failures.pop(key, None)
        if key in self._again:
            self.add(key, patient=self._again.pop(key))

    def forget(self, key: Key) -> None:
        """Forget the timer and the failures of a key whose object is gone."""
        self._cancel_timer(key)
        self._failures.pop(key, None)

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _expire(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key, routine=True)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
