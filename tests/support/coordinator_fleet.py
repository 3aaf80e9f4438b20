"""Many flawless coordinators in one other process: each has a loopback address, and trains on.

`python -m tests.support.coordinator_fleet 1000` serves until its input ends. For each empty line of
input it prints, as JSON, how many answers and lines of watches each of them has sent. A line
`ADDRESS UID` says which pod is the only worker of the coordinator there; before, it has eight that
are nobody's. With `--without-watch` all are of an older release.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from aiohttp import web

from bench.operators.status_routes import STEP_SECONDS, StatusRoutes, asked_address
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus, MemberStatus
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.operator_simulation import make_coordinator_status

WORKERS = 8
"""Of each job, until its own are known."""

FLEETS = range(100, 200)
"""Each fleet has a block of addresses of its own, since tests run at the same time."""


def address_of(fleet: int, number: int) -> str:
    """Of a coordinator of a fleet."""
    return f"127.{fleet}.{number // 250}.{1 + number % 250}"


class CoordinatorFleet:
    """A context manager: inside, so many coordinators of term 1 answer."""

    def __init__(self, count: int, *, with_watch: bool = True) -> None:
        self.addresses: list[str] = []
        self._count = count
        self._options = [] if with_watch else ["--without-watch"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, str(self._count), *self._options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        fleet = int(self._process.stdout.readline())
        self.addresses = [address_of(fleet, number) for number in range(self._count)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.communicate(timeout=20)

    def answers(self) -> int:
        """How many answers and lines they have sent."""
        return sum(self.answers_of_each())

    def answers_of_each(self) -> list[int]:
        """How many answers and lines each of them has sent, in the order of `addresses`."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._say("")
        counts: list[int] = json.loads(self._process.stdout.readline())
        return counts

    def trains(self, address: str, worker: str) -> None:
        """From now on, the pod with this UID is the only worker of the coordinator there."""
        self._say(f"{address} {worker}")

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def go_first(self) -> None:
        """Have them run before all else on this machine: in a cluster, load on the operator's
        machine does not delay their answers. Raises PermissionError.
        """
        assert self._process is not None
        os.setpriority(os.PRIO_PROCESS, self._process.pid, -15)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, all connections stand, and none is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


class _Answers(StatusRoutes):
    """What all of them send, and how much that was."""

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[str, tuple[MemberStatus, ...]] = {}
        """By the coordinator's address."""

    def note(self, address: str, worker: str) -> None:
        """Take note of the only worker of a coordinator."""
        self._members[address] = (_member(worker, 0),)

    def status(self, request: web.Request) -> CoordinatorStatus:
        """Of the coordinator that was asked."""
        return _status_now(self._members.get(asked_address(request), _MEMBERS))


def _status_now(members: tuple[MemberStatus, ...]) -> CoordinatorStatus:
    step = int(time.time() / STEP_SECONDS)
    progress = Progress(generation=GenerationNumber(1, 1), rank=0, step=step, time=time.time())
    return make_coordinator_status(
        sequence=step,
        progress=progress,
        members=members,
        agents_in_contact=(),
        world_size=len(members),
    )


def _member(uid: str, rank: int) -> MemberStatus:
    pod, node = f"job-w{rank}-1", f"node{rank}"
    return MemberStatus(member=uid, index=rank, pod=pod, node=node, rank=rank, step=1)


_MEMBERS = tuple(_member(str(uuid.UUID(int=n)), n) for n in range(WORKERS))


async def _listen(runner: web.AppRunner, fleet: int, number: int) -> None:
    address = address_of(fleet, number)
    await web.TCPSite(runner, address, COORDINATOR_PORT, backlog=16).start()


async def _find_block(runner: web.AppRunner) -> int:
    """Listen on the first address of a block that no other fleet has."""
    for fleet in FLEETS:
        try:
            await _listen(runner, fleet, 0)
        except OSError:
            continue
        return fleet
    raise OSError(f"no block of addresses is free: {FLEETS}")


async def _serve(count: int, *, with_watch: bool) -> None:
    application, answers = web.Application(), _Answers()
    application.router.add_get("/v1/status", answers.get_status)
    if with_watch:
        application.router.add_get("/v1/watch", answers.watch)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    fleet = await _find_block(runner)
    for number in range(1, count):
        await _listen(runner, fleet, number)
    print(fleet, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if worker := line.split():
            answers.note(*worker)
        else:
            sent = [answers.sent[address_of(fleet, number)] for number in range(count)]
            print(json.dumps(sent), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), with_watch="--without-watch" not in sys.argv))
