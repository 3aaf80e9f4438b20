"""Which workers memory has seen to end, of those that this process has made: whoever replaces one
of them need not list pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from regroup_operator.api import names
from regroup_operator.api.resource import Key
from regroup_operator.informer.job_pods import OwnedPod
from regroup_operator.informer.object_cache import Change
from regroup_operator.observe.observed import EndedWorkers, JobObject, Pod


@dataclass
class _Made:
    """Of one job."""

    uid: str
    """Of the job."""
    incarnations: dict[int, int] = field(default_factory=dict)
    """Index -> incarnation that was asked for last, whatever has come of it."""
    gone: dict[int, str] = field(default_factory=dict)
    """Index -> UID of that pod, where a watch, or its list, has shown that it is no more."""

    def is_last(self, job: str, pod: Pod) -> bool:
        """Whether no worker of its index was asked for after this one of the job of that name."""
        incarnation = self.incarnations.get(pod.index) if pod.role == names.WORKER else None
        return incarnation is not None and pod.name == names.worker(job, pod.index, incarnation)


class WorkerEnds:
    """Remembers, for each index of a job, the worker that this process has asked for last."""

    def __init__(self) -> None:
        self._made: dict[Key, _Made] = {}

    def note_request(self, job: JobObject, index: int, incarnation: int) -> None:
        """A worker is about to be made. Whether it was, no answer may say."""
        made = self._made.get(job.key)
        if made is None or made.uid != job.uid:
            made = self._made[job.key] = _Made(job.uid)
        made.incarnations[index] = incarnation
        made.gone.pop(index, None)

    def note_change(self, change: Change[OwnedPod]) -> None:
        """Take a change of a pod that the watch reports."""
        made, before = (
            self._made.get(change.subject),
            change.before.value if change.before else None,
        )
        if made is None or before is None or change.after is not None:
            return
        if before.owner == made.uid and made.is_last(change.subject[1], before.pod):
            made.gone[before.pod.index] = before.pod.uid

    def of(self, job: JobObject, pods: Iterable[Pod]) -> EndedWorkers:
        """Those of a job that has these pods in memory. One that another process has made is none
        of them: it may have asked for another after it.
        """
        made = self._made.get(job.key)
        if made is None or made.uid != job.uid:
            return EndedWorkers()
        there = (pod for pod in pods if _has_ended(pod) and made.is_last(job.name, pod))
        ended = {pod.index: pod.uid for pod in there} | made.gone
        return EndedWorkers(frozenset(ended), frozenset(ended.values()))

    def forget(self, job: Key) -> None:
        """The job is gone."""
        self._made.pop(job, None)


def _has_ended(pod: Pod) -> bool:
    """Whether it is there and lives no more. One that is being deleted has no end yet that was
    seen: where a watch leaves that out, the list is what finds it.
    """
    return not pod.alive and not pod.terminating
