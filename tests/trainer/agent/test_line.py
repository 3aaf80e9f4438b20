"""The agent's line to a coordinator that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from regroup_trainer.agent.line import Line
from regroup_trainer.contract import (
    CoordinatorMessage,
    Finished,
    GenerationNumber,
    Hello,
    Leaving,
    Message,
    Refused,
    Welcome,
    agent_message,
)
from tests.support.waiting import wait_until
from tests.trainer.test_contract import make_hello

NUMBER = GenerationNumber(1, 1)
FINISHED = Finished(generation=NUMBER, rank=0, step=3, reason="leave")


class Peer:
    """A coordinator that says what it is told to, connection by connection."""

    def __init__(self, *answers: Message, then: Callable[[int], bool] = lambda count: True) -> None:
        self._answers = answers
        self._then = then
        self.heard: list[list[Message]] = []
        self.news = asyncio.Event()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        heard: list[Message] = []
        self.heard.append(heard)
        async for text in socket:
            heard.append(agent_message.validate_json(text.data))
            self.news.set()
            if isinstance(heard[-1], Hello):
                await socket.send_str(self._answers[min(len(self.heard), len(self._answers)) - 1].model_dump_json())
            elif not self._then(len(self.heard)):
                await socket.close()
        return socket

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.news.clear()
                with contextlib.suppress(TimeoutError):  # the line's own state changes without news here
                    await asyncio.wait_for(self.news.wait(), 0.05)


@contextlib.asynccontextmanager
async def connected(peer: Peer) -> AsyncIterator[Line]:
    """A line to it that keeps itself up."""
    app = web.Application()
    app.router.add_get("/v1/agent", peer.serve)
    server = TestServer(app)
    await server.start_server()
    told: list[CoordinatorMessage] = []
    line = Line(f"http://{server.host}:{server.port}/", "token", make_hello, told.append)
    running = asyncio.create_task(line.run())
    try:
        yield line
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await server.close()


async def test_a_connection_to_a_coordinator_that_is_gone_is_given_up_at_once() -> None:
    peer = Peer(Welcome(term=1), Welcome(term=2))
    async with connected(peer) as line:
        await peer.until(lambda: len(peer.heard) == 1 and line.welcomed)
        line.reconnect()
        await peer.until(lambda: len(peer.heard) == 2 and line.welcomed)


async def test_what_was_said_while_the_line_was_down_goes_out_after_the_next_hello() -> None:
    peer = Peer(Welcome(term=1))
    async with connected(peer) as line:
        line.send(FINISHED)
        await peer.until(lambda: bool(peer.heard) and len(peer.heard[-1]) == 2)
    assert isinstance(peer.heard[0][0], Hello)
    assert peer.heard[0][1] == FINISHED


async def test_a_lost_connection_is_made_anew_with_a_hello() -> None:
    peer = Peer(Welcome(term=1), then=lambda count: count > 1)
    async with connected(peer) as line:
        line.send(FINISHED)
        await peer.until(lambda: len(peer.heard) == 2 and len(peer.heard[1]) == 1)
        line.send(Leaving(reason="SIGTERM"))
        await peer.until(lambda: len(peer.heard[1]) == 2)
    assert peer.heard[1][1] == Leaving(reason="SIGTERM")


async def test_a_refusal_that_may_pass_is_tried_again() -> None:
    peer = Peer(Refused(reason="another term has begun", final=False), Welcome(term=2))
    async with connected(peer) as line:
        line.send(FINISHED)
        await peer.until(lambda: len(peer.heard) == 2 and len(peer.heard[1]) == 2)
    assert [type(message) for message in peer.heard[0]] == [Hello]


async def test_a_coordinator_that_cannot_be_reached_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    line = Line("http://127.0.0.1:9", "token", make_hello, lambda _: None)
    running = asyncio.create_task(line.run())
    await asyncio.to_thread(wait_until, "a word of it", lambda: caplog.messages)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    (told,) = caplog.messages
    assert told.startswith("no line to the coordinator, but trying on: http://127.0.0.1:9/v1/agent: Cannot connect")


async def test_a_new_generation_drops_old_reports_but_not_the_wish_to_leave() -> None:
    peer = Peer(Welcome(term=1))
    async with connected(peer) as line:
        line.send(FINISHED)
        line.send(Leaving(reason="SIGTERM"))
        line.drop_unsent_reports()
        await peer.until(lambda: bool(peer.heard) and len(peer.heard[-1]) == 2)
    assert peer.heard[0][1:] == [Leaving(reason="SIGTERM")]
