"""Keeps the pods of a torchrun job: one store, and one worker per index below `replicas`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import format_time
from regroup_operator.api.torchrun_end import Judgement
from regroup_operator.decide import torchrun_losses as losses
from regroup_operator.decide.attempt import has_other_bounds, judge, read_attempt
from regroup_operator.decide.failures import classify, is_refused
from regroup_operator.decide.losses import avoids_in_vain
from regroup_operator.decide.plan import (
    Action,
    CreateStore,
    DeletePod,
    EnsureAccess,
    EnsureService,
    Event,
    Step,
)
from regroup_operator.decide.staffing import (
    backoff_left,
    create_missing,
    delete_all_but_one,
    nodes_to_avoid,
    surplus,
)
from regroup_operator.decide.succession import ensure_service
from regroup_operator.observe.observed import Job, Observed, Pod
from regroup_operator.render.torchrun_commands import rendezvous_generation
from regroup_trainer.protocol.job_status import Waiting


def retain_store(observed: Observed, status: TrainingJobStatus) -> tuple[Action, ...]:
    """Remove the stores of older attempts."""
    current = read_attempt(observed, status.coordinator_term).store
    return tuple(
        DeletePod(pod, "the store of an older attempt")
        for pod in observed.stores
        if pod is not current and not pod.terminating
    )


def keep_store(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Waiting | None, now: datetime
) -> Step:
    """Keep one store. When it is gone, or its attempt is of no use any more, begin the next attempt
    with another store.
    """
    old = retain_store(observed, status)
    if blocker is not None:
        return Step(status, old)
    current = read_attempt(observed, status.coordinator_term).store
    judged = judge(job, observed)
    useless = judged.outcome == "again" or has_other_bounds(job, observed)
    if current is not None and not useless and not _is_lost(job, current, observed, status):
        return Step(status, (*old, *ensure_service(observed, status.coordinator_term)))
    if backoff_left(job, status, now) > 0:
        return Step(status)
    ended = (DeletePod(current, "its attempt is over"),) if current is not None else ()
    term = observed.next_term(status.coordinator_term)
    is_counted = term == status.coordinator_term
    loss = None if is_counted else _end_of_attempt(job, observed, status, judged)
    ended_by = [loss, *_closed_by(loss, job, observed, status)] if loss else []
    begun = losses.account(_count_failure(observed, status, now), ended_by, term, now)
    create = CreateStore(term, nodes_to_avoid(status))
    return Step(
        begun.model_copy(update={"coordinator_term": term}),
        (EnsureAccess(), EnsureService(term), create, *old, *ended),
        _attempt_lost(loss, term),
    )


def _attempt_lost(loss: losses.Loss | None, term: int) -> tuple[Event, ...]:
    if loss is None or loss.cause == "resize":
        return ()
    return (Event("Warning", "AttemptLost", loss.message, str(term)),)


def _end_of_attempt(
    job: Job, observed: Observed, status: TrainingJobStatus, judged: Judgement
) -> losses.Loss | None:
    """The loss that begins the next attempt; None when the last one has not begun."""
    if not _has_begun(observed, status):
        return None
    store = _own_store(observed, status)
    if judged.failure:
        what = f"some workers ended well, and one did not: {judged.failure}"
        loss = losses.Loss("application", what)
    elif store is not None and not store.alive:
        loss = losses.of_pod(store, observed)
        loss = loss if loss.cause == "preemption" else replace(loss, cause="infrastructure")
    elif has_other_bounds(job, observed):
        loss = losses.Loss(
            "resize", "torchrun was started with other bounds than spec.elasticPolicy has now"
        )
    elif judged.is_closed:
        loss = losses.Loss(
            "infrastructure",
            "torchrun has closed the rendezvous, since an agent failed: nobody can join any more",
            is_counted=False,
        )
    else:
        loss = losses.Loss(
            "infrastructure", "the attempt has lost its store, or too many of its workers"
        )
    return loss


def _has_begun(observed: Observed, status: TrainingJobStatus) -> bool:
    """Whether the attempt of the status has anything to lose. The first begins when it trains, a
    later one when it trained or has a pod: an operator may have died once its number was written.
    """
    term, trained = status.coordinator_term, status.rendezvous_generation
    return trained is not None and (
        trained == rendezvous_generation(term) or any(pod.term == term for pod in observed.pods)
    )


def _closed_by(
    loss: losses.Loss, job: Job, observed: Observed, status: TrainingJobStatus
) -> list[losses.Loss]:
    """What closed the rendezvous in this very round; what did so before is counted already."""
    return [] if loss.is_counted else losses.of_workers(job, observed, status)


def _count_failure(
    observed: Observed, status: TrainingJobStatus, now: datetime
) -> TrainingJobStatus:
    """Count a store that failed by itself, so that the next one waits for the back-off."""
    store = _own_store(observed, status)
    if store is None or store.phase != "Failed" or classify(store).cause != "application":
        return status
    return status.model_copy(
        update={"pod_failures": status.pod_failures + 1, "last_pod_failure_time": format_time(now)}
    )


def _own_store(observed: Observed, status: TrainingJobStatus) -> Pod | None:
    return next((pod for pod in observed.stores if pod.term == status.coordinator_term), None)


def _is_lost(job: Job, pod: Pod, observed: Observed, status: TrainingJobStatus) -> bool:
    node = observed.nodes.get(pod.node)
    policy = job.policies.node_failure
    late = (
        node is not None and not node.ready and node.not_ready_seconds >= policy.not_ready_seconds
    )
    unresponsive = late or (node is not None and not node.exists)
    misplaced = pod.phase == "Pending" and avoids_in_vain(pod, set(nodes_to_avoid(status)))
    return unresponsive or misplaced


def keep_agents(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Waiting | None, now: datetime
) -> Step:
    """Keep one live worker of this attempt per index, until the first one ends well, or is refused:
    nobody can join after that.
    """
    attempt = read_attempt(observed, status.coordinator_term)
    live = [pod for pod in observed.workers if pod.alive]
    staying = [pod for pod in attempt.live if pod.index < job.spec.replicas]
    extra = (
        *_of_other_attempts(live, status),
        *surplus(attempt.live, job.spec.replicas),
        *delete_all_but_one(staying),
    )
    if attempt.done:
        late = (pod for pod in attempt.live if pod.phase == "Pending")
        deleted = (DeletePod(pod, "the others have ended well") for pod in late)
        return Step(status, tuple(dict.fromkeys([*extra, *deleted])))
    lost = losses.of_workers(job, observed, status)
    status = losses.account(status, lost, status.coordinator_term, now)
    missing = sorted(set(range(job.spec.replicas)) - {pod.index for pod in attempt.live})
    meets = observed.service is not None and observed.service.term == status.coordinator_term
    is_open = not any(map(is_refused, attempt.failed))
    ready = meets and is_open and attempt.store is not None and attempt.store.phase == "Running"
    if blocker is not None or not ready or backoff_left(job, status, now) > 0:
        return Step(status, extra)
    return create_missing(status, missing, extra)


def _of_other_attempts(live: Iterable[Pod], status: TrainingJobStatus) -> list[DeletePod]:
    return [
        DeletePod(pod, "its attempt is over") for pod in live if pod.term != status.coordinator_term
    ]
