"""Coordinators that train on: one process answers at the addresses of all coordinators' pods.

`python -m bench.operators.coordinators URL FOLDER`, with the folder of the certificates. Members
are the job's workers that have run, each until it is reported lost; its successor joins after that.
A step takes a second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from operator import attrgetter
from pathlib import Path

from aiohttp import web

from bench.operators.client import Client, Json
from bench.operators.pods import PODS
from bench.operators.status_routes import STEP_SECONDS, StatusRoutes, asked_address
from devcluster.pki import Authority
from regroup_trainer.coordinator.journal import EVENTS_KEPT
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus, JobEvent, MemberStatus
from regroup_trainer.protocol.lineage_files import checkpoint_path
from regroup_trainer.protocol.rank_messages import CheckpointSaved, Progress

LOST_PATH = "/bench/lost"
JOB, ROLE, INDEX = "regroup.dev/job", "regroup.dev/role", "regroup.dev/index"


def _event(sequence: int, moment: float, reason: str) -> JobEvent:
    message = f"generation 1.1: 8 ranks on 8 workers, event {sequence} of this bench"
    return JobEvent(sequence=sequence, time=moment, type="Normal", reason=reason, message=message)


EARLIER = time.time() - 7200
_SAVED = CheckpointSaved(
    generation=GenerationNumber(1, 1),
    rank=0,
    step=0,
    path=checkpoint_path(0),
    size_bytes=10**9,
    seconds=3.0,
    blocking_seconds=0.1,
    time=EARLIER,
)
_SAVES = tuple(_event(n + 1, EARLIER + 60 * n, "CheckpointSaved") for n in range(EVENTS_KEPT - 1))


class Coordinators(StatusRoutes):
    """What each of them knows of its job."""

    def __init__(self) -> None:
        super().__init__()
        self._at: dict[str, Json] = {}
        """Coordinators' pods by address."""
        self._workers: dict[str, dict[str, Json]] = {}
        """Job -> UID -> pod, of those that have run, the oldest first."""
        self._members: dict[str, tuple[MemberStatus, ...]] = {}
        """By job. They are asked for many times between two changes."""
        self._revisions: dict[str, int] = {}
        self._lost: dict[str, float] = {}
        self._formed: dict[str, float] = {}
        """Job -> when it began to train."""

    def note(self, kind: str, pod: Json) -> None:
        """An event of a watch."""
        labels, uid = pod["metadata"]["labels"], pod["metadata"]["uid"]
        if kind == "DELETED" or pod["status"].get("phase") != "Running":
            return
        if labels[ROLE] == "worker":
            self._workers.setdefault(labels[JOB], {}).setdefault(uid, pod)
            self._members.pop(labels[JOB], None)
        else:
            self._at[pod["status"]["podIP"]] = pod

    def status(self, request: web.Request) -> CoordinatorStatus:
        """What the coordinator at the address says. Raises HTTPServiceUnavailable without one."""
        name, members = self._asked(request)["metadata"]["name"], self._members_of(request)
        step, generation = int(time.time() / STEP_SECONDS), GenerationNumber(1, 1)
        progress = Progress(generation=generation, rank=0, step=step, time=time.time())
        return CoordinatorStatus(
            term=int(name.rpartition("-c")[2]),
            sequence=step,
            revision=self._revisions.get(name, 1),
            phase="running",
            message="training",
            generation=generation,
            world_size=len(members),
            total_steps=10**9,
            progress=progress,
            members=members,
            agents_in_contact=(),
            checkpoint=_SAVED,
            events=self._events_of(self._job_of(request)),
        )

    def _events_of(self, job: str) -> tuple[JobEvent, ...]:
        """As many as a coordinator keeps after a while: a save each minute, of more than an hour
        ago, and that its ranks have begun to train.
        """
        formed = self._formed.setdefault(job, time.time())
        return (*_SAVES, _event(len(_SAVES) + 1, formed, "GenerationFormed"))

    async def put_desired(self, request: web.Request) -> web.Response:
        """Take the revision."""
        desired = Desired.model_validate_json(await request.read())
        self._revisions[self._asked(request)["metadata"]["name"]] = desired.revision
        return web.json_response({})

    async def post_lost(self, request: web.Request) -> web.Response:
        """Forget the members, and note when for `get_lost`."""
        lost = Lost.model_validate_json(await request.read())
        for member in lost.members:
            self._workers_of(request).pop(member, None)
            self._lost.setdefault(member, time.monotonic())
        self._members.pop(self._job_of(request), None)
        return web.json_response({})

    async def get_lost(self, _request: web.Request) -> web.Response:
        """For the benchmark: when each loss was reported, by UID, on the monotonic clock."""
        return web.json_response(self._lost)

    def _asked(self, request: web.Request) -> Json:
        """The pod of the coordinator at the address. Raises HTTPServiceUnavailable without one."""
        if found := self._at.get(asked_address(request)):
            return found
        raise web.HTTPServiceUnavailable

    def _workers_of(self, request: web.Request) -> dict[str, Json]:
        """Of its job, by UID."""
        return self._workers.setdefault(self._job_of(request), {})

    def _members_of(self, request: web.Request) -> tuple[MemberStatus, ...]:
        job = self._job_of(request)
        if job not in self._members:
            by_index = {_index(pod): pod for pod in reversed(self._workers_of(request).values())}
            members = sorted(map(_member, by_index.values()), key=attrgetter("index"))
            self._members[job] = tuple(members)
        return self._members[job]

    def _job_of(self, request: web.Request) -> str:
        job: str = self._asked(request)["metadata"]["labels"][JOB]
        return job


def _index(pod: Json) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def _member(pod: Json) -> MemberStatus:
    index = _index(pod)
    return MemberStatus(
        member=pod["metadata"]["uid"],
        index=index,
        pod=pod["metadata"]["name"],
        node=pod["spec"]["nodeName"],
        rank=index,
        step=1,
    )


async def _serve(url: str, folder: Path) -> None:
    coordinators, application = Coordinators(), web.Application()
    application.router.add_get("/v1/status", coordinators.get_status)
    application.router.add_get("/v1/watch", coordinators.watch)
    application.router.add_put("/v1/desired", coordinators.put_desired)
    application.router.add_post("/v1/lost", coordinators.post_lost)
    application.router.add_get(LOST_PATH, coordinators.get_lost)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", COORDINATOR_PORT, backlog=4096).start()
    async with Client(url, Authority(folder)) as client:
        async for event in client.watch(PODS, ROLE):
            coordinators.note(event["type"], event["object"])


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
