"""Replaces a worker for which all others wait in every step, when `failureDetection.stragglerAction` says so. Pure.

The pod is deleted as a drain does it: SIGTERM, one agreed last step, no lost step. Its node is avoided from then on.
One at a time, and only while the job is whole and can train without it: a straggler is better than nobody.
"""

from __future__ import annotations

from regroup_operator.api import TrainingJobSpec, TrainingJobStatus
from regroup_operator.observed import Job, Observed, Pod
from regroup_operator.plan import DeletePod, Event, Step


def replace_straggler(job: Job, observed: Observed, status: TrainingJobStatus) -> Step:
    """Give the slowest straggler's place to a worker on another node."""
    answer = observed.coordinator.status
    if job.spec is None or job.spec.failure_detection.straggler_action != "Replace" or answer is None:
        return Step(status)
    heard = {member.member for member in answer.members if not member.lost}
    pods = {pod.uid: pod for pod in observed.workers if pod.alive and pod.uid in heard}
    slowest = next((straggler for straggler in answer.stragglers if straggler.member in pods), None)
    if slowest is None or not _can_be_missed(job.spec, list(pods.values()), observed):
        return Step(status)
    pod = pods[slowest.member]
    excluded = tuple(sorted({*status.excluded_nodes, pod.node}))
    failures = {**status.node_failures, pod.node: max(status.node_failures.get(pod.node, 0), _limit(job.spec))}
    why = f"it computes {slowest.percent} % longer than the median rank"
    return Step(
        status.model_copy(update={"excluded_nodes": excluded, "node_failures": failures}),
        (DeletePod(pod, why),),
        (Event("Normal", "StragglerReplaced", f"{pod.name} leaves, {pod.node} is avoided: {why}", pod.uid),),
    )


def _limit(spec: TrainingJobSpec) -> int:
    """As many failures as exclude a node: whoever counts them later comes to the same list."""
    return spec.node_failure_policy.exclude_after_failures


def _can_be_missed(spec: TrainingJobSpec, running: list[Pod], observed: Observed) -> bool:
    if not _limit(spec):  # no node may be avoided: the replacement could come back to this one for ever
        return False
    whole = len(running) >= spec.replicas + spec.spares and not any(pod.terminating for pod in observed.workers)
    return whole and len(running) - 1 >= spec.min_replicas
