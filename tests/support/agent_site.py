"""Real agent processes against a real coordinator on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regroup_trainer.coordinator.coordinator_status import phase_of
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.serving.server import Server
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.job_status import CoordinatorPhase
from tests.support.coordinator_simulation import make_desired
from tests.support.waiting import wait_until

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
        """Start an agent. Its ranks do what the job's name says (`tiny_rank`)."""
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
            entry="tests.support.tiny_rank",
        ).model_copy(update=changes)
        variables = {**os.environ, **environment.variables()}
        agent = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
        self.agents.append(agent)
        return agent

    async def until(self, phase: CoordinatorPhase) -> None:
        """Wait for a phase of the job."""
        seconds = WARM_SECONDS
        await asyncio.to_thread(
            wait_until,
            f"the job to be {phase}",
            lambda: phase_of(self.core.state) == phase,
            seconds,
        )


async def ended(agent: subprocess.Popen[str], seconds: float = 60.0) -> tuple[int, str]:
    """The exit code of an agent, and its standard error."""
    _, text = await asyncio.to_thread(agent.communicate, timeout=seconds)
    return agent.returncode, text


@contextlib.asynccontextmanager
async def make_site(folder: Path, job: str, **desired: object) -> AsyncIterator[Site]:
    """A coordinator that wants one worker, unless `desired` changes that."""
    now = time.monotonic()
    desired_job = make_desired(
        job=job, directory=str(folder / "job"), **{"replicas": 1, "min_replicas": 1, **desired}
    )
    core = Coordinator(1, "node-c", desired_job, now, time.time() - now)
    server = Server(core, "s3cret")
    async with server.serve("127.0.0.1", 0) as port:
        ticking = asyncio.create_task(server.run())
        site = Site(folder, "s3cret", core, f"http://127.0.0.1:{port}")
        try:
            yield site
        finally:
            for agent in site.agents:
                agent.kill()
                agent.wait()
                assert agent.stderr is not None
                agent.stderr.close()
            ticking.cancel()
