"""Why pods of a torchrun job were lost, counted by cause and reported as recoveries. Pure.

Only the pods show it: torchrun does not report to anyone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from regroup_operator.api.status import RecoveryStatus, Restarts, TrainingJobStatus
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.failures import classify, describe, is_refused
from regroup_operator.decide.job_account import storable
from regroup_operator.decide.plan import MESSAGE_LIMIT, RECOVERIES_KEPT
from regroup_operator.observe.observed import Job, Observed, Pod
from regroup_operator.render.torchrun_commands import rendezvous_generation
from regroup_trainer.protocol.ledger import Cause


@dataclass(frozen=True)
class Loss:
    """A pod that has to be replaced."""

    cause: Cause
    message: str
    pod: str = ""
    node: str = ""
    exit_code: int | None = None
    is_counted: bool = True
    """Whether it is one more, and not what follows from losses that are counted already."""


def of_workers(job: Job, observed: Observed, status: TrainingJobStatus) -> list[Loss]:
    """Losses of workers that ran when the status was written and no longer run, in an attempt that
    has trained. Workers that torchrun refused are none.

    The comparison is with the former status. The next one shows that they ended, so that each is
    counted once.
    """
    current = rendezvous_generation(status.coordinator_term)
    if status.rendezvous_generation != current:
        return []
    pods = {pod.name: pod for pod in observed.workers}
    ran = [
        worker
        for worker in job.status.workers
        if worker.state == "Running" and worker.index < job.spec.replicas
    ]
    gone = [worker for worker in ran if worker.pod not in pods]
    ended = [
        pods[worker.pod] for worker in ran if worker.pod in pods and not pods[worker.pod].alive
    ]
    fresh = (pod for pod in ended if pod.uid not in job.status.handled_pods)
    return [
        *(of_pod(pod, observed) for pod in fresh if not is_refused(pod)),
        *(
            Loss("infrastructure", _gone(worker.pod, worker.node), worker.pod, worker.node)
            for worker in gone
        ),
    ]


def of_pod(pod: Pod, observed: Observed) -> Loss:
    """Why this pod, which is ending or has ended, was lost."""
    node = observed.nodes.get(pod.node)
    if pod.terminating:
        what = f"{pod.role} pod {pod.name}{_on(pod.node)}"
        if node is not None and not (node.exists and node.ready):
            state = "is not Ready" if node.exists else "does not exist any more"
            return Loss("infrastructure", f"{what} is lost: its node {state}", pod.name, pod.node)
        what = f"{what} is being deleted (a drain, an eviction, or by hand)"
        return Loss("preemption", what, pod.name, pod.node)
    rule = classify(pod)
    return Loss(rule.cause, describe(pod, rule), pod.name, pod.node, pod.exit_code)


def _gone(pod: str, node: str) -> str:
    return f"worker pod {pod}{_on(node)} is gone (deleted by force, or with its node)"


def _on(node: str) -> str:
    return f" on node {node}" if node else ""


def account(
    status: TrainingJobStatus, losses: Iterable[Loss], term: int, now: datetime
) -> TrainingJobStatus:
    """Count each loss, and record them as one recovery into the generation of attempt `term`."""
    losses = tuple(losses)
    if not losses:
        return status
    counts = status.restarts.model_dump()
    for loss in (loss for loss in losses if loss.is_counted):
        counts[loss.cause] = storable(counts[loss.cause] + 1)
    first = next((loss for loss in losses if loss.is_counted), losses[0])
    recovery = RecoveryStatus(
        time=format_time(now),
        cause=first.cause,
        restored_from="Script",
        generation=rendezvous_generation(term),
        pod=first.pod,
        node=first.node,
        exit_code=first.exit_code,
        message="; ".join(loss.message for loss in losses)[:MESSAGE_LIMIT],
        world_size_before=status.world_size,
    )
    recoveries = (*status.recoveries, recovery)[-RECOVERIES_KEPT:]
    return status.model_copy(
        update={"restarts": Restarts.model_validate(counts), "recoveries": recoveries}
    )
