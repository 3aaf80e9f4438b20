"""Over real connections: agents get the record of their generation from a coordinator, and its
successor gets it from one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from regroup_trainer.agent.coordinator_connection import CoordinatorConnection
from regroup_trainer.coordinator.serving import arrivals
from regroup_trainer.coordinator.serving.arrivals import MOST_ASKED
from regroup_trainer.protocol import record_transfer
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    CoordinatorMessage,
    Welcome,
    sent_message,
)
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    RecordPiece,
    RecordWanted,
)
from regroup_trainer.protocol.message import Message
from regroup_trainer.protocol.record_transfer import RecordPieces
from tests.support.coordinator_server import TOKEN, Setup, serving
from tests.support.generations import make_generation, make_hello
from tests.support.waiting import wait_until

NEVER = 600.0
WORKERS = 6
PATIENT = {
    "replicas": WORKERS,
    "min_replicas": WORKERS,
    "max_replicas": WORKERS,
    "heartbeat_milliseconds": 60_000,
    "timeout_milliseconds": 600_000,
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a few members has several pieces."""
    monkeypatch.setattr(record_transfer, "PIECE_CHARACTERS", 300)


class Agent:
    """An agent without ranks, which enters the generations that it gets."""

    def __init__(self, index: int, url: str) -> None:
        self.record: GenerationRecord | None = None
        self._index = index
        self.connection = CoordinatorConnection(url, TOKEN, 1, self.hello, self._on_message)

    def hello(self) -> Hello:
        highest = self.record.number if self.record else None
        return make_hello(self._index, record=self.record, highest=highest)

    def _on_message(self, message: CoordinatorMessage) -> None:
        if isinstance(message, Begin):
            self.record = message.record


@contextlib.asynccontextmanager
async def agents(url: str) -> AsyncIterator[list[Agent]]:
    """Agents that keep connected."""
    made = [Agent(index, url) for index in range(WORKERS)]
    running = [asyncio.create_task(agent.connection.run()) for agent in made]
    try:
        yield made
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_successor_learns_the_record_from_few_agents_and_all_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches, fetch = [], arrivals._fetch

    async def counted(
        socket: aiohttp.web.WebSocketResponse, number: GenerationNumber
    ) -> GenerationRecord:
        fetches.append(number)
        return await fetch(socket, number)

    monkeypatch.setattr(arrivals, "_fetch", counted)
    async with serving(tmp_path, **PATIENT) as setup, agents(setup.url) as members:
        await asyncio.to_thread(
            wait_until, "a generation", lambda: all(agent.record for agent in members), 60.0
        )
        assert setup.core.state.current is not None
        record = setup.core.state.current.record
        assert len(record.members) == WORKERS
        assert all(agent.record == record for agent in members)
        assert not fetches
        async with serving(tmp_path, **PATIENT) as successor:
            successor.core.state.term = 2
            for agent in members:
                agent.connection.move(successor.url)
            state = successor.core.state
            await asyncio.to_thread(wait_until, "it", lambda: state.current is not None, 60.0)
            assert state.current is not None
            assert state.current.record == record
            assert 1 <= len(fetches) <= MOST_ASKED
            kept = {id(member.hello.record) for member in state.members.values()}
            assert kept == {id(state.current.record)}, "there is one copy"


class Odd:
    """An agent that is played message by message."""

    def __init__(self, setup: Setup, index: int, record: GenerationRecord) -> None:
        self._setup, self.record = setup, record
        self._hello = make_hello(index, record=record)

    async def connect(self) -> None:
        """Say hello."""
        self.socket = await self._setup.join(self._hello)

    async def receive(self) -> Message:
        return sent_message.validate_json(await self.socket.receive_str(timeout=60))

    async def send(self, message: Message) -> None:
        await self.socket.send_str(message.model_dump_json())

    async def answer(self) -> None:
        """Send what the coordinator asks for, until it is welcome."""
        pieces = RecordPieces(self.record)
        while isinstance(wanted := await self.receive(), RecordWanted):
            piece = pieces.piece(wanted.piece)
            assert piece is not None
            await self.send(piece)
        assert isinstance(wanted, Welcome)

    async def is_closed(self) -> bool:
        """Whether the coordinator closes the connection, in a minute at most."""
        async with asyncio.timeout(60):
            async for _ in self.socket:
                pass
        return self.socket.closed


RECORD = make_generation(1, 1)


async def test_agents_that_do_not_answer_delay_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "PIECE_SECONDS", NEVER)
    async with serving(tmp_path, **PATIENT) as setup:
        idle = [Odd(setup, index, RECORD) for index in range(MOST_ASKED - 1)]
        for one in idle:
            await one.connect()
            assert isinstance(await one.receive(), RecordWanted)
        for index in (3, 4):
            good = Odd(setup, index, RECORD)
            await good.connect()
            await good.answer()
        assert {*setup.core.state.members} == {"uid-3", "uid-4"}
        for one in idle:
            await one.socket.close()


async def test_when_none_answers_in_time_the_next_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "PIECE_SECONDS", 0.05)
    async with serving(tmp_path, **PATIENT) as setup:
        idle = [Odd(setup, index, RECORD) for index in range(MOST_ASKED + 1)]
        for one in idle:
            await one.connect()
        assert all([await one.is_closed() for one in idle])
        monkeypatch.setattr(arrivals, "PIECE_SECONDS", 60.0)
        good = Odd(setup, 5, RECORD)
        await good.connect()
        await good.answer()


@pytest.mark.parametrize(
    "answer",
    [
        RecordPiece(number=RECORD.number, piece=0, pieces=1, text="odd"),
        RecordPiece(number=GenerationNumber(7, 7), piece=0, pieces=1, text=""),
        RecordWanted(number=RECORD.number),
    ],
)
async def test_what_is_no_record_closes_the_connection(
    tmp_path: Path, answer: Message, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, **PATIENT) as setup:
        odd = Odd(setup, 0, RECORD)
        await odd.connect()
        await odd.receive()
        await odd.send(answer)
        assert await odd.is_closed()
        assert "of the agent gpt-w0-0, which did not send its record of 1.1: " in caplog.text
        assert not setup.core.state.members


async def test_an_agent_that_sends_a_record_slowly_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "PIECE_SECONDS", NEVER)
    monkeypatch.setattr(arrivals, "RECORD_SECONDS", 0.2)
    async with serving(tmp_path, **PATIENT) as setup:
        slow = Odd(setup, 0, RECORD)
        await slow.connect()
        await slow.receive()
        assert await slow.is_closed()


async def test_a_hello_that_waits_does_not_replace_a_newer_connection(tmp_path: Path) -> None:
    """Which did not have to wait: another agent had sent the record meanwhile."""
    async with serving(tmp_path, **PATIENT) as setup:
        former, other, newer = (Odd(setup, index, RECORD) for index in (0, 1, 0))
        await former.connect()
        assert isinstance(await former.receive(), RecordWanted)
        for agent in (other, newer):
            await agent.connect()
            await agent.answer()
        pieces, position = RecordPieces(RECORD), 0
        while (piece := pieces.piece(position)) is not None:
            await former.send(piece)
            position += 1
        assert await former.is_closed()
        await newer.send(RecordWanted(number=RECORD.number))
        assert isinstance(await newer.receive(), RecordPiece)


async def test_a_late_record_over_a_former_connection_does_not_replace_the_newer_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, **PATIENT) as setup:
        former, newer = Odd(setup, 0, RECORD), Odd(setup, 0, RECORD)
        await former.connect()
        wanted = await former.receive()
        assert isinstance(wanted, RecordWanted)
        await newer.connect()
        await newer.answer()
        pieces = RecordPieces(RECORD)
        while (piece := pieces.piece(wanted.piece)) is not None:
            await former.send(piece)
            wanted = RecordWanted(number=RECORD.number, piece=wanted.piece + 1)
        assert await former.is_closed()
        assert not newer.socket.closed
        await newer.send(RecordWanted(number=RECORD.number))
        assert isinstance(await newer.receive(), RecordPiece)


async def test_a_piece_that_is_not_there_is_not_sent_and_the_connection_stays(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, **PATIENT) as setup:
        agent = Odd(setup, 0, RECORD)
        await agent.connect()
        await agent.answer()
        await agent.send(RecordWanted(number=RECORD.number, piece=99))
        await agent.send(RecordWanted(number=GenerationNumber(5, 5)))
        await agent.send(RecordWanted(number=RECORD.number, piece=1))
        piece = await agent.receive()
        assert isinstance(piece, RecordPiece)
        assert piece.piece == 1


async def test_an_agent_that_asks_for_a_record_lives(tmp_path: Path) -> None:
    async with serving(tmp_path, **PATIENT) as setup:
        agent, members = Odd(setup, 0, RECORD), setup.core.state.members
        await agent.connect()
        await agent.answer()
        long_ago = time.monotonic() - 60.0
        members.on_seen(members["uid-0"], long_ago)
        await agent.send(RecordWanted(number=RECORD.number))
        assert isinstance(await agent.receive(), RecordPiece)
        assert members["uid-0"].last_seen > long_ago


async def test_a_second_hello_of_an_unknown_generation_closes_the_connection(
    tmp_path: Path,
) -> None:
    """The agent connects again, and is asked for the record."""
    async with serving(tmp_path, **PATIENT) as setup:
        agent = Odd(setup, 0, RECORD)
        await agent.connect()
        await agent.answer()
        await agent.send(make_hello(0, record=make_generation(1, 5)).shortened())
        assert await agent.is_closed()
