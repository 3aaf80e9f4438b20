"""Decides what to do about a job: `plan(job, observed, now) -> Plan`. Pure; reads as the operator's policy.

What can't be derived again (terms, incarnations, ends already counted, suspects) goes into the status of the plan,
which is written before the plan's actions. A crash between any two steps therefore counts each failure exactly once,
and no name is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from regroup_operator.api import TrainingJobStatus
from regroup_operator.disruption import keep_budget
from regroup_operator.ending import after_the_end, end, find_ending, written_ending
from regroup_operator.losses import remove_lost
from regroup_operator.observed import Blocker, Job, Observed, Pod, format_time
from regroup_operator.plan import (
    MESSAGE_LIMIT,
    Action,
    CreateClaim,
    DeletePod,
    Event,
    Plan,
    PostLost,
    PutDesired,
    Situation,
    Step,
)
from regroup_operator.staffing import backoff_left, keep_workers
from regroup_operator.status import project
from regroup_operator.stragglers import replace_straggler
from regroup_operator.succession import keep_coordinator
from regroup_operator.suspension import LOOK_AGAIN_SECONDS, suspend, tear_down, was_suspended
from regroup_operator.torchrun_staffing import keep_agents, keep_store
from regroup_trainer.contract import PROTOCOL_VERSION

STEADY_SECONDS = 30.0
"""When nothing is suspected or waited for; progress is written this often."""


def plan(job: Job, observed: Observed, now: datetime) -> Plan:
    """What to do about `job` now."""
    if job.deleting:
        return Plan(job.status)
    if ending := written_ending(job.status):
        return after_the_end(job, observed, ending, now)
    if ending := find_ending(job, observed, now):
        return end(job, observed, ending, now)
    if job.suspend:
        return suspend(job, observed, now)
    if was_suspended(observed):
        return tear_down(job, observed, now)
    return _run(job, observed, now)


def _run(job: Job, observed: Observed, now: datetime) -> Plan:
    """Account for losses, keep the pod that leads, keep the workers, tell the coordinator; in this order."""
    blocker = _blocker(job, observed)
    losses = remove_lost(job, observed, now)
    rest = replace(observed, pods=tuple(pod for pod in observed.pods if pod not in _deleted(losses.actions)))
    started = _start(job, losses.status, observed, blocker, now)
    keep_leader, keep_all_workers = _KEEPERS[job.launcher]
    leader = keep_leader(job, rest, started.status, blocker, now)
    slow = replace_straggler(job, rest, leader.status)
    rest = replace(rest, pods=tuple(pod for pod in rest.pods if pod not in _deleted(slow.actions)))
    workers = keep_all_workers(job, rest, slow.status, blocker, now)
    told, budget = _tell(job, observed), keep_budget(job, observed, blocker)
    status = project(job, observed, workers.status, Situation(blocker), now)
    return Plan(
        status=status,
        actions=(*losses.actions, *started.actions, *leader.actions, *told, *slow.actions, *workers.actions, *budget),
        events=(
            *losses.events,
            *started.events,
            *leader.events,
            *slow.events,
            *workers.events,
            *_blocked_event(job, blocker),
        ),
        look_again_seconds=_look_again(job, rest, workers.status, blocker, now),
        follow=job.launcher == "regroup",
    )


_KEEPERS = {"regroup": (keep_coordinator, keep_workers), "torchrun": (keep_store, keep_agents)}
"""Launcher -> who keeps the pod that all workers turn to, and who keeps the workers."""


def _deleted(actions: Iterable[Action]) -> tuple[Pod, ...]:
    return tuple(action.pod for action in actions if isinstance(action, DeletePod))


def _blocker(job: Job, observed: Observed) -> Blocker | None:
    """Why no pod may be made: a wrong spec, or a claim that is missing or cannot be shared."""
    if job.blocker is not None or job.spec is None:
        return job.blocker
    storage = job.spec.checkpoint.storage
    if storage is None or storage.persistent_volume_claim is None:
        return None
    name = storage.persistent_volume_claim.claim_name
    path = "spec.checkpoint.storage.persistentVolumeClaim.claimName"
    if observed.claim is None:
        return Blocker(
            "ClaimMissing", f"{path}: there is no PersistentVolumeClaim {name!r} in {job.namespace}: create it"
        )
    if observed.claim.deleting:
        return Blocker("ClaimMissing", f"{path}: PersistentVolumeClaim {name!r} is being deleted")
    if job.spec.max_replicas > 1 and "ReadWriteMany" not in observed.claim.access_modes:
        modes = ", ".join(observed.claim.access_modes)
        return Blocker("ClaimNotShared", f"{path}: {name!r} is {modes}: several workers need a ReadWriteMany claim")
    return None


def _blocked_event(job: Job, blocker: Blocker | None) -> tuple[Event, ...]:
    former = job.status.condition("Ready")
    if blocker is None or (former is not None and former.message == blocker.message[:MESSAGE_LIMIT]):
        return ()
    reason = "InvalidSpec" if blocker.reason in ("InvalidSpec", "NotSupported") else blocker.reason
    return (Event("Warning", reason, blocker.message, f"{job.generation}-{blocker.message}"),)


def _start(job: Job, status: TrainingJobStatus, observed: Observed, blocker: Blocker | None, now: datetime) -> Step:
    """What a start, or a start after a suspension, fixes once: time, images, protocol; and the job's own objects."""
    if blocker is not None or job.spec is None:
        return Step(status)
    actions: list[Action] = []
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.volume_claim_template is not None and observed.claim is None:
        actions.append(CreateClaim())
    if status.start_time is not None:
        return Step(status, tuple(actions))
    fixed = {
        "start_time": format_time(now),
        "images": dict(observed.images),
        "protocol_version": PROTOCOL_VERSION,
    }
    events: tuple[Event, ...] = ()
    if job.status.holds("Suspended") and job.status.coordinator_term:
        events = (Event("Normal", "Resumed", "pods are made again", f"resumed-{job.generation}"),)
    return Step(status.model_copy(update=fixed), tuple(actions), events)


def _tell(job: Job, observed: Observed) -> tuple[Action, ...]:
    """Tell the coordinator a newer spec, and the members that Kubernetes knows to be gone."""
    answer = observed.coordinator.status
    if answer is None:
        return ()
    actions: list[Action] = []
    if job.spec is not None and answer.revision < job.generation:
        actions.append(PutDesired())
    running = {pod.uid for pod in observed.workers if pod.phase in ("Pending", "Running", "Unknown")}
    gone = tuple(m.member for m in answer.members if not m.lost and m.member not in running)
    finished = answer.verdict is not None or answer.phase == "stopping"
    if gone and not finished:
        actions.append(PostLost(gone, "Kubernetes says that the pod has ended"))
    return tuple(actions)


def _look_again(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, now: datetime
) -> float:
    if observed.service is None and blocker is None:
        return 0.0
    view = observed.coordinator
    waiting = (
        status.suspected_nodes,
        view.failures,
        view.lost_seconds,
        blocker,
        any(pod.terminating or pod.phase == "Succeeded" for pod in observed.pods),
        backoff_left(job, status, now) > 0,
    )
    return LOOK_AGAIN_SECONDS if any(waiting) else STEADY_SECONDS
