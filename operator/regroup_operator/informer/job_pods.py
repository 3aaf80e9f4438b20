"""The pods of jobs, from memory where it knows them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from regroup_operator.api import names
from regroup_operator.api.resource import Key, Object
from regroup_operator.errors import ClusterError
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.object_cache import Change, Seen
from regroup_operator.informer.resource_version import NEVER, parse_version
from regroup_operator.observe.kubernetes_objects import read_pod
from regroup_operator.observe.observed import JobObject, Pod

PAGE_PAUSE_SECONDS = 0.05
"""After a whole page of pods, which keeps the process busy for half as long: rounds go on."""
MOST_ENTRIES = 10_000
"""Of the lists of a pod that are looked through: as many as a spec has values. A pod that somebody
makes may have ten times as many, which would take 0.1 s of the thread of all each time.
"""
_OVERHEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class OwnedPod:
    """A pod, and the UID of the object that controls it; empty: none does."""

    owner: str
    pod: Pod


SeenPod = Seen[OwnedPod]


def keep_pod(document: Object) -> tuple[OwnedPod, int]:
    """What memory keeps of a pod, and about how many bytes it takes. Raises ValueError for a pod
    with more than MOST_ENTRIES.
    """
    if any(entries > MOST_ENTRIES for entries in _lengths(document)):
        raise ValueError(f"it has more than {MOST_ENTRIES} entries in a list")
    owners = document["metadata"].get("ownerReferences", [])
    owner = next((str(each["uid"]) for each in owners if each.get("controller")), "")
    kept = OwnedPod(owner, read_pod(document))
    values = [value for value in _values_of(kept.pod) if value]
    parts = [part for value in values if isinstance(value, tuple | frozenset) for part in value]
    # Thousands of short texts take ten times as much as they are long.
    return kept, _OVERHEAD_BYTES + sum(map(sys.getsizeof, (*values, *parts)))


_values_of = operator.attrgetter(*(field.name for field in fields(Pod)))


def _lengths(document: Object) -> Iterator[int]:
    """How many entries the lists have that are looked through."""
    spec, status = document["spec"], document.get("status", {})
    yield len(document["metadata"].get("ownerReferences") or ())
    for field in ("volumes", "initContainers", "containers"):
        yield len(spec.get(field) or ())
    for field in ("conditions", "initContainerStatuses", "containerStatuses"):
        yield len(status.get(field) or ())
    yield max((len(each.get("env") or ()) for each in spec["containers"]), default=0)


def is_loss(change: Change[OwnedPod]) -> bool:
    """Whether a pod that was alive is no more."""
    before, after = (seen.value if seen else None for seen in (change.before, change.after))
    return before is not None and before.pod.alive and not (after and after.pod.alive)


def job_of(metadata: Object) -> Key:
    """The job that a pod's label names. Raises KeyError for a pod without it."""
    return str(metadata["namespace"]), str(metadata["labels"][names.JOB])


class JobPods:
    """The watched pods of each namespace; of all, under None."""

    def __init__(self, watches: Mapping[str | None, ListWatch[OwnedPod]]) -> None:
        self._watches = watches
        self._complete: set[str | None] = set()
        """Of these watches memory has all pods that a former leader has made and could be read."""
        self._doubtful: set[str] = set()
        """Names of the jobs whose pods the others may be."""

    def trust(self) -> None:
        """Count on the lists of the watches: nobody has led since before they began."""
        for namespace in self._watches:
            self._take_list(namespace)

    def _take_list(self, namespace: str | None) -> None:
        """Of a pod that could not be read only the name is known, not whose it is. A leader gives
        each pod a name that holds its job's, and nobody can change one. So the pod leaves the jobs
        of this name in doubt, which may be in any namespace, and no others. Each of them lists its
        own pods before it acts, which ends the doubt or names the pod.
        """
        self._doubtful.update(map(names.job_of_pod, self._watches[namespace].left_out))
        self._complete.add(namespace)

    def has_all_of(self, job: Key) -> bool:
        """Whether memory has all pods that a former leader has made of a job."""
        return bool(self._complete & {job[0], None}) and job[1] not in self._doubtful

    @property
    def has_all(self) -> bool:
        """Whether all namespaces were listed."""
        return len(self._complete) == len(self._watches)

    async def refresh(self) -> None:
        """List all pods by consistent reads, with pauses between pages. Raises ClusterError once
        all namespaces were tried.
        """
        failed: ClusterError | None = None
        for namespace, watch in self._watches.items():
            if namespace not in self._complete:
                try:
                    await watch.refresh(PAGE_PAUSE_SECONDS)
                except ClusterError as error:
                    failed = error
                else:
                    self._take_list(namespace)
        if failed is not None:
            raise failed

    def of(self, job: JobObject) -> tuple[Pod, ...] | None:
        """A job's own pods. None: memory does not know them all, and the API server does."""
        cache = self._watch(job.namespace).cache
        if cache.version == NEVER:
            return None
        found = [seen.value for seen in cache.of(job.key)]
        return own_pods(job, found) if all(found) else None

    def jobs(self) -> set[Key]:
        """The jobs that the labels of pods name. Some may not exist."""
        return {job for watch in self._watches.values() for job in watch.cache.subjects()}

    def known(self, job: Key) -> list[Pod]:
        """Those with a job's label that memory knows."""
        return [seen.value.pod for seen in self._watch(job[0]).cache.of(job) if seen.value]

    def count(self, job: Key) -> int:
        """How many pods with a job's label memory knows."""
        return self._watch(job[0]).cache.count(job)

    def read(self, document: Object) -> SeenPod:
        """A pod from an answer. Raises UnreadableError."""
        return self._watch(document["metadata"]["namespace"]).read(document)

    def note(self, answer: Object) -> None:
        """Take a pod from the answer to a write. Raises UnreadableError."""
        seen = self.read(answer)
        self._watch(seen.key[0]).cache.note(seen)

    def note_list(self, job: Key, listed: list[SeenPod], version: str) -> None:
        """Take a consistent list of all pods with the job's label. Raises ValueError."""
        self._watch(job[0]).cache.note_list(job, listed, parse_version(version))

    def _watch(self, namespace: str) -> ListWatch[OwnedPod]:
        return self._watches.get(namespace) or self._watches[None]


def own_pods(job: JobObject, found: list[OwnedPod | None]) -> tuple[Pod, ...]:
    """Those of these pods that the job controls."""
    return tuple(each.pod for each in found if each is not None and each.owner == job.uid)
