"""Keeps one coordinator per job, and gives a dead one a successor. Pure."""

from __future__ import annotations

from datetime import datetime

from regroup_operator.api import TrainingJobStatus
from regroup_operator.losses import avoids_in_vain, can_be_judged
from regroup_operator.observed import LEASE_STALE_SECONDS, Blocker, Job, Observed, Pod
from regroup_operator.plan import Action, CreateCoordinator, DeletePod, EnsureAccess, EnsureService, Step

PROBE_FAILURES = 3
"""Probes in a row, a second apart, after which the coordinator gets a successor."""


def current_coordinator(job: Job, observed: Observed) -> Pod | None:
    """The pod that leads: the live one of the current term, or one that is asked to go and still answers.

    An evicted coordinator leads until the workers that are evicted with it have left. A successor beside it could form
    a world of its own with their replacements.
    """
    pod = next((pod for pod in observed.coordinators if pod.term == job.status.coordinator_term), None)
    return pod if pod is not None and (pod.alive or _still_leads(pod, observed)) else None


def _still_leads(pod: Pod, observed: Observed) -> bool:
    view = observed.coordinator
    return pod.terminating and pod.phase == "Running" and view.status is not None and view.failures < PROBE_FAILURES


def keep_coordinator(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, _now: datetime
) -> Step:
    """Keep one coordinator; a dead one gets a successor under the next term, never a second life under its own."""
    current = current_coordinator(job, observed)
    old = [
        DeletePod(pod, "a coordinator of an older term")
        for pod in observed.coordinators
        if pod is not current and not pod.terminating
    ]
    if blocker is not None or (current is not None and not _is_dead(current, observed, status)):
        service = _service(observed, status.coordinator_term) if current is not None else ()
        return Step(status, (*old, *service))
    if current is not None:
        old.append(DeletePod(current, "it does not answer"))
    term = status.coordinator_term + 1
    excluded = (*status.suspected_nodes, *status.excluded_nodes)
    if current is not None and current.node not in excluded and can_be_judged(current.node, observed.nodes):
        excluded = (*excluded, current.node)
        status = status.model_copy(update={"suspected_nodes": (*status.suspected_nodes, current.node)})
    return Step(
        status.model_copy(update={"coordinator_term": term}),
        (EnsureAccess(), EnsureService(term), CreateCoordinator(term, excluded), *old),
    )


def _service(observed: Observed, term: int) -> tuple[Action, ...]:
    wrong = observed.service is None or observed.service.term != term
    return (EnsureAccess(), EnsureService(term)) if wrong or not observed.network_policy else ()


def _is_dead(pod: Pod, observed: Observed, status: TrainingJobStatus) -> bool:
    """Whether the coordinator needs a successor.

    A container that its kubelet restarts is left to the kubelet. One that never answered us is only given up with its
    node: perhaps it is we who cannot reach it.
    """
    view = observed.coordinator
    node = observed.nodes.get(pod.node)
    node_is_bad = node is not None and (
        not node.exists or not node.ready or node.lease_unchanged_seconds >= LEASE_STALE_SECONDS
    )
    if pod.phase == "Pending":
        misplaced = pod.node in status.suspected_nodes or bool(pod.node and node_is_bad)
        return misplaced or avoids_in_vain(pod, {*status.suspected_nodes, *status.excluded_nodes})
    if view.failures < PROBE_FAILURES:
        return False
    return node_is_bad or (view.status is not None and not pod.waiting_reason)
