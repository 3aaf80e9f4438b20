"""Replaces workers that run and are not heard of. Pure.

An agent shows life as soon as it starts, before its template imports torch. So a worker of which
nothing is heard has hung, or it looks for the coordinator at a wrong place. It costs the job a
worker for ever, although its pod is Running. Where the Service's address has changed, it is sent
the new one. A member that falls silent is not meant here: its coordinator reports it as lost
(`losses`).

Where nothing is heard of any other worker either, the fault is likely elsewhere, and nothing is
replaced. A coordinator of an older release does not report `heard`: nothing is replaced then.
"""

from __future__ import annotations

from datetime import datetime

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.decide.losses import sum_up
from regroup_operator.decide.node_exclusion import count_node_failures
from regroup_operator.decide.plan import DeletePod, Event, SendAddress, Step
from regroup_operator.observe.observed import Job, Observed, Pod
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.waiting_reasons import WaitingReason

UNREACHED_SECONDS = 15.0
"""How long the coordinator's new address is sent to a worker in vain before it is replaced."""
NAMED_SECONDS = 10.0
"""Silence after which the status names a worker."""
SILENT_SECONDS = 30.0
"""Silence after which it is replaced."""
FRESH_SECONDS = 5.0
"""Another worker is heard of when its last sign of life is not older."""


def replace_silent(job: Job, observed: Observed, status: TrainingJobStatus, now: datetime) -> Step:
    """Delete the workers that were silent for too long. Their places are taken by new pods.

    It counts as a failure of the node, whose network may be broken: else the next pod may fall
    silent there, too.
    """
    silent = [pod for pod, seconds in _silent(observed).items() if seconds >= SILENT_SECONDS]
    why = f"it runs, but its coordinator heard nothing of it for {SILENT_SECONDS:.0f} s"
    reasons = dict.fromkeys(silent, why)
    for pod in stranded(observed):
        if observed.unreached_seconds.get(pod.uid, 0.0) >= UNREACHED_SECONDS:
            reasons[pod] = (
                f"it looks for the coordinator at {pod.coordinator_address}, where it is no more, "
                "and does not take the new address"
            )
    counted = count_node_failures(status, silent, job.policies.node_failure, now)
    replaced = {pod: _replaced_event(pod, why) for pod, why in reasons.items()}
    return Step(
        counted.status,
        tuple(DeletePod(pod, why) for pod, why in reasons.items()),
        (*sum_up(replaced, "worker pods are replaced"), *counted.events),
    )


def _replaced_event(pod: Pod, why: str) -> Event:
    text = f"worker pod {pod.name} on node {pod.node} is replaced: {why}"
    return Event("Warning", "WorkerSilent", text, pod.uid)


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
    heard_of = observed.coordinator.live_members | frozenset(report.heard or ())
    return tuple(
        pod
        for pod in observed.workers
        if pod.alive
        and pod.phase == "Running"
        and pod.ip
        and pod.uid not in heard_of
        and pod.coordinator_address not in ("", service.address)
    )


def name_silent(observed: Observed) -> Waiting | None:
    """The worker that has been silent the longest, once that is worth a word."""
    silent = _silent(observed)
    pod = max(silent, key=lambda pod: silent[pod], default=None)
    if pod is None or silent[pod] < NAMED_SECONDS:
        return None
    return Waiting.of(
        WaitingReason.WorkerSilent,
        f"worker pod {pod.name} on node {pod.node} runs, but its coordinator hears nothing of it: "
        f"it is replaced {SILENT_SECONDS:.0f} s after its last sign of life "
        f"(see kubectl logs {pod.name})",
    )


def silence_due(observed: Observed) -> float | None:
    """Seconds until a silent worker may have to be named or replaced; None while none is silent."""
    ends = (NAMED_SECONDS, SILENT_SECONDS)
    left = [
        end - seconds for seconds in _silent(observed).values() for end in ends if end > seconds
    ]
    return min(left, default=None)


def _silent(observed: Observed) -> dict[Pod, float]:
    """Running workers that are no members, with the seconds since their last sign of life, while
    others are heard of.
    """
    view = observed.coordinator
    if view.status is None or view.failures or view.knows_cut_off:
        return {}
    known = {member.member for member in view.status.members}
    seconds = view.silent_seconds
    running = [pod for pod in observed.workers if pod.alive and pod.uid in seconds]
    heard = {pod.uid for pod in running if seconds[pod.uid] < FRESH_SECONDS}
    return {
        pod: seconds[pod.uid]
        for pod in running
        if pod.uid not in known and len(heard) > (pod.uid in heard)
    }
