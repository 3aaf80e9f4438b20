"""Keeps the cache of a collection up to date, and reports each change: list, then watch.

The rules are those of client-go's reflector. A list is read in pages; unlike there, what a page
shows counts at once, since tenants can make a list take minutes. A watch goes on from the
version of the list, or of the last event or bookmark. It is begun again after its time, after a
lost connection and after an outage. When its version is too old (410 Gone), or when neither an
event nor a bookmark has come for long, there is another list. So there is, unlike there, once an
hour: it finds what a watch has left out. What it shows otherwise than before is reported, deletions
too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from regroup_operator.api.resource import Key, Object
from regroup_operator.errors import ClusterError, UnreadableError
from regroup_operator.informer.api_connection import IS_HEAD
from regroup_operator.informer.collection import PAGE_OBJECTS, Collection, pages
from regroup_operator.informer.object_cache import Change, Listing, ObjectCache, Seen
from regroup_operator.informer.request_metrics import count_list, count_unreadable
from regroup_operator.informer.resource_version import parse_version
from regroup_trainer.system.backoff import backoff_seconds

WATCH_SECONDS = (60, 120)
"""A watch takes a random time between these."""
SHORTEST_WATCH_SECONDS = 1.0
"""A watch that ends sooner, without an event, has failed."""
IDLE_SECONDS = 150.0
"""Without an event or a bookmark for so long, the watch is not trusted: its connection is dead, or
the API server's own cache stands still. The API server sends a bookmark about once a minute.
"""
RELIST_SECONDS = (1800.0, 3600.0)
"""After a random time between these there is a list although all seems well: nothing else finds an
event that the API server, or a proxy before it, has left out of a watch that goes on.
"""
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 10.0
CALM_SECONDS = 60.0
"""Lists that follow each other sooner come ever later: one of thousands of objects is costly, also
where it succeeds.
"""
FAILURES_UNTIL_LIST = 5
"""After so many failures in a row the version may be what is wrong."""

log = logging.getLogger(__name__)
T = TypeVar("T")
OnChange = Callable[[Change[T]], None]
SubjectOf = Callable[[Object], Key]
"""Metadata of an object -> the key that its changes are reported with."""
Read = Callable[[Object], tuple[T, int]]
"""An object -> what is kept of it, and about how many bytes that takes."""


def own_key(metadata: Object) -> Key:
    """Namespace and name of an object; the namespace of a node is empty. Raises KeyError for what
    has no name.
    """
    return str(metadata.get("namespace") or ""), str(metadata["name"])


class ListWatch(Generic[T]):
    """Lists and watches one collection into `cache`. `run` never ends by itself. A change is
    reported with the key of the object itself, or of the one that `subject_of` names.
    """

    def __init__(
        self,
        collection: Collection,
        cache: ObjectCache[T],
        on_change: OnChange[T],
        read: Read[T],
        subject_of: SubjectOf = own_key,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._collection = collection
        self.cache = cache
        self._on_change = on_change
        self._read_value = read
        self._subject_of = subject_of
        self._sleep = sleep
        self._needs_list = True
        self._received_at = 0.0
        """When the API server last sent something; monotonic time."""
        self._failures = 0
        """In a row."""
        self._lists = 0
        """In a row, each of them within CALM_SECONDS of the one before."""
        self._listed_at = -math.inf
        self._shown: dict[Key, int] = {}
        """The versions that pages of a list have reported which has not ended yet."""
        self._relist_at = math.inf
        """When the next list is due where none is needed sooner; monotonic time."""
        self.listed = asyncio.Event()
        """There was a list: the cache can be read."""
        self.left_out = frozenset[str]()
        """Names of what could not be read of the last list, not even in part."""

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
            if time.monotonic() >= self._relist_at:
                self._needs_list = True
            await self._sleep(self._pause())

    async def _list_and_watch(self) -> None:
        if self._needs_list:
            count_list(self._collection.resource)
            now = time.monotonic()
            self._lists = self._lists + 1 if now - self._listed_at < CALM_SECONDS else 1
            self._listed_at = now
            await self._list()
        await self._watch()

    def _failed(self, error: ClusterError | None) -> None:
        self._failures += 1
        too_old = isinstance(error, UnreadableError) or (error and error.status == HTTPStatus.GONE)
        if error is None or too_old or self._failures % FAILURES_UNTIL_LIST == 0:
            self._needs_list = True

    def _pause(self) -> float:
        """Seconds; operators that lost one API server do not all come back at once."""
        count = max(self._failures, self._lists if self._needs_list else 0)
        pause = backoff_seconds(count, FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)
        return pause * random.uniform(0.5, 1.0)

    # --- list -------------------------------------------------------------------------------------

    async def _list(self) -> None:
        began = self.cache.begin_list()
        with self.cache.listing() as listing:
            version, unreadable = await self._read_all(listing, page_by_page=True)
            self.left_out = unreadable
            changes = self.cache.replace(listing.objects, version, began, unreadable)
        self._needs_list, self._received_at = False, time.monotonic()
        self._relist_at = self._received_at + random.uniform(*RELIST_SECONDS)
        self.listed.set()
        shown, self._shown = self._shown, {}
        self._report(
            change
            for change in changes
            if change.after is None or shown.get(change.after.key) != change.after.version
        )

    async def refresh(self, page_pause: float = 0.0) -> None:
        """Let the cache show what there is now at least, by a consistent list beside the watch,
        which reports the changes when it comes to them. `page_pause`: seconds after a whole page,
        while there are others. What cannot be read is `left_out`. Raises ClusterError.
        """
        count_list(self._collection.resource)
        with self.cache.listing() as listing:
            version, unreadable = await self._read_all(listing, page_pause=page_pause)
            self.left_out = unreadable
            self.cache.note_all(listing.objects, version, unreadable)

    async def _read_all(
        self, listing: Listing[T], *, page_by_page: bool = False, page_pause: float = 0.0
    ) -> tuple[int, frozenset[str]]:
        """Read all objects. Returns the version of the list, and the names of what cannot be read.
        `page_by_page`: what is new counts before the list ends, and a list that takes longer than
        the API server keeps its version goes on in later ones. The first version is returned.
        """
        unreadable: set[str] = set()
        version = ""
        async for page in pages(self._collection, across_versions=page_by_page):
            version = version or page.version
            if page.unreadable:
                unreadable.add(page.unreadable)
                _skip(self._collection, page.unreadable)
            for document in page.objects:
                known = self._known(document)
                seen = self._read(document, known, is_partial=page.is_partial)
                listing.add(seen)
                if page_by_page and page.token:
                    self._show(seen)
            if page_pause and page.token:
                await self._sleep(page_pause * len(page.objects) / PAGE_OBJECTS)
        return self._version(version), frozenset(unreadable)

    def _show(self, seen: Seen[T]) -> None:
        """Let an object count before the other pages of its list have come."""
        known = self.cache.get(seen.key)
        if known is None or known.version < seen.version:
            self.cache.note(seen)
            self._shown[seen.key] = seen.version
            self._report([Change(seen.subject, known, seen)])

    def _known(self, document: Any) -> Seen[T] | None:
        """What the cache has of a listed object in the same version: it is not read again."""
        metadata = _metadata(document)
        key = str(metadata.get("namespace") or ""), str(metadata.get("name"))
        known = self.cache.watched(key)
        now = metadata.get("uid"), metadata.get("resourceVersion")
        return known if known and (known.uid, str(known.version)) == now else None

    # --- watch ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Watch until the API server ends it. Raises ClusterError when it ends otherwise."""
        began, events = time.monotonic(), 0
        seconds = random.randint(*WATCH_SECONDS)
        async with aclosing(self._collection.watch(str(self.cache.version), seconds)) as stream:
            while (event := await self._next(stream)) is not None:
                self._take(event)
                self._failures = 0
                events += 1
        if not events and time.monotonic() - began < SHORTEST_WATCH_SECONDS:
            raise ClusterError("GET", self._collection.path, 0, "a watch ended as it had begun")

    async def _next(self, stream: AsyncGenerator[Object, None]) -> Object | None:
        """The next line; None at the end. Raises UnreadableError after too long without one."""
        left = self._received_at + IDLE_SECONDS - time.monotonic()
        try:
            async with asyncio.timeout(left):
                event = await anext(stream, None)
        except TimeoutError:
            raise self._unreadable("neither an event nor a bookmark for too long") from None
        if event is not None:
            self._received_at = time.monotonic()
        return event

    def _take(self, event: Object) -> None:
        kind, document = event.get("type"), event.get("object")
        if not isinstance(document, dict):
            raise self._unreadable("an event without an object")
        if kind == "ERROR":
            code, message = document.get("code"), document.get("message")
            status = code if isinstance(code, int) else 0
            raise ClusterError("GET", self._collection.path, status, str(message))
        try:
            is_partial = self._collection.watches_metadata or IS_HEAD in event
            self._report(self._apply(str(kind), document, is_partial=is_partial))
        except ValueError as error:
            raise self._unreadable(str(error)) from error

    def _apply(self, kind: str, document: Object, *, is_partial: bool) -> list[Change[T]]:
        """Raises ValueError for what cannot be compared, or comes too late."""
        if kind == "BOOKMARK":
            self.cache.bookmark(parse_version(_metadata(document).get("resourceVersion")))
            return []
        seen = self._read(document, is_partial=is_partial)
        return self.cache.apply(seen, deleted=kind == "DELETED")

    def _report(self, changes: Iterable[Change[T]]) -> None:
        for change in changes:
            self._on_change(change)

    # --- objects ----------------------------------------------------------------------------------

    def read(self, document: Object) -> Seen[T]:
        """An object of the collection from another answer, to be noted in the cache. Raises
        UnreadableError.
        """
        return self._read(document)

    def _read(
        self, document: Any, known: Seen[T] | None = None, *, is_partial: bool = False
    ) -> Seen[T]:
        metadata = _metadata(document)
        try:
            key, subject = own_key(metadata), self._subject_of(metadata)
            if known is not None and known.subject == subject and known.value is not None:
                return known
            value, size = (None, 0) if is_partial else self._value(key, document)
            return Seen(
                key,
                str(metadata["uid"]),
                parse_version(metadata["resourceVersion"]),
                int(metadata.get("generation") or 0),
                subject,
                value,
                size,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(f"an object without {error}") from error

    def _value(self, key: Key, document: Object) -> tuple[T | None, int]:
        """What is kept of an object. What somebody wrote into one must not hide all others."""
        try:
            return self._read_value(document)
        except Exception as error:
            log.warning("%s: %s/%s cannot be kept: %r", self._collection.path, *key, error)
            return None, 0

    def _version(self, text: str) -> int:
        try:
            return parse_version(text)
        except ValueError as error:
            raise self._unreadable(f"a list without {error}") from error

    def _unreadable(self, what: str) -> UnreadableError:
        return UnreadableError("GET", self._collection.path, 0, f"cannot read the answer: {what}")


def _metadata(document: Any) -> Object:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _skip(collection: Collection, name: str) -> None:
    count_unreadable(collection.resource)
    log.error(
        "%s: %s cannot be read and is skipped: it is larger than 4 MiB or no JSON (delete it)",
        collection.path,
        name,
    )
