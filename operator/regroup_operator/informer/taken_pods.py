"""Finds pods of jobs from which somebody has taken the job's label, which no list or watch shows
then, or the job as their owner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from regroup_operator.api.resource import Key
from regroup_operator.errors import ClusterError
from regroup_operator.informer.job_pods import OwnedPod, is_loss, keep_pod
from regroup_operator.informer.object_cache import Change
from regroup_operator.informer.remembered_objects import Ask
from regroup_operator.observe.observed import JobObject, Pod

MOST_VANISHED = 1_000
"""Pods, of all jobs, that are remembered after they have vanished, or lost their owner."""
MOST_SOUGHT = 4
"""Of them, for one job in one round. One that is found slows down the job."""
TAKEN_SECONDS = 600.0
"""How long it counts that a pod was taken so: twice the longest back-off by default."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundPods:
    """Pods that were the job's, and are none of its any more. None has a role."""

    relabelled: list[Pod] = field(default_factory=list)
    """The job still controls them. They have lost its label."""
    disowned: list[Pod] = field(default_factory=list)
    """The job controls them no more: they are not the operator's to delete."""


@dataclass(frozen=True)
class _Sought:
    """A pod as it was known last."""

    job: Key
    name: str
    owner: str
    """UID of the object that controlled it."""


class TakenPods:
    """Looks for pods that have vanished without a deletion, or have another owner or none. `ask`
    reads a pod by its name.
    """

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._sought: dict[str, _Sought] = {}
        """By UID, the oldest first."""
        self._found_at: dict[Key, float] = {}
        """Job -> when a pod was last seen without its label or its owner."""

    def note_change(self, change: Change[OwnedPod]) -> None:
        """Remember a pod that has vanished without a word: it was deleted by force, or somebody has
        taken the job's label from it. Remember one that has lost its owner, too.
        """
        before = change.before
        if before is None or before.value is None or not (_vanishes(change) or _is_taken(change)):
            return
        self._sought[before.uid] = _Sought(change.subject, before.key[1], before.value.owner)
        if len(self._sought) > MOST_VANISHED:
            del self._sought[next(iter(self._sought))]

    async def find(self, job: JobObject) -> FoundPods:
        """The pods that were taken from the job, until its status has counted them."""
        gone = [(uid, sought) for uid, sought in self._sought.items() if sought.job == job.key]
        found = FoundPods()
        for uid, sought in gone[:MOST_SOUGHT]:
            is_known = uid in job.status.handled_pods or sought.owner != job.uid
            owned = None if is_known else await self._read(job, sought.name)
            if owned is not None and owned.pod.uid == uid:
                pods = found.relabelled if owned.owner == job.uid else found.disowned
                pods.append(replace(owned.pod, role=""))
                self._found_at[job.key] = self._clock()
            else:
                self._sought.pop(uid, None)
        return found

    def found_lately(self, job: Key) -> bool:
        """Whether a pod of the job was found in the last TAKEN_SECONDS."""
        at = self._found_at.get(job)
        return at is not None and self._clock() - at < TAKEN_SECONDS

    def forget(self, job: Key) -> None:
        """The job is gone."""
        self._found_at.pop(job, None)

    async def _read(self, job: JobObject, name: str) -> OwnedPod | None:
        """A pod, whatever labels and owner it has; None where it cannot be read."""
        try:
            document = await self._ask(job.namespace, name)
        except ClusterError as error:
            log.warning("%s/%s: cannot look for pod %s: %s", *job.key, name, error)
            return None
        return keep_pod(document)[0] if document else None


def _vanishes(change: Change[OwnedPod]) -> bool:
    return change.after is None and is_loss(change)


def _is_taken(change: Change[OwnedPod]) -> bool:
    """Whether a live pod has another owner than before, or none."""
    before, after = change.before, change.after
    if before is None or after is None or before.uid != after.uid:
        return False
    if before.value is None or after.value is None or not after.value.pod.alive:
        return False
    return before.value.owner != after.value.owner
