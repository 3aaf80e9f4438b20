"""A de-duplicating queue of keys with a back-off per key: many events about one job become one
reconcile.

The rules are those of controller-runtime's work queue. A key that is added while it is worked on
runs again afterwards. A key that failed waits longer each time. One that succeeded starts from
zero. In two things they are not. The groups (namespaces) that have keys here take turns: one with a
thousand of them delays another by one key. And keys differ in urgency: what has lost a pod goes
first, what is only looked at again goes last. Within a group, what has begun goes before what is
new: of a thousand jobs the first ones are whole soon. What has waited for PATIENT_SECONDS has every
second turn, so that nothing waits for ever. A key may rest after its turn, so that many events in a
row become one more turn, and not one each.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from regroup_trainer.system.backoff import retry_seconds

Key = TypeVar("Key")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 60.0
"""After a round or a request that failed, and after many in a row."""
PATIENT_SECONDS = 1.0
"""What is less urgent takes every second turn once it has waited so long: it is not starved."""


def retry_pause(failures: int) -> float:
    """Seconds until the next try, after so many failures in a row."""
    return retry_seconds(failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


class Urgency(IntEnum):
    """What goes first."""

    LOST = 0
    """It has lost something that is to be replaced."""
    CHANGED = 1
    """Something has happened to it."""
    NEW = 2
    """Nothing has been done for it yet."""
    ROUTINE = 3
    """It is only looked at again."""


@dataclass
class _Group(Generic[Key]):
    """The keys of a group. Of each kind the one that came first is next."""

    begun: dict[Key, float] = field(default_factory=dict)
    """Key -> since when it waits."""
    new: dict[Key, float] = field(default_factory=dict)
    was_new: bool = False
    """Whether the last one was a new key that went before one that has begun."""

    def head(self) -> Key:
        """The next key: one that has begun, or in every second turn a new one that waits too long.
        There must be one.
        """
        if not self.begun or self.has_late():
            return next(iter(self.new))
        return next(iter(self.begun))

    def has_late(self) -> bool:
        """Whether it is the turn of a new key that has waited too long."""
        since = next(iter(self.new.values()), math.inf)
        return not self.was_new and since <= time.monotonic() - PATIENT_SECONDS


class _Turns(Generic[Key]):
    """Keys whose groups take turns."""

    def __init__(self, group_of: Callable[[Key], Hashable]) -> None:
        self._group_of = group_of
        self._groups: OrderedDict[Hashable, _Group[Key]] = OrderedDict()
        """The group whose turn is next comes first."""

    def append(self, key: Key, since: float, *, is_new: bool) -> None:
        group = self._groups.setdefault(self._group_of(key), _Group())
        (group.new if is_new else group.begun)[key] = since

    def head(self, full: Collection[Hashable]) -> Key | None:
        """The next key of a group that is not full; None where there is none."""
        return next((each.head() for name, each in self._groups.items() if name not in full), None)

    def pop(self, key: Key) -> None:
        """Take a key away; the turn of its group is over."""
        name = self._group_of(key)
        group = self._groups[name]
        group.was_new = key in group.new and bool(group.begun)
        self._groups.move_to_end(name)
        self.discard(key)

    def discard(self, key: Key) -> None:
        name = self._group_of(key)
        if group := self._groups.get(name):
            group.begun.pop(key, None)
            group.new.pop(key, None)
            if not (group.begun or group.new):
                del self._groups[name]


class WorkQueue(Generic[Key]):
    """Keys to reconcile, for any number of workers in one event loop. Keys of one group wait in the
    order in which they came; groups take turns. At most `most_of_a_group` keys of a group are
    worked on, so that a group whose rounds take long leaves workers for the others. `on_add` is
    called for each key that begins to wait.
    """

    def __init__(
        self,
        group_of: Callable[[Key], Hashable],
        most_of_a_group: int,
        on_add: Callable[[], None] = lambda: None,
    ) -> None:
        self._group_of = group_of
        self._most_of_a_group = most_of_a_group
        self._on_add = on_add
        self._busy: Counter[Hashable] = Counter()
        """Group -> keys that are worked on."""
        lost, changed, routine = (_Turns(group_of) for _ in range(3))
        self._turns = {
            Urgency.LOST: lost,
            Urgency.CHANGED: changed,
            Urgency.NEW: changed,
            Urgency.ROUTINE: routine,
        }
        self._late_was_next = False
        self._changed = asyncio.Event()
        """There may be a key to take."""
        self._ended = asyncio.Event()
        """The work on a key has ended."""
        self._added: dict[Key, tuple[float, Urgency]] = {}
        """Keys that wait -> since when, and how urgently."""
        self._working: set[Key] = set()
        self._again: dict[Key, tuple[bool, Urgency]] = {}
        """Keys that were added while they were worked on -> whether patiently, and how urgently."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._resting: dict[Key, float] = {}
        """Until when, by the loop's clock; in the order in which the rests began."""
        self._later: dict[Key, Urgency] = {}
        """How urgent keys are when their timers end, where that is more than routine."""

    def __len__(self) -> int:
        return len(self._added)

    def add(self, key: Key, urgency: Urgency = Urgency.CHANGED, *, patient: bool = False) -> None:
        """Have `key` reconciled soon. A key that waits already is added once, and the greater
        urgency counts. A `patient` one waits to the end of its back-off, and one that rests to the
        end of that, unless it has lost something.
        """
        if key in self._working:
            was_patient, before = self._again.get(key, (True, urgency))
            self._again[key] = patient and was_patient, min(urgency, before)
        elif patient and key in self._failures:
            return
        elif urgency is not Urgency.LOST and (left := self._rest_left(key)) > 0:
            self.add_after(key, left, urgency)
        else:
            self._cancel_timer(key)
            self._later.pop(key, None)
            self._queue(key, urgency)

    def _rest_left(self, key: Key) -> float:
        return self._resting.get(key, 0.0) - asyncio.get_running_loop().time()

    def _queue(self, key: Key, urgency: Urgency) -> None:
        since, before = self._added.get(key, (time.monotonic(), None))
        if before is not None and before <= urgency:
            return
        if before is None:
            self._on_add()
        else:
            self._turns[before].discard(key)
        self._added[key] = since, urgency
        self._turns[urgency].append(key, since, is_new=urgency is Urgency.NEW)
        self._changed.set()

    def add_after(self, key: Key, seconds: float, urgency: Urgency = Urgency.ROUTINE) -> None:
        """Have `key` reconciled in so many seconds, unless it is sooner for another reason. This
        may end its rest. The greatest urgency counts that it was added with until then.
        """
        if urgency is not Urgency.ROUTINE:
            self._later[key] = min(urgency, self._later.get(key, urgency))
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
        waited = time.monotonic() - self._added.pop(key)[0]
        self._working.add(key)
        self._busy[self._group_of(key)] += 1
        return key, waited

    def _next(self) -> Key | None:
        full = {group for group, count in self._busy.items() if count >= self._most_of_a_group}
        heads = [turns.head(full) for turns in dict.fromkeys(self._turns.values())]
        waiting = [key for key in heads if key is not None]
        if not waiting:
            return None
        until = time.monotonic() - PATIENT_SECONDS
        late = [key for key in waiting[1:] if self._added[key][0] <= until]
        self._late_was_next = bool(late) and not self._late_was_next
        key = min(late, key=lambda each: self._added[each]) if self._late_was_next else waiting[0]
        self._turns[self._added[key][1]].pop(key)
        return key

    def done(
        self,
        key: Key,
        *,
        failed: bool = False,
        rest: float = 0.0,
        urgency: Urgency = Urgency.ROUTINE,
    ) -> None:
        """End the work on a key. One that failed is added again by itself, later each time, and so
        urgently. `rest`: seconds in which only a loss has it reconciled again, or `add_after`.
        """
        self._working.discard(key)
        self._rest(key, rest)
        self._busy -= Counter([self._group_of(key)])
        self._changed.set()
        self._ended.set()
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, retry_pause(count), urgency)
        else:
            self._failures.pop(key, None)
        if key in self._again:
            patient, urgency = self._again.pop(key)
            self.add(key, urgency, patient=patient)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until this holds. It is asked whenever the work on a key has ended."""
        while not holds():
            self._ended.clear()
            await self._ended.wait()

    def _rest(self, key: Key, seconds: float) -> None:
        """Let a key rest. Rests that are over are dropped: keys of objects that are gone would
        gather.
        """
        now = asyncio.get_running_loop().time()
        self._resting.pop(key, None)
        while self._resting and self._resting[oldest := next(iter(self._resting))] <= now:
            del self._resting[oldest]
        if seconds:
            self._resting[key] = now + seconds

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _expire(self, key: Key) -> None:
        self._timers.pop(key, None)
        self._resting.pop(key, None)
        self.add(key, self._later.pop(key, Urgency.ROUTINE))

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
