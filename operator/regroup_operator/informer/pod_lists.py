"""Bounds what lists of the pods of jobs take that rounds ask for, and hold until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from regroup_operator.api.resource import Object
from regroup_operator.errors import UnreadableObjectError
from regroup_operator.informer.fair_places import FairPlaces
from regroup_operator.informer.job_pods import OwnedPod, SeenPod
from regroup_operator.observe.observed import Pod

LARGE_LIST_BYTES = 1024 * 1024
"""Of a list. One that holds more is read when it is its turn. 300 ordinary pods take as much."""
LARGE_LISTS = 3
"""Of which that many are held at once, of a namespace one."""
PATIENCE_SECONDS = 5.0
"""How long it waits for that. Then its round fails, and leaves its place to others for a while."""
_FOREIGN_BYTES = 512


def read_for(owner: str, read: Callable[[Object], SeenPod]) -> Callable[[Object], SeenPod]:
    """Reads pods as `read` does; of those that the job with this UID does not control, only what
    tells them from others: whoever may create pods may give them a job's label. Raises
    UnreadableObjectError for one that memory fails to keep.
    """

    def read_briefly(document: Object) -> SeenPod:
        seen = read(document)
        if seen.value is None:
            namespace, name = seen.key
            raise UnreadableObjectError.pod(f"/api/v1/namespaces/{namespace}/pods", name)
        if seen.value.owner == owner:
            return seen
        whole = seen.value.pod
        place, state = (whole.role, whole.index, whole.term), (whole.phase, whole.terminating)
        value = OwnedPod(seen.value.owner, Pod(whole.name, whole.uid, *place, *state))
        return replace(seen, value=value, size=min(seen.size, _FOREIGN_BYTES))

    return read_briefly


class ListTurns:
    """Places for large lists, each held until the task ends that has taken it."""

    def __init__(self, places: int = LARGE_LISTS) -> None:
        self._places = FairPlaces(places, most_of_a_group=1)
        self._holders: set[asyncio.Task[Any] | None] = set()

    async def take(self, namespace: str) -> None:
        """Take a place for the task that asks, which is a round, unless it has one. Raises
        TimeoutError.
        """
        task = asyncio.current_task()
        if task is None or task in self._holders:
            return
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._places.acquire(namespace)
        self._holders.add(task)
        task.add_done_callback(partial(self._give_back, namespace))

    def _give_back(self, namespace: str, task: asyncio.Task[Any]) -> None:
        self._holders.discard(task)
        self._places.release(namespace)
