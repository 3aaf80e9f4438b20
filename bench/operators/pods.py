"""When pods were made and ran, as a watch has seen it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bench.operators.client import Client, Json
from bench.operators.cluster import NAMESPACE

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class PodWatch:
    """An asynchronous context manager: inside, all pods of jobs are watched."""

    def __init__(self, client: Client, label: str) -> None:
        """`label` has the name of a pod's job."""
        self._client, self._label = client, label
        self.made: dict[str, dict[str, float]] = defaultdict(dict)
        """Job -> pod -> when it was seen first, on the monotonic clock."""
        self.ran: dict[str, dict[str, float]] = defaultdict(dict)
        self.pods: dict[str, Json] = {}
        """Those that there are, by name."""
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until it holds. Raises TimeoutError, and what ended the watch."""
        async with asyncio.timeout(seconds), self._news:
            while not holds():
                if self._task.done():
                    self._task.result()
                    raise ConnectionError("the watch of the pods has ended")
                await self._news.wait()

    async def _run(self) -> None:
        try:
            async for event in self._client.watch(PODS, self._label):
                await self._note(event["type"], event["object"])
        finally:
            async with self._news:
                self._news.notify_all()

    async def _note(self, kind: str, pod: Json) -> None:
        now, name = time.monotonic(), pod["metadata"]["name"]
        job = pod["metadata"]["labels"][self._label]
        if kind == "DELETED":
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
            self.made[job].setdefault(name, now)
            if pod["status"].get("phase") == "Running":
                self.ran[job].setdefault(name, now)
        async with self._news:
            self._news.notify_all()
