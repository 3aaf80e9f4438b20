"""The socket between a rank and its agent, with both real ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from regroup_trainer.agent.rank_sockets import RankSockets
from regroup_trainer.protocol.channel import AgentChannel
from regroup_trainer.protocol.commit_page import CommitPage
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from regroup_trainer.protocol.rank_messages import (
    Busy,
    Finished,
    LastLine,
    Progress,
    RankReport,
    Restored,
    ScriptStep,
)
from tests.support.waiting import wait_until

NUMBER = GenerationNumber(1, 1)
RESTORED = Restored(generation=NUMBER, rank=0, step=0)
LEAVE = Decide(generation=NUMBER, decision=Decision.LEAVE)


class Recorder:
    """The agent's end. It records the reports of ranks."""

    def __init__(self, path: Path) -> None:
        self.received: list[RankReport] = []
        self.arrived = asyncio.Event()
        self.sockets = RankSockets(path, self._on_report)

    def _on_report(self, report: RankReport) -> None:
        self.received.append(report)
        self.arrived.set()

    def channel(self) -> contextlib.closing[AgentChannel]:
        """The rank's end, which closes with the block."""
        return contextlib.closing(AgentChannel(str(self.sockets.path), CommitPage()))

    async def wait_for(self, count: int) -> None:
        """Wait until so many reports have arrived."""
        async with asyncio.timeout(10):
            while len(self.received) < count:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[Recorder]:
    recorder = Recorder(tmp_path / "s")
    await recorder.sockets.start()
    yield recorder
    recorder.sockets.close()


async def poll_until_decided(channel: AgentChannel) -> list[Decide]:
    """The decisions that the rank has received, within a deadline."""
    return await asyncio.to_thread(wait_until, "a decision", channel.poll)


async def test_reports_arrive_in_order(recorder: Recorder) -> None:
    with recorder.channel() as channel:
        reports: list[RankReport] = [
            RESTORED,
            *(Progress(generation=NUMBER, rank=0, step=step, time=0.0) for step in range(1, 50)),
        ]
        for report in reports:
            channel.send(report)
        await recorder.wait_for(50)
        assert recorder.received == reports


async def test_a_decision_reaches_rank_zero_also_before_its_first_report(
    recorder: Recorder,
) -> None:
    recorder.sockets.decide(LEAVE)
    with recorder.channel() as channel:
        assert channel.poll() == []
        channel.send(RESTORED)
        assert await poll_until_decided(channel) == [LEAVE]
        recorder.sockets.decide(LEAVE)
        assert await poll_until_decided(channel) == [LEAVE]


async def test_a_decision_of_an_older_generation_is_forgotten(recorder: Recorder) -> None:
    recorder.sockets.decide(LEAVE)
    recorder.sockets.forget()
    with recorder.channel() as channel:
        channel.send(RESTORED)
        await recorder.wait_for(1)
        assert channel.poll() == []


async def test_a_rank_whose_agent_is_gone_goes_on(recorder: Recorder) -> None:
    with recorder.channel() as channel:
        channel.send(RESTORED)
        await recorder.wait_for(1)
        recorder.sockets.close()
        await asyncio.sleep(0)
        for _ in range(3):
            channel.send(RESTORED)
            assert channel.poll() == []


async def test_a_rank_that_died_had_a_session_until_the_next_generation(recorder: Recorder) -> None:
    """Its agent may read the end of its connection before it learns of its death."""
    with recorder.channel() as channel:
        channel.send(RESTORED)
        await recorder.wait_for(1)
    async with asyncio.timeout(10):  # until the task that reads the connection has ended
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert recorder.sockets.has_session(NUMBER, 0)
    assert not recorder.sockets.has_session(NUMBER, 1)
    recorder.sockets.forget()
    assert not recorder.sockets.has_session(NUMBER, 0)


async def test_the_end_of_the_agent_logs_no_error_for_a_rank_that_is_connected(
    recorder: Recorder,
) -> None:
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, error: errors.append(error))
    with recorder.channel() as channel:
        channel.send(RESTORED)
        await recorder.wait_for(1)
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait(connections)
    assert not errors


async def test_a_script_that_reports_has_no_session(recorder: Recorder) -> None:
    step = ScriptStep(generation=NUMBER, rank=0, step=1, has_loss=False, time=1.0)
    busy = Busy(generation=NUMBER, rank=0, doing="evaluation", step=0, lasting=True)
    end = Finished(generation=NUMBER, rank=0, step=0, reason="completed")
    with recorder.channel() as channel:
        for report in (step, busy, LastLine(generation=NUMBER, rank=0), end):
            channel.send(report)
        await recorder.wait_for(4)
        assert not recorder.sockets.has_session(NUMBER, 0)
        channel.send(RESTORED)  # it has made a Session after all
        await recorder.wait_for(5)
        assert recorder.sockets.has_session(NUMBER, 0)


def test_a_channel_without_an_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AgentChannel(str(tmp_path / "nobody"), CommitPage())
