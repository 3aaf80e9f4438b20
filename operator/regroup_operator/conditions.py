"""The conditions of a job: one small function each, from what was observed to a statement. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from regroup_operator.api import Condition, ConditionType, TrainingJobStatus
from regroup_operator.observed import Job, Observed, format_time
from regroup_operator.plan import MESSAGE_LIMIT, Situation
from regroup_operator.problems import image_problem, unschedulable
from regroup_trainer.contract import DIRECTORY_VARIABLE
from regroup_trainer.job_status import CoordinatorStatus

Flag = Literal["True", "False", "Unknown"]
Statement = tuple[Flag, str, str]
"""Status, reason, message."""


def conditions(
    job: Job, observed: Observed, status: TrainingJobStatus, situation: Situation, now: datetime
) -> tuple[Condition, ...]:
    """All nine, with the times of their last change. `status` is the new one, with the former conditions."""
    statements: dict[ConditionType, Statement] = {
        "Ready": _ready(observed, status, situation),
        "Scheduled": _scheduled(job, observed, situation),
        "Running": _running(observed, status, situation),
        "Progressing": _progressing(status, situation),
        "Degraded": _degraded(job, observed, status, situation),
        "Checkpointed": _checkpointed(job, observed, status),
        "Suspended": _SUSPENDED[situation.suspension],
        "Complete": _ended(situation, complete=True),
        "Failed": _ended(situation, complete=False),
    }
    return tuple(_condition(job, status, kind, said, now) for kind, said in statements.items())


def _condition(job: Job, status: TrainingJobStatus, kind: ConditionType, said: Statement, now: datetime) -> Condition:
    flag, reason, message = said
    former = status.condition(kind)
    since = former.last_transition_time if former and former.status == flag else format_time(now)
    return Condition(
        type=kind,
        status=flag,
        reason=reason,
        message=message[:MESSAGE_LIMIT],
        last_transition_time=since,
        observed_generation=job.generation,
    )


def _ready(observed: Observed, status: TrainingJobStatus, situation: Situation) -> Statement:
    if situation.blocker is not None:
        return "False", situation.blocker.reason, situation.blocker.message
    if observed.apply_error:
        return "False", "ApiError", observed.apply_error
    if situation.ending is not None:
        return "False", "Finished", "the job has ended"
    if status.phase == "Running":
        return "True", "Training", f"workers training: {status.ready_replicas}"
    return "False", status.phase or "Pending", ""


def _scheduled(job: Job, observed: Observed, situation: Situation) -> Statement:
    wanted = job.spec.replicas if job.spec else len(observed.workers)
    placed = [pod for pod in observed.workers if pod.alive and pod.node]
    if situation.ending or situation.suspension == "suspended":
        return "False", "NoPods", "no pods are wanted"
    if unplaced := unschedulable(observed):
        return "False", "Unschedulable", unplaced
    if len(placed) < wanted:
        return "False", "WorkersMissing", f"{len(placed)} of {wanted} workers have a node"
    return "True", "AllScheduled", f"workers that have a node: {len(placed)}"


def _running(observed: Observed, status: TrainingJobStatus, situation: Situation) -> Statement:
    if situation.ending is not None:
        return "False", "Finished", "the job has ended"
    if status.phase == "Running":
        return "True", "Training", f"world {status.world_generation} of {status.world_size} ranks"
    if problem := image_problem(observed):
        return "False", "ImageError", problem
    return "False", status.phase or "Pending", ""


def _progressing(status: TrainingJobStatus, situation: Situation) -> Statement:
    if situation.ending or situation.suspension == "suspended":
        return "False", "NotActive", "the job does not run"
    if situation.blocker is not None and status.phase == "Pending":
        return "False", situation.blocker.reason, situation.blocker.message
    moving = status.phase in ("Starting", "Running", "Recovering", "Resizing")
    return ("True" if moving else "False"), status.phase or "Pending", ""


def _degraded(job: Job, observed: Observed, status: TrainingJobStatus, situation: Situation) -> Statement:
    if situation.ending or situation.suspension != "no" or status.world_generation is None or job.spec is None:
        return "False", "NotActive", ""
    if status.ready_replicas < job.spec.replicas:
        text = f"{status.ready_replicas} of {job.spec.replicas} workers take part"
        return "True", "WorkersMissing", "; ".join(filter(None, (text, unschedulable(observed))))
    if status.stragglers:
        slow = (f"rank {s.rank} on {s.node} computes {s.percent:.0f} % longer" for s in status.stragglers)
        return "True", "Stragglers", f"all wait for the slowest: {', '.join(slow)} than the median rank"
    return "False", "AllWorkers", f"workers taking part: {status.ready_replicas}"


def _checkpointed(job: Job, observed: Observed, status: TrainingJobStatus) -> Statement:
    if job.launcher == "torchrun":
        return "Unknown", "NotManaged", f"the script saves by itself, in the folder that {DIRECTORY_VARIABLE} names"
    former, answer = status.condition("Checkpointed"), observed.coordinator.status
    if answer is None and former is not None and former.reason == "SaveFailed":
        return former.status, former.reason, former.message
    if failure := _failed_save(answer):
        return "False", "SaveFailed", failure
    step = status.checkpoint.last_step
    if step is None:
        return "False", "NoCheckpoint", "no checkpoint yet"
    return "True", "Saved", f"step {step}: {status.checkpoint.path}"


def _failed_save(answer: CoordinatorStatus | None) -> str:
    """Why the newest save failed; empty when it did not."""
    if answer is None:
        return ""
    saved = answer.checkpoint.time if answer.checkpoint else float("-inf")
    return next((e.message for e in reversed(answer.events) if e.reason == "CheckpointFailed" and e.time > saved), "")


_SUSPENDED: dict[str, Statement] = {
    "no": ("False", "NotSuspended", ""),
    "suspending": ("Unknown", "Suspending", "saving and giving the pods back"),
    "suspended": ("True", "Suspended", "no pods are held"),
}


def _ended(situation: Situation, *, complete: bool) -> Statement:
    ending = situation.ending
    if ending is None or ending.complete != complete:
        return "False", "NotFinished" if ending is None else "Otherwise", ""
    return "True", ending.reason, ending.message
