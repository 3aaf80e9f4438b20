"""Reads from a cluster what `why` looks at. What may not be read is named, and does not end it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import FORBIDDEN, NOT_FOUND, ClusterError
from regroup.kubernetes.event_record import EventRecord, belongs, read_events
from regroup.kubernetes.job_record import JobRecord, read_job
from regroup.kubernetes.pod_record import NodeRecord, PodRecord, read_node, read_pods, read_quota
from regroup.kubernetes.why_report import Scene, operator_sign
from regroup_operator.api.resource import KIND

T = TypeVar("T")
NODES_READ = 16
LEASE = "regroup-operator"
_GAPS = {
    FORBIDDEN: "your role may not read this",
    NOT_FOUND: "not found (see --operator-namespace)",
}
"""Status of a refusal -> words for it."""


def gather(api: ClusterApi, namespace: str, name: str, operator: str) -> Scene:
    """The scene of one job. `operator`: the namespace of the operator. Raises ClusterError when the
    job itself cannot be read.
    """
    job = read_job(api.job(namespace, name))
    gaps: list[str] = []
    pods = _try("pods", gaps, lambda: read_pods(api.pods(namespace, name))) or []
    events = _try("events", gaps, lambda: events_of(api, namespace, job, pods)) or []
    quotas = _try("quotas", gaps, lambda: [read_quota(q) for q in api.quotas(namespace)]) or []
    lease = _try("Lease of the operator", gaps, lambda: api.lease(operator, LEASE))
    return Scene(
        job=job,
        operator=operator_sign(job, lease, pods, events, api.now()),
        pods=pods,
        events=events,
        nodes=_nodes(api, job, pods, gaps),
        quotas=quotas,
        gaps=gaps,
        operator_namespace=operator,
    )


def events_of_job(api: ClusterApi, job: JobRecord) -> list[EventRecord]:
    """The events about the job itself, newest first. Raises ClusterError."""
    about = f"involvedObject.kind={KIND},involvedObject.name={job.name}"
    found = read_events(api.events(job.namespace, about))
    return [event for event in found if belongs(event, job)]


def events_of(
    api: ClusterApi, namespace: str, job: JobRecord, pods: list[PodRecord]
) -> list[EventRecord]:
    """The events of the job and of its pods, newest first."""
    uids = {pod.name: pod.uid for pod in pods}
    found = read_events(api.events(namespace))
    return [event for event in found if belongs(event, job, uids)]


def _nodes(
    api: ClusterApi, job: JobRecord, pods: list[PodRecord], gaps: list[str]
) -> list[NodeRecord]:
    """The nodes of the pods, of the last recoveries, and those that the job avoids."""
    lost = [recovery.node for recovery in job.status.recoveries[-2:]]
    avoided = (*job.status.suspected_nodes, *job.status.excluded_nodes)
    names = dict.fromkeys(name for name in (*(p.node for p in pods), *lost, *avoided) if name)
    found = []
    for name in list(names)[:NODES_READ]:
        before = len(gaps)
        node = _try("nodes", gaps, partial(_node, api, name))
        if len(gaps) > before:
            break  # the others may not be read either
        found += [node] if node else []
    return found


def _node(api: ClusterApi, name: str) -> NodeRecord:
    try:
        return read_node(api.node(name))
    except ClusterError as error:
        if error.status != NOT_FOUND:
            raise
        return NodeRecord(name, ("it does not exist any more",))


def _try(what: str, gaps: list[str], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except ClusterError as error:
        gaps.append(f"{what}: {_GAPS.get(error.status) or error}")
        return None
