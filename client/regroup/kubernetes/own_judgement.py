"""Why a job does not train, judged by its pods and events while the operator is away; and why a job
that trains lacks workers. Pure.

A table, from the most to the least specific finding: the first that is found counts. The words of
its reasons are those of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.pod_record import PULL_REASONS, PodRecord, QuotaRecord
from regroup.kubernetes.quantities import count
from regroup_operator.api.names import COORDINATOR, CRASH_LOOP, WORKER

_EVENT_SECONDS = 600.0
_UNSTARTED = {
    "CreateContainerConfigError": "CreateContainerConfigError",
    "CreateContainerError": "CreateContainerError",
    "RunContainerError": "CreateContainerError",
}
"""Why a container waits, as the kubelet says -> as the operator does."""
_ENDED = ("Succeeded", "Failed")
"""Phases of pods that no quota counts."""
Finding = tuple[str, str]
"""Reason and sentence."""
Find = Callable[[Sequence[PodRecord], Sequence[EventRecord]], Finding | None]


def own_judgement(
    pods: Sequence[PodRecord], events: Sequence[EventRecord], now: datetime
) -> Finding:
    """Reason and sentence."""
    recent = [e for e in events if e.time and (now - e.time).total_seconds() < _EVENT_SECONDS]
    found = (find(pods, recent) for find in _TABLE)
    return next((finding for finding in found if finding), _nothing(pods))


def reason_of_missing(
    wanted: int, pods: Sequence[PodRecord], quotas: Sequence[QuotaRecord]
) -> str | None:
    """What keeps one of the wanted workers from running until somebody acts; None where nothing is
    known to. A quota that is used up only hinders pods that are still to be made.
    """
    waiting = [pod for pod in pods if not pod.deleting]
    found = next((finding for find in _LASTING if (finding := find(waiting, ()))), None)
    if found is not None:
        return found[0]
    counted = [pod for pod in pods if pod.role == WORKER and pod.phase not in _ENDED]
    full = any(_bounds_pods(what) for quota in quotas for what in quota.used_up)
    return "QuotaExceeded" if len(counted) < wanted and full else None


def _bounds_pods(used_up: str) -> bool:
    """Whether a quota that is used up lets no more pods be made."""
    resource = used_up.partition(" ")[0]
    amounts = resource.startswith(("requests.", "limits.")) and resource != "requests.storage"
    return amounts or resource in ("pods", "count/pods", "cpu", "memory")


def _image(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    pod = next((pod for pod in pods if pod.waiting_reason in PULL_REASONS), None)
    if pod is None:
        return None
    text = f"pod {pod.name} on node {pod.node} cannot pull its image: {pod.waiting_message}"
    return "ImageError", text


def _config(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    pod = next((pod for pod in pods if pod.waiting_reason in _UNSTARTED), None)
    if pod is None:
        return None
    return _UNSTARTED[pod.waiting_reason], f"pod {pod.name} cannot start: {pod.waiting_message}"


def _mount(_pods: Sequence[PodRecord], events: Sequence[EventRecord]) -> Finding | None:
    return _by_event(events, "FailedMount", "FailedMount")


def _no_node(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    pod = next((pod for pod in pods if pod.unschedulable and not pod.node), None)
    if pod is None:
        return None
    return "Unschedulable", f"pod {pod.name} cannot be scheduled: {pod.unschedulable}"


def _sidecar(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    found = (p for p in pods if p.waiting_reason == CRASH_LOOP and p.waiting_container)
    pod = next(found, None)
    if pod is None:
        return None
    what = f"container {pod.waiting_container} of pod {pod.name} on node {pod.node}"
    text = f"{what} fails each time that it is started"
    if (end := pod.waiting_end) is not None:
        text += f": it ended last with exit code {end.exit_code}{end.last_line_suffix}"
    return "SidecarCrashing", text


def _memory(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    pod = next((pod for pod in pods if pod.end and pod.end.reason == "OOMKilled"), None)
    return ("OutOfMemory", f"pod {pod.name} ran out of memory and was killed") if pod else None


def _failed(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    failed = [pod for pod in pods if pod.failed and pod.end]
    if not failed or failed[0].end is None:
        return None
    first, end = failed[0], failed[0].end
    reason = "CoordinatorCrashing" if first.role == COORDINATOR else "PodFailed"
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return reason, f"pod {first.name} ended with exit code {end.exit_code}{more} (see their logs)"


def _quota(_pods: Sequence[PodRecord], events: Sequence[EventRecord]) -> Finding | None:
    return _by_event(events, "QuotaExceeded", "QuotaExceeded")


def _no_pods(pods: Sequence[PodRecord], _events: Sequence[EventRecord]) -> Finding | None:
    if pods:
        return None
    return "NoPods", "the job has no pods, and the operator is not there to make them"


def _by_event(events: Sequence[EventRecord], event: str, reason: str) -> Finding | None:
    found = next((e for e in events if e.reason == event), None)
    return (reason, f"{found.kind.lower()} {found.name}: {found.message}") if found else None


_TABLE: tuple[Find, ...] = (
    _image, _config, _mount, _no_node, _sidecar, _memory, _failed, _quota, _no_pods,
)  # fmt: skip

_LASTING: tuple[Find, ...] = (_image, _config, _no_node, _sidecar)
"""Those that read a state of pods which stays until somebody acts."""


def _nothing(pods: Sequence[PodRecord]) -> Finding:
    running = [pod for pod in pods if pod.role == WORKER and pod.phase == "Running"]
    text = f"{count(len(running), 'worker pod runs', 'worker pods run')}, and none shows an error"
    return "OperatorAway", f"{text}; whether the job trains is in their logs"
