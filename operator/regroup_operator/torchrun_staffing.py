"""Keeps the pods of a torchrun job: one store, and one worker per index below `replicas` that meets there. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from regroup_operator import torchrun_losses as losses
from regroup_operator.api import NodeFailurePolicy, TrainingJobStatus
from regroup_operator.attempt import has_other_bounds, is_spoilt, read_attempt
from regroup_operator.failures import classify
from regroup_operator.losses import avoids_in_vain
from regroup_operator.observed import Blocker, Job, Observed, Pod, format_time
from regroup_operator.plan import Action, CreateStore, CreateWorker, DeletePod, EnsureAccess, EnsureService, Event, Step
from regroup_operator.staffing import backoff_left


def keep_store(job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, now: datetime) -> Step:
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
    if backoff_left(job, status, now) > 0:
        return Step(status)
    if current is not None:
        old.append(DeletePod(current, "its attempt is over"))
    term = status.coordinator_term + 1
    excluded = tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))
    loss = _end_of_attempt(job, observed, status)
    begun = losses.account(_count_failure(observed, status, now), [loss] if loss else [], term, now)
    return Step(
        begun.model_copy(update={"coordinator_term": term}),
        (EnsureAccess(), EnsureService(term), CreateStore(term, excluded), *old),
        (Event("Warning", "AttemptLost", loss.message, str(term)),) if loss and loss.cause != "resize" else (),
    )


def _end_of_attempt(job: Job, observed: Observed, status: TrainingJobStatus) -> losses.Loss | None:
    """Why the next attempt begins; None when there was none that has trained."""
    store = _own_store(observed, status)
    if store is not None and not store.alive:
        loss = losses.of_pod(store, observed)
        loss = loss if loss.cause == "preemption" else replace(loss, cause="infrastructure")
    elif has_other_bounds(job, observed):
        loss = losses.Loss("resize", "torchrun was started with other bounds")
    else:
        loss = losses.Loss("infrastructure", "the attempt has lost its store, or too many of its workers")
    return loss if status.world_generation is not None else None


def _count_failure(observed: Observed, status: TrainingJobStatus, now: datetime) -> TrainingJobStatus:
    """A store that failed by itself makes the next one wait, as a worker does."""
    store = _own_store(observed, status)
    if store is None or store.phase != "Failed" or classify(store).cause != "application":
        return status
    return status.model_copy(
        update={"pod_failures": status.pod_failures + 1, "last_pod_failure_time": format_time(now)}
    )


def _own_store(observed: Observed, status: TrainingJobStatus) -> Pod | None:
    return next((pod for pod in observed.stores if pod.term == status.coordinator_term), None)


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
    status = losses.account(status, losses.of_workers(job, observed, status), status.coordinator_term, now)
    missing = sorted(set(range(job.spec.replicas)) - {pod.index for pod in attempt.live})
    meets = observed.service is not None and observed.service.term == status.coordinator_term
    ready = meets and attempt.store is not None and attempt.store.phase == "Running"
    if blocker is not None or not missing or not ready or backoff_left(job, status, now) > 0:
        return Step(status, tuple(extra))
    return _hire(status, missing, extra)


def _of_other_attempts(live: Iterable[Pod], status: TrainingJobStatus) -> list[DeletePod]:
    return [DeletePod(pod, "its attempt is over") for pod in live if pod.term != status.coordinator_term]


def _too_many(live: Iterable[Pod], replicas: int) -> list[DeletePod]:
    return [DeletePod(pod, "the job has fewer workers now") for pod in live if pod.index >= replicas]


def _hire(status: TrainingJobStatus, missing: list[int], extra: Iterable[DeletePod]) -> Step:
    """Make the missing workers; the incarnation is written before."""
    incarnation = status.next_incarnation
    excluded = tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))
    text = f"{len(missing)} worker pods: " + ", ".join(f"w{index}-{incarnation}" for index in missing[:16])
    return Step(
        status.model_copy(update={"next_incarnation": incarnation + 1}),
        (*extra, *(CreateWorker(index, incarnation, excluded) for index in missing)),
        (Event("Normal", "WorkersCreated", text, str(incarnation)),),
    )
