"""Knows which objects of a collection there are, and reports each change: list, then watch.

The rules are those of client-go's reflector. A list is read in pages. A watch goes on from the
version of the list, or of the last event or bookmark. It is begun again after its time, after a
lost connection and after an outage. When its version is too old (410 Gone) there is another list,
and what it shows otherwise than before is reported, deletions too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from regroup_operator.api.resource import Key, Object
from regroup_operator.controller.collection import Collection, pages
from regroup_operator.controller.operator_metrics import count_list, count_unreadable
from regroup_operator.errors import ClusterError, UnreadableError
from regroup_trainer.protocol.backoff import backoff_seconds

WATCH_SECONDS = (60, 120)
"""A watch takes a random time between these. A connection that has died silently is noticed by
its end.
"""
SHORTEST_WATCH_SECONDS = 1.0
"""A watch that ends sooner, without an event, has failed."""
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 10.0
FAILURES_UNTIL_LIST = 5
"""After so many failures in a row the version may be what is wrong."""

log = logging.getLogger(__name__)
OnChange = Callable[[Key, bool], None]
"""Gets the key, and whether the spec is what it was: only labels or status have changed."""
SubjectOf = Callable[[Object], Key]
"""Metadata of an object -> the key that its changes are reported with."""


@dataclass(frozen=True)
class Seen:
    """What is remembered of an object."""

    key: Key
    uid: str
    version: str
    generation: int
    """metadata.generation: the API server raises it with every change of the spec."""
    subject: Key
    """What its changes are reported with."""


def own_key(metadata: Object) -> Key:
    """Namespace and name of an object. Raises KeyError for what has none."""
    return str(metadata["namespace"]), str(metadata["name"])


class ListWatch:
    """Lists and watches one collection. `run` never ends by itself. A change is reported with the
    key of the object itself, or of the one that `subject_of` names.
    """

    def __init__(
        self,
        collection: Collection,
        on_change: OnChange,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        subject_of: SubjectOf = own_key,
    ) -> None:
        self._collection = collection
        self._on_change = on_change
        self._subject_of = subject_of
        self._sleep = sleep
        self._known: dict[Key, Seen] = {}
        self._version = ""
        """Where the watch goes on; empty: a list is needed."""
        self._failures = 0
        """In a row."""

    async def run(self) -> None:
        """List and watch until cancelled, whatever the API server answers."""
        while True:
            try:
                await self._list_and_watch()
            except ClusterError as error:
                self._failed(error)
                log.warning("watch: %s", error)
            except Exception:
                self._failed(None)
                log.exception("watch of %s failed", self._collection.path)
            else:
                self._failures = 0
            await self._sleep(self._pause())

    async def _list_and_watch(self) -> None:
        if not self._version:
            count_list(self._collection.resource)
            await self._list()
        await self._watch()

    def _failed(self, error: ClusterError | None) -> None:
        self._failures += 1
        too_old = isinstance(error, UnreadableError) or (error and error.status == HTTPStatus.GONE)
        if error is None or too_old or self._failures % FAILURES_UNTIL_LIST == 0:
            self._version = ""

    def _pause(self) -> float:
        """Seconds; operators that lost one API server do not all come back at once."""
        pause = backoff_seconds(self._failures, FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)
        return pause * random.uniform(0.5, 1.0)

    # --- list -------------------------------------------------------------------------------------

    async def _list(self) -> None:
        listed: set[Key] = set()
        unreadable: set[str] = set()
        version = ""
        async for page in pages(self._collection):
            version = page.version
            if page.unreadable:
                unreadable.add(page.unreadable)
                _skip(self._collection, page.unreadable)
            for document in page.objects:
                seen = self._read(document)
                listed.add(seen.key)
                self._changed(seen)
        for key in self._known.keys() - listed:
            if key[1] not in unreadable:
                self._gone(self._known[key])
        self._version = version

    # --- watch ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Watch until the API server ends it. Raises ClusterError when it ends otherwise."""
        began, events = time.monotonic(), 0
        seconds = random.randint(*WATCH_SECONDS)
        async with aclosing(self._collection.watch(self._version, seconds)) as stream:
            async for event in stream:
                self._take(event)
                self._failures = 0
                events += 1
        if not events and time.monotonic() - began < SHORTEST_WATCH_SECONDS:
            raise ClusterError("GET", self._collection.path, 0, "a watch ended as it had begun")

    def _take(self, event: Object) -> None:
        kind, document = event.get("type"), event.get("object")
        if not isinstance(document, dict):
            raise self._unreadable("an event without an object")
        if kind == "ERROR":
            code, message = document.get("code"), document.get("message")
            status = code if isinstance(code, int) else 0
            raise ClusterError("GET", self._collection.path, status, str(message))
        if kind == "BOOKMARK":
            self._version = str(_metadata(document).get("resourceVersion") or self._version)
            return
        seen = self._read(document)
        if kind == "DELETED":
            self._gone(seen)
        else:
            self._changed(seen)
        self._version = seen.version

    def _changed(self, seen: Seen) -> None:
        former = self._known.get(seen.key)
        self._known[seen.key] = seen
        if former != seen:
            same_spec = former is not None and (former.uid, former.generation) == (
                seen.uid,
                seen.generation,
            )
            self._on_change(seen.subject, same_spec)

    def _gone(self, seen: Seen) -> None:
        self._known.pop(seen.key, None)
        self._on_change(seen.subject, False)

    def _read(self, document: Any) -> Seen:
        metadata = _metadata(document)
        try:
            return Seen(
                own_key(metadata),
                str(metadata["uid"]),
                str(metadata["resourceVersion"]),
                int(metadata.get("generation") or 0),
                self._subject_of(metadata),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(f"an object without {error}") from error

    def _unreadable(self, what: str) -> UnreadableError:
        return UnreadableError("GET", self._collection.path, 0, f"cannot read the answer: {what}")


def _metadata(document: Any) -> Object:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _skip(collection: Collection, name: str) -> None:
    count_unreadable(collection.resource)
    log.error(
        "%s: %s cannot be read and is skipped: its metadata is larger than 4 MiB or no JSON "
        "(delete it)",
        collection.path,
        name,
    )
