"""How a job ends, and what is left of it afterwards. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from regroup_operator import failures
from regroup_operator.api import RestartPolicy, TrainingJobStatus
from regroup_operator.attempt import find_end, trains
from regroup_operator.observed import Job, Observed, Pod, parse_time
from regroup_operator.plan import Action, DeleteJob, DeletePod, Ending, Event, Plan, Situation
from regroup_operator.status import project

LEAVE_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 2.0
IMAGE_PATIENCE_SECONDS = 60.0
"""How long an image that never could be had is tried before a job that never trained fails."""


def written_ending(status: TrainingJobStatus) -> Ending | None:
    """The end that the status tells, None while there is none."""
    for kind, complete in (("Complete", True), ("Failed", False)):
        condition = next((c for c in status.conditions if c.type == kind and c.status == "True"), None)
        if condition is not None:
            return Ending(complete, condition.reason, condition.message)
    return None


def find_ending(job: Job, observed: Observed, now: datetime) -> Ending | None:
    """Why the job has ended, if it has: the verdict of its coordinator or its pods, its deadline, a hopeless worker."""
    answer = observed.coordinator.status
    verdict = answer.verdict if answer else None
    if verdict is not None and verdict.outcome == "completed":
        return Ending(True, "Completed", verdict.message)
    if verdict is not None and verdict.outcome == "failed":
        return Ending(False, "TrainingFailed", verdict.message)
    if job.launcher == "torchrun" and (found := find_end(job, observed)):
        return found
    return (
        _deadline(job, now)
        or _too_many_losses(job)
        or _hopeless_worker(job, observed)
        or _hopeless_image(job, observed, now)
    )


def _deadline(job: Job, now: datetime) -> Ending | None:
    limit = job.spec.active_deadline_seconds if job.spec else None
    if limit is None or job.suspend or job.status.start_time is None:
        return None
    if (now - parse_time(job.status.start_time)).total_seconds() < limit:
        return None
    return Ending(False, "DeadlineExceeded", f"not done {limit} s after its start (spec.activeDeadlineSeconds)")


def _too_many_losses(job: Job) -> Ending | None:
    """Restarts after lost pods and nodes are counted by who knows them; here is only their limit."""
    limit = job.spec.restart_policy.max_infrastructure_restarts if job.spec else -1
    lost = job.status.restarts.infrastructure
    if not 0 <= limit < lost:
        return None
    budget = f"spec.restartPolicy.maxInfrastructureRestarts={limit}"
    return Ending(False, "RestartsExhausted", f"{lost} restarts after lost pods or nodes ({budget})")


def _hopeless_worker(job: Job, observed: Observed) -> Ending | None:
    for pod in observed.workers:
        if pod.phase != "Failed" or pod.terminating or pod.uid in job.status.handled_pods:
            continue
        rule = failures.classify(pod)
        if rule.action == "FailJob":
            return Ending(False, "WorkerFailed", failures.describe(pod, rule))
    policy = job.spec.restart_policy if job.spec else RestartPolicy()
    answer = observed.coordinator.status
    if job.launcher == "torchrun" and trains(job, observed, job.status.coordinator_term):
        return None
    if answer is not None and answer.phase == "running":
        return None  # the others train on
    if 0 <= policy.max_restarts < job.status.pod_failures:
        text = f"{job.status.pod_failures} pods in a row failed without a step in between"
        return Ending(False, "RestartsExhausted", f"{text} (spec.restartPolicy.maxRestarts={policy.max_restarts})")
    return None


def _hopeless_image(job: Job, observed: Observed, now: datetime) -> Ending | None:
    """An image that cannot be had fails a job that never trained; one that trains waits for the registry."""
    if job.status.world_generation is not None or job.status.start_time is None:
        return None
    tried = (now - parse_time(job.status.start_time)).total_seconds()
    for pod in observed.workers:
        hopeless = pod.waiting_reason in failures.HOPELESS_IMAGE_REASONS
        if pod.alive and (
            hopeless or (pod.waiting_reason in failures.IMAGE_REASONS and tried > IMAGE_PATIENCE_SECONDS)
        ):
            text = f"image {pod.image} of pod {pod.name} cannot be had: {pod.waiting_reason}: {pod.waiting_message}"
            return Ending(False, "ImageError", text)
    return None


def end(job: Job, observed: Observed, ending: Ending, now: datetime) -> Plan:
    """Write the verdict; pods are cleaned up when it is written."""
    status = project(job, observed, job.status, Situation(ending=ending), now)
    event = Event(
        "Normal" if ending.complete else "Warning", "Completed" if ending.complete else "Failed", ending.message, "end"
    )
    return Plan(status, events=(event,), look_again_seconds=0.0)


def after_the_end(job: Job, observed: Observed, ending: Ending, now: datetime) -> Plan:
    """Give the pods back that the policy does not keep, and in the end the job itself."""
    leaving = _leaving_by_themselves(job, observed, now)
    actions: list[Action] = [DeletePod(pod, "the job has ended") for pod in _to_clean(job, observed) if not leaving]
    seconds_left = _time_to_live(job, now)
    if seconds_left is not None and seconds_left <= 0:
        actions.append(DeleteJob())
    status = project(job, replace(observed, apply_error=""), job.status, Situation(ending=ending), now)
    return Plan(status, tuple(actions), look_again_seconds=LOOK_AGAIN_SECONDS if leaving else seconds_left)


def _leaving_by_themselves(job: Job, observed: Observed, now: datetime) -> bool:
    """Whether workers are still ending in their own time, told by the coordinator: their logs then stay readable."""
    ended = job.status.completion_time
    if ended is None or not any(pod.alive and pod.phase == "Running" for pod in observed.workers):
        return False
    return (now - parse_time(ended)).total_seconds() < LEAVE_SECONDS


def _to_clean(job: Job, observed: Observed) -> list[Pod]:
    policy = job.spec.clean_pod_policy if job.spec else "Running"
    candidates = [pod for pod in observed.pods if not pod.terminating and policy != "None"]
    return [pod for pod in candidates if policy == "All" or pod.alive]


def _time_to_live(job: Job, now: datetime) -> float | None:
    limit = job.spec.ttl_seconds_after_finished if job.spec else None
    if limit is None or job.status.completion_time is None:
        return None
    return limit - (now - parse_time(job.status.completion_time)).total_seconds()
