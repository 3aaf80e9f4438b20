"""The objects of one kind in the API server: lists them in pages, and watches them.

A page that cannot be read is fetched again one object at a time, so that one object hides no other.
Of one that cannot be read either, the metadata come, or at least the name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from regroup_operator.api.resource import Object
from regroup_operator.errors import ExpiredError, UnreadableError
from regroup_operator.informer.api_connection import JSON, ApiConnection

PAGE_OBJECTS = 100
"""Objects of a page. With managedFields, pods and jobs have 5 to 20 kB."""
_PARTIAL = JSON + ";as={};v=v1;g=meta.k8s.io"


@dataclass(frozen=True)
class Page:
    """A part of a list."""

    objects: list[Object]
    version: str
    """metadata.resourceVersion of the list: a watch goes on from here."""
    token: str = ""
    """Where the next page begins; empty after the last one."""
    unreadable: str = ""
    """Name of the one object here, when it cannot be read."""
    is_partial: bool = False
    """Whether there is only the metadata of the one object here."""


@dataclass(frozen=True)
class Collection:
    """All objects below a path, or those that a label selector matches. With `watches_metadata` the
    events of its watch hold no spec and no status.

    All methods raise ClusterError, with status 410 for a token or version that is too old.
    """

    connection: ApiConnection
    path: str
    selector: str = ""
    watches_metadata: bool = False

    @property
    def resource(self) -> str:
        """Such as `trainingjobs`."""
        return self.path.rsplit("/", 1)[-1]

    async def page(self, limit: int, token: str) -> Page:
        """Up to `limit` objects. Raises UnreadableError when they cannot be read."""
        return Page(*_part(self.path, await self._list(limit, token), "items"))

    async def partial(self, token: str) -> Page:
        """The next object without spec and status, or only its name, as `kubectl get` would print
        it; an empty page where it has gone meanwhile. Raises UnreadableError when not even that can
        be read.
        """
        try:
            answer = await self._list(1, token, _PARTIAL.format("PartialObjectMetadataList"))
            objects, version, rest = _part(self.path, answer, "items")
            return Page(objects, version, rest, is_partial=bool(objects))
        except UnreadableError:
            return await self._skip(token)

    async def _skip(self, token: str) -> Page:
        answer = await self._list(1, token, _PARTIAL.format("Table"), includeObject="None")
        rows, version, token = _part(self.path, answer, "rows")
        return Page([], version, token, ", ".join(str(row["cells"][0]) for row in rows))

    def watch(self, version: str, seconds: int) -> AsyncGenerator[Object, None]:
        """The events from `version` on, for so many seconds."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            **self._selection(),
        }
        accept = _PARTIAL.format("PartialObjectMetadata") if self.watches_metadata else JSON
        return self.connection.lines(self.path, query, accept, seconds)

    async def _list(self, limit: int, token: str, accept: str = JSON, **more: str) -> Object:
        going_on = {"continue": token} if token else {}
        query = {"limit": str(limit), **going_on, **self._selection(), **more}
        return await self.connection.request("GET", self.path, query=query, accept=accept)

    def _selection(self) -> dict[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}


async def pages(
    collection: Collection, limit: int = PAGE_OBJECTS, *, across_versions: bool = False
) -> AsyncIterator[Page]:
    """All pages. One that cannot be read comes as pages of one object each. Raises as the
    collection does.

    A list that takes longer than the API server keeps its version fails with 410, unless it may go
    on `across_versions`: then the pages that follow are of a later version.
    """
    token, alone, is_renewed = "", 0, False
    while True:
        try:
            page = await _page(collection, 1 if alone else limit, token)
        except UnreadableError:
            if alone:
                raise
            alone = limit
            continue
        except ExpiredError as error:
            if not (across_versions and error.token) or is_renewed:
                raise
            token, is_renewed = error.token, True
            continue
        yield page
        token, alone, is_renewed = page.token, max(0, alone - 1), False
        if not token:
            return


async def _page(collection: Collection, limit: int, token: str) -> Page:
    """A page; of one object that cannot be read, what can be."""
    try:
        return await collection.page(limit, token)
    except UnreadableError:
        if limit > 1:
            raise
        return await collection.partial(token)


def _part(path: str, answer: Object, field: str) -> tuple[list[Any], str, str]:
    """The entries of a list, its version and where it continues. Raises UnreadableError."""
    entries, metadata = answer.get(field), answer.get("metadata")
    if not isinstance(entries, list | None) or not isinstance(metadata, dict):
        raise UnreadableError("GET", path, 0, f"cannot read the answer: no {field} or metadata")
    version, token = metadata.get("resourceVersion", ""), metadata.get("continue", "")
    return entries or [], str(version), str(token)
