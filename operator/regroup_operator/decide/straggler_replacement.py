"""Replaces a worker for which all others wait in every step, when
`failureDetection.stragglerAction` is Replace. Pure.

The pod is deleted as a drain does it: SIGTERM, one agreed last step, no lost step. Its node is
avoided from then on. One worker is replaced at a time, and only while the job is whole and can
train without it: a straggler is better than no worker.
"""

from __future__ import annotations

from datetime import datetime

from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.node_exclusion import with_counts
from regroup_operator.decide.plan import DeletePod, Event, Step
from regroup_operator.observe.observed import Job, Observed, Pod


def replace_straggler(
    job: Job, observed: Observed, status: TrainingJobStatus, now: datetime
) -> Step:
    """Replace the slowest straggler by a worker on another node."""
    report = observed.coordinator.status
    if job.spec.failure_detection.straggler_action != "Replace" or report is None:
        return Step(status)
    members = observed.coordinator.live_members
    pods = {pod.uid: pod for pod in observed.workers if pod.alive and pod.uid in members}
    slowest = next((straggler for straggler in report.stragglers if straggler.member in pods), None)
    if slowest is None or not _can_be_spared(job.spec, list(pods.values()), observed):
        return Step(status)
    pod = pods[slowest.member]
    failures = {
        **status.node_failures,
        pod.node: max(status.node_failures.get(pod.node, 0), _limit(job.spec)),
    }
    why = f"it computes {slowest.percent} % longer than the median rank"
    times = {**status.node_failure_times, pod.node: format_time(now)}
    counted = with_counts(status, failures, times)
    excluded = sorted({*status.excluded_nodes, pod.node} & counted.node_failures.keys())
    return Step(
        counted.model_copy(update={"excluded_nodes": tuple(excluded)}),
        (DeletePod(pod, why),),
        (
            Event(
                "Normal",
                "StragglerReplaced",
                f"{pod.name} leaves, {pod.node} is avoided: {why}",
                pod.uid,
            ),
        ),
    )


def _limit(spec: TrainingJobSpec) -> int:
    """The number of failures that excludes a node, so that later counting keeps it excluded."""
    return spec.node_failure_policy.exclude_after_failures


def _can_be_spared(spec: TrainingJobSpec, running: list[Pod], observed: Observed) -> bool:
    if not _limit(
        spec
    ):  # no node may be avoided: the replacement could come back to this one for ever
        return False
    whole = len(running) >= spec.replicas + spec.spares and not any(
        pod.terminating for pod in observed.workers
    )
    return whole and len(running) - 1 >= spec.min_replicas
