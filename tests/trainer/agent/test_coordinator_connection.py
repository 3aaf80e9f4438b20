"""The agent's line to a coordinator that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Self, cast

import pytest
from aiohttp import ClientWebSocketResponse, WSMessage, WSMsgType, web
from aiohttp.test_utils import TestServer

from regroup_trainer.agent import coordinator_connection
from regroup_trainer.agent.coordinator_connection import CoordinatorConnection, longest_pause
from regroup_trainer.protocol.agent_messages import Leaving, Reports, ShortHello, agent_message
from regroup_trainer.protocol.coordinator_messages import (
    BeginDifference,
    CoordinatorMessage,
    Refused,
    Welcome,
)
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, RecordWanted
from regroup_trainer.protocol.message import Message
from regroup_trainer.protocol.rank_messages import Finished
from regroup_trainer.protocol.record_transfer import difference_of
from tests.support.generations import make_generation, make_hello
from tests.support.waiting import until

NUMBER = GenerationNumber(1, 1)
FINISHED = Finished(generation=NUMBER, rank=0, step=3, reason="leave")


class Peer:
    """A coordinator that sends given answers, connection by connection."""

    def __init__(
        self,
        *answers: Message,
        then: Callable[[int], bool] = lambda count: True,
        accepts_after: float = 0.0,
    ) -> None:
        self._answers = answers
        self._accepts_after = accepts_after
        self.requests = 0
        self._then = then
        self.received: list[list[Message]] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        await asyncio.sleep(self._accepts_after)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        received: list[Message] = []
        self.received.append(received)
        async for text in socket:
            received.append(agent_message.validate_json(text.data))
            if isinstance(received[-1], ShortHello):
                await socket.send_str(
                    self._answers[min(len(self.received), len(self._answers)) - 1].model_dump_json()
                )
            elif not self._then(len(self.received)):
                await socket.close()
        return socket


@contextlib.asynccontextmanager
async def connected(
    peer: Peer, record: GenerationRecord | None = None
) -> AsyncIterator[CoordinatorConnection]:
    """A connection to the peer that keeps itself up."""
    app = web.Application()
    app.router.add_get("/v1/agent", peer.serve)
    server = TestServer(app)
    await server.start_server()
    reported: list[CoordinatorMessage] = []
    connection = CoordinatorConnection(
        f"http://{server.host}:{server.port}/",
        "token",
        1,
        lambda: make_hello(record=record),
        reported.append,
    )
    running = asyncio.create_task(connection.run())
    try:
        yield connection
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await server.close()


async def test_a_connection_to_a_coordinator_that_is_gone_is_closed_at_once() -> None:
    peer = Peer(Welcome(term=1), Welcome(term=2))
    async with connected(peer) as connection:
        await until("the first welcome", lambda: len(peer.received) == 1 and connection.welcomed)
        connection.on_lost(time.monotonic())
        await until("another welcome", lambda: len(peer.received) == 2 and connection.welcomed)


async def test_a_late_answer_to_a_heartbeat_from_before_the_hello_closes_no_connection() -> None:
    """The coordinator did not know the member then, and welcomed it meanwhile."""
    peer, before = Peer(Welcome(term=1)), time.monotonic()
    async with connected(peer) as connection:
        await until("a welcome", lambda: connection.welcomed)
        connection.on_lost(before)
        connection.send(FINISHED)
        await until("a message", lambda: len(peer.received[0]) == 2)
        assert connection.welcomed
    assert len(peer.received) == 1


async def test_an_agent_follows_its_coordinator_to_a_new_address() -> None:
    former, present = Peer(Welcome(term=1)), Peer(Welcome(term=1))
    async with connected(present) as there, connected(former) as connection:
        await until("a welcome", lambda: connection.welcomed)
        await until("a welcome", lambda: there.welcomed)
        connection.move(there.url)
        await until("another welcome", lambda: len(present.received) == 2 and connection.welcomed)
        connection.move(there.url)
        assert connection.welcomed, "an address that it has already changes nothing"
    assert len(former.received) == 1


async def test_a_coordinator_that_is_slow_to_accept_is_given_more_time_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many agents that gave up each time would keep it busy for ever, and never be welcomed."""
    monkeypatch.setattr(coordinator_connection, "CONNECT_SECONDS", 0.2)
    peer = Peer(Welcome(term=1), accepts_after=0.8)
    async with connected(peer) as connection:
        await until("a welcome", lambda: connection.welcomed)
    assert peer.requests > 1


async def test_messages_sent_while_the_connection_was_down_go_out_after_the_next_hello() -> None:
    peer = Peer(Welcome(term=1))
    async with connected(peer) as connection:
        connection.send(FINISHED)
        await until("a message", lambda: peer.received and len(peer.received[-1]) == 2)
    assert isinstance(peer.received[0][0], ShortHello)
    assert peer.received[0][1] == Reports(reports=(FINISHED,))


async def test_a_lost_connection_is_made_anew_with_a_hello() -> None:
    peer = Peer(Welcome(term=1), then=lambda count: count > 1)
    async with connected(peer) as connection:
        connection.send(FINISHED)
        await until("another hello", lambda: len(peer.received) == 2 and len(peer.received[1]) == 1)
        connection.send(Leaving(reason="SIGTERM"))
        await until("a message", lambda: len(peer.received[1]) == 2)
    assert peer.received[1][1] == Leaving(reason="SIGTERM")


async def test_a_refusal_that_may_pass_is_tried_again() -> None:
    peer = Peer(Refused(reason="another term has begun", final=False), Welcome(term=2))
    async with connected(peer) as connection:
        connection.send(FINISHED)
        await until("a message", lambda: len(peer.received) == 2 and len(peer.received[1]) == 2)
    assert [type(message) for message in peer.received[0]] == [ShortHello]


async def test_a_coordinator_that_cannot_be_reached_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = CoordinatorConnection("http://127.0.0.1:9", "token", 1, make_hello, lambda _: None)
    running = asyncio.create_task(connection.run())
    await until("a warning", lambda: caplog.messages)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    (reported,) = caplog.messages
    assert reported.startswith(
        "cannot connect to the coordinator at http://127.0.0.1:9/v1/agent: Connection refused"
    )


async def test_a_difference_that_does_not_make_the_record_is_logged_once_for_a_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, *later = [make_generation(1, n) for n in (1, 2, 3)]
    begins = [
        BeginDifference(
            number=record.number,
            checksum="odd",
            parent=first.number,
            difference=difference_of(first, record),
        )
        for record in later
    ]
    peer = Peer(begins[0], begins[0], begins[1], then=lambda count: count > 3)
    async with connected(peer, first):
        await until("four connections", lambda: list(map(len, peer.received)) == [2, 2, 2, 2])
    asked = [RecordWanted(number=record.number) for record in later]
    assert [received[1] for received in peer.received] == [asked[0], asked[0], asked[1], asked[1]]
    (line, other) = [record.getMessage() for record in caplog.records]
    assert line == (
        "the record of generation 1.2 cannot be made of the one before (it would have another "
        "checksum): fetching all of it. In a large job that takes seconds, and each worker that "
        "finds this does so. Run agents and coordinator from one release"
    )
    assert "generation 1.3" in other


async def test_a_new_generation_drops_old_reports_but_not_the_request_to_leave() -> None:
    peer = Peer(Welcome(term=1))
    async with connected(peer) as connection:
        connection.send(FINISHED)
        connection.send(Leaving(reason="SIGTERM"))
        connection.begin_generation(1)
        await until("a message", lambda: peer.received and len(peer.received[-1]) == 2)
    assert peer.received[0][1:] == [Leaving(reason="SIGTERM")]


class Ending:
    """A socket that welcomes and then ends, while a message is still being sent over it."""

    def __init__(self) -> None:
        self.messages = [WSMessage(WSMsgType.TEXT, Welcome(term=1).model_dump_json(), "")]
        self.sending, self.ending = asyncio.Event(), asyncio.Event()

    async def send_str(self, text: str) -> None:
        if agent_message.validate_json(text).kind == "hello":
            return
        self.sending.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            await asyncio.Event().wait()  # it takes its time to end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WSMessage:
        if self.messages:
            return self.messages.pop()
        await self.sending.wait()
        raise StopAsyncIteration


async def test_an_agent_that_ends_while_its_connection_is_lost_does_not_connect_again() -> None:
    connection = CoordinatorConnection("http://c:1", "token", 1, make_hello, lambda _: None)
    connection.send(FINISHED)
    socket = Ending()
    talking = asyncio.create_task(connection._talk(cast(ClientWebSocketResponse, socket)))
    async with asyncio.timeout(10):
        await socket.ending.wait()
        talking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talking


def test_a_coordinator_that_has_just_ended_is_looked_for_more_often_than_one_that_stays_away() -> (
    None
):
    pauses = [longest_pause(attempts) for attempts in range(1, 15)]
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert 0.75 * sum(pauses[:10]) >= 2.5  # the start of a process, and its first answer
    assert max(pauses[:10]) <= 0.4
    assert pauses[10:] == [1.0] * 4
