"""Keeps the workers: one live pod per index below `replicas` + `spares`, and the budget that says
how many of them a drain must leave. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import parse_time
from regroup_operator.decide.plan import (
    Action,
    CreateWorker,
    DeletePod,
    EnsureDisruptionBudget,
    Event,
    Step,
)
from regroup_operator.observe.observed import (
    CoordinatorView,
    Job,
    JobObject,
    Observed,
    Pod,
    incarnation_of,
)
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.system.backoff import backoff_seconds

MOST_CREATED = 100
"""Workers that one round makes. Other jobs go on before the next round makes more."""
OUTCOME_SECONDS = 10.0
"""How long a worker that ended with 0 keeps its place, since the job may have ended."""


def keep_workers(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Waiting | None, now: datetime
) -> Step:
    """Delete the workers above the wanted number; create those that are missing. Workers that a
    full volume keeps from saving what they hold are left to their coordinator, which releases them.
    """
    wanted = job.spec.replicas + job.spec.spares
    live = [pod for pod in observed.workers if pod.alive]
    staying = [pod for pod in live if pod.index < wanted]
    saving = _may_wait_to_save(observed.coordinator)
    going = [pod for pod in live if pod.uid not in saving]
    extra = (*surplus(going, wanted), *delete_second(staying, observed.coordinator))
    held = {pod.index for pod in (*live, *_just_succeeded(observed))}
    missing = sorted(set(range(wanted)) - held)
    if blocker is not None or not _is_reachable(observed) or backoff_left(job, status, now) > 0:
        return Step(status, extra)
    return create_missing(status, missing, extra)


def _is_reachable(observed: Observed) -> bool:
    """Whether there is an address for workers to find the coordinator, when they are made."""
    service = observed.service
    return service is not None and (bool(service.address) or service.is_planned)


def _may_wait_to_save(view: CoordinatorView) -> frozenset[str]:
    """UIDs of the workers that train while the volume is away. Deleted, they would be killed with
    their part of the state at the end of their grace period.
    """
    if view.status is None or view.status.volume is None:
        return frozenset()
    return frozenset(one.member for one in view.status.members if one.rank is not None)


def surplus(live: Iterable[Pod], wanted: int) -> tuple[DeletePod, ...]:
    """The deletions of the workers whose index is not below `wanted`."""
    return tuple(
        DeletePod(pod, "the job has fewer workers now") for pod in live if pod.index >= wanted
    )


# --- two pods of one worker -----------------------------------------------------------------------
#
# A request for a pod that timed out may be executed after the next one was made. The coordinator
# lets the second agent of an index wait, and stock torchrun would train with both.


def delete_second(live: Iterable[Pod], view: CoordinatorView) -> tuple[DeletePod, ...]:
    """Delete the live workers whose index another has: those without a rank at the coordinator,
    else the newer ones. Nothing while the coordinator does not report who has a rank.
    """
    if view.status is None or view.failures:
        return ()
    members = {member.member: member for member in view.status.members}

    def use(pod: Pod) -> int:
        """The less, the more of use."""
        member = members.get(pod.uid)
        if member is None:
            return 2
        return 3 if member.lost else int(member.rank is None)

    return delete_all_but_one(live, lambda pod: (use(pod), incarnation_of(pod)))


def delete_all_but_one(
    live: Iterable[Pod],
    order: Callable[[Pod], tuple[int, ...]] = lambda pod: (incarnation_of(pod),),
) -> tuple[DeletePod, ...]:
    """Delete all of these workers but the first of each index in this order: by default the one
    that was asked for first.
    """
    by_index: defaultdict[int, list[Pod]] = defaultdict(list)
    for pod in live:
        by_index[pod.index].append(pod)
    return tuple(
        DeletePod(pod, f"{first.name} is worker {index} already")
        for index, pods in sorted(by_index.items())
        for first, *others in [sorted(pods, key=order)]
        for pod in others
    )


# --- new workers ----------------------------------------------------------------------------------


def create_missing(
    status: TrainingJobStatus, missing: list[int], extra: Iterable[DeletePod]
) -> Step:
    """Delete `extra` and create a worker for each index in `missing`, up to MOST_CREATED, under the
    next incarnation.

    The status uses up the incarnation, and it is written before the pods are made.
    """
    if not missing:
        return Step(status, tuple(extra))
    lacking, missing = len(missing), missing[:MOST_CREATED]
    more = f" ({lacking - MOST_CREATED} more follow)" if lacking > MOST_CREATED else ""
    incarnation = status.next_incarnation
    avoided = nodes_to_avoid(status)
    shown = ", ".join(f"w{index}-{incarnation}" for index in missing[:16])
    return Step(
        status.model_copy(update={"next_incarnation": incarnation + 1}),
        (*extra, *(CreateWorker(index, incarnation, avoided) for index in missing)),
        (
            Event(
                "Normal",
                "WorkersCreated",
                f"{len(missing)} worker pod{'s' if len(missing) > 1 else ''}: {shown}{more}",
                str(incarnation),
            ),
        ),
    )


def creates_more(step: Step) -> bool:
    """Whether the next round has workers to make that this one leaves out."""
    return sum(isinstance(action, CreateWorker) for action in step.actions) >= MOST_CREATED


def nodes_to_avoid(status: TrainingJobStatus) -> tuple[str, ...]:
    """Suspected and excluded nodes, each once."""
    return tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))


def _just_succeeded(observed: Observed) -> list[Pod]:
    """Workers that ended with 0 a moment ago. Why they did, the coordinator is about to report."""
    return [
        pod
        for pod in observed.workers
        if pod.phase == "Succeeded"
        and not pod.terminating
        and observed.ended_within(pod, OUTCOME_SECONDS)
    ]


def backoff_end(job: JobObject, status: TrainingJobStatus) -> datetime | None:
    """When failed pods are replaced; None when no pod has failed."""
    if not status.pod_failures or status.last_pod_failure_time is None:
        return None
    policy = job.policies.restart
    pause = backoff_seconds(status.pod_failures, policy.backoff_seconds, policy.max_backoff_seconds)
    return parse_time(status.last_pod_failure_time) + timedelta(seconds=pause)


def backoff_left(job: JobObject, status: TrainingJobStatus, now: datetime) -> float:
    """Seconds until failed pods are replaced; 0 or less when they may be now. A failure that is yet
    to come is of another operator's clock, or of one that was wrong: nothing waits for it.
    """
    end, last = backoff_end(job, status), status.last_pod_failure_time
    if end is None or last is None or parse_time(last) > now:
        return 0.0
    return (end - now).total_seconds()


# --- the disruption budget ------------------------------------------------------------------------


def fewest_workers(spec: TrainingJobSpec) -> int:
    """Workers that a drain must leave: `minReplicas`, and one less than all of them at the most.

    An evicted worker costs no step, so that one may always be taken, also from a job of fixed size:
    a budget that forbids every eviction would block the drain of its nodes for ever.
    """
    return min(spec.min_replicas, spec.replicas - 1)


def keep_budget(job: Job, observed: Observed, blocker: Waiting | None) -> tuple[Action, ...]:
    """Make the budget once as many workers run as it keeps, or change it when it differs from what
    it should be. No budget is the same as 0.

    Before that there is nothing to keep. Kubernetes would write the budget's status for each worker
    that starts.
    """
    fewest = fewest_workers(job.spec)
    present = observed.disruption_budget
    running = sum(worker.alive and worker.phase == "Running" for worker in observed.workers)
    if blocker is not None or not running or (present is None and running < fewest):
        return ()
    return () if (present or 0) == fewest else (EnsureDisruptionBudget(fewest),)
