"""Subject `regroup`: the real process of a coordinator, which an operator watches."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from subprocess import Popen
from typing import Any

import aiohttp

from bench.scale.players import Answer, Players, agents_program
from bench.scale.scale_course import Report, ScaleSubject
from bench.scale.settings import SNAPSHOT_STEPS, STEP_MS, ScaleSize
from regroup.local.processes import ADDRESS, NODE_OF_COORDINATOR, Place, start_coordinator
from regroup_trainer.protocol.config import ParallelismConfig, TrainConfig
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.system.machine_address import free_port

CHECKS, CHECK_SECONDS = 100, 0.1
"""How often, and how far apart, a successor is asked whether it has taken over."""


class Coordinated(ScaleSubject):
    """A job with a sharded model, in which one worker may be missing."""

    def __init__(self, folder: Path, size: ScaleSize, report: Report) -> None:
        super().__init__(folder, size, report)
        self._program = agents_program(report)
        self._place, self._token = make_place(folder)
        least = {"min_replicas": size.agents - 1}
        self._desired = make_desired(self._place, size.agents).model_copy(update=least)
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> Popen[bytes]:
        """Start a coordinator."""
        return start_coordinator(self._place, self.term, self._desired).popen

    def players(self) -> Players:
        """One process plays all agents."""
        self._watch = asyncio.create_task(self._watch_as_operator())
        settings = {
            "kind": "regroup",
            "address": f"{ADDRESS}:{self._place.port}",
            "token": self._token,
            "job": self._place.job,
            "agents": self.size.agents,
            "ranks": self.size.ranks,
            "step_ms": STEP_MS,
            "snapshot_steps": SNAPSHOT_STEPS,
        }
        return Players([self._program], [settings])

    async def answers(self) -> bool:
        """Whether it listens."""
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with self._session() as session, session.get("/healthz"):
                return True
        return False

    async def ask_status(self) -> bool:
        """As an operator does."""
        return bool(await self._status())

    async def happened(self) -> str:
        """Its events."""
        return "; ".join(event["message"] for event in (await self._status())["events"])

    async def has_taken_over(self, former: Answer) -> bool:
        """Whether the generation is the same, with the same members."""
        for _ in range(CHECKS):
            status = await self._status()
            if (number := status["generation"]) is not None:
                here = sum(not member["lost"] for member in status["members"])
                self.report(f"term {self.term}: generation {number} with {here} agents")
                return tuple(number) == former.generation and here == former.of
            await asyncio.sleep(CHECK_SECONDS)
        return False

    async def _status(self) -> dict[str, Any]:
        async with self._session() as session, session.get("/v1/status") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def _watch_as_operator(self) -> None:
        """Until the coordinator is gone."""
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session() as session, session.get("/v1/watch?every=5") as answer:
                async for _ in answer.content.iter_any():
                    pass

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            f"http://{ADDRESS}:{self._place.port}",
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=aiohttp.ClientTimeout(total=None),
            raise_for_status=True,
        )


def make_place(folder: Path) -> tuple[Place, str]:
    """Where the coordinators of a job run that has no real agents, and its token."""
    token_file, token = folder / "token", secrets.token_hex(16)
    token_file.write_text(token)
    place = Place(
        job="gpt-pretrain",
        port=free_port(),
        token_file=token_file,
        logs=folder,
        ranks=1,
        threads=None,
        entry="",
        working_directory=folder,
        variables={},
    )
    return place, token


def make_desired(place: Place, workers: int) -> Desired:
    """Its job: all workers, a sharded model, and no judgement about hangs."""
    return Desired(
        revision=1,
        namespace="bench",
        job=place.job,
        replicas=workers,
        min_replicas=workers,
        max_replicas=workers,
        progress_timeout_seconds=3600,
        train=TrainConfig(parallelism=ParallelismConfig(strategy="fsdp")),
        directory=str(place.logs / NODE_OF_COORDINATOR),
    )
