"""Subject `torchft`: its lighthouse, and managers of replica groups that send it heartbeats and ask
for a quorum before each step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import Popen

import aiohttp

from bench.recovery_settings import LOST_SECONDS
from bench.scale.lighthouse_package import lighthouse_library
from bench.scale.players import Players, agents_program
from bench.scale.scale_course import Report, ScaleSubject
from bench.scale.settings import STEP_MS, ScaleSize
from regroup.local.processes import ADDRESS, dies_with
from regroup_trainer.system.machine_address import free_port

LIGHTHOUSE = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("_torchft", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
port, least, timeout = map(int, sys.argv[2:])
server = module.LighthouseServer(
    bind=f"127.0.0.1:{port}",
    min_replicas=least,
    join_timeout_ms=60_000,
    heartbeat_timeout_ms=timeout,
)
while True:
    time.sleep(1000)
"""
"""Loaded without the rest of torchft, which imports torch: a lighthouse does not need it.

The join timeout is that of its command line. With the 0.1 s of its class, one of the managers
that are there is in no quorum, in turns: each quorum begins without the last one to ask.
"""


class Lighthouse(ScaleSubject):
    """A lighthouse without which no quorum comes, and one manager for each agent."""

    def __init__(self, folder: Path, size: ScaleSize, report: Report) -> None:
        super().__init__(folder, size, report)
        self._program = agents_program(report)
        self._port = free_port()

    @classmethod
    def can_run(cls, report: Report) -> bool:
        """Whether there is a lighthouse for this Python."""
        return lighthouse_library(report) is not None

    def start(self) -> Popen[bytes]:
        """Start a lighthouse."""
        library = lighthouse_library(self.report)
        numbers = (self._port, self.size.agents - 1, int(LOST_SECONDS * 1000))
        with (self.folder / "lighthouse.log").open("ab") as log:
            return Popen(
                [sys.executable, "-c", LIGHTHOUSE, str(library), *map(str, numbers)],
                stdout=log,
                stderr=log,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - as the coordinator
            )

    def players(self) -> Players:
        """One process plays all managers."""
        settings = {
            "kind": "torchft",
            "address": f"{ADDRESS}:{self._port}",
            "agents": self.size.agents,
            "ranks": self.size.ranks,
            "step_ms": STEP_MS,
            "timeout_ms": int(LOST_SECONDS * 1000),
        }
        return Players([self._program], [settings])

    async def answers(self) -> bool:
        """Whether it listens."""
        try:
            return await self.ask_status()
        except aiohttp.ClientError:
            return False

    async def ask_status(self) -> bool:
        """Its page for people."""
        url = f"http://{ADDRESS}:{self._port}/status"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return bool(await answer.read())
