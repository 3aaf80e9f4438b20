"""Memory of jobs and pods that no API server fills."""

from __future__ import annotations

from typing import cast

from regroup_operator.informer.api_connection import ApiConnection
from regroup_operator.informer.collection import Collection
from regroup_operator.informer.job_memory import JobMemory
from regroup_operator.informer.job_pods import JobPods, OwnedPod, job_of, keep_pod
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.object_cache import ObjectCache
from regroup_operator.informer.training_jobs import Ask, TrainingJobs, keep_job


def make_pod_watch() -> ListWatch[OwnedPod]:
    """The list and watch of all pods, which does not run."""
    collection = Collection(cast(ApiConnection, None), "/api/v1/pods")
    cache: ObjectCache[OwnedPod] = ObjectCache(10**6, 10**5)
    return ListWatch(collection, cache, lambda *_: None, keep_pod, job_of)


def make_job_watch() -> ListWatch[str]:
    """The list and watch of all TrainingJobs, which does not run."""
    collection = Collection(cast(ApiConnection, None), "/apis/regroup.dev/v1alpha1/trainingjobs")
    return ListWatch(collection, ObjectCache(10**6, 10**5), lambda *_: None, keep_job)


UNWATCHED = JobPods({None: make_pod_watch()})
"""It knows nothing, so that each round asks."""


async def _no_job(*_: str) -> None:
    return None


def make_memory(ask: Ask = _no_job) -> JobMemory:
    """Memory that knows nothing."""
    return JobMemory(TrainingJobs({None: make_job_watch()}, ask), UNWATCHED)
