"""The lists and watches that fill the memory of jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from regroup_operator.api import names
from regroup_operator.api.resource import KIND
from regroup_operator.controller.cluster import (
    Cluster,
    budgets_path,
    jobs_path,
    pods_path,
    policies_path,
    services_path,
)
from regroup_operator.informer.collection import Collection
from regroup_operator.informer.job_memory import JobMemory
from regroup_operator.informer.job_pods import JobPods, OwnedPod, job_of, keep_pod
from regroup_operator.informer.list_watch import ListWatch, OnChange, Read, SubjectOf, own_key
from regroup_operator.informer.object_cache import Change, ObjectCache, SharedBytes
from regroup_operator.informer.remembered_objects import Ask, RememberedObjects, keep_text
from regroup_operator.informer.taken_pods import TakenPods
from regroup_operator.informer.worker_ends import WorkerEnds

T = TypeVar("T")
Path = Callable[[str | None], str]
"""Namespace -> path of a collection; None: of all namespaces."""
MOST_BYTES_OF_ONE = 64 * 1024
_MIB = 1024 * 1024
JOB_BYTES, POD_BYTES, OTHER_BYTES = 32 * _MIB, 64 * _MIB, 8 * _MIB
"""Of all jobs, of all pods, and of all objects of each other kind, about. While lists are read,
these may hold as much again, and no more: less than the limit of the chart, 512 MiB.
"""


@dataclass
class MemoryWatches:
    """Makes the watches of these namespaces; None: of all of them in one."""

    cluster: Cluster
    namespaces: tuple[str | None, ...]
    watches: list[ListWatch[Any]] = field(default_factory=list)
    """Those that were made, to be run."""

    def memory(self, on_job: OnChange[str], on_pod: OnChange[OwnedPod]) -> JobMemory:
        """The memory that they fill. Changes of jobs and pods are reported with the key of the
        job. Nothing but rounds looks at the other objects.
        """
        read = keep_text(KIND, "spec", "status")
        jobs = self._watch(jobs_path, JOB_BYTES, on_job, read, watches_metadata=True)
        taken, ends = TakenPods(self.cluster.pod), WorkerEnds()

        def pod_changed(change: Change[OwnedPod]) -> None:
            taken.note_change(change)
            ends.note_change(change)
            on_pod(change)

        pods = self._watch(pods_path, POD_BYTES, pod_changed, keep_pod, job_of)
        return JobMemory(
            RememberedObjects(jobs, self.cluster.job),
            JobPods(pods),
            taken,
            ends,
            self._labelled("Service", services_path, self.cluster.service),
            self._labelled("NetworkPolicy", policies_path, self.cluster.network_policy),
            self._labelled("PodDisruptionBudget", budgets_path, self.cluster.disruption_budget),
        )

    def _labelled(self, kind: str, path: Path, ask: Ask) -> RememberedObjects:
        read = keep_text(kind, "spec")
        watches = self._watch(path, OTHER_BYTES, lambda _: None, read, job_of)
        return RememberedObjects(watches, ask, names.JOB)

    def _watch(
        self,
        path: Path,
        most_bytes: int,
        on_change: OnChange[T],
        read: Read[T],
        subject_of: SubjectOf = own_key,
        *,
        watches_metadata: bool = False,
    ) -> dict[str | None, ListWatch[T]]:
        """What belongs to jobs is selected by their label. The caches of all namespaces share one
        bound.
        """
        label, shared = names.JOB if subject_of is job_of else "", SharedBytes()
        made = {
            namespace: ListWatch(
                Collection(self.cluster.connection, path(namespace), label, watches_metadata),
                ObjectCache[T](most_bytes, MOST_BYTES_OF_ONE, shared),
                on_change,
                read,
                subject_of,
            )
            for namespace in self.namespaces
        }
        self.watches += made.values()
        return made
