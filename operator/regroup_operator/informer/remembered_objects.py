"""Whole objects of one kind from memory; those that it does not know in full, or whose state is in
doubt, from the API server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping

from regroup_operator.api.resource import Key, Object
from regroup_operator.informer.list_watch import ListWatch, Read
from regroup_operator.informer.resource_version import NEVER

ABSENT_SECONDS = 30.0
"""How long it counts that there is no object without the label. One that somebody makes meanwhile
is found when ours is to be made.
"""
MOST_OUTDATED = 1_000
"""Keys that are outdated before those of objects that are gone are looked for: nobody asks for them
any more.
"""
Ask = Callable[[str, str], Awaitable[Object | None]]
"""Reads one object, by namespace and name, from the API server."""


def keep_text(kind: str, *fields: str) -> Read[str]:
    """How memory keeps objects of a kind: metadata and these fields, as JSON. Lists of Kubernetes'
    own resources do not say the kind of what is in them.
    """

    def keep(document: Object) -> tuple[str, int]:
        metadata = {k: v for k, v in document["metadata"].items() if k != "managedFields"}
        parts = {field: document[field] for field in fields if field in document}
        text = json.dumps({"kind": kind, "metadata": metadata, **parts})
        return text, len(text)

    return keep


class RememberedObjects:
    """The watched objects of each namespace; of all, under None. `label`: only those with this
    label are watched; empty: all are.
    """

    def __init__(
        self,
        watches: Mapping[str | None, ListWatch[str]],
        ask: Ask,
        label: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watches = watches
        self._ask = ask
        self._label = label
        self._clock = clock
        self._outdated: set[Key] = set()
        self._absent: dict[Key, float] = {}
        """When the API server answered that there is none, the oldest first."""

    def all_keys(self) -> list[Key]:
        """Of all objects that are known, those of the pages of an unfinished list included."""
        return [key for watch in self._watches.values() for key in watch.cache.all_keys()]

    def known(self, key: Key) -> Object | None:
        """The object from memory, which may be behind; None where it does not have it in full."""
        seen = self._watch(key).cache.get(key)
        return json.loads(seen.value) if seen and seen.value else None

    async def refresh(self) -> None:
        """List all by consistent reads, instead of a read of each that changed while only its
        metadata were watched. Raises ClusterError.
        """
        for watch in self._watches.values():
            await watch.refresh()

    async def get(self, key: Key) -> Object | None:
        """The object, at least as new as each noted answer; None: there is none. Raises as `ask`
        does.
        """
        cache = self._watch(key).cache
        seen = cache.get(key)
        if seen is None:
            self._outdated.discard(key)
        if cache.version == NEVER or key in self._outdated:
            return await self._asked(key)
        if seen is None:
            return await self._sought(key) if self._label else None
        found: Object | None = json.loads(seen.value) if seen.value else await self._asked(key)
        return found

    async def _sought(self, key: Key) -> Object | None:
        """An object that the watch does not show: it may be there, without the label."""
        fresh = self._clock() - ABSENT_SECONDS
        while self._absent and self._absent[oldest := next(iter(self._absent))] < fresh:
            del self._absent[oldest]
        if key in self._absent:
            return None
        found = await self._asked(key)
        if found is None:
            self._absent[key] = self._clock()
        return found

    async def _asked(self, key: Key) -> Object | None:
        found = await self._ask(*key)
        if found is not None:
            self.note(key, found)
        return found

    async def write(self, key: Key, request: Awaitable[Object]) -> Object:
        """Await a write of the object, and take its answer, which is returned. Raises as the
        request does.
        """
        self.outdate(key)
        answer = await request
        if "metadata" in answer:
            self.note(key, answer)
        return answer

    def outdate(self, key: Key) -> None:
        """Memory may be behind, as after a write that was refused or has no answer: `get` asks."""
        if len(self._outdated) >= MOST_OUTDATED:
            self._outdated = {each for each in self._outdated if self._watch(each).cache.get(each)}
        self._outdated.add(key)
        self._absent.pop(key, None)

    def note(self, key: Key, answer: Object) -> None:
        """Take an object from the answer to a request. Raises UnreadableError."""
        if self._label and self._label not in answer["metadata"].get("labels", {}):
            return  # the watch would not show that it has changed
        watch = self._watch(key)
        watch.cache.note(watch.read(answer))
        self._outdated.discard(key)

    def _watch(self, key: Key) -> ListWatch[str]:
        return self._watches.get(key[0]) or self._watches[None]
