"""Memory of jobs and what they own, which no API server fills."""

from __future__ import annotations

from typing import Any, cast

from regroup_operator.api import names
from regroup_operator.controller.cluster import Cluster, jobs_path, pods_path, services_path
from regroup_operator.controller.memory_watches import MOST_BYTES_OF_ONE, MemoryWatches
from regroup_operator.informer.api_connection import ApiConnection
from regroup_operator.informer.collection import Collection
from regroup_operator.informer.job_memory import JobMemory
from regroup_operator.informer.job_pods import JobPods, OwnedPod, job_of, keep_pod
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.object_cache import ObjectCache
from regroup_operator.informer.remembered_objects import keep_text
from regroup_operator.observe.observed import Job

Json = dict[str, Any]
NOWHERE = cast(ApiConnection, None)


def make_pod(job: Job, name: str = "gpt-w0-1", version: int = 5, **metadata: Any) -> Json:
    """A worker pod that the job owns."""
    labels = names.labels(job.name, names.WORKER, index=0)
    owner = {"kind": "TrainingJob", "name": job.name, "uid": job.uid, "controller": True}
    known: Json = {"name": name, "namespace": job.namespace, "uid": f"uid-{name}", "labels": labels}
    known |= {"resourceVersion": str(version), "ownerReferences": [owner], **metadata}
    return {"metadata": known, "spec": {"containers": [{"name": "trainer", "image": "a"}]}}


def make_pod_watch(connection: ApiConnection = NOWHERE) -> ListWatch[OwnedPod]:
    """The list and watch of all pods, which does not run."""
    collection = Collection(connection, pods_path(None))
    cache: ObjectCache[OwnedPod] = ObjectCache(10**6, MOST_BYTES_OF_ONE)
    return ListWatch(collection, cache, lambda _: None, keep_pod, job_of)


def make_job_watch() -> ListWatch[str]:
    """The list and watch of all TrainingJobs, which does not run."""
    read = keep_text("TrainingJob", "spec", "status")
    cache: ObjectCache[str] = ObjectCache(10**6, MOST_BYTES_OF_ONE)
    return ListWatch(Collection(NOWHERE, jobs_path(None)), cache, lambda _: None, read)


def make_service_watch() -> ListWatch[str]:
    """The list and watch of all Services of jobs, which does not run."""
    read = keep_text("Service", "spec")
    cache: ObjectCache[str] = ObjectCache(10**6, MOST_BYTES_OF_ONE)
    collection = Collection(NOWHERE, services_path(None))
    return ListWatch(collection, cache, lambda _: None, read, job_of)


UNWATCHED = JobPods({None: make_pod_watch()})
"""It knows nothing, so that each round asks."""


class _Nothing(Cluster):
    connection = NOWHERE

    def __init__(self) -> None:
        pass


def make_memory(
    cluster: Cluster | None = None, namespaces: tuple[str | None, ...] = (None,)
) -> JobMemory:
    """Memory that knows nothing, so that each round asks this cluster."""
    watches = MemoryWatches(cluster or _Nothing(), namespaces)
    return watches.memory(lambda _: None, lambda _: None)
