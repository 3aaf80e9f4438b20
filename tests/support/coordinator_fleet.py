"""Many flawless coordinators in one other process: each has a loopback address, and trains on.

`python -m tests.support.coordinator_fleet 1000` serves until its input ends. For each line of input
it prints how many were asked since the last line `forget`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from aiohttp import web

from regroup_trainer.protocol.addresses import COORDINATOR_PORT
from tests.support.operator_simulation import make_coordinator_status

STEP_SECONDS = 0.05
"""Each step raises the sequence of a status: no request is held for longer."""


FLEETS = range(100, 200)
"""Each fleet has a block of addresses of its own, since tests run at the same time."""


def address_of(fleet: int, number: int) -> str:
    """Of a coordinator of a fleet."""
    return f"127.{fleet}.{number // 250}.{1 + number % 250}"


class CoordinatorFleet:
    """A context manager: inside, so many coordinators of term 1 answer."""

    def __init__(self, count: int) -> None:
        self.addresses: list[str] = []
        self._count = count
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, str(self._count)]
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

    def asked(self) -> int:
        """How many of them were asked since `forget`."""
        return self._order(b"count\n")

    def forget(self) -> None:
        """Forget who was asked."""
        self._order(b"forget\n")

    def _order(self, line: bytes) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, all connections stand, and none is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


ASKED: web.AppKey[set[str]] = web.AppKey("asked", set)
"""The addresses that were asked since the last line `forget`."""


async def _status(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.app[ASKED].add(request.transport.get_extra_info("sockname")[0])
    after, now = int(request.query["after"]), time.time()
    if int(now / STEP_SECONDS) <= after:
        await asyncio.sleep(STEP_SECONDS)
    status = make_coordinator_status(sequence=int(time.time() / STEP_SECONDS))
    return web.Response(text=status.model_dump_json(), content_type="application/json")


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


async def _serve(count: int) -> None:
    application = web.Application()
    application.router.add_get("/v1/status", _status)
    asked = application[ASKED] = set()
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    fleet = await _find_block(runner)
    for number in range(1, count):
        await _listen(runner, fleet, number)
    print(fleet, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line == "forget\n":
            asked.clear()
        print(len(asked), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
