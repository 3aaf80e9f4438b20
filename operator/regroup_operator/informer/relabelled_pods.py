"""Finds pods of jobs from which somebody has taken the job's label: no list or watch shows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from regroup_operator.api.resource import Key
from regroup_operator.errors import ClusterError
from regroup_operator.informer.job_pods import OwnedPod, is_loss, keep_pod
from regroup_operator.informer.object_cache import Change
from regroup_operator.informer.remembered_objects import Ask
from regroup_operator.observe.observed import JobObject, Pod

MOST_VANISHED = 1_000
"""Pods, of all jobs, that are remembered after they have vanished."""
MOST_SOUGHT = 4
"""Of them, for one job in one round. One that is found slows down the job."""
RELABELLED_SECONDS = 600.0
"""How long it counts that a pod has lost its label: twice the longest back-off by default."""

log = logging.getLogger(__name__)


class RelabelledPods:
    """Looks for pods that have vanished without a deletion. `ask` reads a pod by its name."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._vanished: dict[str, tuple[Key, str]] = {}
        """UID -> job and name, the oldest first."""
        self._found_at: dict[Key, float] = {}
        """Job -> when a pod was last seen without its label."""

    def note_change(self, change: Change[OwnedPod]) -> None:
        """Remember a pod that has vanished without a word: it was deleted by force, or somebody has
        taken the job's label from it.
        """
        if change.before is None or change.after is not None or not is_loss(change):
            return
        self._vanished[change.before.uid] = change.subject, change.before.key[1]
        if len(self._vanished) > MOST_VANISHED:
            del self._vanished[next(iter(self._vanished))]

    async def find(self, job: JobObject) -> list[Pod]:
        """The job's pods without its label, until its status has counted them. They have no
        role.
        """
        gone = [(uid, name) for uid, (of, name) in self._vanished.items() if of == job.key]
        found = []
        for uid, name in gone[:MOST_SOUGHT]:
            pod = None if uid in job.status.handled_pods else await self._sought(job, name)
            if pod is not None and pod.uid == uid:
                found.append(replace(pod, role=""))
                self._found_at[job.key] = self._clock()
            else:
                self._vanished.pop(uid, None)
        return found

    def found_lately(self, job: Key) -> bool:
        """Whether a pod of the job was found in the last RELABELLED_SECONDS."""
        at = self._found_at.get(job)
        return at is not None and self._clock() - at < RELABELLED_SECONDS

    def forget(self, job: Key) -> None:
        """The job is gone."""
        self._found_at.pop(job, None)

    async def _sought(self, job: JobObject, name: str) -> Pod | None:
        """A pod that the job controls, whatever labels it has; None where it cannot be read."""
        try:
            document = await self._ask(job.namespace, name)
        except ClusterError as error:
            log.warning("%s/%s: cannot look for pod %s: %s", *job.key, name, error)
            return None
        owned = keep_pod(document)[0] if document else None
        return owned.pod if owned and owned.owner == job.uid else None
