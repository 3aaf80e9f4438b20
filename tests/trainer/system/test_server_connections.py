"""Connections are bounded: real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from regroup_trainer.system import server_connections
from regroup_trainer.system.server_connections import NEWCOMERS, Connections, raise_open_files
from tests.support.open_files import few_open_files
from tests.support.waiting import until

LIMIT = 20
LARGE = b"x" * (16 << 20)
"""More than the kernel holds of one connection."""
PROVEN = LIMIT - NEWCOMERS


@dataclass
class Site:
    """A server whose requests to /proven prove their connection. Those to /unproven do not, and
    /unproven/large has a large answer.
    """

    connections: Connections
    port: int
    peers: list[Peer] = field(default_factory=list)

    async def connect(self, request: str = "") -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(peer)
        peer.writer.write(request.encode())
        return peer

    async def proven(self, path: str = "/proven") -> Peer:
        peer = await self.connect(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"200 OK" in await peer.response()
        return peer


@dataclass
class Peer:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def line(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readline()

    async def ended(self) -> bool:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(1 << 16):
                    pass
        return True

    async def answers(self, path: str = "/other") -> bool:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            return b"200 OK" in await self.response()
        return False

    async def response(self) -> bytes:
        """The status line; the rest is read, too."""
        first = await self.line()
        while await self.line() not in (b"\r\n", b""):
            pass
        await self.reader.read(2 if first else 0)  # the body: ok
        return first

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    connections = Connections(lambda: LIMIT)

    @web.middleware
    async def note(request: web.Request, handler: object) -> web.StreamResponse:
        connections.request(request.transport)
        if request.path == "/proven":
            connections.prove(request.transport)
        if request.path == "/held":
            connections.prove(request.transport)
            connections.hold(request.transport)
        if request.path.startswith("/unproven"):
            connections.answer_unproven(request.transport)
        if request.path == "/unproven/large":
            return web.Response(body=LARGE)
        return web.Response(text="ok")

    runner = web.AppRunner(web.Application(middlewares=[note]))
    listening = await connections.listen(runner, "127.0.0.1", 0)
    made = Site(connections, listening.addresses[0][1])
    yield made
    for peer in made.peers:
        await peer.close()
    await listening.cleanup()


async def test_a_flood_of_idle_connections_pushes_itself_out(site: Site) -> None:
    agents = [await site.proven() for _ in range(PROVEN - 1)]
    flood = [await site.connect() for _ in range(200)]
    assert all([await peer.ended() for peer in flood[:-LIMIT]])
    assert len(site.connections) <= LIMIT
    newcomer = await site.connect("GET /proven HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"200 OK" in await newcomer.line()
    assert all([await agent.answers() for agent in agents])
    assert site.connections.refused >= 200 - LIMIT


async def test_the_longest_idle_of_the_proven_makes_room_for_the_successors_of_dead_nodes(
    site: Site,
) -> None:
    """A node that dies closes nothing. WebSockets are closed by those who know the member."""
    socket = await site.proven("/held")
    dead, *living = [await site.proven() for _ in range(PROVEN - 1)]
    for _ in range(2):
        assert all([await peer.answers() for peer in living])
    successor = await site.proven()
    assert await dead.ended()
    assert all([await peer.answers() for peer in (socket, successor, *living)])
    assert len(site.connections) == PROVEN


async def test_of_those_that_are_answered_without_the_token_there_are_few(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the limit is. Those that have not asked yet, and may have the token, stay."""
    monkeypatch.setattr(server_connections, "ANSWERED_UNPROVEN", 4)
    newcomers = [await site.connect() for _ in range(3)]
    active, *idle = [await site.proven("/unproven") for _ in range(4)]
    assert await active.answers("/unproven")
    later = [await site.proven("/unproven") for _ in range(3)]
    assert all([await peer.ended() for peer in idle])
    assert all([await peer.answers("/unproven") for peer in (active, *later)])
    assert all([await peer.answers("/proven") for peer in newcomers])
    assert len(site.connections) == 4 + 3


async def test_whoever_shows_the_token_later_is_one_of_those_with_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connections, "ANSWERED_UNPROVEN", 1)
    peer = await site.proven("/unproven")
    assert await peer.answers("/proven")
    unproven = [await site.proven("/unproven") for _ in range(3)]
    assert all([await one.ended() for one in unproven[:-1]])
    assert await peer.answers("/unproven")


async def test_who_reads_no_answer_and_has_no_token_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connections, "UNREAD_SECONDS", 0.2)
    reads = await site.proven("/unproven")
    await site.connect("GET /unproven/large HTTP/1.1\r\nHost: h\r\n\r\n")
    await until("the answer", lambda: len(site.connections) == 2)
    await until("its end", lambda: len(site.connections) == 1)
    assert await reads.answers("/unproven")


@pytest.mark.parametrize("begun", ["", "GET /proven HTTP/1.1\r\nHost: h\r\nX-Slow: "])
async def test_a_request_that_does_not_arrive_ends_its_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    monkeypatch.setattr(server_connections, "HEADER_SECONDS", 0.2)
    slow = await site.connect(begun)

    async def drip() -> None:
        """A byte now and then, so that the connection is never idle."""
        while not slow.writer.is_closing():
            slow.writer.write(b"x" if begun else b"")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    assert await slow.ended()
    dripping.cancel()
    assert len(site.connections) == 0


async def test_a_connection_that_has_asked_may_be_idle(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connections, "HEADER_SECONDS", 0.2)
    peers = [await site.proven(), await site.connect()]
    peers[1].writer.write(b"GET /other HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"200 OK" in await peers[1].line()
    assert await (await site.connect()).ended()
    for peer in peers:
        peer.writer.write(b"GET /proven HTTP/1.1\r\nHost: h\r\n\r\n")
    assert len(site.connections) == 2


def test_open_files_are_bounded_by_the_hard_limit_alone() -> None:
    with few_open_files() as limits:
        for _ in range(2):
            raise_open_files()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
