"""The line between a rank and its agent, both ends real."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from regroup_trainer.agent.rank_sockets import RankSockets
from regroup_trainer.channel import AgentChannel
from regroup_trainer.commit_page import CommitPage
from regroup_trainer.contract import Decide, Decision, GenerationNumber, Progress, RankReport, Restored
from tests.support.waiting import wait_until

NUMBER = GenerationNumber(1, 1)
RESTORED = Restored(generation=NUMBER, rank=0, step=0)
LEAVE = Decide(generation=NUMBER, decision=Decision.LEAVE)


class Ears:
    """Hears what ranks report."""

    def __init__(self, path: Path) -> None:
        self.heard: list[RankReport] = []
        self.arrived = asyncio.Event()
        self.sockets = RankSockets(path, self._hear)

    def _hear(self, report: RankReport) -> None:
        self.heard.append(report)
        self.arrived.set()

    async def wait_for(self, count: int) -> None:
        """Until so many reports have arrived."""
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                self.arrived.clear()
                await self.arrived.wait()


async def poll_until_decided(channel: AgentChannel) -> list[Decide]:
    """What the rank hears, within a deadline."""
    return await asyncio.to_thread(wait_until, "a decision", channel.poll)


async def test_reports_arrive_in_order(tmp_path: Path) -> None:
    ears = Ears(tmp_path / "s")
    await ears.sockets.start()
    with contextlib.closing(AgentChannel(str(ears.sockets.path), CommitPage())) as channel:
        reports: list[RankReport] = [
            RESTORED,
            *(Progress(generation=NUMBER, rank=0, step=step, time=0.0) for step in range(1, 50)),
        ]
        for report in reports:
            channel.send(report)
        await ears.wait_for(50)
        assert ears.heard == reports
        ears.sockets.close()


async def test_a_decision_reaches_rank_zero_also_when_it_comes_before_its_first_word(tmp_path: Path) -> None:
    ears = Ears(tmp_path / "s")
    await ears.sockets.start()
    ears.sockets.decide(LEAVE)
    with contextlib.closing(AgentChannel(str(ears.sockets.path), CommitPage())) as channel:
        assert channel.poll() == []
        channel.send(RESTORED)
        assert await poll_until_decided(channel) == [LEAVE]
        ears.sockets.decide(LEAVE)
        assert await poll_until_decided(channel) == [LEAVE]
        ears.sockets.close()


async def test_a_decision_of_an_older_generation_is_forgotten(tmp_path: Path) -> None:
    ears = Ears(tmp_path / "s")
    await ears.sockets.start()
    ears.sockets.decide(LEAVE)
    ears.sockets.forget()
    with contextlib.closing(AgentChannel(str(ears.sockets.path), CommitPage())) as channel:
        channel.send(RESTORED)
        await ears.wait_for(1)
        assert channel.poll() == []
        ears.sockets.close()


async def test_a_rank_whose_agent_is_gone_goes_on(tmp_path: Path) -> None:
    ears = Ears(tmp_path / "s")
    await ears.sockets.start()
    with contextlib.closing(AgentChannel(str(ears.sockets.path), CommitPage())) as channel:
        channel.send(RESTORED)
        await ears.wait_for(1)
        ears.sockets.close()
        await asyncio.sleep(0)
        for _ in range(3):
            channel.send(RESTORED)
            assert channel.poll() == []


def test_a_channel_without_an_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AgentChannel(str(tmp_path / "nobody"), CommitPage())
