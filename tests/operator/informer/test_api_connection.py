"""Requests of one namespace delay those of others by little, and wait without being given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import kopf
import pytest
from aiohttp import web

from regroup_operator.informer import api_connection
from regroup_operator.informer.api_connection import (
    REQUESTS_AT_ONCE,
    REQUESTS_OF_A_NAMESPACE,
    ApiConnection,
)
from tests.support.async_server import AsyncServer
from tests.support.waiting import until

FLOOD = 8 * 16
"""What eight rounds of a namespace send at once."""


class SlowWrites(AsyncServer):
    """Answers a POST once it may, and anything else at once."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.seconds = 0.0
        """How long a POST then takes."""
        self.held = self.answered = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            self.held += 1
            await self.may_answer.wait()
            await asyncio.sleep(self.seconds)
            self.held -= 1
            self.answered += 1
        return web.json_response({"kind": "Thing"})


@asynccontextmanager
async def flooded(server: SlowWrites, *namespaces: str) -> AsyncIterator[ApiConnection]:
    """A connection over which each of these namespaces sends FLOOD creations."""
    async with server, ApiConnection(lambda: kopf.ConnectionInfo(server=server.url)) as connection:
        paths = [f"/api/v1/namespaces/{each}/pods" for each in namespaces for _ in range(FLOOD)]
        posts = [asyncio.create_task(connection.request("POST", path, {})) for path in paths]
        yield connection
        server.may_answer.set()
        await asyncio.gather(*posts)


async def test_a_namespace_whose_writes_are_slow_leaves_connections_to_others() -> None:
    """None of its 128 requests is answered, and another namespace's and the nodes' are."""
    server = SlowWrites()
    async with flooded(server, "flood") as connection:
        await until("its places are taken", lambda: server.held == REQUESTS_OF_A_NAMESPACE)
        async with asyncio.timeout(api_connection.TIMEOUT.connect):
            for path in ("/api/v1/namespaces/other/pods/one", "/api/v1/nodes/n1"):
                assert await connection.request("GET", path)
        assert server.held == REQUESTS_OF_A_NAMESPACE


async def test_two_such_namespaces_delay_another_by_one_request() -> None:
    server = SlowWrites()
    async with flooded(server, "flood", "more") as connection:
        await until("all places are taken", lambda: server.held == REQUESTS_AT_ONCE)
        get = connection.request("GET", "/api/v1/namespaces/other/pods/one")
        waiting = asyncio.create_task(get)
        await asyncio.sleep(0)
        server.seconds = 0.4
        server.may_answer.set()
        await waiting
        assert server.answered <= 3 * REQUESTS_AT_ONCE, "it was not behind all 256"


async def test_the_wait_for_a_place_is_no_missing_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOOD requests of 0.4 s each, of which a namespace sends 16 at a time, take 3.2 s."""
    monkeypatch.setattr(api_connection, "TIMEOUT", aiohttp.ClientTimeout(total=2.0, connect=2.0))
    server = SlowWrites()
    server.seconds = 0.4
    server.may_answer.set()
    async with flooded(server, "flood"):
        pass
