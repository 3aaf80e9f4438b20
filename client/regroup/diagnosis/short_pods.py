"""Pods that a command needs for a moment: they are made, waited for, and deleted in any case."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.pod_record import PodRecord, read_pods
from regroup_operator.api.resource import Object
from regroup_trainer.protocol.message import printable

LOOK_SECONDS = 0.5
_HOPELESS = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
)
"""Reasons of a waiting container that time does not mend."""
_MOST_SHOWN = 500
"""Characters of what a cluster says."""


@contextmanager
def running_pods(
    api: ClusterApi, namespace: str, bodies: Sequence[Object], start_seconds: float
) -> Iterator[list[PodRecord]]:
    """Inside, all these pods run. They are deleted by force afterwards, also when one of them did
    not start.

    Raises ClusterError, which says what kept a pod from running within so long.
    """
    made: list[str] = []
    try:
        for body in bodies:
            name = str(body["metadata"]["name"])
            made.append(name)  # before: an interrupted request may have made it
            api.create_pod(namespace, body)
        deadline = time.monotonic() + start_seconds
        yield [_running(api, namespace, name, deadline) for name in made]
    finally:
        for name in made:
            with suppress(ClusterError):  # it ends by itself
                api.delete_pod(namespace, name)


def _running(api: ClusterApi, namespace: str, name: str, deadline: float) -> PodRecord:
    while True:
        (pod,) = read_pods([api.pod(namespace, name)])
        if pod.phase == "Running":
            return pod
        is_over = pod.phase in ("Failed", "Succeeded") or pod.waiting_reason in _HOPELESS
        if is_over or time.monotonic() > deadline:
            why = _obstacle(pod) or _newest_warning(api, namespace, name) or pod.waiting_reason
            reason = printable(why[:_MOST_SHOWN]) or "nothing says why"
            raise ClusterError(f"pod {name} does not run: {pod.phase}: {reason}")
        time.sleep(LOOK_SECONDS)


def _obstacle(pod: PodRecord) -> str:
    """What its status says."""
    if pod.unschedulable:
        return pod.unschedulable
    if pod.end is not None:
        return f"exit code {pod.end.exit_code} {pod.end.reason} {pod.end.message}".strip()
    if pod.waiting_message:
        return f"{pod.waiting_reason} {pod.waiting_message}".strip()
    return ""


def _newest_warning(api: ClusterApi, namespace: str, name: str) -> str:
    """What its events say: of a volume that is not mounted, its status says nothing."""
    with suppress(ClusterError):
        events = api.events(namespace, f"involvedObject.name={name},type=Warning")
        if events:
            newest = max(events, key=_time)
            return f"{newest.get('reason', '')} {newest.get('message', '')}".strip()
    return ""


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
