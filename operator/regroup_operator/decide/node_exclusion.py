"""Which nodes a job avoids because they failed it too often, and when it uses them again. Pure.

Pods that one outage takes from a node are one failure. A failure is forgotten after
`FORGET_SECONDS` without another on its node. An exclusion also yields when the scheduler cannot
place `minReplicas` workers, or the coordinator, without the node: a bad node is better than none.
The job then counts one failure less there, so that the next excludes the node again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from regroup_operator.api.names import WORKER
from regroup_operator.api.policies import NodeFailurePolicy
from regroup_operator.api.status import NODES_REMEMBERED, TrainingJobStatus
from regroup_operator.api.timestamps import format_time, parse_time
from regroup_operator.decide.plan import Event, Step, sum_up
from regroup_operator.observe.observed import AnyJob, Job, Observed, Pod

FORGET_SECONDS = 3600.0
"""One failure of a node is forgotten after each such time without another."""
OUTAGE_SECONDS = 120.0
"""The ends of a node's pods are noticed within such a time after each other."""


def count_node_failures(
    status: TrainingJobStatus, lost: Iterable[Pod], policy: NodeFailurePolicy, now: datetime
) -> Step:
    """Count one failure for each node that has taken pods with it, and exclude the nodes that reach
    the limit.
    """
    counts, times = dict(status.node_failures), dict(status.node_failure_times)
    for name in {pod.node for pod in lost if pod.node and not _was_counted(pod, times, now)}:
        counts[name] = counts.get(name, 0) + 1
        times[name] = format_time(now)
    changed = with_counts(status, counts, times)
    excluded = _excluded(changed.node_failures, policy)
    fresh = [name for name in excluded if name not in status.excluded_nodes]
    events = {name: _excluded_event(name, counts[name], policy, now) for name in fresh}
    changed = changed.model_copy(update={"excluded_nodes": excluded})
    return Step(changed, (), sum_up(events, "nodes are excluded"))


def _was_counted(pod: Pod, times: Mapping[str, str], now: datetime) -> bool:
    """Whether the last failure of its node has taken it: it was there, a moment ago."""
    last = times.get(pod.node)
    if not last or not pod.placed or parse_time(pod.placed) >= parse_time(last):
        return False
    return abs((now - parse_time(last)).total_seconds()) < OUTAGE_SECONDS


def readmit_nodes(
    job: AnyJob, observed: Observed, status: TrainingJobStatus, now: datetime
) -> Step:
    """Forget old failures, and use excluded nodes again: after a calm time, or when needed."""
    policy = job.policies.node_failure
    calm = _forget_old(status, now)
    kept = _excluded(calm.node_failures, policy)
    why = f"no failure there for {FORGET_SECONDS / 3600:.0f} h"
    events = sum_up(
        {
            name: _readmitted_event(name, why, now)
            for name in status.excluded_nodes
            if name not in kept
        },
        "nodes are used again",
    )
    calm = calm.model_copy(update={"excluded_nodes": kept})
    needed = _needed(job, observed, calm)
    if not needed:
        return Step(calm, (), events)
    counts = {**calm.node_failures, needed: policy.exclude_after_failures - 1}
    again = with_counts(calm, counts, calm.node_failure_times)
    again = again.model_copy(
        update={"excluded_nodes": tuple(name for name in kept if name != needed)}
    )
    return Step(again, (), (*events, _readmitted_event(needed, _why_needed(job), now)))


def _needed(job: AnyJob, observed: Observed, status: TrainingJobStatus) -> str:
    """The excluded node to use again now: the one that failed least; empty when none has to be.

    One at a time: the pods that are made for it show whether another one is needed.
    """
    if not isinstance(job, Job):
        return ""
    placed = [pod for pod in observed.workers if pod.alive and pod.node]
    enough = len(placed) >= job.spec.min_replicas
    refused = {
        name
        for pod in observed.pods
        if pod.alive and pod.unschedulable and not (enough and pod.role == WORKER)
        for name in pod.excluded_nodes
    }
    candidates = refused.intersection(status.excluded_nodes)
    return min(candidates, key=lambda name: (status.node_failures.get(name, 0), name), default="")


def _forget_old(status: TrainingJobStatus, now: datetime) -> TrainingJobStatus:
    """With the failures that are still remembered. A time that is missing, or later than `now`
    since a clock was wrong, counts as now.
    """
    counts, times = {}, {}
    for name, count in status.node_failures.items():
        given = status.node_failure_times.get(name)
        since = min(parse_time(given), now) if given else now
        steps = int((now - since).total_seconds() // FORGET_SECONDS)
        if count > steps:
            counts[name] = count - steps
            times[name] = format_time(since + timedelta(seconds=steps * FORGET_SECONDS))
    return with_counts(status, counts, times)


def with_counts(
    status: TrainingJobStatus, counts: Mapping[str, int], times: Mapping[str, str]
) -> TrainingJobStatus:
    """The status with these failures: of the nodes that failed last, where there are too many."""
    left = [name for name, count in counts.items() if count > 0]
    left = sorted(left, key=lambda name: times.get(name, ""))[-NODES_REMEMBERED:]
    update = {
        "node_failures": {name: counts[name] for name in sorted(left)},
        "node_failure_times": {name: times[name] for name in sorted(left) if name in times},
    }
    return status.model_copy(update=update)


def _excluded(counts: Mapping[str, int], policy: NodeFailurePolicy) -> tuple[str, ...]:
    limit = policy.exclude_after_failures
    return tuple(sorted(name for name, count in counts.items() if 0 < limit <= count))


def _excluded_event(name: str, count: int, policy: NodeFailurePolicy, now: datetime) -> Event:
    limit = f"spec.nodeFailurePolicy.excludeAfterFailures={policy.exclude_after_failures}"
    text = (
        f"node {name} failed {count} times ({limit}): new pods avoid it for "
        f"{FORGET_SECONDS / 3600:.0f} h after its last failure, unless minReplicas needs it"
    )
    return Event("Warning", "NodeExcluded", text, f"{name}-{format_time(now)}")


def _readmitted_event(name: str, why: str, now: datetime) -> Event:
    text = f"node {name} is used again: {why}"
    return Event("Normal", "NodeReadmitted", text, f"{name}-{format_time(now)}")


def _why_needed(job: AnyJob) -> str:
    fewest = f"minReplicas={job.size.min_replicas} workers"
    return f"without it {fewest} or the coordinator cannot be placed"
