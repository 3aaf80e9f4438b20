"""Why pods of a torchrun job were lost, counted by cause and reported as recoveries. Pure.

Only the pods show it: torchrun does not report to anyone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice

from regroup_operator.api import names
from regroup_operator.api.status import (
    WORKERS_REMEMBERED,
    RecoveryStatus,
    Restarts,
    TrainingJobStatus,
)
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.attempt import read_attempt
from regroup_operator.decide.failures import classify, describe, is_refused
from regroup_operator.decide.job_account import storable
from regroup_operator.decide.plan import MESSAGE_LIMIT, RECOVERIES_KEPT
from regroup_operator.observe.observed import Job, Observed, Pod, incarnation_of
from regroup_operator.render.torchrun_commands import rendezvous_generation
from regroup_trainer.protocol.ledger import Cause

Place = tuple[int, int]
"""Index and incarnation of a worker: no pod of the job ever has both of another one."""
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_INCARNATION = re.compile(r"-([0-9]{1,9})$")
_IS_GONE = "is gone (deleted by force, or with its node)"


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
    if status.rendezvous_generation != rendezvous_generation(status.coordinator_term):
        return []
    places = sorted(place for place in _ran(job, observed) if place[0] < job.spec.replicas)
    # Somebody may have copied a pod with its labels: the one that lives decides.
    pods = {_place(pod): pod for pod in sorted(observed.workers, key=lambda pod: pod.alive)}
    ended = (pods[place] for place in places if place in pods and not pods[place].alive)
    nodes = {worker.pod: worker.node for worker in job.status.workers}
    return [
        *(of_pod(pod, observed) for pod in ended if not is_refused(pod)),
        *(_gone(job, place, nodes) for place in places if place not in pods),
    ]


def of_pod(pod: Pod, observed: Observed) -> Loss:
    """Why this pod, which is ending or has ended, was lost."""
    node = observed.nodes.get(pod.node)
    if pod.terminating:
        what = f"{pod.role} pod {pod.name}{_on(pod.node)}"
        if node is not None and not (node.exists and node.ready):
            state = "is not Ready" if node.exists else "does not exist any more"
            return Loss("infrastructure", f"{what} is lost: its node {state}", pod.name, pod.node)
        if pod.is_forced and not pod.is_disrupted:
            # The API server marks such a pod before it removes it: what was seen first is chance.
            return Loss("infrastructure", f"{what} {_IS_GONE}", pod.name, pod.node)
        what = f"{what} is being deleted (a drain, an eviction, or by hand)"
        return Loss("preemption", what, pod.name, pod.node)
    rule = classify(pod)
    return Loss(rule.cause, describe(pod, rule), pod.name, pod.node, pod.exit_code)


def _gone(job: Job, place: Place, nodes: Mapping[str, str]) -> Loss:
    index, incarnation = place
    pod = names.worker(job.name, index, incarnation) if incarnation else ""
    node = nodes.get(pod, "")
    what = f"worker pod {pod}{_on(node)}" if pod else f"the pod of worker {index}"
    return Loss("infrastructure", f"{what} {_IS_GONE}", pod, node)


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


# --- who ran --------------------------------------------------------------------------------------


def running_ranges(job: Job, observed: Observed, status: TrainingJobStatus) -> dict[str, int]:
    """The workers of the attempt whose loss is yet to be counted, as `status.runningWorkers` has
    them: one for each index, and none that is deleted because it counts as lost.
    """
    handled = frozenset(status.handled_pods)
    running: dict[int, int] = {}
    for pod in read_attempt(observed, status.coordinator_term).live:
        if pod.phase == "Running" and pod.index < job.spec.replicas and pod.uid not in handled:
            incarnation = incarnation_of(pod)
            running[pod.index] = min(incarnation, running.get(pod.index, incarnation))
    return _ranges(running.items())


def _ranges(places: Iterable[Place]) -> dict[str, int]:
    """Places as ranges of indexes with the same incarnation, such as {"0-63": 1, "64": 2}."""
    ranges = {}
    numbered = enumerate(sorted(places))
    for (_, incarnation), group in groupby(numbered, lambda one: (one[1][0] - one[0], one[1][1])):
        indexes = [index for _, (index, _) in group]
        first, last = indexes[0], indexes[-1]
        ranges[f"{first}-{last}" if first < last else f"{first}"] = incarnation
    return ranges


def _ran(job: Job, observed: Observed) -> set[Place]:
    """The workers that ran when the status was written, and whose loss it does not count."""
    ranges = job.status.running_workers
    if ranges is None:
        return _ran_by_older_status(job, observed)
    found = (
        (index, incarnation)
        for text, incarnation in ranges.items()
        if (ends := _RANGE.fullmatch(text))
        for index in range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    )
    # None is in it twice. What somebody else has written may be without end.
    return set(islice(found, WORKERS_REMEMBERED))


def _ran_by_older_status(job: Job, observed: Observed) -> set[Place]:
    """The same by the status of a release without `runningWorkers`. It shows 64 workers. Where all
    were ready, each other one ran too. Its incarnation is that of its pod, 0 where none is left.
    """
    status, handled = job.status, frozenset(job.status.handled_pods)
    shown = [worker for worker in status.workers if worker.state == "Running"]
    counted = {pod.name for pod in observed.workers if pod.uid in handled}
    ran = {
        (worker.index, int(end[1]))
        for worker in shown
        if worker.pod not in counted and (end := _INCARNATION.search(worker.pod))
    }
    if not status.ready_replicas == status.replicas == job.spec.replicas:
        return ran
    live = {pod.index for pod in observed.workers if pod.alive}
    others = set(range(job.spec.replicas)) - live - {worker.index for worker in shown}
    left = dict(sorted(_place(pod) for pod in observed.workers if pod.uid not in handled))
    return ran | {(index, left.get(index, 0)) for index in others}


def _place(pod: Pod) -> Place:
    return pod.index, incarnation_of(pod)
