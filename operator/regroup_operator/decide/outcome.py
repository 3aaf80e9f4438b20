"""How a job ends, and what is left of it afterwards. Pure."""

from __future__ import annotations

from datetime import datetime

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import format_time, parse_time
from regroup_operator.decide import failures
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.plan import (
    NO_MESSAGE,
    REQUEUE_SECONDS,
    Action,
    DeleteJob,
    DeletePod,
    DraftPlan,
    Event,
    JobOutcome,
    PlanContext,
)
from regroup_operator.decide.waiting import image_message
from regroup_operator.observe.observed import AnyJob, Observed, Pod

LEAVE_SECONDS = 10.0
"""How long the workers of a job that ended may take to end by themselves."""
IMAGE_PATIENCE_SECONDS = 60.0
"""How long an image that cannot be pulled is tried before a job that never trained fails."""


def written_outcome(status: TrainingJobStatus) -> JobOutcome | None:
    """The outcome in the status; None while there is none."""
    for kind, complete in (("Complete", True), ("Failed", False)):
        condition = next(
            (c for c in status.conditions if c.type == kind and c.status == "True"), None
        )
        if condition is not None:
            return JobOutcome(complete, condition.reason, condition.message or NO_MESSAGE)
    return None


def find_outcome(job: AnyJob, observed: Observed, now: datetime) -> JobOutcome | None:
    """How the job has just ended; None while it has not."""
    return (
        launcher_of(job).find_outcome(job, observed)
        or _deadline(job, now)
        or _too_many_losses(job)
        or _hopeless_worker(job, observed)
        or _too_many_failures(job, observed)
        or _hopeless_image(job, observed, now)
    )


def deadline_due(job: AnyJob, now: datetime) -> float | None:
    """Seconds until the job must be done; None: it may take as long as it wants."""
    limit = job.policies.active_deadline_seconds
    if limit is None or job.suspend or job.status.start_time is None:
        return None
    return limit - (now - parse_time(job.status.start_time)).total_seconds()


def _deadline(job: AnyJob, now: datetime) -> JobOutcome | None:
    left = deadline_due(job, now)
    if left is None or left > 0:
        return None
    limit = job.policies.active_deadline_seconds
    text = f"not done {limit} s after its start (spec.activeDeadlineSeconds)"
    return JobOutcome(False, "DeadlineExceeded", text)


def _too_many_losses(job: AnyJob) -> JobOutcome | None:
    """The limit of restarts after lost pods and nodes; the coordinator counts them."""
    limit = job.policies.restart.max_infrastructure_restarts
    lost = job.status.restarts.infrastructure
    if not 0 <= limit < lost:
        return None
    budget = f"spec.restartPolicy.maxInfrastructureRestarts={limit}"
    text = f"{lost} restarts after lost pods or nodes ({budget})"
    return JobOutcome(False, "RestartsExhausted", text)


def _hopeless_worker(job: AnyJob, observed: Observed) -> JobOutcome | None:
    """A worker that ended in a way that another try cannot mend."""
    for pod in observed.workers:
        if pod.phase != "Failed" or pod.terminating or pod.uid in job.status.handled_pods:
            continue
        rule = failures.classify(pod)
        if rule.action == "FailJob":
            return JobOutcome(False, "WorkerFailed", failures.describe(pod, rule))
    return None


def _too_many_failures(job: AnyJob, observed: Observed) -> JobOutcome | None:
    """Pods that keep failing fail a job, but not one whose other workers train on, and not one from
    which somebody takes pods by edits: none of those has ended.
    """
    limit, failed = job.policies.restart.max_restarts, job.status.pod_failures
    if launcher_of(job).is_training(job, observed) or not 0 <= limit < failed:
        return None
    ended = [pod for pod in observed.workers if pod.phase == "Failed"]
    if not ended and observed.loses_pods_to_edits:
        return None
    budget = f"spec.restartPolicy.maxRestarts={limit}"
    text = f"{failed} pods in a row failed without a step in between ({budget})"
    if ended:
        last = max(ended, key=lambda pod: pod.ended)
        text += f"; the last: {failures.describe(last, failures.classify(last))}"
    return JobOutcome(False, "RestartsExhausted", text)


def _hopeless_image(job: AnyJob, observed: Observed, now: datetime) -> JobOutcome | None:
    """An image that cannot be pulled fails a job that never trained; one that trained waits for
    the registry.
    """
    if job.status.rendezvous_generation is not None:
        return None
    pods, since = _without_image(observed), job.status.image_error_time
    is_over = since and (now - parse_time(since)).total_seconds() > IMAGE_PATIENCE_SECONDS
    late = {job.status.image_error_pod} if is_over else set()
    hopeless = failures.HOPELESS_IMAGE_REASONS
    pod = next((p for p in pods if p.waiting_reason in hopeless or p.name in late), None)
    return JobOutcome(False, "ImageError", image_message(pod)) if pod else None


def with_image_error(
    status: TrainingJobStatus, observed: Observed, now: datetime
) -> TrainingJobStatus:
    """The status with a worker whose image cannot be pulled, and since when: one after the other,
    each for a moment, is no image that nobody can have. Pods that nothing could place for long have
    not tried to pull yet.
    """
    names = [pod.name for pod in _without_image(observed)]
    if status.image_error_time and status.image_error_pod in names:
        return status
    since, name = (format_time(now), names[0]) if names else (None, None)
    return status.model_copy(update={"image_error_time": since, "image_error_pod": name})


def _without_image(observed: Observed) -> list[Pod]:
    """The workers without the image of their main container. Another one's is named and waited for:
    a sidecar keeps nobody from training, and the agent's is for an administrator to mend.
    """
    pods = (pod for pod in observed.workers if pod.alive and not pod.waiting_container)
    return [pod for pod in pods if pod.waiting_reason in failures.IMAGE_REASONS]


def end(job: AnyJob, outcome: JobOutcome) -> DraftPlan:
    """Write the outcome. The pods are cleaned up once it is written."""
    event = (
        Event("Normal", "Completed", outcome.message, "end")
        if outcome.complete
        else Event("Warning", "Failed", outcome.message, "end")
    )
    return DraftPlan(
        job.status, events=(event,), context=PlanContext(outcome=outcome), requeue_after=0.0
    )


def after_the_end(job: AnyJob, observed: Observed, outcome: JobOutcome, now: datetime) -> DraftPlan:
    """Give back the pods that `cleanPodPolicy` does not keep; in the end delete the job itself."""
    leaving = _leaving_by_themselves(job, observed, now)
    actions: list[Action] = [
        DeletePod(pod, "the job has ended") for pod in _to_clean(job, observed) if not leaving
    ]
    seconds_left = _time_to_live(job, now)
    if seconds_left is not None and seconds_left <= 0:
        actions.append(DeleteJob())
    return DraftPlan(
        job.status,
        tuple(actions),
        context=PlanContext(outcome=outcome),
        requeue_after=REQUEUE_SECONDS if leaving else seconds_left,
    )


def _leaving_by_themselves(job: AnyJob, observed: Observed, now: datetime) -> bool:
    """Whether workers still end by themselves, as the coordinator asked: their logs stay
    readable.
    """
    ended = job.status.completion_time
    if ended is None or not any(pod.alive and pod.phase == "Running" for pod in observed.workers):
        return False
    return (now - parse_time(ended)).total_seconds() < LEAVE_SECONDS


def _to_clean(job: AnyJob, observed: Observed) -> list[Pod]:
    policy = job.policies.clean_pods
    candidates = [pod for pod in observed.pods if not pod.terminating and policy != "None"]
    return [pod for pod in candidates if policy == "All" or pod.alive]


def _time_to_live(job: AnyJob, now: datetime) -> float | None:
    limit = job.policies.ttl_seconds_after_finished
    if limit is None or job.status.completion_time is None:
        return None
    return limit - (now - parse_time(job.status.completion_time)).total_seconds()
