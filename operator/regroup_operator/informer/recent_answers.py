"""What single objects that no watch shows were like a moment ago.

Reading the claim of each job in each round is a third of what a round costs. So an answer counts
for a while, for those who only look again. That an object is absent is never remembered: somebody
waits for it.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable

from regroup_operator.api.resource import Key, Object
from regroup_operator.informer.remembered_objects import Ask

COUNTS_SECONDS = 120.0
MOST_BYTES_OF_ONE = 4096
"""A larger object is asked for each time."""
MOST_OBJECTS = 4_000


class RecentAnswers:
    """Answers of `ask` by namespace and name, less annotations and managedFields."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._answers: dict[Key, tuple[float, str]] = {}
        """When it was asked for, and the object as JSON; the oldest first."""

    async def get(self, key: Key, *, recent: bool) -> Object | None:
        """The object; None: there is none. `recent`: as it was COUNTS_SECONDS ago at most, instead
        of as it is. Raises as `ask` does.
        """
        now = self._clock()
        asked_at, text = self._answers.get(key, (-math.inf, ""))
        if recent and asked_at > now - COUNTS_SECONDS:
            known: Object = json.loads(text)
            return known
        found = await self._ask(*key)
        self._answers.pop(key, None)
        if found is not None and (text := _kept_part(found)):
            self._answers[key] = now, text
        self._drop_old(now)
        return found

    def _drop_old(self, now: float) -> None:
        """Up to two: more than come at a time."""
        for key in list(itertools.islice(self._answers, 2)):
            if self._answers[key][0] <= now - COUNTS_SECONDS or len(self._answers) > MOST_OBJECTS:
                del self._answers[key]


def _kept_part(found: Object) -> str:
    """What is kept of an object; empty for one that is too large, or about to go."""
    left_out = ("annotations", "managedFields")
    metadata = {k: v for k, v in found["metadata"].items() if k not in left_out}
    text = json.dumps({**found, "metadata": metadata})
    is_kept = len(text) <= MOST_BYTES_OF_ONE and "deletionTimestamp" not in metadata
    return text if is_kept else ""
