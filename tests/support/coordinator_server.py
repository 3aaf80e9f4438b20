"""A coordinator's server on loopback, in the process of the test or in its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aiohttp

from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.serving.server import Server
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.environment import CoordinatorEnvironment
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.system.machine_address import free_port
from tests.support.coordinator_simulation import make_desired
from tests.support.waiting import wait_until

TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Setup:
    """A running coordinator and a session with its token."""

    core: Coordinator
    server: Server
    url: str
    session: aiohttp.ClientSession

    async def status(self, **query: Any) -> CoordinatorStatus:
        async with self.session.get(f"{self.url}/v1/status", params=query) as response:
            return CoordinatorStatus.model_validate_json(await response.read())

    async def join(self, hello: Hello) -> aiohttp.ClientWebSocketResponse:
        socket = await self.session.ws_connect(f"{self.url}/v1/agent")
        await socket.send_str(hello.shortened().model_dump_json())
        return socket


@contextlib.asynccontextmanager
async def serving(folder: Path, **desired: object) -> AsyncIterator[Setup]:
    """A coordinator that wants one worker, unless `desired` changes that."""
    fields = {"replicas": 1, "min_replicas": 1, "start_grace_seconds": 0.1, **desired}
    now = time.monotonic()
    spec = make_desired(directory=str(folder / "job"), **fields)
    core = Coordinator(1, "node-c", spec, now, time.time() - now)
    server = Server(core, TOKEN)
    async with server.serve("127.0.0.1", 0) as port:
        ticking = asyncio.create_task(server.run())
        async with aiohttp.ClientSession(headers=BEARER) as session:
            yield Setup(core, server, f"http://127.0.0.1:{port}", session)
        ticking.cancel()


@contextlib.contextmanager
def coordinator_process(
    folder: Path, **desired: object
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process of a container, which is killed in the end, and its URL once it answers."""
    token = folder / "token"
    token.write_text(TOKEN)
    spec = make_desired(directory=str(folder / "job"), **desired)
    environment = CoordinatorEnvironment(
        term=1,
        node="node-c",
        token_file=str(token),
        address="127.0.0.1",
        port=free_port(),
        desired=spec.model_dump_json(),
        kept_file=str(folder / "kept"),
    )
    url = f"http://127.0.0.1:{environment.port}"

    def answers() -> bool:
        with contextlib.suppress(OSError), urlopen(f"{url}/healthz"):
            return True
        return False

    command = [sys.executable, "-m", "regroup_trainer.coordinator"]
    with subprocess.Popen(command, env={**os.environ, **environment.variables()}) as process:
        try:
            wait_until("an answer", answers, seconds=120)
            yield process, url
        finally:
            process.kill()


def status_of(url: str) -> CoordinatorStatus:
    """The status that the coordinator at this URL answers with."""
    with urlopen(Request(f"{url}/v1/status", headers=BEARER), timeout=30) as answer:
        return CoordinatorStatus.parse(answer.read().decode())
