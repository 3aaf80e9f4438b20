"""What the stubs of coordinators that train on serve: their status, and a watch of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from abc import ABC, abstractmethod
from collections import Counter

from aiohttp import web

from regroup_trainer.coordinator.coordinator_status import StatusLines
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.system.line_stream import LineStream

STEP_SECONDS = 1.0
"""Each step raises the sequence of a status: no request is held for longer."""


class StatusRoutes(ABC):
    """Routes of any number of coordinators. A request says of which."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        """Address -> answers, and lines of watches, that its coordinator has sent."""

    @abstractmethod
    def status(self, request: web.Request) -> CoordinatorStatus:
        """What it says now. Raises HTTPException where there is none."""

    async def get_status(self, request: web.Request) -> web.Response:
        """It says at once what has changed, or after a step."""
        after, now = int(request.query["after"]), time.time()
        if int(now / STEP_SECONDS) <= after:
            await asyncio.sleep(STEP_SECONDS - now % STEP_SECONDS)
        text = self.status(request).model_dump_json()
        self.sent[asked_address(request)] += 1
        return web.Response(text=text, content_type="application/json")

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Lines as of the real one."""
        lines = StatusLines(float(request.query["every"]), random.random)
        status = functools.partial(self.status, request)
        status()
        stream = await LineStream.begin(request)
        with contextlib.suppress(ConnectionError):
            while True:
                line = lines.next_line(status().essence(), status, time.monotonic())
                if line is not None and stream.is_free():
                    await stream.send(line)
                    self.sent[asked_address(request)] += 1
                await asyncio.sleep(lines.pauses(time.monotonic())[1])
        return stream.response


def asked_address(request: web.Request) -> str:
    """Of the coordinator, as the request has it: also when its connection is gone."""
    return str(request.url.host)
