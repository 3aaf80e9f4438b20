"""Makes values ahead of their use, in a thread that nobody has to wait for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
WhileWaiting = Callable[[float], object]
"""Called ten times a second by who waits, with the time since when: seconds since the epoch. What
it raises ends the wait.
"""
_MOMENT_SECONDS = 0.1


def wait_quietly(*_met: object) -> None:
    """Never ends the wait."""


def result_of(work: Future[T], waiting: WhileWaiting) -> T:
    """The result, once it is there. Raises what the work raised, or `waiting`."""
    since = time.time()
    while not work.done():
        wait([work], _MOMENT_SECONDS)
        if not work.done():
            waiting(since)
    return work.result()


class Prefetch(Generic[T]):
    """Calls `make` for the next `ahead` positions, each `stride` after the one before.

    A value that is not asked for is dropped. A position that was not expected is made at once.

    `make` may hang, as where a volume does not answer. An executor does not serve: its end waits
    for its threads, and so does that of Python.
    """

    def __init__(self, make: Callable[[int], T], stride: int, ahead: int) -> None:
        self._make = make
        self._stride = stride
        self._ahead = ahead
        self._pending: deque[tuple[int, Future[T]]] = deque()
        self._orders: SimpleQueue[tuple[int, Future[T]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="prefetch", daemon=True).start()

    def at(self, position: int, waiting: WhileWaiting = wait_quietly) -> T:
        """The value of a position; waits for it. Raises what `make` raises, or `waiting`."""
        while self._pending and self._pending[0][0] != position:
            self._pending.popleft()[1].cancel()
        following = self._pending[-1][0] + self._stride if self._pending else position
        while len(self._pending) <= self._ahead:
            order = following, Future[T]()
            self._pending.append(order)
            self._orders.put(order)
            following += self._stride
        return result_of(self._pending.popleft()[1], waiting)

    def close(self) -> None:
        """Have the thread end after the value that it is making. Nobody waits for that."""
        for _, work in self._pending:
            work.cancel()
        self._orders.put(None)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            position, work = order
            if not work.set_running_or_notify_cancel():
                continue
            try:
                work.set_result(self._make(position))
            except BaseException as error:
                work.set_exception(error)
