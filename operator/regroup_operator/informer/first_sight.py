"""For how long this process has seen that something is so, by a clock that nobody sets: the times
that others write are of their clocks, which may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from regroup_operator.api.resource import Key


class FirstSight:
    """Remembers of each job since when it has seen each of its facts, such as the UID of a pod that
    has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Key, dict[str, float]] = {}

    def look(self, job: Key, facts: Iterable[str]) -> dict[str, float]:
        """For how many seconds each of these facts was among those of each look."""
        now, known = self._clock(), self._since.pop(job, {})
        since = {fact: known.get(fact, now) for fact in facts}
        if since:
            self._since[job] = since
        return {fact: now - at for fact, at in since.items()}

    def forget(self, job: Key) -> None:
        """The job is gone."""
        self._since.pop(job, None)
