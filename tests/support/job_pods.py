"""Memory of pods that no API server fills."""

from __future__ import annotations

from typing import cast

from regroup_operator.informer.api_connection import ApiConnection
from regroup_operator.informer.collection import Collection
from regroup_operator.informer.job_pods import JobPods, OwnedPod, job_of, keep_pod
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.object_cache import ObjectCache


def make_pod_watch() -> ListWatch[OwnedPod]:
    """The list and watch of all pods, which does not run."""
    collection = Collection(cast(ApiConnection, None), "/api/v1/pods")
    cache: ObjectCache[OwnedPod] = ObjectCache(10**6, 10**5)
    return ListWatch(collection, cache, lambda *_: None, keep_pod, job_of)


UNWATCHED = JobPods({None: make_pod_watch()})
"""It knows nothing, so that each round asks."""
