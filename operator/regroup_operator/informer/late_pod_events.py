"""What Events say about pods whose containers do not start.

The API server goes through all events of a namespace to find those of a pod, and whoever may write
there can make thousands. So an answer counts for some seconds.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from regroup_operator.api.resource import Object
from regroup_operator.observe.kubernetes_objects import read_mount_failure, read_pull

COUNTS_SECONDS = 5.0

AskEvents = Callable[[str, str], Awaitable[list[Object]]]
"""The events of a pod, by namespace and UID."""


@dataclass(frozen=True)
class LatePod:
    """Why a pod is late, as the kubelet says; empty where it does not."""

    mount_failure: str
    pull: str


class LatePodEvents:
    """Asks for the events of pods, of each at most once in COUNTS_SECONDS."""

    def __init__(self, ask: AskEvents, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._answers: dict[str, tuple[float, LatePod]] = {}
        """By UID; the oldest first."""

    async def get(self, namespace: str, uid: str) -> LatePod:
        """Why this pod is late. Raises as `ask` does."""
        now = self._clock()
        self._drop_old(now)
        if uid in self._answers:
            return self._answers[uid][1]
        events = await self._ask(namespace, uid)
        found = LatePod(read_mount_failure(events), read_pull(events))
        self._answers[uid] = now, found
        return found

    def _drop_old(self, now: float) -> None:
        while self._answers:
            uid = next(iter(self._answers))
            if self._answers[uid][0] > now - COUNTS_SECONDS:
                break
            del self._answers[uid]
