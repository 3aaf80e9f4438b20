"""Suspending a job: save, give all pods back, wait. Pure."""

from __future__ import annotations

from datetime import datetime

from regroup_operator.observed import Job, Observed, parse_time
from regroup_operator.plan import Action, DeletePod, Event, Plan, PutDesired, Situation
from regroup_operator.status import project
from regroup_operator.succession import PROBE_FAILURES, current_coordinator

LOOK_AGAIN_SECONDS = 2.0


def was_suspended(observed: Observed) -> bool:
    """Whether the coordinator has ended its world to suspend the job."""
    answer = observed.coordinator.status
    return answer is not None and answer.verdict is not None and answer.verdict.outcome == "suspended"


def suspend(job: Job, observed: Observed, now: datetime) -> Plan:
    """Let the coordinator save and stop, then give all pods back."""
    if not observed.pods:
        return _suspended(job, observed, now)
    coordinator = current_coordinator(job, observed)
    answer = observed.coordinator.status
    running = coordinator is not None and coordinator.phase == "Running"
    reachable = running and observed.coordinator.failures < PROBE_FAILURES
    if was_suspended(observed) or not reachable or _suspending_for_too_long(job, now):
        return tear_down(job, observed, now)
    actions: tuple[Action, ...] = (PutDesired(),) if answer and job.spec and answer.revision < job.generation else ()
    status = project(job, observed, job.status, Situation(job.blocker, "suspending"), now)
    return Plan(status, actions, look_again_seconds=LOOK_AGAIN_SECONDS, follow=True)


def _suspending_for_too_long(job: Job, now: datetime) -> bool:
    condition = job.status.condition("Suspended")
    if condition is None or condition.status != "Unknown":
        return False
    grace = job.spec.checkpoint.termination_grace_seconds if job.spec else 120
    return (now - parse_time(condition.last_transition_time)).total_seconds() > grace


def tear_down(job: Job, observed: Observed, now: datetime) -> Plan:
    """Give all pods back; once they are gone the job is suspended, or starts anew if that was taken back meanwhile."""
    actions = tuple(DeletePod(pod, "the job is suspended") for pod in observed.pods if not pod.terminating)
    status = project(job, observed, job.status, Situation(job.blocker, "suspending"), now)
    return Plan(status, actions, look_again_seconds=LOOK_AGAIN_SECONDS)


def _suspended(job: Job, observed: Observed, now: datetime) -> Plan:
    remembered = job.status.model_copy(
        update={
            "images": {},
            "protocol_version": None,
            "handled_pods": (),
            "pod_failures": 0,
            "start_time": None,
            "world_generation": None,
        }
    )
    status = project(job, observed, remembered, Situation(job.blocker, "suspended"), now)
    events: tuple[Event, ...] = ()
    if not job.status.holds("Suspended"):
        events = (Event("Normal", "Suspended", "all pods are given back", f"suspended-{job.generation}"),)
    return Plan(status, events=events)
