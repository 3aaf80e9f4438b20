"""An API server of one collection that does on demand what a real one does once a month: versions
that are too old, lines that are cut, answers that cannot be read.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any

import kopf
from aiohttp import web

from regroup_operator.informer.api_connection import ApiConnection
from tests.support.async_server import AsyncServer

Json = dict[str, Any]
GARBAGE = b'{"kind": "garbage"'


def make_object(name: str, version: int, generation: int = 1, **metadata: Any) -> Json:
    """An object of the collection, in namespace `a`."""
    known = {"namespace": "a", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**known, "generation": generation, **metadata}}


class FakeApiServer(AsyncServer):
    """Serves the collection under each path. An asynchronous context manager."""

    def __init__(self) -> None:
        self.objects: list[Json] = []
        self.version = 1
        self.unreadable: set[str] = set()
        """Names of objects that spoil each answer that holds them."""
        self.large: set[str] = set()
        """Names of those that do so unless the answer holds no more than metadata."""
        self.fleeting: set[str] = set()
        """Names of those that are gone once they were asked for alone."""
        self.nameless = False
        """Whether not even the names of those can be read."""
        self.expired_tokens = 0
        """How many of the next pages are answered by 410."""
        self.renews_tokens = False
        """Whether those answers say how the list can go on, in the next version."""
        self.more: Json = {}
        """What else those say that do not."""
        self.last_page = asyncio.Event()
        """The page that ends a list is not answered before this is set."""
        self.last_page.set()
        self.refusals: list[int] = []
        """Statuses of the next answers to watches."""
        self.lists = 0
        self.limits: list[int] = []
        """The limit of each page that was asked for."""
        self.watched_from: list[str] = []
        """The version of each watch."""
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What watches send; None ends one."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.lines.put_nowait(None)
        await super().__aexit__(kind, error, traceback)

    def connect(self) -> ApiConnection:
        """A connection to it, to be entered."""
        return ApiConnection(lambda: kopf.ConnectionInfo(server=self.url))

    def send(self, kind: str, document: Json) -> None:
        """Let the watch report an event."""
        self.lines.put_nowait(json.dumps({"type": kind, "object": document}).encode() + b"\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        return await self._page(request)

    async def _page(self, request: web.Request) -> web.Response:
        token = request.query.get("continue", "")
        start, limit = int(token or 0), int(request.query["limit"])
        self.limits.append(limit)
        self.lists += not token
        if start + limit >= len(self.objects):
            await self.last_page.wait()
        if token and self.expired_tokens:
            self.expired_tokens -= 1
            self.version += self.renews_tokens
            more = {"metadata": {"continue": token}} if self.renews_tokens else self.more
            return web.json_response({"message": "the token has expired", **more}, status=410)
        part = self.objects[start : start + limit]
        names = {each["metadata"]["name"] for each in part}
        is_table = "as=Table" in request.headers["Accept"]
        if names & self.unreadable and (self.nameless or not is_table):
            return web.Response(body=GARBAGE)
        if names & self.fleeting:
            self.objects = [each for each in self.objects if each not in part or limit > 1]
            return web.Response(body=GARBAGE)
        if names & self.large and "as=" not in request.headers["Accept"]:
            return web.Response(body=GARBAGE)
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(self.objects):
            metadata["continue"] = str(start + limit)
        rows = [{"cells": [each["metadata"]["name"]]} for each in part]
        entries = {"rows": rows} if is_table else {"items": part}
        return web.json_response({"metadata": metadata, **entries})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched_from.append(request.query["resourceVersion"])
        if self.refusals:
            return web.json_response({"message": "not now"}, status=self.refusals.pop(0))
        answer = web.StreamResponse()
        await answer.prepare(request)
        while (line := await self.lines.get()) is not None:
            await answer.write(line)
        return answer
