"""A de-duplicating queue of keys with a back-off per key: many events about one job become one
reconcile.

The rules are those of controller-runtime's work queue. A key that is added while it is worked on
runs again afterwards. A key that failed waits longer each time. One that succeeded starts from
zero. The groups (namespaces) that have keys here take turns: one with a thousand of them delays
another by one key.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from regroup_trainer.protocol.backoff import backoff_seconds

Key = TypeVar("Key")
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 60.0


class _Turns(Generic[Key]):
    """Keys whose groups take turns."""

    def __init__(self, group_of: Callable[[Key], Hashable]) -> None:
        self._group_of = group_of
        self._groups: OrderedDict[Hashable, deque[Key]] = OrderedDict()
        """The group whose turn is next comes first."""

    def append(self, key: Key) -> None:
        self._groups.setdefault(self._group_of(key), deque()).append(key)

    def popleft(self) -> Key:
        group, keys = self._groups.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._groups[group] = keys
        return key


class WorkQueue(Generic[Key]):
    """Keys to reconcile, for any number of workers in one event loop. Keys of one group wait in the
    order in which they came; groups take turns.
    """

    def __init__(self, group_of: Callable[[Key], Hashable]) -> None:
        self._ready = _Turns(group_of)
        self._waiting: asyncio.Queue[None] = asyncio.Queue()
        """One entry for each ready key."""
        self._added: dict[Key, float] = {}
        """Keys that wait -> since when."""
        self._working: set[Key] = set()
        self._again: dict[Key, bool] = {}
        """Keys that were added while they were worked on -> whether patiently."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return self._waiting.qsize()

    def add(self, key: Key, *, patient: bool = False) -> None:
        """Have `key` reconciled soon. A key that waits already is added once. A `patient` one waits
        to the end of its back-off.
        """
        if key in self._working:
            self._again[key] = patient and self._again.get(key, True)
        elif key not in self._added and not (patient and key in self._failures):
            self._cancel_timer(key)
            self._added[key] = time.monotonic()
            self._ready.append(key)
            self._waiting.put_nowait(None)

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
        await self._waiting.get()
        key = self._ready.popleft()
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
        self.add(key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
