"""Subject `regroup`: a real coordinator process and simulated agents."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import aiohttp

from bench.coordinator_size import make_desired, make_place, watched
from bench.harness import Values
from bench.scale.players import Answer, Players, agents_program
from bench.scale.settings import (
    FORM_SECONDS,
    MOST_MIB,
    RECOVERY_SECONDS,
    RESYNC_SECONDS,
    SNAPSHOT_STEPS,
    STATUSES,
    STEP_MS,
    Size,
)
from devcluster.processes import cpu_seconds, memory_mib
from regroup.local.processes import ADDRESS, start_coordinator

GUARD_SECONDS = 0.2
CHECKS, CHECK_SECONDS = 50, 0.1
"""How often, and how far apart, a successor is asked whether it has taken over."""


def measure(size: Size, report: Callable[[str], None]) -> Values:
    """The life of one job: it forms, trains, loses a worker, and loses its coordinator."""
    program = agents_program(report)
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as name:
        return asyncio.run(_measure(Path(name), size, program))


async def _measure(folder: Path, size: Size, program: Path) -> Values:
    job = CoordinatedJob(folder, size, program)
    guard = asyncio.create_task(job.guard())
    try:
        await job.run()
    finally:
        guard.cancel()
        job.close()
    return job.found


class CoordinatedJob:
    """The coordinator of a job, its agents, and what has been measured."""

    def __init__(self, folder: Path, size: Size, program: Path) -> None:
        self._size = size
        self._place, self._token = make_place(folder)
        least = {"min_replicas": size.agents - 1}
        self._desired = make_desired(self._place, size.agents).model_copy(update=least)
        self._process = start_coordinator(self._place, 1, self._desired)
        settings = {
            "address": f"{ADDRESS}:{self._place.port}",
            "token": self._token,
            "job": self._place.job,
            "agents": size.agents,
            "ranks": size.ranks,
            "step_ms": STEP_MS,
            "snapshot_steps": SNAPSHOT_STEPS,
        }
        self._players = Players([program], [settings])
        self.found: dict[str, float | None] = {}

    @property
    def _url(self) -> str:
        return f"http://{ADDRESS}:{self._place.port}"

    def close(self) -> None:
        """End all processes."""
        self._process.kill()
        self._players.__exit__(None, None, None)

    async def guard(self) -> None:
        """Kill a coordinator that takes too much memory of this machine."""
        while True:
            await asyncio.sleep(GUARD_SECONDS)
            if self._process.exit_code is None and self._memory() > MOST_MIB:
                self._process.kill()

    async def run(self) -> None:
        """Measure everything, until something does not come."""
        async with watched(self._url, self._token, self._process) as session:
            formed = await self._ask("form", FORM_SECONDS)
            self._note("formed", "form_seconds", formed)
            if formed.done is None:
                return
            await self._train(session)
            lost = await self._ask("lose", RECOVERY_SECONDS)
            self._note("recovered", "recovery_seconds", lost)
            if lost.done is not None:
                self.found["megabytes_sent"] = lost.received / 1e6
            self.found["rss_peak_mb"] = self._memory("VmHWM")
        await self._resync()

    async def _train(self, session: aiohttp.ClientSession) -> None:
        """A steady job, in which nothing happens."""
        await self._ask("state")
        begun, cpu, played = time.monotonic(), self._cpu(), self._players.cpu_seconds()
        await asyncio.sleep(self._size.steady_seconds)
        took = time.monotonic() - begun
        self.found["steady_cpu_share"] = 100 * (self._cpu() - cpu) / took
        self.found["simulation_cpu_share"] = 100 * (self._players.cpu_seconds() - played) / took
        self.found["rss_mb"] = self._memory()
        state = await self._ask("state")
        self.found["heartbeat_lag_p99_seconds"] = state.lag
        self.found["needless_generations"] = state.generation[1] - 1
        self.found["status_seconds"] = await self._status_seconds(session)

    async def _status_seconds(self, session: aiohttp.ClientSession) -> float | None:
        took = []
        for _ in range(STATUSES):
            begun = time.monotonic()
            await _status(session, self._url)
            took.append(time.monotonic() - begun)
        return sorted(took)[STATUSES // 2]

    async def _resync(self) -> None:
        """Kill the coordinator. Its successor starts at once, at the same address."""
        former = await self._ask("state")
        begun = time.monotonic()
        self._process.kill()
        self._process = start_coordinator(self._place, 2, self._desired)
        back = await self._ask("resync", RESYNC_SECONDS, term=2)
        whole = back.done is not None and await self._has_taken_over(former)
        self.found["resynced"] = float(whole)
        if whole and back.done is not None:
            self.found["resync_seconds"] = back.done - begun

    async def _has_taken_over(self, former: Answer) -> bool:
        """Whether the successor goes on with the same generation, and has lost nobody."""
        async with watched(self._url, self._token, self._process) as session:
            for _ in range(CHECKS):
                status = await _status(session, self._url)
                if status["generation"] is not None:
                    here = [member for member in status["members"] if not member["lost"]]
                    same = tuple(status["generation"]) == former.generation
                    return same and len(here) == former.of
                await asyncio.sleep(CHECK_SECONDS)
        return False

    def _note(self, whether: str, metric: str, answer: Answer) -> None:
        self.found[whether] = float(answer.done is not None)
        self.found[metric] = answer.seconds

    async def _ask(self, do: str, seconds: float = 0.0, **more: int) -> Answer:
        return await asyncio.to_thread(self._players.ask, do, seconds, **more)

    def _cpu(self) -> float:
        return cpu_seconds(self._process.popen.pid)

    def _memory(self, kind: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
        return memory_mib(self._process.popen.pid, kind)


async def _status(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(f"{url}/v1/status", raise_for_status=True) as answer:
        found: dict[str, Any] = await answer.json()
        return found
