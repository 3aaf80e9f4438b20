"""Which workers are lost, which nodes are suspected, and which ends have been counted. Pure.

The coordinator notices losses first, because it receives the agents' heartbeats: Kubernetes reports
a node as Ready for most of a minute after its power is gone. A node is suspected when a worker on
it stops responding. It is trusted again when it is Ready and its lease changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from regroup_operator.api.policies import NodeFailurePolicy
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import format_time, parse_time
from regroup_operator.decide.coordinator_evidence import node_is_bad
from regroup_operator.decide.failures import classify, describe
from regroup_operator.decide.launcher_policy import LauncherPolicy
from regroup_operator.decide.node_exclusion import count_node_failures, readmit_nodes
from regroup_operator.decide.plan import DeletePod, Event, Step, sum_up
from regroup_operator.decide.staffing import backoff_left
from regroup_operator.observe.observed import (
    AnyJob,
    Node,
    Observed,
    Pod,
    incarnation_of,
)

KUBELET_GRACE_SECONDS = 2.0
"""How long to wait for the kubelet's report on a worker that the coordinator lost: its process may
have ended although its node is fine.
"""
JOIN_SECONDS = 5.0
"""How long a coordinator must have answered before an unresponsive worker on a suspected node
counts as lost.
"""

UNKNOWN_SECONDS = 60.0
"""How long a node must not be Ready while no coordinator reports whether its workers are alive.
Kubernetes itself reports nodes as not Ready for some seconds after an outage of the API server.
"""
CUT_OFF_SECONDS = 15.0
"""How long workers may take to reach the coordinator again once its Service is made."""
CALM_SECONDS = 60.0
"""Earlier failures of pods are forgotten after training this long without another."""

Lost = Mapping[Pod, str]
"""Live worker pod -> why it counts as lost."""


def find_lost(
    status: TrainingJobStatus,
    observed: Observed,
    policy: NodeFailurePolicy,
    *,
    has_coordinator: bool,
) -> Lost:
    """Worker pods that are lost, or can never run, although Kubernetes still reports them as
    alive.
    """
    patience = _patience(observed, policy) if has_coordinator else policy.not_ready_seconds
    suspects = frozenset(_still_suspected(status, observed))
    avoided = suspects | set(status.excluded_nodes)
    reasons = {
        pod: _why_misplaced(pod, observed.nodes.get(pod.node), suspects, avoided)
        if pod.phase == "Pending"
        else _why_unresponsive(pod, suspects, observed, patience)
        for pod in observed.workers
        if pod.alive and not _is_cut_off(pod, observed)
    }
    return {pod: why for pod, why in reasons.items() if why}


def _patience(observed: Observed, policy: NodeFailurePolicy) -> float:
    """How long a node may be not Ready before its workers count as lost. While no coordinator
    answers, nobody says whether they live, and nobody could join in their place: the live state
    that they may have is worth the wait.
    """
    view = observed.coordinator
    is_answering = view.failures == 0 and view.answering_seconds >= JOIN_SECONDS
    return (
        policy.not_ready_seconds if is_answering else max(policy.not_ready_seconds, UNKNOWN_SECONDS)
    )


def _is_cut_off(pod: Pod, observed: Observed) -> bool:
    """Whether a pod may not reach the coordinator because the Service was deleted: it is missing,
    or is seen since a moment, and was made after the pod. The two times are the API server's.
    """
    service = observed.service
    if pod.phase != "Running" or not pod.placed:
        return False
    if service is None or not service.created:
        return service is None
    is_new = observed.service_seconds < CUT_OFF_SECONDS
    return is_new and parse_time(pod.placed) < parse_time(service.created)


def _why_misplaced(
    pod: Pod, node: Node | None, suspects: frozenset[str], avoided: frozenset[str]
) -> str:
    """Why a pod that does not run yet must be replaced; empty when it need not. Its affinity was
    fixed when it was made.
    """
    if pod.node in suspects or node_is_bad(node):
        return "it was placed on an unresponsive node"
    return "a node that it avoids may be used again" if avoids_in_vain(pod, avoided) else ""


def avoids_in_vain(pod: Pod, avoided: Set[str]) -> bool:
    """Whether a pod that has no node yet excludes one that need no longer be avoided."""
    return not pod.node and any(name not in avoided for name in pod.excluded_nodes)


def _why_unresponsive(
    pod: Pod, suspects: frozenset[str], observed: Observed, patience: float
) -> str:
    """Why a pod counts as lost although Kubernetes reports it as Running; empty when it does
    not.
    """
    view, node = observed.coordinator, observed.nodes.get(pod.node)
    if view.lost_seconds.get(pod.uid, 0.0) >= KUBELET_GRACE_SECONDS:
        return "it sends the coordinator no heartbeats"
    if view.failures == 0 and pod.uid in view.live_members:
        return ""
    if node is not None and not node.exists:
        return "its node does not exist any more"
    if view.knows_cut_off:
        return ""  # it may be one of those who train on
    if node is not None and not node.ready and node.not_ready_seconds >= patience:
        return "its node is not Ready"
    if pod.node in suspects and view.answering_seconds >= JOIN_SECONDS:
        return "its node is unresponsive and it sends the coordinator no heartbeats"
    return ""


def next_suspects(status: TrainingJobStatus, observed: Observed, lost: Lost) -> tuple[str, ...]:
    """The nodes to avoid from now on: former suspects that still do not respond, and the nodes of
    unresponsive workers.
    """
    unresponsive = [
        pod.node
        for pod in lost
        if pod.phase == "Running" and can_be_judged(pod.node, observed.nodes)
    ]
    return tuple(dict.fromkeys([*_still_suspected(status, observed), *unresponsive]))


def _still_suspected(status: TrainingJobStatus, observed: Observed) -> list[str]:
    return [name for name in status.suspected_nodes if not _is_cleared(name, observed.nodes)]


def can_be_judged(name: str, nodes: Mapping[str, Node]) -> bool:
    """Whether the node was read, and exists. Without the right to read nodes none is suspected,
    because no suspicion could be cleared.
    """
    return name in nodes and nodes[name].exists


def _is_cleared(name: str, nodes: Mapping[str, Node]) -> bool:
    node = nodes.get(name)
    return node is not None and (not node.exists or (node.ready and node.lease_renewed))


# --- ends -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountedEnds:
    """The result of counting ended and lost pods."""

    status: TrainingJobStatus
    failed: bool
    """Whether a failure that counts was found."""
    superseded: tuple[Pod, ...]
    """Ended pods whose successor of the same index has ended too: their logs are no longer needed.
    """
    events: tuple[Event, ...]


def account_for_ends(
    job: AnyJob, status: TrainingJobStatus, observed: Observed, lost: Lost, now: datetime
) -> CountedEnds:
    """Count each ended or lost worker pod exactly once: `handledPods` holds those that have been
    counted. Pods whose labels or owner somebody has edited are a failure too, one for each
    back-off: whoever does it to each new pod would otherwise have new ones without end.
    """
    ended = [
        pod
        for pod in observed.workers
        if pod.phase in ("Failed", "Succeeded") and not pod.terminating
    ]
    known = set(status.handled_pods)
    fresh = [pod for pod in ended if pod.uid not in known]
    unresponsive = [pod for pod in lost if pod.phase == "Running" and pod.uid not in known]
    failed = [pod for pod in fresh if pod.phase == "Failed"]
    counted = [pod for pod in failed if classify(pod).action == "Restart"]
    blamed = [
        *(pod for pod in failed if classify(pod).blames_node),
        *unresponsive,
    ]
    policy = job.policies.node_failure
    nodes = count_node_failures(status, _of_known_nodes(blamed, observed), policy, now)
    taken = [pod for pod in observed.taken if pod.alive and pod.uid not in known]
    is_failure = bool(taken) and backoff_left(job, status, now) <= 0
    present = {pod.uid for pod in (*observed.workers, *observed.taken)}
    handled = [uid for uid in status.handled_pods if uid in present]
    changed = nodes.status.model_copy(
        update={
            "handled_pods": (*handled, *(pod.uid for pod in (*fresh, *unresponsive, *taken))),
            "pod_failures": status.pod_failures + len(counted) + is_failure,
        }
    )
    events = (
        *sum_up({pod.name: _worker_lost(pod) for pod in failed}, "workers are lost"),
        *nodes.events,
    )
    return CountedEnds(changed, bool(counted) or is_failure, _superseded(ended), events)


def _of_known_nodes(pods: list[Pod], observed: Observed) -> list[Pod]:
    """A node that was invented must not take the place of one that fails."""
    return [pod for pod in pods if pod.node not in observed.unknown_nodes]


def _worker_lost(pod: Pod) -> Event:
    rule = classify(pod)
    counts = ", which counts against maxRestarts" if rule.action == "Restart" else ""
    text = f"{describe(pod, rule)}; a new pod takes its place{counts}"
    return Event("Warning", "WorkerLost", text, pod.uid)


def _superseded(ended: list[Pod]) -> tuple[Pod, ...]:
    newest: dict[int, Pod] = {}
    for pod in ended:  # by index, then name: the incarnation at its end decides
        if pod.index not in newest or incarnation_of(pod) > incarnation_of(newest[pod.index]):
            newest[pod.index] = pod
    return tuple(pod for pod in ended if newest[pod.index] is not pod)


# --- removal --------------------------------------------------------------------------------------


def remove_lost(job: AnyJob, observed: Observed, launcher: LauncherPolicy, now: datetime) -> Step:
    """Count the ends of workers once, suspect nodes that stopped responding, remove what is
    lost.
    """
    policy = job.policies.node_failure
    remembered = _with_handled_pods(job, observed)
    if launcher.is_training(job, observed):
        remembered = _forgive(remembered, now)
    readmitted = readmit_nodes(job, observed, remembered, now)
    remembered = readmitted.status
    has_coordinator = launcher.has_coordinator
    lost = find_lost(remembered, observed, policy, has_coordinator=has_coordinator)
    ends = account_for_ends(job, remembered, observed, lost, now)
    suspects = next_suspects(remembered, observed, lost)
    status = ends.status.model_copy(update={"suspected_nodes": suspects})
    if ends.failed:
        status = status.model_copy(update={"last_pod_failure_time": format_time(now)})
    gone = [DeletePod(pod, why) for pod, why in lost.items()]
    stuck = remove_stuck(status, observed, policy)
    superseded = [DeletePod(pod, "superseded") for pod in ends.superseded]
    events = [*readmitted.events, *ends.events]
    placed = {pod.name: _node_lost(pod, why) for pod, why in lost.items() if pod.node}
    events += sum_up(placed, "workers count as lost")
    return Step(status, (*gone, *stuck.actions, *superseded), (*events, *stuck.events))


def remove_stuck(status: TrainingJobStatus, observed: Observed, policy: NodeFailurePolicy) -> Step:
    """Remove by force what waits for a kubelet that is gone."""
    stuck = _stuck(observed, policy)
    events = sum_up({pod.name: _force_deleted(pod) for pod in stuck}, "pods were removed by force")
    return Step(status, tuple(DeletePod(pod, "its node is gone", 0) for pod in stuck), events)


def _node_lost(pod: Pod, why: str) -> Event:
    return Event(
        "Warning", "NodeLost", f"{pod.name} on node {pod.node} counts as lost: {why}", pod.uid
    )


def _force_deleted(pod: Pod) -> Event:
    text = f"{pod.name} was removed by force: its node is gone"
    return Event("Warning", "PodForceDeleted", text, pod.uid)


def _with_handled_pods(job: AnyJob, observed: Observed) -> TrainingJobStatus:
    """Where `handledPods` could not be read, all pods that have ended count as handled."""
    if not any(path.split(".")[0] == "handledPods" for path in job.unreadable_status):
        return job.status
    ended = tuple(pod.uid for pod in observed.workers if pod.phase in ("Failed", "Succeeded"))
    return job.status.model_copy(update={"handled_pods": ended})


def _forgive(status: TrainingJobStatus, now: datetime) -> TrainingJobStatus:
    """Forget failures of pods in a row once the job has trained for a while without another."""
    if not status.pod_failures or status.last_pod_failure_time is None:
        return status
    calm = (now - parse_time(status.last_pod_failure_time)).total_seconds()
    return status.model_copy(update={"pod_failures": 0}) if calm >= CALM_SECONDS else status


def _stuck(observed: Observed, policy: NodeFailurePolicy) -> list[Pod]:
    """Pods that wait for a kubelet that is gone, and whose removal cannot lead to two writers on
    one volume. Those that were removed by force already wait for somebody's finalizer.
    """
    return [
        pod
        for pod in observed.pods
        if pod.terminating and not pod.is_forced and pod.node and _may_force(pod, observed, policy)
    ]


def _may_force(pod: Pod, observed: Observed, policy: NodeFailurePolicy) -> bool:
    node = observed.nodes.get(pod.node)
    if node is None:
        return False
    if not node.exists or node.out_of_service:
        return True
    claim = observed.claim
    shared = pod.only_shared_volumes and all(
        claim is not None and name == claim.name and "ReadWriteMany" in claim.access_modes
        for name in pod.claims
    )
    return shared and not node.ready and node.not_ready_seconds >= policy.force_delete_seconds
