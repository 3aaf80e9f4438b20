"""The conditions of a job: one small function each, from what was observed to a value. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from regroup_operator.api.status import Condition, ConditionType
from regroup_operator.api.timestamps import format_time, parse_time
from regroup_operator.decide.coordinator_evidence import explain_no_answer
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.plan import MESSAGE_LIMIT, RECOVERIES_KEPT
from regroup_operator.decide.succession import current_coordinator
from regroup_operator.decide.waiting import (
    JobView,
    find_waiting,
    missing_worker,
    unschedulable_message,
)
from regroup_operator.observe.observed import Job
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE
from regroup_trainer.protocol.job_status import CoordinatorStatus


class ConditionValue(NamedTuple):
    """What a condition is at the moment."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    """One CamelCase word."""
    message: str
    """Never empty: a condition that is False says why."""


def conditions(view: JobView, now: datetime) -> tuple[Condition, ...]:
    """All nine conditions, with the times of their last change. The status of `view` is the new one
    and still has the former conditions.
    """
    values: dict[ConditionType, ConditionValue] = {
        "Ready": _ready(view),
        "Scheduled": _scheduled(view),
        "Running": _running(view),
        "Progressing": _progressing(view),
        "Degraded": _degraded(view, now),
        "Checkpointed": _checkpointed(view),
        "Suspended": _SUSPENDED[view.context.suspension],
        "Complete": _complete(view),
        "Failed": _failed(view),
    }
    return tuple(_condition(view, kind, value, now) for kind, value in values.items())


def _condition(
    view: JobView, kind: ConditionType, value: ConditionValue, now: datetime
) -> Condition:
    former = view.status.condition(kind)
    unchanged = former is not None and former.status == value.status
    return Condition(
        type=kind,
        status=value.status,
        reason=value.reason,
        message=value.message[:MESSAGE_LIMIT],
        last_transition_time=former.last_transition_time
        if former and unchanged
        else format_time(now),
        observed_generation=view.job.generation,
    )


def _waiting(view: JobView) -> ConditionValue:
    """False, for the reason why the job waits, or because it has ended."""
    waiting = find_waiting(view)
    if waiting is None:
        return ConditionValue("False", "Finished", "the job has ended")
    return ConditionValue("False", waiting.reason, waiting.message)


def _ready(view: JobView) -> ConditionValue:
    if view.context.outcome is None and find_waiting(view) is None:
        workers = f"workers training: {view.status.ready_replicas}"
        return ConditionValue("True", "Training", workers)
    return _waiting(view)


def _scheduled(view: JobView) -> ConditionValue:
    workers = view.observed.workers
    wanted = view.job.spec.replicas if isinstance(view.job, Job) else len(workers)
    placed = len([pod for pod in workers if pod.alive and pod.node])
    if view.context.outcome or view.context.suspension == "suspended":
        return ConditionValue("False", "NoPods", "no pods are wanted")
    if unplaced := unschedulable_message(view.observed, view.status):
        return ConditionValue("False", "Unschedulable", unplaced)
    if placed < wanted:
        missing = f"{placed} of {wanted} workers have a node"
        return ConditionValue("False", "WorkersMissing", missing)
    return ConditionValue("True", "AllScheduled", f"workers that have a node: {placed}")


def _running(view: JobView) -> ConditionValue:
    status = view.status
    if view.context.outcome is None and status.phase == "Running":
        where = f"generation {status.rendezvous_generation} of {status.world_size} ranks"
        return ConditionValue("True", "Training", where)
    return _waiting(view)


def _progressing(view: JobView) -> ConditionValue:
    if view.context.outcome or view.context.suspension == "suspended":
        return ConditionValue("False", "NotActive", "the job does not run")
    if view.status.phase == "Pending":
        return _waiting(view)
    phase = view.status.phase or "Pending"
    return ConditionValue("True", phase, f"the job is {phase}")


def _degraded(view: JobView, now: datetime) -> ConditionValue:
    status, job = view.status, view.job
    inactive = view.context.outcome or view.context.suspension == "suspended"
    if inactive or not isinstance(job, Job):
        return ConditionValue("False", "NotActive", "the job does not train")
    failures = _repeated_failures(job, view, now)
    if status.rendezvous_generation is None:
        return failures or ConditionValue("False", "NotActive", "the job does not train")
    former, report = status.condition("Degraded"), view.observed.coordinator.status
    if report is None and former is not None and former.reason in _OF_COORDINATORS:
        return ConditionValue(former.status, former.reason, former.message)
    if unavailable := _volume(report):
        return ConditionValue("True", "VolumeUnavailable", unavailable)
    if view.context.suspension == "suspending":
        return ConditionValue("False", "NotActive", "the job does not train")
    if stall := _stall(report):
        return ConditionValue("True", "NoProgress", stall)
    coordinator = current_coordinator(view.observed, status)
    if kept := explain_no_answer(coordinator, view.observed, status, quoting=False):
        return ConditionValue("True", kept.reason, kept.message)
    if failures:
        return failures
    if status.ready_replicas < job.spec.replicas:
        missing = f"{status.ready_replicas} of {job.spec.replicas} workers take part"
        hindrance = view.context.hindrance
        why = hindrance.message if hindrance else missing_worker(view)
        text = "; ".join(filter(None, (missing, why)))
        return ConditionValue("True", "WorkersMissing", text)
    if status.stragglers:
        slow = ", ".join(
            f"rank {s.rank} on {s.node} computes {s.percent:.0f} % longer"
            for s in status.stragglers
        )
        text = f"all wait for the slowest: {slow} than the median rank"
        return ConditionValue("True", "Stragglers", text)
    return ConditionValue("False", "AllWorkers", f"workers taking part: {status.ready_replicas}")


FAILURES = 3
FAILURES_WITHIN = timedelta(minutes=30)
"""So many failures within that time are no accident: the alert TrainingJobCrashLooping has the same
bounds.
"""


def _repeated_failures(job: Job, view: JobView, now: datetime) -> ConditionValue | None:
    """How often the program failed, what is left of its budget, and why it failed last; None where
    that was rare. Each try may train for a moment, so that the job is Ready again and again.
    """
    failures = [
        recovery
        for recovery in view.status.recoveries
        if recovery.cause in ("application", "hang")
        and now - parse_time(recovery.time) < FAILURES_WITHIN
    ]
    if len(failures) < FAILURES:
        return None
    more = " or more" if len(failures) == RECOVERIES_KEPT else ""
    since = f"{len(failures)} failures of the program{more} since {failures[0].time}"
    budgets = ", ".join(_budgets(job, view, {failure.cause for failure in failures}))
    last = f"the last one: {failures[-1].message.partition(chr(10))[0]}"
    text = "; ".join(filter(None, (since, budgets, last)))
    return ConditionValue("True", "RepeatedFailures", text)


def _budgets(job: Job, view: JobView, causes: set[str]) -> Iterator[str]:
    """What is left of the budgets that these failures are charged to. Agents of torchrun count for
    themselves.
    """
    policy, used = job.policies.restart, view.status.restarts
    if not launcher_of(job).has_coordinator:
        return
    for cause, limit, count, what, field in (
        ("application", policy.max_restarts, used.application, "restarts", "maxRestarts"),
        ("hang", policy.max_hang_restarts, used.hang, "restarts after a hang", "maxHangRestarts"),
    ):
        if cause in causes and limit >= 0:
            left = max(0, limit - count)
            yield f"{left} of {limit} {what} are left (restartPolicy.{field})"


_OF_COORDINATORS = ("VolumeUnavailable", "NoProgress")
"""Reasons of Degraded that stay while the coordinator does not answer."""


def _stall(report: CoordinatorStatus | None) -> str:
    """Since when no step is made, and what follows; empty where steps are made."""
    stall = report.stall if report is not None else None
    if stall is None:
        return ""
    since = format_time(datetime.fromtimestamp(stall.since, UTC))
    return (
        f"no step since {since}, after step {stall.step}: a rank hangs, or a save, an evaluation "
        f"or data take so long; all ranks begin anew after {stall.limit_seconds:.0f} s without one"
    )


def _volume(report: CoordinatorStatus | None) -> str:
    """What is wrong with the volume, since when, and what is at risk; empty when nothing is."""
    problem = report.volume if report is not None else None
    if problem is None:
        return ""
    since = format_time(datetime.fromtimestamp(problem.since, UTC))
    return f"{problem.what} (since {since}). {problem.at_risk}"


def _checkpointed(view: JobView) -> ConditionValue:
    if not launcher_of(view.job).has_coordinator:
        where = f"the script saves by itself, in the folder that {DIRECTORY_VARIABLE} names"
        return ConditionValue("Unknown", "NotManaged", where)
    former, report = view.status.condition("Checkpointed"), view.observed.coordinator.status
    if report is None and former is not None and former.reason == "SaveFailed":
        return ConditionValue(former.status, former.reason, former.message)
    if failure := _failed_save(report):
        return ConditionValue("False", "SaveFailed", failure)
    checkpoint = view.status.checkpoint
    if checkpoint.last_step is None:
        return ConditionValue("False", "NoCheckpoint", "no checkpoint yet")
    return ConditionValue("True", "Saved", f"step {checkpoint.last_step}: {checkpoint.path}")


def _failed_save(report: CoordinatorStatus | None) -> str:
    """Why the newest save failed; empty when it did not."""
    if report is None:
        return ""
    saved = report.checkpoint.time if report.checkpoint else float("-inf")
    failures = (
        event.message or "a checkpoint could not be saved"
        for event in reversed(report.events)
        if event.reason == "CheckpointFailed" and event.time > saved
    )
    return next(failures, "")


_SUSPENDED: dict[str, ConditionValue] = {
    "no": ConditionValue("False", "NotSuspended", "spec.suspend is false"),
    "suspending": ConditionValue("Unknown", "Suspending", "saving and giving the pods back"),
    "suspended": ConditionValue("True", "Suspended", "no pods are held"),
}


def _complete(view: JobView) -> ConditionValue:
    outcome = view.context.outcome
    if outcome is None:
        return ConditionValue("False", "NotFinished", "the job has not ended")
    if not outcome.complete:
        return ConditionValue("False", "Otherwise", "the job has failed")
    return ConditionValue("True", outcome.reason, outcome.message)


def _failed(view: JobView) -> ConditionValue:
    outcome = view.context.outcome
    if outcome is None:
        return ConditionValue("False", "NotFinished", "the job has not ended")
    if outcome.complete:
        return ConditionValue("False", "Otherwise", "the job has completed")
    return ConditionValue("True", outcome.reason, outcome.message)
