"""A real agent process against a real coordinator on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.server import Server
from regroup_trainer.coordinator.status import phase_of
from regroup_trainer.environment import AgentEnvironment
from regroup_trainer.job_status import CoordinatorPhase
from tests.support.waiting import wait_until
from tests.trainer.coordinator.simulation import make_desired

WARM_SECONDS = 150.0
AGENT = (sys.executable, "-m", "regroup_trainer.agent")


@dataclass
class Site:
    """A coordinator in this process and the agents that a test starts."""

    folder: Path
    token: str
    core: Coordinator
    url: str = ""
    agents: list[subprocess.Popen[str]] = field(default_factory=list)

    def start_agent(
        self, token: str = "", command: Sequence[str | Path] = AGENT, **changes: str | int
    ) -> subprocess.Popen[str]:
        """An agent whose ranks do what the job's name says; `changes` are of its environment."""
        token_file = self.folder / "token"
        token_file.write_text(token or self.token)
        environment = AgentEnvironment(
            coordinator_url=self.url,
            token_file=str(token_file),
            namespace="default",
            job="gpt",
            member="uid-0",
            index=0,
            pod="gpt-w0-0",
            node="node-0",
            address="127.0.0.1",
            metrics_port=0,
            termination_log=str(self.folder / "termination"),
            entry="tests.trainer.agent.tiny_rank",
        ).model_copy(update=changes)
        variables = {**os.environ, **environment.variables()}
        agent = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
        self.agents.append(agent)
        return agent

    async def until(self, phase: CoordinatorPhase) -> None:
        """Wait for a phase of the job."""
        seconds = WARM_SECONDS
        await asyncio.to_thread(
            wait_until, f"the job to be {phase}", lambda: phase_of(self.core.state) == phase, seconds
        )


async def ended(agent: subprocess.Popen[str], seconds: float = 60.0) -> tuple[int, str]:
    """Its exit code and what it wrote."""
    _, text = await asyncio.to_thread(agent.communicate, timeout=seconds)
    return agent.returncode, text


@contextlib.asynccontextmanager
async def make_site(folder: Path, job: str, **desired: object) -> AsyncIterator[Site]:
    """A coordinator that wants one worker, if `desired` does not say otherwise."""
    now = time.monotonic()
    wish = make_desired(job=job, directory=str(folder / "job"), **{"replicas": 1, "min_replicas": 1, **desired})
    core = Coordinator(1, "node-c", wish, now, time.time() - now)
    server = Server(core, "s3cret")
    listener = TestServer(server.application())
    await listener.start_server()
    ticking = asyncio.create_task(server.run())
    site = Site(folder, "s3cret", core, f"http://{listener.host}:{listener.port}")
    try:
        yield site
    finally:
        for agent in site.agents:
            agent.kill()
            agent.wait()
            assert agent.stderr is not None
            agent.stderr.close()
        ticking.cancel()
        await listener.close()


@pytest.mark.slow
async def test_a_wrong_token_ends_the_agent_with_a_sentence(tmp_path: Path) -> None:
    async with make_site(tmp_path, "finish") as site:
        code, text = await ended(site.start_agent(token="wrong"), WARM_SECONDS)
    assert code == 2
    assert "the coordinator refused the token (HTTP 401)" in text


@pytest.mark.slow
async def test_a_worker_whose_rank_finishes_ends_with_zero(tmp_path: Path) -> None:
    async with make_site(tmp_path, "finish") as site:
        agent = site.start_agent()
        await site.until("completed")
        code, text = await ended(agent)
    assert code == 0, text
    assert not (tmp_path / "termination").exists()


@pytest.mark.slow
async def test_an_agent_beats_and_asks_to_leave_in_order(tmp_path: Path) -> None:
    async with make_site(tmp_path, "hang") as site:
        agent = site.start_agent()
        await asyncio.to_thread(wait_until, "the rank's first word", lambda: _restored(site.core), WARM_SECONDS)
        heard = site.core.state.members["uid-0"].heard
        await asyncio.to_thread(wait_until, "a heartbeat", lambda: site.core.state.members["uid-0"].heard > heard)
        agent.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, "the wish to leave", lambda: site.core.state.members["uid-0"].leaving)
        assert site.core.state.world is not None
        assert site.core.state.world.change is not None


@pytest.mark.slow
async def test_a_rank_that_hangs_is_told_by_its_stack(tmp_path: Path) -> None:
    async with make_site(tmp_path, "stall", progress_timeout_seconds=1, max_hang_restarts=0) as site:
        site.start_agent()
        await site.until("failed")
        assert site.core.state.verdict is not None
        assert "rank 0 on gpt-w0-0 is in wait_for_ever (" in site.core.state.verdict.message


@pytest.mark.slow
async def test_a_rank_that_does_not_leave_its_world_in_time_is_killed_and_its_stack_told(tmp_path: Path) -> None:
    async with make_site(tmp_path, "stall", replicas=2) as site:
        agent = site.start_agent()
        other = site.start_agent(member="uid-1", index=1, pod="gpt-w1-0", node="node-1")
        await asyncio.to_thread(wait_until, "the ranks' first words", lambda: _restored(site.core, 2), WARM_SECONDS)
        world = site.core.state.world
        assert world is not None
        other.kill()
        await asyncio.to_thread(wait_until, "the end of rank 0", lambda: 0 in world.exits)
        agent.kill()
        _, text = await ended(agent)
    assert "rank 0: not out of its world after 1 s; it is here:" in text
    assert "in wait_for_ever" in text.partition("it is here:")[2]


def _restored(core: Coordinator, ranks: int = 1) -> bool:
    return core.state.world is not None and set(range(ranks)) <= set(core.state.world.restored)


@pytest.mark.slow
async def test_an_agent_that_nobody_answers_ends_at_once_when_asked(tmp_path: Path) -> None:
    async with make_site(tmp_path, "hang") as site:
        site.url = "http://127.0.0.1:9"
        agent = site.start_agent()
        pid = agent.pid
        await asyncio.to_thread(wait_until, "its template", lambda: _has_child(pid), 60.0)
        agent.send_signal(signal.SIGTERM)
        code, _ = await ended(agent)
    assert code == 143


def _has_child(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())
    return False
