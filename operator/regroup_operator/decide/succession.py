"""Keeps one coordinator per job, replaces a dead one, and keeps it informed. Pure.

Keeps what its pods need to start and to find it: the Service, and the Secret with the token. The
operator may not read Secrets. So it sends this one before it makes pods, and while a pod waits for
its containers: a Secret that exists is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from regroup_operator.api.status import CHECKPOINT_REQUEST, RESTART_REQUEST, TrainingJobStatus
from regroup_operator.api.timestamps import parse_time
from regroup_operator.decide.coordinator_evidence import node_is_bad, why_dead
from regroup_operator.decide.losses import avoids_in_vain, can_be_judged
from regroup_operator.decide.plan import (
    Action,
    CreateCoordinator,
    CreateWorker,
    DeletePod,
    EnsureAccess,
    EnsureService,
    EnsureToken,
    PostLost,
    PutDesired,
    Step,
)
from regroup_operator.decide.staffing import backoff_left, nodes_to_avoid
from regroup_operator.observe.observed import AnyJob, Job, Observed, Pod
from regroup_trainer.protocol.job_status import CoordinatorStatus, Waiting
from regroup_trainer.protocol.message import PROTOCOL_VERSION, printable
from regroup_trainer.protocol.waiting_reasons import WaitingReason

UNCREATED_SECONDS = 5.0
"""How long a pod may wait for its containers before the Secret that it mounts is sent again."""
NAMED_SECONDS = 30.0
"""How long it may wait before the status names it. Images are pulled meanwhile."""
MOUNT_SECONDS = 10.0
"""How long it may wait before its events are read: they say which volume is not mounted."""
EVENT_CHARACTERS = 512
"""Of a kubelet's message."""
SUPERSEDED_SECONDS = 1
"""Grace of a coordinator that has a successor. It may only have been cut off: its agents are to
look for the successor before that takes them for lost, and so forms a generation without them.
"""
TOKEN_SECONDS = 60.0
"""The longest pause between two times that the Secret is sent while a pod waits."""


def current_coordinator(observed: Observed, status: TrainingJobStatus) -> Pod | None:
    """The coordinator in charge: the live one of the current term, or one that is being deleted
    and is not known to be dead.

    An evicted coordinator stays in charge until the workers that are evicted with it have left. A
    successor beside it could form a generation of its own with their replacements.
    """
    pod = next((pod for pod in observed.coordinators if pod.term == status.coordinator_term), None)
    return pod if pod is not None and (pod.alive or _still_leads(pod, observed, status)) else None


def _still_leads(pod: Pod, observed: Observed, status: TrainingJobStatus) -> bool:
    return (
        pod.terminating
        and pod.phase == "Running"
        and observed.coordinator.status is not None
        and not why_dead(pod, observed, status)
    )


def retain_coordinator(observed: Observed, status: TrainingJobStatus) -> tuple[Action, ...]:
    """Remove the coordinators of older terms; let the Service select the current one."""
    current = current_coordinator(observed, status)
    old = _older(observed, current)
    return (*old, *ensure_service(observed, status.coordinator_term)) if current else old


def keep_coordinator(
    job: Job,
    observed: Observed,
    status: TrainingJobStatus,
    blocker: Waiting | None,
    now: datetime,
) -> Step:
    """Keep one coordinator. A dead one gets a successor under the next term; a term is never used
    twice. Where edits take pods from the job, it waits as the workers do.
    """
    current = current_coordinator(observed, status)
    why = _why_replaced(current, observed, status) if current is not None else ""
    waits = observed.loses_pods_to_edits and backoff_left(job, status, now) > 0
    if blocker is not None or waits or (current is not None and not why):
        return Step(status, retain_coordinator(observed, status))
    dead = (DeletePod(current, why, SUPERSEDED_SECONDS),) if current is not None else ()
    if current is not None:
        status = _suspect(current.node, observed, status)
    term = observed.next_term(status.coordinator_term)
    create = CreateCoordinator(term, nodes_to_avoid(status))
    return Step(
        status.model_copy(update={"coordinator_term": term}),
        (EnsureAccess(), EnsureService(term), create, *_older(observed, current), *dead),
    )


def _older(observed: Observed, current: Pod | None) -> tuple[DeletePod, ...]:
    return tuple(
        DeletePod(pod, "a coordinator of an older term", SUPERSEDED_SECONDS)
        for pod in observed.coordinators
        if pod is not current and not pod.terminating
    )


def _suspect(node: str, observed: Observed, status: TrainingJobStatus) -> TrainingJobStatus:
    """With the node of a dead coordinator among the suspects, where it can be cleared again."""
    if node in nodes_to_avoid(status) or not can_be_judged(node, observed.nodes):
        return status
    return status.model_copy(update={"suspected_nodes": (*status.suspected_nodes, node)})


def ensure_service(observed: Observed, term: int) -> tuple[Action, ...]:
    """What makes the Service select this term, and the NetworkPolicy be as wanted, where they are
    not. Nothing where an object of somebody else has one of their names.
    """
    if observed.conflict:
        return ()
    wrong = observed.service is None or observed.service.term != term
    return (EnsureAccess(), EnsureService(term)) if wrong or not observed.network_policy else ()


# --- the token ------------------------------------------------------------------------------------


def send_token(observed: Observed, actions: Iterable[Action], now: datetime) -> tuple[Action, ...]:
    """`actions`, after the one that makes the token's Secret where it may be missing."""
    actions = tuple(actions)
    if any(isinstance(action, EnsureAccess) for action in actions):
        return actions
    makes_pods = any(isinstance(action, CreateCoordinator | CreateWorker) for action in actions)
    return (EnsureToken(), *actions) if makes_pods or token_due(observed, now) == 0 else actions


def token_due(observed: Observed, now: datetime) -> float | None:
    """Seconds until the Secret has to be sent because a pod waits; None while none does.

    The pause grows with the time that the pod waits.
    """
    pods = _uncreated_pods(observed.pods)
    if not pods:
        return None
    waited = max(_waited(pod, now) for pod in pods)
    if waited < UNCREATED_SECONDS:
        return UNCREATED_SECONDS - waited
    sent = observed.token_sent_seconds
    return 0.0 if sent is None else max(0.0, min(waited / 2, TOKEN_SECONDS) - sent)


def uncreated(observed: Observed, now: datetime) -> Waiting | None:
    """The pod that waits for its containers for too long."""
    pod = next(iter(waits_for_volumes(observed.pods, now)), None)
    if pod is not None and (why := observed.mount_failures.get(pod.uid)):
        shown = printable(why[:EVENT_CHARACTERS])
        what = f"pod {pod.name} on node {pod.node} waits for a volume: {shown}"
        advice = "make or repair what it mounts, or correct it in the spec"
        return Waiting.of(WaitingReason.FailedMount, f"{what} ({advice})")
    if pod is None or _waited(pod, now) < NAMED_SECONDS:
        return None
    why = "the image is still being pulled, or something that it mounts is missing"
    if pull := observed.pulls.get(pod.uid):
        doing = printable(pull[:EVENT_CHARACTERS])
        why = f"the kubelet reports {doing}: it is large, or its registry does not answer"
    return Waiting.of(
        WaitingReason.ContainerCreating,
        f"pod {pod.name} is on node {pod.node} since {pod.placed}, but its containers are not "
        f"created: {why} (see kubectl describe pod {pod.name})",
    )


def waits_for_volumes(pods: Iterable[Pod], now: datetime) -> list[Pod]:
    """The pods whose containers are not made for so long that a volume may be missing, the one that
    waits for the longest first.
    """
    late = [pod for pod in _uncreated_pods(pods) if _waited(pod, now) > MOUNT_SECONDS]
    return sorted(late, key=lambda pod: _waited(pod, now), reverse=True)


def _uncreated_pods(pods: Iterable[Pod]) -> list[Pod]:
    """The pods that have a node, and no containers yet."""
    return [pod for pod in pods if pod.alive and pod.placed and not pod.is_created]


def _waited(pod: Pod, now: datetime) -> float:
    """Seconds since a pod has its node. A clock that is behind the API server's counts as none."""
    return max(0.0, (now - parse_time(pod.placed)).total_seconds())


# --- the coordinator's knowledge ------------------------------------------------------------------


def update_coordinator(job: AnyJob, observed: Observed) -> tuple[Action, ...]:
    """Send the coordinator a newer spec, once that is valid, and a new request."""
    report = observed.coordinator.answer
    if report is None or not isinstance(job, Job):
        return ()
    stale = report.revision < job.generation or _lacks_request(job, report)
    return (PutDesired(),) if stale else ()


def _lacks_request(job: Job, report: CoordinatorStatus) -> bool:
    """Whether the coordinator does not know of a request; one of an older release never does."""
    answers = {CHECKPOINT_REQUEST: report.checkpoint_answer, RESTART_REQUEST: report.restart_answer}
    return report.protocol == PROTOCOL_VERSION and any(
        answer is None or answer.request != request
        for name, answer in answers.items()
        if (request := job.open_request(name))
    )


def report_lost(observed: Observed) -> tuple[Action, ...]:
    """Report to the coordinator the members whose pods have ended, while the job goes on."""
    report = observed.coordinator.answer
    if report is None or report.outcome is not None or report.phase == "stopping":
        return ()
    there = {pod.uid for pod in observed.workers if pod.phase in ("Pending", "Running", "Unknown")}
    gone = tuple(m.member for m in report.members if not m.lost and m.member not in there)
    return (PostLost(gone, "Kubernetes reports that the pod has ended"),) if gone else ()


def _why_replaced(pod: Pod, observed: Observed, status: TrainingJobStatus) -> str:
    """Why the coordinator needs a successor; empty when it does not. The kubelet restarts a
    container that ended.
    """
    if pod.phase != "Pending":
        dead = why_dead(pod, observed, status)
        return f"it does not answer, and {dead}" if dead else ""
    if pod.node in status.suspected_nodes or node_is_bad(observed.nodes.get(pod.node)):
        return "it was placed on an unresponsive node"
    in_vain = avoids_in_vain(pod, {*status.suspected_nodes, *status.excluded_nodes})
    return "a node that it avoids may be used again" if in_vain else ""
