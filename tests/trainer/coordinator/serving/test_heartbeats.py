"""Frames of heartbeats at a real server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.serving.server import LONGEST_DELAY_SECONDS, Server
from regroup_trainer.system.heartbeat_line import UPGRADE, Beat, Kind
from tests.support.coordinator_server import BEARER, TOKEN, Setup, serving
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.waiting import until

TIMEOUT = 0.45


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with serving(tmp_path, timeout_milliseconds=int(1000 * TIMEOUT)) as made:
        yield made


class Line:
    """An agent's connection for heartbeats."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *frames: Beat) -> None:
        self.writer.write(b"".join(frame.encode() for frame in frames))

    async def answer(self) -> Beat:
        async with asyncio.timeout(30):
            return Beat.decode(await self.reader.readexactly(16))

    async def ended(self) -> bool:
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                assert await self.reader.read() == b""
        return True


def address_of(setup: Setup) -> tuple[str, int]:
    host, port = setup.url.removeprefix("http://").split(":")
    return host, int(port)


def request_for(name: str) -> bytes:
    headers = {**BEARER, "Host": "h", "Connection": "Upgrade", "Upgrade": UPGRADE}
    lines = [f"GET /v1/heartbeats/0?member={name} HTTP/1.1"]
    lines += [f"{header}: {value}" for header, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


@contextlib.asynccontextmanager
async def line_of(setup: Setup, name: str = "uid-0") -> AsyncIterator[Line]:
    """A connection that was upgraded."""
    reader, writer = await asyncio.open_connection(*address_of(setup))
    writer.write(request_for(name))
    async with asyncio.timeout(30):
        assert b" 101 " in (await reader.readuntil(b"\r\n\r\n"))
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_frames_report_that_a_member_lives_and_how_late_they_are(setup: Setup) -> None:
    socket_of = await setup.join(make_hello())
    members = setup.core.state.members
    await until("a member", lambda: "uid-0" in members)
    async with line_of(setup) as line:
        before = members["uid-0"].last_seen
        line.send(Beat(Kind.ALIVE, 7, wants_answer=True, delay=0.25))
        assert await line.answer() == Beat(Kind.KNOWN, 7)
        assert members["uid-0"].last_seen > before
        assert members["uid-0"].delay == 0.25
        line.send(Beat(Kind.ALIVE, 8, wants_answer=True, delay=1e6))
        await line.answer()
        assert members["uid-0"].delay == LONGEST_DELAY_SECONDS
    await socket_of.close()


async def test_who_is_no_member_is_answered_without_asking(setup: Setup) -> None:
    async with line_of(setup, "uid-7") as line:
        line.send(Beat(Kind.ALIVE, 7))
        assert await line.answer() == Beat(Kind.UNKNOWN, 7)
        assert (await setup.status()).agents_in_contact == ("uid-7",)


async def test_a_worker_that_imports_torch_is_in_contact_and_not_called_unknown(
    setup: Setup,
) -> None:
    async with line_of(setup, "uid-7") as line:
        line.send(Beat(Kind.IMPORTING, 1), Beat(Kind.IMPORTING, 2, wants_answer=True))
        assert await line.answer() == Beat(Kind.KNOWN, 2)
    assert 0 in setup.core.state.importing
    assert (await setup.status()).agents_in_contact == ("uid-7",)


@pytest.mark.parametrize("header", [{}, {"Upgrade": "websocket", "Connection": "Upgrade"}])
async def test_a_request_without_the_upgrade_is_refused(
    setup: Setup, header: dict[str, str]
) -> None:
    url = f"{setup.url}/v1/heartbeats/0?member=uid-0"
    async with setup.session.get(url, headers=header) as response:
        assert response.status == 400
        assert UPGRADE in await response.text()


async def test_an_upgrade_for_nobody_is_refused(setup: Setup) -> None:
    headers = {"Upgrade": UPGRADE, "Connection": "Upgrade"}
    url = f"{setup.url}/v1/heartbeats/0"
    async with setup.session.get(url, headers=headers) as response:
        assert response.status == 400


async def test_what_is_no_frame_ends_the_connection_and_is_no_sign_of_life(setup: Setup) -> None:
    async with line_of(setup) as line:
        line.writer.write(b"POST /v1/heartbeat/uid-0 HTTP/1.1\r\n\r\n")
        assert await line.ended()
    assert (await setup.status()).agents_in_contact == ()


async def test_an_open_connection_for_heartbeats_costs_no_task(setup: Setup) -> None:
    before = len(asyncio.all_tasks())
    async with contextlib.AsyncExitStack() as lines:
        for _ in range(10):
            await lines.enter_async_context(line_of(setup))
        await until("no task more", lambda: len(asyncio.all_tasks()) <= before)
        assert len(setup.server.connections) >= 10


async def test_the_longest_idle_connection_makes_room_for_the_successors_of_dead_nodes(
    setup: Setup,
) -> None:
    most = setup.server._most_connections()
    async with line_of(setup) as dead, line_of(setup) as living:
        for _ in range(most):
            living.send(Beat(Kind.ALIVE, 1, wants_answer=True))
            await living.answer()
            async with line_of(setup):
                pass
        async with contextlib.AsyncExitStack() as more:
            while not dead.reader.at_eof():
                living.send(Beat(Kind.ALIVE, 1, wants_answer=True))
                await living.answer()
                await more.enter_async_context(line_of(setup))
                assert len(setup.server.connections) <= most
        assert await dead.ended()


async def test_what_a_busy_loop_has_not_read_yet_is_not_held_against_a_member(
    tmp_path: Path,
) -> None:
    now = time.monotonic()
    core = Coordinator(1, "node-c", make_desired(directory=str(tmp_path)), now, 0.0)
    server = Server(core, TOKEN)
    async with server.serve("127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        setup = Setup(core, server, f"http://127.0.0.1:{port}", session)
        core.on_message(make_hello(), "uid-0", now)
        async with line_of(setup) as line:
            line.send(Beat(Kind.ALIVE, 1))  # it is in the socket now
            core.state.members.on_seen(core.state.members["uid-0"], now - 60.0)
            ticking = asyncio.create_task(server.run())
            for _ in range(10):
                await asyncio.sleep(0)
            assert "uid-0" in core.state.members
            core.state.members.on_seen(core.state.members["uid-0"], now - 60.0)
            await until(
                "the loss of who is unresponsive", lambda: "uid-0" not in core.state.members
            )
            ticking.cancel()


async def test_a_member_that_is_unresponsive_is_lost_after_its_timeout(setup: Setup) -> None:
    socket_of = await setup.join(make_hello())
    members = setup.core.state.members
    await until("a member", lambda: "uid-0" in members)
    await until("its loss", lambda: "uid-0" not in members)
    [member] = (await setup.status()).members
    assert member.lost.startswith("no heartbeat for 0.")
    await socket_of.close()


async def test_the_end_of_the_server_ends_the_connections(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as open_until_then:
        setup = await open_until_then.enter_async_context(serving(tmp_path))
        async with line_of(setup) as line:
            await open_until_then.aclose()
            assert await line.ended()
