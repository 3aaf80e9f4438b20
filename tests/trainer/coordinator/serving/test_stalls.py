"""A coordinator's process that stands still for a while, and agents that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from regroup_trainer.agent.agent import HEARTBEAT_SECONDS
from regroup_trainer.agent.coordinator_connection import CoordinatorConnection
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.coordinator_messages import Begin, CoordinatorMessage
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.coordinator_server import TOKEN, coordinator_process, status_of
from tests.support.generations import make_hello
from tests.support.waiting import until

AGENTS = 8
STALL_SECONDS = 3.0


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
            on_lost=lambda: loop.call_soon_threadsafe(self.connection.reconnect),
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
    tmp_path: Path,
) -> None:
    sizes = {"replicas": AGENTS, "min_replicas": 1, "max_replicas": AGENTS}
    with coordinator_process(tmp_path, **sizes) as (process, url):
        async with agents_of(url) as agents:
            await until("a generation", lambda: all(one.has_begun for one in agents))
            before = [agent.connections for agent in agents]
            process.send_signal(signal.SIGSTOP)
            await until("a stall", lambda: min(silences(agents)) >= STALL_SECONDS)
            process.send_signal(signal.SIGCONT)
            await until("answers to all", lambda: max(silences(agents)) == 0)
            status = await asyncio.to_thread(status_of, url)
            after = [agent.connections for agent in agents]
    assert [member.lost for member in status.members] == [""] * AGENTS
    assert after == before == [2] * AGENTS
    assert status.generation == GenerationNumber(1, 1)
    assert "WorkerLost" not in {event.reason for event in status.events}


def silences(agents: list[StubAgent]) -> list[float]:
    """For how many seconds agents have had no answer."""
    return [agent.heartbeat.unheard_seconds() for agent in agents]
