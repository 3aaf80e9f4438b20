"""A coordinator that stands still for a while or is behind, and agents that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from regroup_trainer.agent import heartbeat
from regroup_trainer.agent.agent import HEARTBEAT_SECONDS
from regroup_trainer.agent.coordinator_connection import CoordinatorConnection
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import Effect, Send
from regroup_trainer.coordinator.generation_end import KILL_SECONDS
from regroup_trainer.coordinator.serving import server
from regroup_trainer.coordinator.serving.arrivals import AgentConnection
from regroup_trainer.coordinator.serving.server import Server
from regroup_trainer.protocol.agent_messages import Hello, RankExit, Reports
from regroup_trainer.protocol.coordinator_messages import Begin, CoordinatorMessage, Exit
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import Parked, Progress, Restored, Retained
from tests.support.coordinator_server import (
    BEARER,
    TOKEN,
    Setup,
    coordinator_process,
    serving,
    status_of,
)
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.waiting import until

FIRST = GenerationNumber(1, 1)
AGENTS = 8
STALL_SECONDS = 3.0
PATIENT = {"heartbeat_milliseconds": 60_000, "timeout_milliseconds": 600_000}


class StubAgent:
    """An agent's connection and heartbeats, without ranks."""

    def __init__(self, url: str, index: int) -> None:
        self.name = f"uid-{index}"
        self.index, self.hellos, self.has_begun = index, 0, False
        self.connection = CoordinatorConnection(url, TOKEN, 1, self._hello, self._on_message)
        loop = asyncio.get_running_loop()
        self.heartbeat = _CountingHeartbeat(
            url,
            TOKEN,
            self.name,
            index,
            HEARTBEAT_SECONDS,
            on_lost=lambda at: loop.call_soon_threadsafe(self.connection.on_lost, at),
        )
        self.heartbeat.is_warm = True

    @property
    def connections(self) -> int:
        """How many it has made."""
        return self.hellos + self.heartbeat.connections

    def _on_message(self, message: CoordinatorMessage) -> None:
        self.has_begun |= isinstance(message, Begin)

    def _hello(self) -> Hello:
        self.hellos += not self.connection.welcomed
        return make_hello(self.index, member=self.name)


class _CountingHeartbeat(Heartbeat):
    connections = 0

    def _connect(self, url: str) -> None:
        self.connections += 1
        super()._connect(url)


@contextlib.asynccontextmanager
async def agents_of(url: str) -> AsyncIterator[list[StubAgent]]:
    """Agents that have connected."""
    agents = [StubAgent(url, index) for index in range(AGENTS)]
    tasks = [asyncio.create_task(agent.connection.run()) for agent in agents]
    for agent in agents:
        agent.heartbeat.start()
    try:
        await until("all to be welcome", lambda: all(one.connection.welcomed for one in agents))
        yield agents
    finally:
        for agent, task in zip(agents, tasks, strict=True):
            agent.heartbeat.stop()
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_stall_of_seconds_costs_no_member_no_connection_and_no_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert heartbeat.STALL_SECONDS > STALL_SECONDS
    monkeypatch.setattr(heartbeat, "STALL_SECONDS", 30.0)  # a busy machine answers late
    sizes = {"replicas": AGENTS, "min_replicas": 1, "max_replicas": AGENTS}
    with coordinator_process(tmp_path, **sizes) as (process, url):
        async with agents_of(url) as agents:
            await until("a generation", lambda: all(one.has_begun for one in agents))
            before = [agent.connections for agent in agents]
            process.send_signal(signal.SIGSTOP)
            await until("a stall", lambda: max(times_without_answer(agents)) >= STALL_SECONDS)
            process.send_signal(signal.SIGCONT)
            await until("answers to all", lambda: max(times_without_answer(agents)) == 0)
            status = await asyncio.to_thread(status_of, url)
            after = [agent.connections for agent in agents]
    assert [member.lost for member in status.members] == [""] * AGENTS
    assert after == before  # on a busy machine, the first connection may have been made again
    assert min(before) == 2
    assert status.generation == FIRST
    assert "WorkerLost" not in {event.reason for event in status.events}


def times_without_answer(agents: list[StubAgent]) -> list[float]:
    """For how many seconds agents have had no answer."""
    return [agent.heartbeat.unanswered_seconds() for agent in agents]


# --- behind ---------------------------------------------------------------------------------------


def progress(step: int) -> str:
    report = Progress(generation=FIRST, rank=0, step=step, time=1.0)
    return Reports(reports=(report,)).model_dump_json()


async def test_a_coordinator_that_is_behind_handles_ends_first_and_the_newest_progress_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, replicas=3, max_replicas=3, **PATIENT) as setup:
        sockets = [await setup.join(make_hello(index)) for index in range(3)]
        await until("a generation", lambda: setup.core.state.current is not None)
        for socket in sockets:
            await socket.receive(timeout=10)
        handled: list[tuple[str, Any]] = []
        inbox, arrived = setup.server._inbox, list[str]()
        add = inbox.add

        def count(connection: AgentConnection, text: str, since: float) -> None:
            arrived.append(text)
            add(connection, text, since)

        def keep(message: Any, name: str, _now: float) -> list[Effect]:
            handled.append((name, message))
            return []

        monkeypatch.setattr(inbox, "add", count)
        monkeypatch.setattr(setup.core, "on_message", keep)
        setup.server._is_handling = True  # it has not come to it yet
        for step in range(1, 30):
            for socket in sockets:
                await socket.send_str(progress(step))
        end = RankExit(generation=FIRST, rank=2, exit_code=1, cause="error")
        await sockets[2].send_str(Reports(reports=(end,)).model_dump_json())
        await until("all of it", lambda: len(arrived) == 3 * 29 + 1)
        setup.server._handle_some()
        await until("the rest", lambda: not inbox)
        names = [name for name, _ in handled]
        assert names[:2] == ["uid-2", "uid-2"], "its progress, and the end of its rank"
        steps = [m.reports[0].step for _, m in handled if "progress" in repr(m)]
        assert steps == [29, 29, 29]
        for socket in sockets:
            await socket.close()


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_state_whose_report_has_arrived_unread_is_not_given_up(
    tmp_path: Path, is_behind: bool
) -> None:
    sizes = {"replicas": 2, "min_replicas": 2, "max_replicas": 2}
    desired = make_desired(directory=str(tmp_path / "job"), **sizes, **PATIENT)
    core = Coordinator(1, "node-c", desired, time.monotonic(), 0.0)
    decider, state = Server(core, TOKEN), core.state
    async with (
        decider.serve("127.0.0.1", 0) as port,
        aiohttp.ClientSession(headers=BEARER) as session,
    ):
        setup = Setup(core, decider, f"http://127.0.0.1:{port}", session)
        sockets = [await setup.join(make_hello(index)) for index in range(2)]
        await until("a generation", lambda: state.current is not None)
        current = state.current
        assert current is not None
        first, second = (place.index for place in current.record.members)
        restored = [Restored(generation=FIRST, rank=rank, step=7) for rank in range(2)]
        end = RankExit(generation=FIRST, rank=1, exit_code=1, cause="error")
        await sockets[first].send_str(Reports(reports=(restored[0],)).model_dump_json())
        await sockets[second].send_str(Reports(reports=(restored[1], end)).model_dump_json())
        await until("the end of it", lambda: current.leave_order is not None)
        await until("a state", lambda: len(current.restored) == 2)
        current.leave_until = decider._read_until - KILL_SECONDS + 1e-6
        decider._is_handling = is_behind  # it does not come to it
        parked = Parked(generation=FIRST, rank=0, retained=Retained(step=7))
        await sockets[first].send_str(Reports(reports=(parked,)).model_dump_json())
        ticking = asyncio.create_task(decider.run())  # it is in the socket now
        if is_behind:
            for _ in range(3):
                await next_tick(setup)
            assert state.current is current, "the report waits in the inbox"
            decider._handle_some()
        await until("the next generation", lambda: state.current is not current)
        assert state.current is not None
        assert state.current.record.restored_from == "Peers"
        ticking.cancel()
        for socket in sockets:
            await socket.close()


async def next_tick(setup: Setup) -> None:
    """Return after a tick of the coordinator."""
    before = setup.core._next_tick
    await until("a tick", lambda: setup.core._next_tick != before)


# --- slow readers ---------------------------------------------------------------------------------


async def test_an_agent_that_does_not_read_holds_nobody_up_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNSENT_BYTES", 64 * 1024)
    sizes = {"replicas": 2, "min_replicas": 2, "max_replicas": 2}
    async with serving(tmp_path, **sizes, **PATIENT) as setup:
        reading = await setup.join(make_hello(0))
        async with stopped_reader(setup, make_hello(1)):
            state = setup.core.state
            await until("two members", lambda: len(state.members) == 2)
            texts = 0
            while state.members["uid-1"].closed_at is None:
                order = Exit(code=0, reason="x" * 4096)
                setup.server._do([Send("uid-1", order), Send("uid-0", order)])
                while (await reading.receive_json(timeout=10))["kind"] != "exit":
                    pass
                texts += 1
                assert texts * 4096 < 16 * 1024 * 1024, "its buffer is bounded"
            assert state.members["uid-0"].closed_at is None
            assert state.members.disconnected() == [], "the coordinator itself closed it"
        again = await setup.join(make_hello(1))
        await until("its return", lambda: state.members["uid-1"].closed_at is None)
        await again.close()
        await reading.close()


async def test_a_connection_that_is_closed_for_its_message_is_no_evidence_of_a_loss(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, **PATIENT) as setup:
        members = setup.core.state.members
        socket = await setup.join(make_hello())
        await until("a member", lambda: "uid-0" in members)
        await socket.send_str('{"kind": "gossip"}')
        while not socket.closed:
            await socket.receive(timeout=10)
        await until("the end of it", lambda: members["uid-0"].closed_at is not None)
        assert members.disconnected() == []


@contextlib.asynccontextmanager
async def stopped_reader(setup: Setup, hello: Hello) -> AsyncIterator[None]:
    """It says hello, and never reads an answer after the handshake."""
    socket = await setup.join(hello)
    assert socket._response.connection is not None
    transport = socket._response.connection.transport
    assert isinstance(transport, asyncio.ReadTransport)
    transport.pause_reading()
    try:
        yield
    finally:
        transport.close()
