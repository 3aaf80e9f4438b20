"""A de-duplicating queue of keys with a back-off per key: many events about one job become one
reconcile.

The rules are those of controller-runtime's work queue. A key that is added while it is worked on
runs again afterwards. A key that failed waits longer each time. One that succeeded starts from
zero. In two things they are not. The groups (namespaces) that have keys here take turns: one with a
thousand of them delays another by one key. What something has happened to goes before what is only
looked at again, so that a lost pod does not wait behind a burst of routine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from regroup_trainer.protocol.backoff import backoff_seconds

Key = TypeVar("Key")
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 60.0
ROUTINE_SECONDS = 1.0
"""What is only looked at again takes every second turn once it has waited so long: it is not
starved.
"""


class _Turns(Generic[Key]):
    """Keys whose groups take turns."""

    def __init__(self, group_of: Callable[[Key], Hashable]) -> None:
        self._group_of = group_of
        self._groups: OrderedDict[Hashable, dict[Key, None]] = OrderedDict()
        """The group whose turn is next comes first, and so does the next key of each."""

    def append(self, key: Key) -> None:
        self._groups.setdefault(self._group_of(key), {})[key] = None

    def head(self, full: Collection[Hashable]) -> Key | None:
        """The next key of a group that is not full; None where there is none."""
        open_groups = (keys for group, keys in self._groups.items() if group not in full)
        return next((next(iter(keys)) for keys in open_groups), None)

    def pop(self, key: Key) -> None:
        """Take a key away; the turn of its group is over."""
        group = self._group_of(key)
        self.discard(key)
        if group in self._groups:
            self._groups.move_to_end(group)

    def discard(self, key: Key) -> None:
        group = self._group_of(key)
        keys = self._groups.get(group, {})
        keys.pop(key, None)
        if not keys:
            self._groups.pop(group, None)


class WorkQueue(Generic[Key]):
    """Keys to reconcile, for any number of workers in one event loop. Keys of one group wait in the
    order in which they came; groups take turns. At most `most_of_a_group` keys of a group are
    worked on, so that a group whose rounds take long leaves workers for the others.
    """

    def __init__(self, group_of: Callable[[Key], Hashable], most_of_a_group: int) -> None:
        self._group_of = group_of
        self._most_of_a_group = most_of_a_group
        self._busy: Counter[Hashable] = Counter()
        """Group -> keys that are worked on."""
        self._urgent = _Turns(group_of)
        self._routine = _Turns(group_of)
        self._routine_was_next = False
        self._changed = asyncio.Event()
        """There may be a key to take."""
        self._added: dict[Key, float] = {}
        """Keys that wait -> since when."""
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
            self._queue(key, routine=routine)

    def _queue(self, key: Key, *, routine: bool) -> None:
        if key not in self._added:
            self._added[key] = time.monotonic()
            (self._routine if routine else self._urgent).append(key)
            self._changed.set()
        elif not routine:
            self._routine.discard(key)
            self._urgent.append(key)

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
        while (key := self._next()) is None:
            self._changed.clear()
            await self._changed.wait()
        waited = time.monotonic() - self._added.pop(key)
        self._working.add(key)
        self._busy[self._group_of(key)] += 1
        return key, waited

    def _next(self) -> Key | None:
        full = {group for group, count in self._busy.items() if count >= self._most_of_a_group}
        urgent, routine = self._urgent.head(full), self._routine.head(full)
        self._routine_was_next = self._routine_is_next(urgent, routine)
        turns, key = (self._routine, routine) if self._routine_was_next else (self._urgent, urgent)
        if key is not None:
            turns.pop(key)
        return key

    def _routine_is_next(self, urgent: Key | None, routine: Key | None) -> bool:
        if urgent is None or routine is None:
            return routine is not None
        waited = time.monotonic() - self._added[routine]
        return waited >= ROUTINE_SECONDS and not self._routine_was_next

    def done(self, key: Key, *, failed: bool = False) -> None:
        """End the work on a key. One that failed is added again by itself, later each time."""
        self._working.discard(key)
        self._busy -= Counter([self._group_of(key)])
        self._changed.set()
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
