"""TrainingJobs from memory; those that it does not know in full, or whose state is in doubt, from
the API server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from regroup_operator.api.resource import Key, Object
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.resource_version import NEVER

MOST_JOB_BYTES = 64 * 1024 * 1024
"""Of all jobs in memory, about."""
MOST_BYTES_OF_ONE_JOB = 64 * 1024
Ask = Callable[[str, str], Awaitable[Object | None]]
"""Reads one job, by namespace and name, from the API server."""


def keep_job(document: Object) -> tuple[str, int]:
    """What memory keeps of a job, and about how many bytes it takes."""
    metadata = {k: v for k, v in document["metadata"].items() if k != "managedFields"}
    text = json.dumps({**document, "metadata": metadata})
    return text, len(text)


class TrainingJobs:
    """The watched TrainingJobs of each namespace; of all, under None."""

    def __init__(self, watches: Mapping[str | None, ListWatch[str]], ask: Ask) -> None:
        self._watches = watches
        self._ask = ask
        self._outdated: set[Key] = set()

    async def get(self, key: Key) -> Object | None:
        """The job, at least as new as each noted answer; None: there is none. Raises as `ask`
        does.
        """
        cache = self._watch(key).cache
        if cache.version == NEVER:
            return await self._asked(key)
        seen = cache.get(key)
        if seen is None:
            self._outdated.discard(key)
            return None
        if seen.value is None or key in self._outdated:
            return await self._asked(key)
        known: Object = json.loads(seen.value)
        return known

    async def _asked(self, key: Key) -> Object | None:
        found = await self._ask(*key)
        if found is not None:
            self.note(key, found)
        return found

    def note(self, key: Key, answer: Object) -> None:
        """Take a job from the answer to a request. Raises UnreadableError."""
        watch = self._watch(key)
        watch.cache.note(watch.read(answer))
        self._outdated.discard(key)

    def outdate(self, key: Key) -> None:
        """A write was refused, or was not answered: memory may be behind, and `get` asks."""
        self._outdated.add(key)

    def _watch(self, key: Key) -> ListWatch[str]:
        return self._watches.get(key[0]) or self._watches[None]
