"""Replaces workers that run and do not reach their coordinator. Pure.

An agent shows life as soon as it starts, before its template imports torch. So a worker without
a sign of life has hung, or it looks for the coordinator at a wrong place. It costs the job a
worker for ever, although its pod is Running. Where the Service's address has changed, it is sent
the new one. A member that becomes unresponsive is not meant here: its coordinator reports it as
lost (`losses`).

Where no other worker shows life either, the fault is likely elsewhere, and nothing is
replaced. A coordinator of an older release does not report `agents_in_contact`: nothing is replaced
then.
"""

from __future__ import annotations

from datetime import datetime

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.decide.node_exclusion import count_node_failures
from regroup_operator.decide.plan import DeletePod, Event, SendAddress, Step, sum_up
from regroup_operator.observe.observed import Job, Observed, Pod
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.waiting_reasons import WaitingReason

UNREACHED_SECONDS = 15.0
"""How long the coordinator's new address is sent to a worker in vain before it is replaced."""
NAMED_SECONDS = 10.0
"""Time without contact after which the status names a worker."""
UNRESPONSIVE_SECONDS = 30.0
"""Time without contact after which it is replaced."""
FRESH_SECONDS = 5.0
"""Another worker is in contact when its last sign of life is not older."""


def replace_unresponsive(
    job: Job, observed: Observed, status: TrainingJobStatus, now: datetime
) -> Step:
    """Delete the workers that were unresponsive for too long. Their places are taken by new pods.

    It counts as a failure of the node, whose network may be broken: else the next pod may become
    unresponsive there, too.
    """
    late = [
        pod for pod, seconds in _unresponsive(observed).items() if seconds >= UNRESPONSIVE_SECONDS
    ]
    why = f"it runs, but its coordinator got nothing from it for {UNRESPONSIVE_SECONDS:.0f} s"
    reasons = dict.fromkeys(late, why)
    for pod in stranded(observed):
        if observed.unreached_seconds.get(pod.uid, 0.0) >= UNREACHED_SECONDS:
            reasons[pod] = (
                f"it looks for the coordinator at {pod.coordinator_address}, where it is no more, "
                "and does not take the new address"
            )
    counted = count_node_failures(status, late, job.policies.node_failure, now)
    replaced = {pod.name: _replaced_event(pod, why) for pod, why in reasons.items()}
    return Step(
        counted.status,
        tuple(DeletePod(pod, why) for pod, why in reasons.items()),
        (*sum_up(replaced, "worker pods are replaced"), *counted.events),
    )


def _replaced_event(pod: Pod, why: str) -> Event:
    text = f"worker pod {pod.name} on node {pod.node} is replaced: {why}"
    return Event("Warning", "WorkerUnresponsive", text, pod.uid)


def send_address(observed: Observed) -> tuple[SendAddress, ...]:
    """Send the coordinator's address to the workers that look for it elsewhere."""
    pods = stranded(observed)
    return (SendAddress(pods),) if pods else ()


def stranded(observed: Observed) -> tuple[Pod, ...]:
    """Running workers that are no members, and look for the coordinator at another address than the
    Service has: it was deleted, and its former address was taken.
    """
    service, report = observed.service, observed.coordinator.answer
    if service is None or not service.address or report is None:
        return ()
    in_contact = observed.coordinator.live_members | frozenset(report.agents_in_contact or ())
    return tuple(
        pod
        for pod in observed.workers
        if pod.alive
        and pod.phase == "Running"
        and pod.ip
        and pod.uid not in in_contact
        and pod.coordinator_address not in ("", service.address)
    )


def name_unresponsive(observed: Observed) -> Waiting | None:
    """The worker that has been unresponsive the longest, once that is worth a message."""
    found = _unresponsive(observed)
    pod = max(found, key=lambda pod: found[pod], default=None)
    if pod is None or found[pod] < NAMED_SECONDS:
        return None
    return Waiting.of(
        WaitingReason.WorkerUnresponsive,
        f"worker pod {pod.name} on node {pod.node} runs, but its coordinator receives nothing "
        f"from it: it is replaced {UNRESPONSIVE_SECONDS:.0f} s after its last sign of life "
        f"(see kubectl logs {pod.name})",
    )


def unresponsive_due(observed: Observed) -> float | None:
    """Seconds until an unresponsive worker may have to be named or replaced; None while there is
    none.
    """
    ends = (NAMED_SECONDS, UNRESPONSIVE_SECONDS)
    left = [
        end - seconds
        for seconds in _unresponsive(observed).values()
        for end in ends
        if end > seconds
    ]
    return min(left, default=None)


def _unresponsive(observed: Observed) -> dict[Pod, float]:
    """Running workers that are no members, with the seconds since their last sign of life, while
    others are in contact.
    """
    view = observed.coordinator
    if view.status is None or view.failures or view.knows_cut_off:
        return {}
    known = {member.member for member in view.status.members}
    seconds = view.no_contact_seconds
    running = [pod for pod in observed.workers if pod.alive and pod.uid in seconds]
    fresh = {pod.uid for pod in running if seconds[pod.uid] < FRESH_SECONDS}
    return {
        pod: seconds[pod.uid]
        for pod in running
        if pod.uid not in known and len(fresh) > (pod.uid in fresh)
    }
