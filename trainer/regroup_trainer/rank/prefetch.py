"""Makes values ahead of their use, in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Calls `make` for the next `ahead` positions, each `stride` after the one before.

    A value that is not asked for is dropped. A position that was not expected is made at once.
    """

    def __init__(self, make: Callable[[int], T], stride: int, ahead: int) -> None:
        self._make = make
        self._stride = stride
        self._ahead = ahead
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._pending: deque[tuple[int, Future[T]]] = deque()

    def at(self, position: int) -> T:
        """The value of a position; waits for it. Raises what `make` raises."""
        while self._pending and self._pending[0][0] != position:
            self._pending.popleft()[1].cancel()
        following = self._pending[-1][0] + self._stride if self._pending else position
        while len(self._pending) <= self._ahead:
            self._pending.append((following, self._thread.submit(self._make, following)))
            following += self._stride
        return self._pending.popleft()[1].result()

    def close(self) -> None:
        """End the thread, after the value that it is making."""
        self._thread.shutdown(cancel_futures=True)
