"""Whether a coordinator that does not answer is dead. Pure.

That the operator gets no answer is no evidence: perhaps it is the operator that is cut off, or
busy. A successor needs somebody else who confirms it: Kubernetes about the pod or its node, or,
since that comes 15 to 50 seconds after a power loss, two of the job's own agents.

An answer that cannot be taken (401, not a status, too large) is an answer: it is no evidence of
death.
"""

from __future__ import annotations

from collections.abc import Mapping

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.observe.observed import LEASE_STALE_SECONDS, Node, Observed, Pod
from regroup_trainer.protocol.desired import CoordinatorContact
from regroup_trainer.protocol.job_status import Waiting, unknown_protocol
from regroup_trainer.protocol.waiting_reasons import WaitingReason

UNANSWERED_SECONDS = 3.0
"""How long a coordinator that is dead has answered neither the operator nor an agent."""
UNREADABLE_ANSWERS = 3
"""Answers in a row that are no status, after which the message of the job says so."""
OUTAGE_SECONDS = 5.0
"""The pause between two looks at the node of one of many coordinators that do not answer."""
WITNESSES = 2
"""Agents that have to agree; all of them where there are fewer."""
BYSTANDERS = 3
"""Agents beside the coordinator that are asked with a witness that is alone: all in one turn."""


def is_unreadable(observed: Observed) -> bool:
    """Whether the coordinator answers, but not with a status."""
    view = observed.coordinator
    return view.failures >= UNREADABLE_ANSWERS and not view.unanswered_seconds


def is_unresponsive(observed: Observed) -> bool:
    """Whether the coordinator has not answered the operator for too long. No evidence yet."""
    return observed.coordinator.unanswered_seconds >= UNANSWERED_SECONDS


def why_dead(pod: Pod, observed: Observed, status: TrainingJobStatus) -> str:
    """What shows that a running coordinator is dead; empty while nothing does."""
    if not is_unresponsive(observed):
        return ""
    return (
        _why_node_is_bad(observed.nodes.get(pod.node))
        or _why_pod_is_bad(pod, observed, status)
        or _what_agents_report(pod, observed, status)
    )


def is_evidence(contacts: Mapping[str, CoordinatorContact]) -> bool:
    """Whether what agents report may show that their coordinator is dead."""
    answered = [contact.unanswered_seconds < UNANSWERED_SECONDS for contact in contacts.values()]
    return bool(answered) and not any(answered)


def node_is_bad(node: Node | None) -> bool:
    """Whether Kubernetes shows that nothing on this node runs any more."""
    return bool(_why_node_is_bad(node))


def witnesses(pod: Pod, observed: Observed) -> tuple[Pod, ...]:
    """The workers whose agents can show that this coordinator is dead: those on other nodes, which
    do not share its fate; where there are none, those beside it.
    """
    running = _running(observed)
    elsewhere = [worker for worker in running if worker.node != pod.node]
    return tuple(elsewhere or running)


def bystanders(pod: Pod, observed: Observed) -> tuple[Pod, ...]:
    """The workers beside the coordinator whose agents are asked too, where a witness is alone. They
    may show that it lives, and not that it is dead: they may be dead with it.
    """
    found = witnesses(pod, observed)
    if len(found) >= WITNESSES:
        return ()
    return tuple(worker for worker in _running(observed) if worker not in found)[:BYSTANDERS]


def _running(observed: Observed) -> list[Pod]:
    return [p for p in observed.workers if p.alive and p.phase == "Running" and p.ip]


def outage_due(observed: Observed) -> float | None:
    """Seconds until the node of a coordinator is looked at again during an outage of many; None
    while there is none. What Kubernetes reports by itself comes earlier.
    """
    view = observed.coordinator
    return OUTAGE_SECONDS if view.failures and not view.trusts_agents else None


def explain_no_answer(
    pod: Pod | None, observed: Observed, status: TrainingJobStatus, *, quoting: bool = True
) -> Waiting | None:
    """Why a coordinator that does not answer is kept: nobody knows whether it is dead. None while
    it answers. `quoting`: with the error, which may be another one after each try.

    No answer of one whose protocol is unknown can be taken, also none of a successor that starts.
    """
    view = observed.coordinator
    if pod is not None and view.status is None and (problem := unknown_protocol_of(status)):
        return Waiting.of(
            WaitingReason.CoordinatorUnreachable, f"coordinator pod {pod.name} {problem}"
        )
    if (
        pod is None
        or pod.phase != "Running"
        or not (is_unresponsive(observed) or is_unreadable(observed))
    ):
        return None
    where, error = f"coordinator pod {pod.name} on node {pod.node}", f": {view.error}"
    if not quoting:
        error = ""
    text = f"{where} gives an answer that the operator cannot take{error}"
    if not is_unreadable(observed):
        known = _what_is_known(pod, observed)
        text = f"{where} does not answer the operator{error}. {known}, so it is kept"
    advice = f" (see kubectl logs {pod.name})"
    return Waiting.of(WaitingReason.CoordinatorUnreachable, text + advice)


def unknown_protocol_of(status: TrainingJobStatus) -> str:
    """What is said of a coordinator of a job of an unknown protocol; empty where it is known."""
    problem = unknown_protocol(status.protocol_version)
    return f"speaks {problem}" if problem else ""


def _why_node_is_bad(node: Node | None) -> str:
    if node is None:
        return ""
    if not node.exists:
        return f"its node {node.name} does not exist any more"
    if not node.ready:
        return f"its node {node.name} is not Ready"
    stale = node.lease_unchanged_seconds >= LEASE_STALE_SECONDS
    return f"its node {node.name} does not renew its lease" if stale else ""


def _why_pod_is_bad(pod: Pod, observed: Observed, status: TrainingJobStatus) -> str:
    """A container that waits is started again by its kubelet. One that never answered may start for
    the first time.
    """
    failed = _has_led(pod, observed, status) and not pod.ready and not pod.waiting_reason
    return "Kubernetes reports that its pod is not Ready" if failed else ""


def _has_led(pod: Pod, observed: Observed, status: TrainingJobStatus) -> bool:
    """Whether this coordinator has answered this operator, or the one before, whose status has a
    generation of it.
    """
    number = status.rendezvous_generation or ""
    return observed.coordinator.status is not None or number.startswith(f"{pod.term}.")


def _what_agents_report(pod: Pod, observed: Observed, status: TrainingJobStatus) -> str:
    alone = _without_answers(pod, observed, status)
    enough = alone and len(alone) >= min(WITNESSES, len(witnesses(pod, observed)))
    if not enough or _some_get_answers(observed) or not observed.coordinator.trusts_agents:
        return ""
    names = ", ".join(worker.name for worker in alone[:WITNESSES])
    return f"{names} have had no answer from it for {UNANSWERED_SECONDS:.0f} s either"


def _without_answers(pod: Pod, observed: Observed, status: TrainingJobStatus) -> list[Pod]:
    """Those whom a coordinator that they, or an operator, know does not answer."""
    contacts, has_led = observed.coordinator.contacts, _has_led(pod, observed, status)
    return [
        worker
        for worker in witnesses(pod, observed)
        if (contact := contacts.get(worker.uid)) is not None
        and contact.unanswered_seconds >= UNANSWERED_SECONDS
        and (contact.term == pod.term or has_led)
    ]


def _some_get_answers(observed: Observed) -> bool:
    contacts = observed.coordinator.contacts
    return bool(contacts) and not is_evidence(contacts)


def _what_is_known(pod: Pod, observed: Observed) -> str:
    """One sentence without numbers that change: each new sentence would be another status."""
    if not observed.coordinator.trusts_agents:
        return (
            "Many coordinators stopped answering at once, so the fault is likely between them and "
            "the operator"
        )
    if _some_get_answers(observed):
        return "It still answers its workers"
    if pod.waiting_reason:
        return "Its kubelet is starting it again"
    return (
        "Whether it is dead is unknown: its pod and its node look well, and fewer workers than "
        "needed could be asked"
    )
