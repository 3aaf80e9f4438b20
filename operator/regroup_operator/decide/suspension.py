"""Suspending a job: save, give all pods back, wait. Pure."""

from __future__ import annotations

import math
from datetime import datetime

from regroup_operator.api.names import COORDINATOR
from regroup_operator.api.timestamps import parse_time
from regroup_operator.decide.coordinator_evidence import why_dead
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.losses import remove_stuck
from regroup_operator.decide.plan import (
    REQUEUE_SECONDS,
    DeletePod,
    DraftPlan,
    Event,
    PlanContext,
    Step,
)
from regroup_operator.decide.succession import (
    current_coordinator,
    keep_coordinator,
    retain_coordinator,
    send_token,
    update_coordinator,
)
from regroup_operator.observe.observed import AnyJob, InvalidJob, Job, Observed, Pod
from regroup_trainer.protocol.job_status import Waiting, unknown_protocol
from regroup_trainer.protocol.waiting_reasons import WaitingReason

NO_HANDLER_SECONDS = 10.0
"""How long after it has begun a container may miss SIGTERM: the kernel drops it for a first
process that has no handler, and Python has none while it starts.
"""
SIGNAL_LOST_GRACE_SECONDS = 30
"""From a signal that may be lost to SIGKILL, as Kubernetes has it where a pod says nothing."""


def was_suspended(observed: Observed) -> bool:
    """Whether the coordinator has ended its generation to suspend the job."""
    report = observed.coordinator.status
    outcome = report.outcome if report else None
    return outcome is not None and outcome.result == "suspended"


def waits_for_volume(observed: Observed) -> bool:
    """Whether ranks that are to save cannot, as their volume is full or away."""
    report = observed.coordinator.status
    waiting = report.waiting if report else None
    return waiting is not None and waiting.reason == WaitingReason.VolumeUnavailable.name


def suspend(job: AnyJob, observed: Observed, blocker: Waiting | None, now: datetime) -> DraftPlan:
    """Let the coordinator save and stop, then give all pods back. One that is dead gets a successor
    first, unless there is a `blocker`: ranks keep their state, but end together only with a
    coordinator. A save that the volume refuses is waited for: nobody but the user may give up what
    is in memory alone.
    """
    if not observed.pods:
        return _suspended(job)
    coordinator = current_coordinator(observed, job.status)
    late = _suspending_for_too_long(job, coordinator, now) and not waits_for_volume(observed)
    if was_suspended(observed) or late or not _may_save(job, observed, coordinator):
        return tear_down(job, observed, now)
    leader = (
        keep_coordinator(job, observed, job.status, blocker, now)
        if isinstance(job, Job)
        else Step(job.status, retain_coordinator(observed, job.status))
    )
    actions = (*leader.actions, *update_coordinator(job, observed))
    waits = _problem(job) or (blocker if coordinator is None else None)
    return DraftPlan(
        leader.status,
        send_token(observed, actions, now),
        context=PlanContext(waits, "suspending"),
        requeue_after=REQUEUE_SECONDS,
        follow=True,
    )


def _may_save(job: AnyJob, observed: Observed, coordinator: Pod | None) -> bool:
    """Whether the coordinator can have the ranks save, or a successor will: of a job that never
    trained they have nothing that is worth the wait. Nobody can ask one of an unknown protocol: its
    agents save when their pods are deleted.
    """
    if unknown_protocol(job.status.protocol_version):
        return False
    runs = coordinator is not None and coordinator.phase == "Running"
    if coordinator is not None and runs and not why_dead(coordinator, observed, job.status):
        return True
    has_trained = job.status.rendezvous_generation is not None
    ranks_live = any(pod.alive and pod.phase == "Running" for pod in observed.workers)
    return launcher_of(job).has_coordinator and has_trained and ranks_live


def _suspending_for_too_long(job: AnyJob, coordinator: Pod | None, now: datetime) -> bool:
    """Whether the save has had its time, since the suspension began, since the coordinator got its
    node, and since the volume was last known to be away: a coordinator that does not answer, or has
    just started, cannot say it.
    """
    condition, degraded = (job.status.condition(kind) for kind in ("Suspended", "Degraded"))
    if condition is None or condition.status != "Unknown":
        return False
    if degraded is not None and degraded.reason == WaitingReason.VolumeUnavailable.name:
        return False
    times = [one.last_transition_time for one in (condition, degraded) if one]
    times += [coordinator.placed] if coordinator is not None and coordinator.placed else []
    since = max(map(parse_time, times))
    return (now - since).total_seconds() > job.policies.termination_grace_seconds


def tear_down(job: AnyJob, observed: Observed, now: datetime) -> DraftPlan:
    """Give all pods back. Once they are gone the job is suspended, or it starts again when
    `suspend` was taken back meanwhile. The coordinator goes last: it alone says that nothing is to
    be saved.
    """
    pods = sorted(observed.pods, key=lambda pod: pod.role == COORDINATOR)
    actions = (
        DeletePod(pod, "the job is suspended", _grace(pod, job, now))
        for pod in pods
        if not pod.terminating
    )
    stuck = remove_stuck(job.status, observed, job.policies.node_failure)
    return DraftPlan(
        job.status,
        (*actions, *stuck.actions),
        stuck.events,
        PlanContext(_problem(job), "suspending"),
        requeue_after=REQUEUE_SECONDS,
    )


def _grace(pod: Pod, job: AnyJob, now: datetime) -> int | None:
    """Of a pod that begins or has just begun: it holds nothing yet, and may miss SIGTERM."""
    age = (now - parse_time(pod.began)).total_seconds() if pod.began else math.inf
    if pod.phase != "Pending" and age >= NO_HANDLER_SECONDS:
        return None
    return min(SIGNAL_LOST_GRACE_SECONDS, job.policies.termination_grace_seconds)


def _suspended(job: AnyJob) -> DraftPlan:
    """What was fixed at the start is forgotten: the next start may use newer images. Clients that
    read a checkpoint need those that it was written by.
    """
    forgotten: dict[str, object] = {
        "images": {},
        "last_images": job.status.images or job.status.last_images,
        "protocol_version": None,
        "handled_pods": (),
        "pod_failures": 0,
        "start_time": None,
        "rendezvous_generation": None,
    }
    events: tuple[Event, ...] = ()
    if not job.status.holds("Suspended"):
        events = (
            Event("Normal", "Suspended", "all pods are given back", f"suspended-{job.generation}"),
        )
    return DraftPlan(
        job.status.model_copy(update=forgotten),
        events=events,
        context=PlanContext(_problem(job), "suspended"),
    )


def _problem(job: AnyJob) -> Waiting | None:
    return job.problem if isinstance(job, InvalidJob) else None
