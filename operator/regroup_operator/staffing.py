"""Keeps the workers: one live pod per index below `replicas` + `spares`. Pure."""

from __future__ import annotations

from datetime import datetime

from regroup_operator import failures
from regroup_operator.api import TrainingJobStatus
from regroup_operator.observed import Blocker, Job, Observed, Pod, parse_time
from regroup_operator.plan import CreateWorker, DeletePod, Event, Step

VERDICT_SECONDS = 10.0
"""How long a worker that ended with 0 keeps its place, since the job may have ended."""


def keep_workers(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, now: datetime
) -> Step:
    """One live pod per index below `replicas` + `spares`; those above go, those missing are made."""
    if job.spec is None:
        return Step(status)
    wanted = job.spec.replicas + job.spec.spares
    live = [pod for pod in observed.workers if pod.alive]
    extra = [DeletePod(pod, "the job has fewer workers now") for pod in live if pod.index >= wanted]
    held = {pod.index for pod in (*live, *_waiting_for_verdict(observed, now))}
    missing = sorted(set(range(wanted)) - held)
    if blocker is not None or not missing or observed.service is None or not observed.service.address:
        return Step(status, tuple(extra))
    if backoff_left(job, status, now) > 0:
        return Step(status, tuple(extra))
    incarnation = status.next_incarnation
    excluded = tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))
    text = f"{len(missing)} worker pods: " + ", ".join(f"w{index}-{incarnation}" for index in missing[:16])
    return Step(
        status.model_copy(update={"next_incarnation": incarnation + 1}),
        (*extra, *(CreateWorker(index, incarnation, excluded) for index in missing)),
        (Event("Normal", "WorkersCreated", text, str(incarnation)),),
    )


def _waiting_for_verdict(observed: Observed, now: datetime) -> list[Pod]:
    """Workers that were told to exit: the coordinator's verdict, which says why, is on its way."""
    return [
        pod
        for pod in observed.workers
        if pod.phase == "Succeeded"
        and not pod.terminating
        and pod.ended
        and (now - parse_time(pod.ended)).total_seconds() < VERDICT_SECONDS
    ]


def backoff_left(job: Job, status: TrainingJobStatus, now: datetime) -> float:
    """Seconds before failed workers are replaced."""
    if not status.pod_failures or status.last_pod_failure_time is None or job.spec is None:
        return 0.0
    policy = job.spec.restart_policy
    pause = failures.backoff_seconds(status.pod_failures, policy.backoff_seconds, policy.max_backoff_seconds)
    return pause - (now - parse_time(status.last_pod_failure_time)).total_seconds()
