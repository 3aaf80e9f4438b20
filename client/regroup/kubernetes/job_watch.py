"""Following one job through outages of the API server, and waiting for its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from regroup.kubernetes.cluster_errors import ClusterError
from regroup_operator.api.resource import Object

RETRY_SECONDS = 2.0
WATCH_SECONDS = 240.0
"""After so long one watch ends and another begins."""


class Watched(Protocol):
    """What is needed of ClusterApi."""

    def job(self, namespace: str, name: str) -> Object:
        """The TrainingJob as the API server has it. Raises ClusterError."""

    def watch_job(
        self, namespace: str, name: str, version: str, seconds: float
    ) -> Iterator[tuple[str, Object]]:
        """What happens to it after that version, for so long."""


@dataclass(frozen=True)
class Clock:
    """When to stop, and how time passes."""

    end: float = math.inf
    """On the clock of `now`."""
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - self.now()


def follow(
    api: Watched, namespace: str, name: str, note: Callable[[str], None], clock: Clock
) -> Iterator[Object]:
    """Yield the job, and again after each change, until the clock's end.

    An outage of the API server is passed to `note`, once. Raises ClusterError when the job is
    deleted, or cannot be read at first.
    """
    job = api.job(namespace, name)
    yield job
    is_away = False
    while clock.left > 0:
        try:
            if is_away:
                job, is_away = api.job(namespace, name), False
                yield job
            seconds = max(1.0, min(WATCH_SECONDS, clock.left))
            for kind, changed in api.watch_job(namespace, name, _version(job), seconds):
                if kind == "DELETED":
                    raise ClusterError(f"trainingjob {name} was deleted", status=404)
                if kind == "ERROR":  # the version is too old
                    is_away = True
                    break
                job = changed
                yield job
        except ClusterError as error:
            if not error.may_pass:
                raise
            if not is_away:
                note(f"{error}; trying again")
            is_away = True
            clock.sleep(RETRY_SECONDS)


def _version(job: Object) -> str:
    return str((job.get("metadata") or {}).get("resourceVersion", ""))
