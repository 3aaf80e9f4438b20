"""Keeps the pods of a torchrun job: one store, and one worker per index below `replicas` that meets there. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from regroup_operator.api import NodeFailurePolicy, Restarts, TrainingJobStatus
from regroup_operator.attempt import has_other_bounds, is_spoilt, read_attempt
from regroup_operator.failures import classify
from regroup_operator.losses import avoids_in_vain
from regroup_operator.observed import Blocker, Job, Observed, Pod
from regroup_operator.plan import Action, CreateStore, CreateWorker, DeletePod, EnsureAccess, EnsureService, Event, Step
from regroup_operator.staffing import backoff_left
from regroup_operator.torchrun import world_generation


def keep_store(job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None) -> Step:
    """Keep one store. When it is gone, or the attempt is of no use any more, the next attempt begins with another."""
    current = read_attempt(observed, status.coordinator_term).store
    old = [
        DeletePod(pod, "the store of an older attempt")
        for pod in observed.stores
        if pod is not current and not pod.terminating
    ]
    if blocker is not None:
        return Step(status, tuple(old))
    useless = is_spoilt(job, observed) or has_other_bounds(job, observed)
    if current is not None and not useless and not _is_lost(job, current, observed, status):
        return Step(status, (*old, *_service(observed, status.coordinator_term)))
    if current is not None:
        old.append(DeletePod(current, "its attempt is over"))
    term = status.coordinator_term + 1
    excluded = tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))
    restarts = _count_attempt(job, observed, status)
    return Step(
        status.model_copy(update={"coordinator_term": term, "restarts": restarts}),
        (EnsureAccess(), EnsureService(term), CreateStore(term, excluded), *old),
    )


def _count_attempt(job: Job, observed: Observed, status: TrainingJobStatus) -> Restarts:
    """The next attempt after one that trained is a restart, or a resize when that is why."""
    if status.world_generation is None:
        return status.restarts
    cause = "resize" if has_other_bounds(job, observed) else "infrastructure"
    return status.restarts.model_copy(update={cause: getattr(status.restarts, cause) + 1})


def _service(observed: Observed, term: int) -> tuple[Action, ...]:
    wrong = observed.service is None or observed.service.term != term
    return (EnsureAccess(), EnsureService(term)) if wrong or not observed.network_policy else ()


def _is_lost(job: Job, pod: Pod, observed: Observed, status: TrainingJobStatus) -> bool:
    node = observed.nodes.get(pod.node)
    policy = job.spec.node_failure_policy if job.spec else NodeFailurePolicy()
    late = node is not None and not node.ready and node.not_ready_seconds >= policy.not_ready_seconds
    silent = late or (node is not None and not node.exists)
    misplaced = pod.phase == "Pending" and avoids_in_vain(pod, {*status.suspected_nodes, *status.excluded_nodes})
    return silent or misplaced


def keep_agents(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, now: datetime
) -> Step:
    """One live worker of this attempt per index; once one ended well nobody can join any more."""
    if job.spec is None:
        return Step(status)
    attempt = read_attempt(observed, status.coordinator_term)
    live = [pod for pod in observed.workers if pod.alive]
    extra = [*_of_other_attempts(live, status), *_too_many(attempt.live, job.spec.replicas)]
    if attempt.done:
        late = [DeletePod(pod, "the others have ended well") for pod in attempt.live if pod.phase == "Pending"]
        return Step(status, tuple(dict.fromkeys([*extra, *late])))
    missing = sorted(set(range(job.spec.replicas)) - {pod.index for pod in attempt.live})
    meets = observed.service is not None and observed.service.term == status.coordinator_term
    ready = meets and attempt.store is not None and attempt.store.phase == "Running"
    if blocker is not None or not missing or not ready or backoff_left(job, status, now) > 0:
        return Step(status, tuple(extra))
    return _hire(job, observed, status, missing, extra)


def _of_other_attempts(live: Iterable[Pod], status: TrainingJobStatus) -> list[DeletePod]:
    return [DeletePod(pod, "its attempt is over") for pod in live if pod.term != status.coordinator_term]


def _too_many(live: Iterable[Pod], replicas: int) -> list[DeletePod]:
    return [DeletePod(pod, "the job has fewer workers now") for pod in live if pod.index >= replicas]


def _hire(
    job: Job, observed: Observed, status: TrainingJobStatus, missing: list[int], extra: Iterable[DeletePod]
) -> Step:
    """Make the missing workers; incarnation and restarts are written before."""
    incarnation = status.next_incarnation
    excluded = tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))
    text = f"{len(missing)} worker pods: " + ", ".join(f"w{index}-{incarnation}" for index in missing[:16])
    restarts = _count_restarts(job, observed, status, missing)
    return Step(
        status.model_copy(update={"next_incarnation": incarnation + 1, "restarts": restarts}),
        (*extra, *(CreateWorker(index, incarnation, excluded) for index in missing)),
        (Event("Normal", "WorkersCreated", text, str(incarnation)),),
    )


def _count_restarts(job: Job, observed: Observed, status: TrainingJobStatus, missing: list[int]) -> Restarts:
    """One for each worker that this attempt replaces: by its last end when that is known, else it was taken away."""
    former = status.restarts
    if status.world_generation != world_generation(status.coordinator_term):
        return former
    known = {worker.index for worker in job.status.workers}
    replaced = [index for index in missing if index in known]
    by_program = sum(1 for index in replaced if _failed_by_itself(observed, index))
    return former.model_copy(
        update={
            "application": former.application + by_program,
            "infrastructure": former.infrastructure + len(replaced) - by_program,
        }
    )


def _failed_by_itself(observed: Observed, index: int) -> bool:
    ended = [pod for pod in observed.workers if pod.index == index and pod.phase == "Failed" and not pod.terminating]
    return bool(ended) and classify(max(ended, key=lambda pod: pod.ended)).action == "Restart"
